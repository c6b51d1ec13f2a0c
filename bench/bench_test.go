package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/bench/measure"
	"github.com/onefill/onefill/bench/peers"
	"github.com/onefill/onefill/bench/report"
	"github.com/onefill/onefill/internal/servers"
)

func TestMain(m *testing.M) {
	measure.Member() // a fleet's processes are this program again
	peers.Silence()
	os.Exit(m.Run())
}

// TestEverythingRuns takes every measure once, with sizes that measure nothing, so that
// none of them rots: each peer works, each number of ours is there, and the report can be
// written. What is exact whatever the size is checked.
func TestEverythingRuns(t *testing.T) {
	sizes := measure.Tiny()
	env := &measure.Env{Size: sizes, Log: testLog{t}}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	run := &report.Run{Command: "go test", When: time.Now(), Sizes: sizes}
	for _, m := range measure.All(sizes, traceFolder(t)) {
		result, err := m.Run(t.Context(), env)
		if errors.Is(err, servers.ErrNotInstalled) && os.Getenv("ONEFILL_SKIP_SERVERS") == "1" {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		run.Results = append(run.Results, result)
		checkRows(t, result)
	}
	run.Servers = env.Versions()
	checkExact(t, run.Results)
	dir := t.TempDir()
	if err := run.Write(dir); err != nil {
		t.Fatal(err)
	}
	checkReport(t, dir, run)
}

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func traceFolder(t *testing.T) string {
	dir := t.TempDir()
	var keys strings.Builder
	for i := range 1000 {
		fmt.Fprintln(&keys, i%50)
	}
	if err := os.WriteFile(filepath.Join(dir, "cycle.keys"), []byte(keys.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// checkRows wants a number in every column of every row, also of the peers: an adapter
// that fails measures nothing.
func checkRows(t *testing.T, r *measure.Result) {
	if len(r.Rows) == 0 {
		t.Errorf("%s has no rows", r.Measure.Name)
	}
	for i := range r.Rows {
		l := &r.Rows[i]
		if l.Err != nil {
			t.Errorf("%s, %s: %v", r.Measure.Name, l.Row.Name, l.Err)
			continue
		}
		n, err := strconv.Atoi(l.Row.Name)
		few := err == nil && n < measure.Weighable
		for _, c := range r.Measure.Columns {
			if few && strings.Contains(c.Head, "bytes") {
				continue
			}
			if v, ok := l.Median(c.ID); !ok || math.IsInf(v, 0) {
				t.Errorf("%s, %s: no number for %s", r.Measure.Name, l.Row.Name, c.ID)
			}
		}
	}
	for _, v := range r.Judge() {
		if !v.Measured {
			t.Errorf("%s: the target %s, %s compares with what is not measured", r.Measure.Name, v.Target.Row, v.Target.Column)
		}
	}
}

// checkExact: who says that a process or the fleet shares a load has one of them. The naive
// way has more, which shows that loads are counted.
func checkExact(t *testing.T, results []*measure.Result) {
	sizes := measure.Tiny()
	most := map[string]map[peers.Scope]float64{
		"herd":       {peers.NoScope: float64(sizes.HerdSizes[0]), peers.Process: 1, peers.Fleet: 1},
		"fleet-herd": {peers.NoScope: float64(sizes.FleetProcs * sizes.FleetSize), peers.Process: float64(sizes.FleetProcs), peers.Fleet: 1},
	}
	for _, r := range results {
		limits := most[r.Measure.Name]
		for i := range r.Rows {
			l := &r.Rows[i]
			if limits == nil || l.Err != nil {
				continue
			}
			loads, _ := l.Median("loads")
			if limit := limits[l.Row.Peer.OneLoad]; loads > limit || loads < 1 {
				t.Errorf("%s, %s: %g loads; who shares one in %s has at most %g", r.Measure.Name, l.Row.Name, loads, l.Row.Peer.OneLoad, limit)
			}
			if l.Row.Name == "naive" && loads <= 1 {
				t.Errorf("%s: nobody shares the naive way's loads, and there was one", r.Measure.Name)
			}
		}
	}
}

// checkReport wants every measure in the text, and pictures that are XML.
func checkReport(t *testing.T, dir string, run *report.Run) {
	text, err := os.ReadFile(filepath.Join(dir, "benchmarks.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range run.Results {
		if !bytes.Contains(text, []byte("## "+r.Measure.Title+"\n")) {
			t.Errorf("the report lacks %q", r.Measure.Title)
		}
		for _, p := range r.Measure.Plots {
			svg, err := os.ReadFile(filepath.Join(dir, "images", p.File+".svg"))
			if err != nil {
				t.Error(err)
				continue
			}
			for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
				if _, err := d.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Errorf("%s: %v", p.File, err)
					break
				}
			}
			if bytes.Contains(svg, []byte("NaN")) || bytes.Contains(svg, []byte("Inf")) {
				t.Errorf("%s has a coordinate that is no number", p.File)
			}
		}
	}
}
