package lab

import (
	"bytes"
	"strings"
	"testing"

	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

// TestJudge: what is not the row is counted where it is, and a key once.
func TestJudge(t *testing.T) {
	rows := []string{"version 3", "version 1", "version 2", "version 1"}
	o := &Commit{Keys: 4}
	o.judge(rows, []reply{
		{Stored: []string{"version 3", "", "version 1", "version 1"}, Rows: []string{"version 3", "version 1", "version 1", "version 1"}},
		{Stored: []string{"version 3", "", "version 1", "version 1"}, Rows: []string{"version 2", "version 1", "version 1", ""}, Unread: 1, Why: "timed out"},
	})
	if o.StaleStored != 1 || o.StaleAnswers != 3 || o.StaleKeys != 2 || o.Unread != 1 || o.why != "timed out" {
		t.Errorf("%+v; expected 1 old row in the store, 3 old answers, 2 stale keys, 1 without an answer", o)
	}
}

func TestDemandCommitted(t *testing.T) {
	for _, tt := range []struct {
		name string
		o    Commit
		says string
	}{
		{"held", Commit{Keys: 300, Commits: 400, WritersKilled: 20}, ""},
		{"stale", Commit{Keys: 300, StaleKeys: 2, StaleStored: 1, StaleAnswers: 4}, "2 of 300 keys are stale: the store holds 1 old rows, the processes answered 4 times"},
		{"unread", Commit{Unread: 3, why: "timed out"}, "3 questions had no answer when all was quiet: timed out"},
		{"not drained", Commit{JobsLeft: 5}, "5 jobs were left 20s after"},
		{"dead", Commit{Dead: 1}, "1 jobs went to the dead letters"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := testCell(t, "commit", ModeOnefill)
			c.commit = &tt.o
			c.measure(0, 0)
			if c.res.MaxInFlight != nil {
				t.Error("operations at once, which were not counted")
			}
			expectDemand(t, c, tt.says)
		})
	}
}

func TestEndangered(t *testing.T) {
	if got := endangered(Result{Commit: &Commit{StaleKeys: 1}}); got != sanityOK {
		t.Errorf("a stale key without the queue: %s", got)
	}
	if got := endangered(Result{Commit: &Commit{Commits: 300}}); !strings.Contains(got, "naive had no stale key after 300 commits") {
		t.Errorf("none: %s", got)
	}
}

func TestCommitTable(t *testing.T) {
	r := sampleReport(t)
	drained := 712.5
	r.Results = append(r.Results,
		Result{Scenario: "commit", Mode: ModeNaive, Commit: &Commit{Keys: 300, Commits: 285, WritersKilled: 26, StoreStops: 2, StaleKeys: 56, StaleAnswers: 168}},
		Result{Scenario: "commit", Mode: ModeOnefill, Ok: true, Asserted: true, Commit: &Commit{Keys: 300, Commits: 327, WritersKilled: 20, WorkersKilled: 9, StoreStops: 2, DrainedMS: &drained}})
	var b bytes.Buffer
	r.Table(&b, false)
	text := b.String()
	for _, want := range []string{
		"56 stale        –        –  0 stale  holds",
		"the commit and the cache    commits  writers killed  workers killed  store stops  stale keys  old answers  jobs left     dead  queue empty after\n",
		"commit     naive                285              26               0            2          56          168          0        0                  –\n",
		"commit     onefill              327              20               9            2           0            0          0        0             712 ms\n",
		"Stale keys, of 300:",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	page, err := r.HTML()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<h2>The commit and the cache</h2>", `<td class="bad">56</td>`, "<th>queue empty after</th>"} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if without, err := sampleReport(t).HTML(); err != nil || bytes.Contains(without, []byte("The commit and the cache")) || bytes.Contains(without, []byte("<h2></h2>")) {
		t.Errorf("a page without the scenario has a table for it: %v", err)
	}
	if strings.Contains(r.LoadsPlot(), ">commit<") {
		t.Error("the plot of the loads has the scenario, whose loads are not counted")
	}
}

// TestStopKeepsTheData: what a Redis has answered is there when it is started again.
func TestStopKeepsTheData(t *testing.T) {
	srv := servertest.Redis(t, servers.RedisOptions{})
	d := &damaged{faults: redisFaults{processFaults{srv}}}
	ctx := t.Context()
	for _, value := range []string{"v", "w"} {
		p, err := recipe.OpenRedis(ctx, srv.URL())
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Set(ctx, "k", value, 0x7fffffff); err != nil {
			t.Fatal(err)
		}
		if err := d.stop(ctx); err != nil {
			t.Fatal(err)
		}
		if _, _, err := p.Get(ctx, "k"); err == nil {
			t.Error("stopped: answered")
		}
		p.Close()
		if err := d.start(ctx); err != nil {
			t.Fatal(err)
		}
		if p, err = recipe.OpenRedis(ctx, srv.URL()); err != nil {
			t.Fatal(err)
		}
		if got, found, err := p.Get(ctx, "k"); err != nil || !found || got != value {
			t.Errorf("started again: %q, %v, %v; expected %q", got, found, err, value)
		}
		p.Close()
	}
}
