package lab

import (
	"cmp"
	"slices"
	"time"
)

// measure fills in the result from the calls and the origin's count.
func (c *cell) measure(loads int, clockOffset time.Duration) {
	r := &c.res
	r.Loads, r.Groups = loads, c.scenario.groups
	if r.Groups > 0 {
		r.OpsPerGroup = float64(loads) / float64(r.Groups)
	}
	slices.SortFunc(c.calls, func(a, b Call) int { return cmp.Compare(a.Caller, b.Caller) })
	innocents := c.innocents()
	for _, call := range innocents {
		if call.Kind.Failed() {
			r.Errors++
		}
		if call.Kind == KindTimeout {
			r.Timeouts++
		}
		if call.Kind == KindNotFound {
			r.NotFound++
		}
		if call.Kind == KindValue {
			age := time.Duration(call.EndUS-call.ReadUS)*time.Microsecond + clockOffset
			r.AgeMaxMS = max(r.AgeMaxMS, milliseconds(age))
		}
	}
	r.Identical = identical(innocents)
	if c.scenario.together {
		c.measureExtra(innocents)
	}
	if c.scenario.ID == "S5" {
		c.measureStale()
	}
	c.res.Waves = c.waves
	c.res.Commit = c.commit
	if c.scenario.faulty && c.commit == nil {
		most := mostAtOnce(c.ops)
		c.res.MaxInFlight = &most
	}
	if c.outage != nil {
		c.outage.measure(clockOffset)
	}
}

// measureExtra notes how long the callers waited beyond one load.
func (c *cell) measureExtra(calls []Call) {
	if len(calls) == 0 {
		return
	}
	load := c.scenario.load(c.run.cfg)
	extra := make([]time.Duration, len(calls))
	for i, call := range calls {
		extra[i] = call.Wait() - load
	}
	slices.Sort(extra)
	at := func(q float64) *float64 {
		ms := milliseconds(quantile(extra, q))
		return &ms
	}
	c.res.ExtraP50MS, c.res.ExtraP99MS, c.res.ExtraMaxMS = at(0.50), at(0.99), at(1)
}

// measureStale counts old rows among the answers to those who came after the
// invalidation; the first caller had asked before it.
func (c *cell) measureStale() {
	answers, processes := 0, 0
	var after []Call
	for _, call := range c.calls {
		if isFirst(call.Caller) {
			continue
		}
		after = append(after, call)
		if call.Kind == KindValue && call.Row != rowNew {
			answers++
		}
	}
	for _, call := range c.verified {
		if call.Kind != KindValue || call.Row != rowNew {
			processes++
		}
	}
	c.res.StaleAnswers, c.res.StaleReaders = &answers, &processes
	c.res.Identical = identical(append(after, c.verified...))
}

// identical says whether all calls ended alike: the same row, or the same kind of
// failure. The text of an error may say in addition where it came from.
func identical(calls []Call) bool {
	for _, call := range calls {
		if call.Kind != calls[0].Kind || call.Row != calls[0].Row {
			return false
		}
	}
	return true
}

// quantile is the nearest-rank quantile: the smallest value that at least q of
// the values do not exceed. The values are sorted; there is at least one.
func quantile(sorted []time.Duration, q float64) time.Duration {
	rank := int(q * float64(len(sorted)))
	if float64(rank) < q*float64(len(sorted)) {
		rank++
	}
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// milliseconds rounds to a hundredth, for readers of JSON.
func milliseconds(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}
