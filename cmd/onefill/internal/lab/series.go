package lab

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
)

// Outage is what a scenario with traffic and a fault gave in one mode: figures, and
// the same over time. Moments are milliseconds since the traffic began.
type Outage struct {
	Keys      int     `json:"keys"`
	PerSecond float64 `json:"calls_per_second"` // of all processes together
	Processes int     `json:"processes"`        // that made the traffic
	// Workers is how many operations the origin works on at once; others queue there.
	Workers int `json:"origin_workers"`
	// Limit and LimitDegraded are MaxLoads and MaxLoadsDegraded, times the processes.
	Limit         int     `json:"limit"`
	LimitDegraded int     `json:"limit_degraded"`
	DeadlineMS    float64 `json:"origin_deadline_ms"`

	Moments []Moment `json:"moments"`
	// Meanwhile are the calls between FromMS and ToMS: while the store was away, and
	// where it came back empty a second after that.
	FromMS    float64 `json:"from_ms"`
	ToMS      float64 `json:"to_ms"`
	Before    tally   `json:"before"`
	Meanwhile tally   `json:"meanwhile"`
	// P50MS and P99MS are the waits of those calls, failed ones included.
	P50MS float64 `json:"p50_ms"`
	P99MS float64 `json:"p99_ms"`
	MaxMS float64 `json:"max_ms"` // of all calls
	// Loads of the origin in that time, and operations that it had at once: ever, and
	// when the store had been away for long enough that no load had a lease.
	LoadsMeanwhile  int `json:"loads_meanwhile"`
	MaxInFlight     int `json:"max_in_flight"`
	MaxInFlightDown int `json:"max_in_flight_down"`
	// RecoveredMS is how long after its return nobody failed any more and the hit rate
	// was nine tenths of what it was before; absent if it was not so by the end.
	RecoveredMS *float64 `json:"recovered_ms,omitempty"`

	Series Series `json:"series"`
}

// Moment is something that was done to the store.
type Moment struct {
	What string  `json:"what"`
	AtMS float64 `json:"at_ms"`
}

// Series has a figure for each span of time. A call belongs to the span in which it began.
type Series struct {
	BucketMS float64   `json:"bucket_ms"`
	InFlight []int     `json:"in_flight"` // most operations at once at the origin
	Calls    []int     `json:"calls"`
	Failed   []int     `json:"failed"`
	Cached   []int     `json:"cached"` // answers from a cache
	Stale    []int     `json:"stale"`
	P50MS    []float64 `json:"p50_ms"` // of the wait; 0 without calls
	P99MS    []float64 `json:"p99_ms"`
}

// tally counts calls.
type tally struct {
	Calls  int `json:"calls"`
	Failed int `json:"failed"`
	Cached int `json:"cached"` // answered from local or from the store
	Stale  int `json:"stale"`
}

func (t *tally) add(c Call) {
	t.Calls++
	switch {
	case c.Kind.Failed():
		t.Failed++
	case c.Source != recipe.SourceLoad:
		t.Cached++
	}
	if c.Stale {
		t.Stale++
	}
}

func tallyOf(calls []Call) (t tally) {
	for _, c := range calls {
		t.add(c)
	}
	return t
}

func (t tally) plus(o tally) tally {
	return tally{t.Calls + o.Calls, t.Failed + o.Failed, t.Cached + o.Cached, t.Stale + o.Stale}
}

// hitRate is the part of the calls that a cache answered.
func (t tally) hitRate() float64 { return float64(t.Cached) / float64(max(t.Calls, 1)) }

// recovered compares with what was before the fault.
func (t tally) recovered(before tally) bool {
	return t.Calls > 0 && t.Failed == 0 && t.hitRate() >= 0.9*before.hitRate()
}

// bucket is the span of time of which a series has one figure.
const bucket = 50 * time.Millisecond

// makeSeries sorts calls and operations into spans of time from zero on. Operations are on
// the origin's clock, which is ahead by offset.
func makeSeries(calls []Call, ops []Operation, zero time.Time, offset time.Duration, took time.Duration) Series {
	n := int((took + bucket - 1) / bucket)
	s := Series{
		BucketMS: milliseconds(bucket), InFlight: make([]int, n),
		Calls: make([]int, n), Failed: make([]int, n), Cached: make([]int, n), Stale: make([]int, n),
		P50MS: make([]float64, n), P99MS: make([]float64, n),
	}
	waits, tallies := make([][]time.Duration, n), make([]tally, n)
	for _, c := range calls {
		since := micros(c.StartUS - zero.UnixMicro())
		if i := int(since / bucket); since >= 0 && i < n {
			tallies[i].add(c)
			waits[i] = append(waits[i], c.Wait())
		}
	}
	for i, t := range tallies {
		s.Calls[i], s.Failed[i], s.Cached[i], s.Stale[i] = t.Calls, t.Failed, t.Cached, t.Stale
		if len(waits[i]) > 0 {
			slices.Sort(waits[i])
			s.P50MS[i], s.P99MS[i] = milliseconds(quantile(waits[i], 0.5)), milliseconds(quantile(waits[i], 0.99))
		}
	}
	begin := zero.Add(offset)
	for i := range n {
		s.InFlight[i] = atOnce(ops, begin.Add(time.Duration(i)*bucket), begin.Add(time.Duration(i+1)*bucket))
	}
	return s
}

// atOnce is the most operations that the origin had at one moment between from and to,
// by its own log.
func atOnce(ops []Operation, from, to time.Time) int {
	type change struct {
		us int64
		by int
	}
	var changes []change
	level := 0
	for _, o := range ops {
		ended := o.EndUS != 0 && o.EndUS <= from.UnixMicro()
		if ended || o.StartUS >= to.UnixMicro() {
			continue
		}
		if o.StartUS <= from.UnixMicro() {
			level++
		} else {
			changes = append(changes, change{o.StartUS, 1})
		}
		if o.EndUS != 0 {
			changes = append(changes, change{o.EndUS, -1})
		}
	}
	// One that ends in the microsecond in which another begins has made room for it.
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.us, b.us), cmp.Compare(a.by, b.by)) })
	most := level
	for _, c := range changes {
		level += c.by
		most = max(most, level)
	}
	return most
}

// mostAtOnce is atOnce for all the time that the log is about.
func mostAtOnce(ops []Operation) int {
	return atOnce(ops, time.UnixMicro(0), time.UnixMicro(math.MaxInt64))
}

// between are the calls that began from one moment on and before another.
func between(calls []Call, from, to time.Time) []Call {
	var some []Call
	for _, c := range calls {
		if c.StartUS >= from.UnixMicro() && c.StartUS < to.UnixMicro() {
			some = append(some, c)
		}
	}
	return some
}

// steady is how long it must have been as before to count as recovered.
const steady = 5 // buckets

// recovery is how long after back the series is as it was before, to the end of a
// bucket's accuracy; false if it never is.
func (s Series) recovery(before tally, back time.Duration) (time.Duration, bool) {
	first := int(back / bucket)
	for i := first; i+steady <= len(s.Calls); i++ {
		var t tally
		for k := i; k < i+steady; k++ {
			t = t.plus(tally{s.Calls[k], s.Failed[k], s.Cached[k], s.Stale[k]})
		}
		if t.recovered(before) {
			return max(time.Duration(i)*bucket-back, 0), true
		}
	}
	return 0, false
}
