package measure

import (
	"context"
	"errors"
	"io"
	"math"
	"testing"
)

// rounds is a row whose n-th round brings the n-th number; NaN is a failure.
func rounds(name string, numbers ...float64) Row {
	next := 0
	return Row{Name: name, Round: func(context.Context) (Values, error) {
		v := numbers[next]
		next++
		if math.IsNaN(v) {
			return nil, errors.New("failed")
		}
		return Values{"x": v}, nil
	}}
}

func runOf(t *testing.T, targets []Target, rows ...Row) *Result {
	t.Helper()
	m := &Measure{Name: "m", Columns: []Column{{"x", "x", 0}}, Anchor: "anchor", Compared: []string{"x"}, Targets: targets,
		Open: func(context.Context, *Env) ([]Row, error) { return rows, nil }}
	r, err := m.Run(t.Context(), &Env{Size: Sizes{Rounds: 3}, Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The machine is twice as slow in the second round: the ratios do not show it.
func TestRatiosAreThoseOfARound(t *testing.T) {
	r := runOf(t, []Target{{Row: "a", Column: "x", Anchor: "anchor", Limit: 1.5}}, rounds("a", 15, 30, 15), rounds("anchor", 10, 20, 10))
	a, _ := r.Find("a")
	if got, _ := r.Ratio(a, "x"); got != 1.5 {
		t.Errorf("ratio %g", got)
	}
	if got := a.Spread("x"); got != 1 {
		t.Errorf("spread %g", got)
	}
	if v := r.Judge()[0]; !v.Met || v.Value != 1.5 {
		t.Errorf("%+v", v)
	}
}

// A round that failed is left out of both sides of a ratio, and is reported.
func TestFailedRounds(t *testing.T) {
	r := runOf(t, nil, rounds("a", 30, math.NaN(), 10), rounds("anchor", 10, 99, 10))
	a, _ := r.Find("a")
	if got, _ := r.Ratio(a, "x"); got != 2 {
		t.Errorf("ratio %g, want the median of 3 and 1", got)
	}
	if got, ok := a.Median("x"); !ok || got != 20 {
		t.Errorf("median %g", got)
	}
	if a.Err == nil {
		t.Error("the failure is lost")
	}
}

func TestTargets(t *testing.T) {
	targets := []Target{
		{Row: "a", Column: "x", Limit: 9}, {Row: "a", Column: "x", Limit: 10}, {Row: "a", Column: "x", Limit: 11, AtLeast: true},
		{Row: "none", Column: "x", Limit: 10}, {Row: "a", Column: "x", Anchor: "none", Limit: 10},
	}
	want := []Verdict{{Measured: true}, {Measured: true, Met: true}, {Measured: true}, {}, {}}
	for i, v := range runOf(t, targets, rounds("a", 10, 10, 10)).Judge() {
		if v.Measured != want[i].Measured || v.Met != want[i].Met {
			t.Errorf("target %d: %+v", i, v)
		}
	}
}

func TestClientCommand(t *testing.T) {
	for line, want := range map[string]string{
		`+1700000000.123456 [0 127.0.0.1:1234] "GET" "a \"] \" b"`:    "get",
		`+1700000000.123456 [0 127.0.0.1:1234] "evalsha" "x" "1"`:     "evalsha",
		`+1700000000.123456 [0 lua] "GET" "key"`:                      "",
		`+1700000000.123456 [0 127.0.0.1:1234] "PING"`:                "",
		`+1700000000.123456 [0 127.0.0.1:1234] "client" "tracking"`:   "",
		`+1700000000.123456 [0 unix:/tmp/sock] "SET" "k" "[0 lua] v"`: "set",
		`+OK`: "",
	} {
		if got, ok := clientCommand(line); got != want || ok != (want != "") {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// Medians of an even number are the middle, and of nothing there is none.
func TestMedian(t *testing.T) {
	if m, ok := median([]float64{4, 1, 3, 2}); !ok || m != 2.5 {
		t.Errorf("%g", m)
	}
	if _, ok := median(nil); ok {
		t.Error("a median of nothing")
	}
}
