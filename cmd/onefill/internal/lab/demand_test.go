package lab

import (
	"strings"
	"testing"
	"time"
)

// TestDemands gives each scenario an outcome that it must accept, and for each
// thing that it demands one in which only that is wrong.
func TestDemands(t *testing.T) {
	const ms = time.Millisecond
	rows := func(n int) (calls []Call) {
		for i := range n {
			calls = append(calls, call(i, KindValue, 250*ms))
		}
		return calls
	}
	with := func(calls []Call, c Call) []Call { return append(calls[:len(calls):len(calls)], c) }
	missing := []Call{call(0, KindNotFound, 250*ms), call(1, KindNotFound, 250*ms)}
	failed := []Call{call(0, KindError, 250*ms), call(1, KindError, 251*ms)}
	foreign := call(2, KindError, 250*ms)
	foreign.Error = "connection refused"
	other := call(3, KindValue, 250*ms)
	other.Row = "another row"
	cancelled := with([]Call{call(0, KindCancelled, 120*ms)}, call(1, KindValue, 250*ms))

	for _, tt := range []struct {
		name, scenario string
		loads          int
		calls          []Call
		says           string // empty: accepted
	}{
		{"S1 held", "S1", 1, rows(3), ""},
		{"S1 two loads", "S1", 2, rows(3), "2 loads"},
		{"S1 an error", "S1", 1, with(rows(2), call(2, KindTimeout, 250*ms)), "1 callers got no answer"},
		{"S1 another row", "S1", 1, with(rows(3), other), "different answers"},
		{"S4 two loads", "S4", 2, rows(3), "2 loads"},
		{"S2 held", "S2", 1, missing, ""},
		{"S2 two loads", "S2", 2, missing, "2 loads"},
		{"S2 a value", "S2", 1, with(missing, call(2, KindValue, 250*ms)), "only 2 of 3"},
		{"S3 held", "S3", 1, failed, ""},
		{"S3 two loads", "S3", 2, failed, "2 loads"},
		{"S3 somebody else's error", "S3", 1, with(failed, foreign), "only 2 of 3"},
		{"S3 in series", "S3", 1, with(failed, call(2, KindError, 500*ms)), "a caller waited 500ms"},
		{"S6 held", "S6", 1, cancelled, ""},
		{"S6 two loads", "S6", 2, cancelled, "2 loads"},
		{"S6 an innocent fails", "S6", 1, with(cancelled, call(2, KindCancelled, 120*ms)), "1 callers failed"},
		{"S6 nobody was cancelled", "S6", 1, rows(3), "longer --load"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := testCell(t, tt.scenario, ModeOnefill, tt.calls...)
			c.measure(tt.loads, 0)
			expectDemand(t, c, tt.says)
		})
	}
}

func TestDemandNew(t *testing.T) {
	first := call(0, KindValue, time.Second)
	fresh := call(1, KindValue, 250*time.Millisecond)
	fresh.Row = rowNew
	stale := call(2, KindValue, 250*time.Millisecond)
	for _, tt := range []struct {
		name     string
		loads    int
		second   Call
		holds    string
		verified Call
		says     string
	}{
		{"held", 2, fresh, holdsNew, fresh, ""},
		{"held, nothing stored", 2, fresh, holdsNothing, fresh, ""},
		{"an old answer", 2, stale, holdsNew, fresh, "1 callers that came after"},
		{"the store", 2, fresh, holdsOld, fresh, "the store holds the old row"},
		{"a local cache", 2, fresh, holdsNew, stale, "1 of 3 processes"},
		{"a third load", 3, fresh, holdsNew, fresh, "3 loads"},
		{"no answer", 2, call(1, KindTimeout, time.Second), holdsNew, fresh, "got no answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := testCell(t, "S5", ModeOnefill, first, tt.second)
			c.verified, c.res.StoreHolds = []Call{tt.verified}, tt.holds
			c.measure(tt.loads, 0)
			expectDemand(t, c, tt.says)
		})
	}
}

func TestDemandStands(t *testing.T) {
	yes, no := true, false
	for _, tt := range []struct {
		name                       string
		freed, accepted, published *bool
		says                       string
	}{
		{"held", &no, &no, &no, ""},
		{"freed", &yes, &no, &no, "freed what B held"},
		{"accepted", &no, &yes, &no, "told that its release had worked"},
		{"stored", &no, &no, &yes, "stored its late value"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := testCell(t, "release", ModeOnefill)
			c.res.Freed, c.res.Accepted, c.res.Published = tt.freed, tt.accepted, tt.published
			c.measure(0, 0)
			expectDemand(t, c, tt.says)
		})
	}
}

// expectDemand expects exactly the one complaint that says, or none.
func expectDemand(t *testing.T, c *cell, says string) {
	t.Helper()
	got := c.scenario.demands(c)
	switch {
	case says == "" && len(got) > 0:
		t.Errorf("refused: %v", got)
	case says != "" && !strings.Contains(strings.Join(got, "\n"), says):
		t.Errorf("got %q, expected %q", got, says)
	}
}

func TestFailures(t *testing.T) {
	r := Report{Results: []Result{
		{Scenario: "S1", Mode: ModeNaive, Failed: []string{"12 loads"}, Sanity: sanityOK},
		{Scenario: "S1", Mode: ModeOnefill, Ok: true, Asserted: true},
	}}
	if got := r.Failures(); len(got) != 0 {
		t.Errorf("what naive does is no failure of the run: %v", got)
	}
	r.Results[1] = Result{Scenario: "S1", Mode: ModeOnefill, Asserted: true, Failed: []string{"2 loads of the database instead of 1"}}
	r.Results[0].Sanity = sanity(Result{Loads: 9}, Defaults())
	got := strings.Join(r.Failures(), "\n")
	for _, want := range []string{"S1 onefill: 2 loads of the database instead of 1", "sanity check: naive cost 9 loads"} {
		if !strings.Contains(got, want) {
			t.Errorf("failures are %q, without %q", got, want)
		}
	}
}

func TestSanity(t *testing.T) {
	cfg := Defaults()
	if got := sanity(Result{Loads: 12}, cfg); got != sanityOK {
		t.Errorf("12 loads for 12 callers: %s", got)
	}
	if sanity(Result{Loads: 11}, cfg) == sanityOK {
		t.Error("11 loads for 12 callers were accepted")
	}
	cfg.Load = 5 * time.Millisecond // too short for the barrier to be judged by
	if got := sanity(Result{Loads: 11}, cfg); got != sanityOK {
		t.Errorf("with a load of 5 ms: %s", got)
	}
}
