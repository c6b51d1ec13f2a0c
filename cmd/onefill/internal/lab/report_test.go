package lab

import (
	"bufio"
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// sampleReport is a report of S1 and S5 whose failure texts need escaping.
func sampleReport(t *testing.T) *Report {
	t.Helper()
	cfg := Defaults()
	r := &Report{
		Config: cfg, Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Took: 1234 * time.Millisecond, Dir: t.TempDir(),
		Environment: Environment{Store: "redis", StoreVersion: "7.0.15", StoreHow: howPrivate,
			Origin: originPostgres, OriginVersion: "15.1", OriginHow: howGiven, Notes: []string{"a <note>"}},
	}
	zero, two := 0, 2
	extra, tail := 3.4, 1012.6
	for _, mode := range Modes {
		loads := map[string]int{ModeNaive: 12, ModeLocal: 3, ModeLock: 1, ModeOnefill: 1}[mode]
		r.Results = append(r.Results,
			Result{Scenario: "S1", Mode: mode, Loads: loads, Ok: loads == 1, Asserted: mode == ModeOnefill,
				ExtraP50MS: &extra, ExtraP99MS: &tail, AgeMaxMS: 250, Commands: 24, CommandStats: map[string]int64{"evalsha": 6}},
			Result{Scenario: "S5", Mode: mode, Loads: 2, Ok: mode == ModeOnefill, StaleAnswers: &zero, StaleReaders: &zero, StoreHolds: holdsNew})
		for i := range cfg.Callers {
			r.Calls = append(r.Calls, Call{Scenario: "S1", Mode: mode, Process: i % 3, Caller: i, Phase: phaseHerd,
				StartUS: 1e6 + int64(i), EndUS: 1e6 + 250_000, Kind: KindValue, Row: rowOld})
		}
		for i := range loads {
			r.Operations = append(r.Operations, Operation{Scenario: "S1", Mode: mode, Number: i + 1, StartUS: 1e6, EndUS: 1.25e6, Outcome: "row"})
		}
	}
	r.Results[1].StaleReaders = &two
	return r
}

// withOutage adds a scenario with traffic, and S7.
func withOutage(t *testing.T) *Report {
	t.Helper()
	r := sampleReport(t)
	for _, mode := range []string{ModeNaive, ModeLock, ModeOnefill} {
		most := map[string]int{ModeNaive: 60, ModeLock: 27, ModeOnefill: 12}[mode]
		r.Results = append(r.Results, Result{Scenario: "killed", Mode: mode, Loads: 500, Ok: mode == ModeOnefill, Asserted: mode == ModeOnefill,
			MaxInFlight: &most, Outage: sampleOutage(most)})
	}
	one := 12
	r.Results = append(r.Results, Result{Scenario: "S7", Mode: ModeNaive, Loads: 36, MaxInFlight: &one, Waves: []Wave{{Loads: 12}, {Loads: 12}, {Loads: 12}}},
		Result{Scenario: "S7", Mode: ModeLock, Errors: 36, MaxInFlight: &one, Waves: []Wave{{}, {}, {}}})
	return r
}

func TestOutageTable(t *testing.T) {
	r := withOutage(t)
	var b bytes.Buffer
	r.Table(&b, false)
	text := b.String()
	for _, want := range []string{
		"60 at once", "12+12+12 loads", "0 loads, 36 failed",
		"at once  degraded  loads  served  failed  stale  cached  p50 ms  p99 ms  recovered",
		"killed     naive            60        60    432     400     200     50    17 %      12     765     150 ms",
		"           onefill          12        12    432     400     200     50    17 %      12     765     150 ms",
		"600 calls a second for 40 keys from 3 processes", "MaxLoadsDegraded 6",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if _, commands, _ := strings.Cut(text, "commands executed"); strings.Contains(commands[:strings.Index(commands, "under load")], "killed") {
		t.Errorf("commands are not counted where something happens to the store:\n%s", text)
	}
	r.Results[len(r.Results)-3].Outage.RecoveredMS = nil // killed, onefill
	b.Reset()
	r.Table(&b, false)
	if !strings.Contains(b.String(), "not yet") {
		t.Errorf("no word of what did not recover:\n%s", b.String())
	}
}

func TestOutagePlots(t *testing.T) {
	r := withOutage(t)
	rows := r.outageRows()
	if len(rows) != 1 {
		t.Fatalf("%d scenarios with traffic", len(rows))
	}
	panels := r.outagePlots(rows[0])
	if len(panels) != 4 {
		t.Fatalf("%d plots", len(panels))
	}
	for _, p := range panels {
		doc := p.document()
		if n := count(t, doc, "polyline", "line "); n != 3 {
			t.Errorf("%s: %d lines for 3 modes", p.title, n)
		}
		if count(t, doc, "line", "moment") != 2 || count(t, doc, "rect", "outage") != 1 {
			t.Errorf("%s: kill, restart and the time between are not marked", p.title)
		}
		for _, want := range []string{">killed<", ">restarted<", ">naive<", ">onefill<", `aria-label="killed: `} {
			if !strings.Contains(doc, want) {
				t.Errorf("%s: no %s", p.title, want)
			}
		}
	}
	if !strings.Contains(panels[0].document(), "limit 12, degraded 6") {
		t.Error("the limits are not in the plot of the operations")
	}
	file := r.outageFile(rows[0])
	if n := count(t, file, "polyline", "line "); n != 12 {
		t.Errorf("%d lines in the file", n)
	}
	page, err := r.HTML()
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(page, []byte("<polyline")); n != 12 {
		t.Errorf("%d lines on the page", n)
	}
	for _, want := range []string{"Outages under load", "killed: the store is killed under load", "<dt>degraded</dt>", "600 calls a second"} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("the page lacks %q", want)
		}
	}
	// The loads under load, hundreds, would leave nothing of the other bars.
	if plot := r.LoadsPlot(); strings.Contains(plot, ">killed<") || !strings.Contains(plot, "S7 naive: 36 loads") {
		t.Errorf("the plot of the loads has the scenario with traffic, or not S7:\n%s", plot)
	}
}

// TestJoinedMoments: a restart that takes no time has one label.
func TestJoinedMoments(t *testing.T) {
	r := withOutage(t)
	for i := range r.Results {
		if o := r.Results[i].Outage; o != nil {
			o.Moments[1].AtMS = 515
		}
	}
	if doc := r.outagePlots(r.outageRows()[0])[0].document(); !strings.Contains(doc, ">killed, restarted<") {
		t.Errorf("two labels on each other:\n%s", doc)
	}
}

func TestTableIsAligned(t *testing.T) {
	var b bytes.Buffer
	sampleReport(t).Table(&b, false)
	text := b.String()
	if strings.Contains(text, "\x1b") {
		t.Error("colours although there are to be none")
	}
	for _, want := range []string{"12 callers in 3 processes", "redis 7.0.15 (private)", "12 loads", "3 loads", "old row", "new row", "holds", "3 / 1013", "24 (6)", "note: a <note>"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	// In each block the last column ends where its header ends.
	end := 0
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasSuffix(line, "  onefill"):
			end = utf8.RuneCountInString(line)
		case strings.HasPrefix(line, "S1 ") || strings.HasPrefix(line, "S5 "):
			line = strings.TrimSuffix(line, "  holds")
			if n := utf8.RuneCountInString(line); n != end {
				t.Errorf("the line ends at column %d, the header at %d:\n%s", n, end, text)
			}
		}
	}
	if end == 0 {
		t.Errorf("no header in\n%s", text)
	}
}

func TestTableColours(t *testing.T) {
	var plain, coloured bytes.Buffer
	r := sampleReport(t)
	r.Table(&plain, false)
	r.Table(&coloured, true)
	text := coloured.String()
	if !strings.Contains(text, "\x1b[31m12 loads\x1b[0m") || !strings.Contains(text, "\x1b[32m1 load") && !strings.Contains(text, " 1 load\x1b[0m") {
		t.Errorf("bad is not red or good not green:\n%q", text)
	}
	for _, code := range []string{"\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[0m"} {
		text = strings.ReplaceAll(text, code, "")
	}
	if text != plain.String() {
		t.Error("colours change the layout")
	}
}

func TestVerdictOfABrokenGuarantee(t *testing.T) {
	var b bytes.Buffer
	r := sampleReport(t)
	for i := range r.Results {
		if r.Results[i].Mode == ModeOnefill && r.Results[i].Scenario == "S1" {
			r.Results[i].Ok, r.Results[i].Loads, r.Results[i].Failed = false, 2, []string{"2 loads <of> the database"}
		}
	}
	r.Table(&b, false)
	if !strings.Contains(b.String(), "2 loads  BROKEN") {
		t.Errorf("the table does not say that S1 is broken:\n%s", b.String())
	}
	page, err := r.HTML()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(page, []byte("S1 onefill: 2 loads &lt;of&gt; the database")) {
		t.Error("the page does not name the broken guarantee, or does not escape it")
	}
}

// TestPageNeedsNothingElse: no script, no style sheet, no picture, no font from
// anywhere; the name space of SVG is a name.
func TestPageNeedsNothingElse(t *testing.T) {
	page, err := sampleReport(t).HTML()
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(page), `xmlns="http://www.w3.org/2000/svg"`, "")
	for _, bad := range []string{"http:", "https:", "<script", "<link", "<img", "url(", "@import", "ZgotmplZ"} {
		if strings.Contains(text, bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
	if strings.Contains(text, "<note>") || !strings.Contains(text, "a &lt;note&gt;") {
		t.Error("the note is not escaped")
	}
}

// count parses a picture and returns how many elements have all the classes.
func count(t *testing.T, svg, element, class string) (n int) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := d.Token()
		if err == io.EOF {
			return n
		}
		if err != nil {
			t.Fatalf("no well-formed picture: %v\n%s", err, svg)
		}
		if start, ok := token.(xml.StartElement); ok && start.Name.Local == element {
			for _, a := range start.Attr {
				if a.Name.Local == "class" && strings.HasPrefix(a.Value, class) {
					n++
				}
			}
		}
	}
}

func TestPlots(t *testing.T) {
	r := sampleReport(t)
	if n := count(t, r.LoadsPlot(), "rect", "bar"); n != 8 {
		t.Errorf("%d bars for 2 scenarios in 4 modes", n)
	}
	timeline := r.TimelinePlot()
	if n := count(t, timeline, "rect", "wait"); n != 4*12 {
		t.Errorf("%d waits for 12 callers in 4 modes", n)
	}
	if n := count(t, timeline, "rect", "bar"); n != 12+3+1+1 {
		t.Errorf("%d operations, expected 12+3+1+1", n)
	}
	r.Results, r.Calls = r.Results[:0], nil
	if got := r.TimelinePlot(); got != "" {
		t.Errorf("a timeline of nothing: %s", got)
	}
}

func TestPlotsOfManyCallersStaySmall(t *testing.T) {
	r := sampleReport(t)
	r.Calls = nil
	for i := range 1000 {
		r.Calls = append(r.Calls, Call{Scenario: "S1", Mode: ModeNaive, Caller: i, StartUS: 1e6, EndUS: 1.2e6, Kind: KindValue})
	}
	if n := count(t, r.TimelinePlot(), "rect", "wait"); n != timelineRows {
		t.Errorf("%d waits drawn, expected a sample of %d", n, timelineRows)
	}
}

func TestNiceStep(t *testing.T) {
	for span, want := range map[float64]float64{263: 50, 1650: 500, 60: 10, 0: 1, 7: 2} {
		if got := niceStep(span, 6); got != want {
			t.Errorf("niceStep(%v) = %v, expected %v", span, got, want)
		}
	}
}

func TestFiles(t *testing.T) {
	r := withOutage(t)
	paths, err := r.WriteFiles()
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) != 7 || filepath.Base(paths[6]) != "killed.svg" || filepath.Base(paths[0]) != "report.html" {
		t.Errorf("files: %v", paths)
	}
	for name, want := range map[string]int{"results.jsonl": 13, "calls.jsonl": 48, "operations.jsonl": 17} {
		f, err := os.Open(filepath.Join(r.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		n := 0
		for lines := bufio.NewScanner(f); lines.Scan(); n++ {
			var object map[string]any
			if err := json.Unmarshal(lines.Bytes(), &object); err != nil || object["scenario"] == nil {
				t.Errorf("%s: line %q: %v", name, lines.Text(), err)
			}
		}
		if n != want {
			t.Errorf("%s has %d lines, expected %d", name, n, want)
		}
	}
}
