package lab

import (
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
)

func TestDemandServed(t *testing.T) {
	held := func() []Wave {
		twelve := tally{Calls: 12}
		return []Wave{{phaseHerd, 3, twelve, 260}, {phaseAgain, 0, twelve, 1}, {phaseKnown, 0, twelve, 1}}
	}
	for _, tt := range []struct {
		name   string
		change func(w []Wave, atOnce *int)
		says   string
	}{
		{"held", func([]Wave, *int) {}, ""},
		{"a fourth load", func(w []Wave, _ *int) { w[0].Loads = 4 }, "the first callers: 4 loads instead of at most 3"},
		{"loaded again", func(w []Wave, _ *int) { w[1].Loads = 1 }, "the callers after them: 1 loads instead of at most 0"},
		{"the known key loaded", func(w []Wave, _ *int) { w[2].Loads = 3 }, "the callers of a known key: 3 loads"},
		{"somebody failed", func(w []Wave, _ *int) { w[1].Calls.Failed = 2 }, "2 callers got no answer"},
		{"a long wait", func(w []Wave, _ *int) { w[0].P99MS = 760 }, "the first callers: callers waited 760 ms"},
		{"a wait for nothing", func(w []Wave, _ *int) { w[2].P99MS = 501 }, "the callers of a known key: callers waited 501 ms"},
		{"over the limit", func(_ []Wave, atOnce *int) { *atOnce = 7 }, "7 operations at once; the limit is 6"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := testCell(t, "S7", ModeOnefill)
			most := 3
			c.res.Waves, c.res.MaxInFlight = held(), &most
			tt.change(c.res.Waves, &most)
			expectDemand(t, c, tt.says)
		})
	}
	for wait, says := range map[float64]string{760: "", 1160: "the first callers: callers waited 1160 ms"} { // 12 callers of 3 processes
		c := testCell(t, "S7", ModeOnefill)
		most := 3
		c.res.Waves, c.res.MaxInFlight = held(), &most
		c.res.Waves[0].P99MS, c.missTook = wait, 100*time.Millisecond // a busy machine
		expectDemand(t, c, says)
	}
}

func TestDemandBounded(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(c *cell, o *Outage)
		says   string
	}{
		{"held", func(*cell, *Outage) {}, ""},
		{"over MaxLoads", func(_ *cell, o *Outage) { o.MaxInFlight = 13 }, "13 operations at once; MaxLoads allows 12"},
		{"over MaxLoadsDegraded", func(_ *cell, o *Outage) { o.MaxInFlightDown = 7 }, "7 operations at once while the store was away; MaxLoadsDegraded allows 6"},
		{"somebody failed", func(c *cell, _ *Outage) {
			c.calls, c.res.Errors = []Call{call(0, KindError, time.Second), call(1, KindValue, time.Second)}, 1
		}, "1 of 2 callers got no answer: 1 error (" + failureText + ")"},
		{"a long wait", func(_ *cell, o *Outage) { o.MaxMS = 4600 }, "a caller waited 4600 ms"},
		{"never recovered", func(_ *cell, o *Outage) { o.RecoveredMS = nil }, "the hit rate was not again what it had been, 95 %"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := testCell(t, "killed", ModeOnefill)
			c.res.Outage = sampleOutage(12)
			c.res.Outage.MaxInFlightDown = 6
			tt.change(c, c.res.Outage)
			expectDemand(t, c, tt.says)
		})
	}
}

func TestOverload(t *testing.T) {
	if got := overload(Result{Outage: sampleOutage(13)}); got != sanityOK {
		t.Errorf("13 operations for 12 workers: %s", got)
	}
	if got := overload(Result{Scenario: "cold", Outage: sampleOutage(12)}); !strings.Contains(got, "naive had 12 operations at once in cold") {
		t.Errorf("12 operations for 12 workers: %s", got)
	}
}

// sampleOutage is one of 2 seconds, with so many operations at once.
func sampleOutage(atOnce int) *Outage {
	recovered := 150.0
	o := &Outage{
		Keys: 40, PerSecond: 600, Processes: 3, Workers: 12, Limit: 12, LimitDegraded: 6, DeadlineMS: 500,
		Moments: []Moment{{momentKilled, 500}, {momentRestarted, 1500}}, FromMS: 500, ToMS: 1500,
		Before: tally{Calls: 100, Cached: 95}, Meanwhile: tally{Calls: 600, Failed: 200, Cached: 100, Stale: 50},
		P50MS: 12, P99MS: 765, MaxMS: 800, LoadsMeanwhile: 432, MaxInFlight: atOnce, MaxInFlightDown: atOnce, RecoveredMS: &recovered,
		Series: Series{BucketMS: 50},
	}
	for i := range 40 {
		s := &o.Series
		s.Calls, s.Failed = append(s.Calls, 10), append(s.Failed, i%3)
		s.Cached, s.Stale = append(s.Cached, 7), append(s.Stale, 1)
		s.InFlight = append(s.InFlight, i%(atOnce+1))
		s.P50MS, s.P99MS = append(s.P50MS, 1), append(s.P99MS, float64(20*i))
	}
	return o
}

// TestMeasureOutage: calls and operations from before, from meanwhile and from after
// go where they belong; the origin's clock is ahead.
func TestMeasureOutage(t *testing.T) {
	const ahead = 20 * time.Millisecond
	zero := time.UnixMilli(10_000)
	ms := func(n int64) time.Time { return zero.Add(time.Duration(n) * time.Millisecond) }
	c := testCell(t, "killed", ModeNaive)
	c.run.spec.Kind = originPostgres
	o := &outage{cell: c, size: sizeServer, began: zero, from: ms(500), until: ms(2000), back: ms(2010), ended: ms(3500),
		moments: []Moment{{momentKilled, 500}, {momentRestarted, 2010}}}
	c.outage = o
	for i := range int64(350) {
		switch n := 10 * i; {
		case n >= 500 && n < 2010: // the store is away
			c.calls = append(c.calls, at(10_000+n, 700, KindError, "", false))
		default:
			c.calls = append(c.calls, at(10_000+n, 2, KindValue, recipe.SourceStore, false))
		}
	}
	begins := func(atMS ...int64) {
		for _, n := range atMS {
			begin := ms(n).Add(ahead).UnixMilli()
			c.ops = append(c.ops, op(begin, begin+100))
		}
	}
	begins(480, 481, 482, 483) // before; three run on into the outage
	begins(1000, 1050)
	begins(2004, 2005, 2006) // the store was on its way back
	begins(3000)
	c.measure(len(c.ops), ahead)
	out := c.res.Outage
	if out.MaxInFlight != 4 || out.MaxInFlightDown != 2 || out.LoadsMeanwhile != 5 || *c.res.MaxInFlight != 4 {
		t.Errorf("at once %d, without the store %d, loads meanwhile %d", out.MaxInFlight, out.MaxInFlightDown, out.LoadsMeanwhile)
	}
	if out.Before != (tally{Calls: 50, Cached: 50}) || out.Meanwhile != (tally{Calls: 151, Failed: 151}) || out.P99MS != 700 {
		t.Errorf("before %+v, meanwhile %+v, p99 %v ms", out.Before, out.Meanwhile, out.P99MS)
	}
	if out.RecoveredMS == nil || *out.RecoveredMS != 40 { // the bucket from 2000 to 2050 has a failure
		t.Errorf("recovered after %v ms", out.RecoveredMS)
	}
	if c.res.Callers != 350 || c.res.LoadMS != 50 || out.Limit != 12 || out.LimitDegraded != 6 || out.Workers != 12 {
		t.Errorf("%+v", c.res)
	}
}
