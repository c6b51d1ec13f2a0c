package lab

import (
	"testing"
	"time"
)

func TestQuantileIsNearestRank(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1))
	}
	for _, tt := range []struct {
		values []time.Duration
		q      float64
		want   time.Duration
	}{
		{hundred, 0.50, 50}, {hundred, 0.99, 99}, {hundred, 1, 100}, {hundred, 0, 1},
		{hundred[:12], 0.50, 6}, {hundred[:12], 0.99, 12}, {hundred[:1], 0.99, 1}, {hundred[:3], 0.5, 2},
	} {
		if got := quantile(tt.values, tt.q); got != tt.want {
			t.Errorf("quantile %v of 1..%d is %d, expected %d", tt.q, len(tt.values), got, tt.want)
		}
	}
}

func TestIdentical(t *testing.T) {
	a, b := Call{Kind: KindValue, Row: "a"}, Call{Kind: KindValue, Row: "b"}
	own, shared := Call{Kind: KindError, Error: "x"}, Call{Kind: KindError, Error: "elsewhere: x"}
	for _, tt := range []struct {
		name  string
		calls []Call
		want  bool
	}{
		{"nobody", nil, true},
		{"same row", []Call{a, a, a}, true},
		{"one other row", []Call{a, a, b}, false},
		{"a row and an error", []Call{a, own}, false},
		{"the same failure, told by two processes", []Call{own, shared}, true},
		{"not found and an error", []Call{{Kind: KindNotFound}, own}, false},
	} {
		if got := identical(tt.calls); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// call makes a call that began at 1 s and took wait.
func call(id int, kind Kind, wait time.Duration) Call {
	c := Call{Caller: id, Kind: kind, StartUS: 1e6, EndUS: 1e6 + wait.Microseconds()}
	switch kind {
	case KindValue:
		c.Row, c.ReadUS = rowOld, 1e6
	case KindError:
		c.Error = failureText
	case KindTimeout, KindCancelled:
		c.Error = string(kind)
	}
	return c
}

func scenarioByID(t *testing.T, id string) *Scenario {
	t.Helper()
	for _, s := range Scenarios {
		if s.ID == id {
			return s
		}
	}
	t.Fatalf("no scenario %s", id)
	return nil
}

func testCell(t *testing.T, id, mode string, calls ...Call) *cell {
	r := &run{cfg: Defaults(), fleet: make(fleet, 3), report: &Report{}}
	c := &cell{run: r, scenario: scenarioByID(t, id), mode: mode, calls: calls}
	c.res = Result{Scenario: id, Mode: mode}
	return c
}

func TestMeasureCounts(t *testing.T) {
	c := testCell(t, "S1", ModeNaive,
		call(2, KindValue, 260*time.Millisecond), call(0, KindValue, 250*time.Millisecond), call(1, KindError, 255*time.Millisecond),
		call(3, KindTimeout, 300*time.Millisecond), call(4, KindNotFound, 251*time.Millisecond), call(5, KindCancelled, 252*time.Millisecond))
	c.measure(3, 7*time.Millisecond)
	r := c.res
	if r.Loads != 3 || r.Errors != 3 || r.Timeouts != 1 || r.NotFound != 1 || r.Identical || r.OpsPerGroup != 3 {
		t.Errorf("%+v", r)
	}
	if *r.ExtraP50MS != 2 || *r.ExtraP99MS != 50 || *r.ExtraMaxMS != 50 {
		t.Errorf("wait beyond 250 ms: p50 %v, p99 %v, max %v; expected 2, 50, 50", *r.ExtraP50MS, *r.ExtraP99MS, *r.ExtraMaxMS)
	}
	// The origin's clock is 7 ms ahead, so its reading began 7 ms earlier than it says.
	if r.AgeMaxMS != 267 {
		t.Errorf("oldest answer %v ms, expected 267", r.AgeMaxMS)
	}
	if c.calls[0].Caller != 0 {
		t.Error("calls are not in the order of the callers")
	}
}

func TestCancelledFirstCallerIsNoErrorInS6(t *testing.T) {
	c := testCell(t, "S6", ModeOnefill, call(0, KindCancelled, time.Second), call(1, KindValue, time.Second), call(2, KindCancelled, time.Second))
	c.measure(1, 0)
	if c.res.Errors != 1 {
		t.Errorf("%d errors; the innocent caller 2 is one, the first caller is none", c.res.Errors)
	}
}

func TestStaleAnswersOfS5(t *testing.T) {
	first, fresh, stale := call(0, KindValue, time.Second), call(1, KindValue, time.Second), call(2, KindValue, time.Second)
	fresh.Row = rowNew
	c := testCell(t, "S5", ModeNaive, first, fresh, stale)
	c.verified = []Call{fresh, fresh, {Kind: KindTimeout}}
	c.measure(2, 0)
	if *c.res.StaleAnswers != 1 {
		t.Errorf("%d stale answers; the first caller had asked before the invalidation", *c.res.StaleAnswers)
	}
	if *c.res.StaleReaders != 1 {
		t.Errorf("%d processes without the new row, expected the one that timed out", *c.res.StaleReaders)
	}
}

func TestDifferenceLeavesTheCountingOut(t *testing.T) {
	total, by := difference(map[string]int64{"get": 5, "info": 2, "del": 1}, map[string]int64{"get": 9, "info": 4, "del": 1, "set": 3})
	if total != 7 || len(by) != 2 || by["get"] != 4 || by["set"] != 3 {
		t.Errorf("%d %v", total, by)
	}
}

func TestCommandCalls(t *testing.T) {
	stats := parseInfo("# Commandstats\r\ncmdstat_get:calls=12,usec=40,usec_per_call=3.3\r\ncmdstat_client|tracking:calls=3,usec=1\r\n")
	calls, err := commandCalls(stats)
	if err != nil || calls["get"] != 12 || calls["client|tracking"] != 3 || len(calls) != 2 {
		t.Errorf("%v, %v", calls, err)
	}
	if _, err := commandCalls(map[string]string{"cmdstat_get": "usec=1"}); err == nil {
		t.Error("a line without calls was accepted")
	}
}
