package lab

import (
	"fmt"
	"strings"
	"time"
)

// demand collects what was not met, in words that say what was expected.
type demand []string

func (d *demand) that(met bool, format string, args ...any) {
	if !met {
		*d = append(*d, fmt.Sprintf(format, args...))
	}
}

func (d *demand) oneLoad(c *cell) {
	d.that(c.res.Loads == 1, "%d loads of the database instead of 1", c.res.Loads)
}

func (d *demand) identical(c *cell) {
	d.that(c.res.Identical, "the callers got different answers: %s", summary(c.innocents()))
}

func demandOneLoad(c *cell) []string {
	var d demand
	d.oneLoad(c)
	d.that(c.res.Errors == 0, "%d callers got no answer: %s", c.res.Errors, summary(c.innocents()))
	d.identical(c)
	return d
}

func demandNotFound(c *cell) []string {
	var d demand
	d.oneLoad(c)
	d.that(c.res.NotFound == len(c.innocents()), "only %d of %d callers were told that the row does not exist: %s",
		c.res.NotFound, len(c.innocents()), summary(c.innocents()))
	return d
}

func demandSharedError(c *cell) []string {
	var d demand
	d.oneLoad(c)
	all := c.innocents()
	failed := 0
	var longest time.Duration
	for _, call := range all {
		if call.Kind == KindError && strings.Contains(call.Error, failureText) {
			failed++
		}
		longest = max(longest, call.Wait())
	}
	d.that(failed == len(all), "only %d of %d callers got the database's error: %s", failed, len(all), summary(all))
	// Two loads in series would take twice as long.
	limit := c.run.cfg.Load + max(c.run.cfg.Load*9/10, 200*time.Millisecond)
	d.that(longest < limit, "a caller waited %v for the error; one load takes %v", longest.Round(time.Millisecond), c.run.cfg.Load)
	return d
}

func demandNew(c *cell) []string {
	var d demand
	d.that(*c.res.StaleAnswers == 0, "%d callers that came after the invalidation got the old row", *c.res.StaleAnswers)
	d.that(c.res.StoreHolds != holdsOld, "the store holds the old row")
	d.that(*c.res.StaleReaders == 0, "%d of %d processes go on with the old row", *c.res.StaleReaders, len(c.run.fleet))
	d.that(c.res.Errors == 0, "%d callers got no answer: %s", c.res.Errors, summary(c.calls))
	d.that(c.res.Loads <= 2, "%d loads instead of 2, one before and one after the invalidation", c.res.Loads)
	return d
}

func demandInnocent(c *cell) []string {
	var d demand
	d.oneLoad(c)
	d.that(c.res.Errors == 0, "%d callers failed because another one was cancelled: %s", c.res.Errors, summary(c.innocents()))
	for _, call := range c.calls {
		if isFirst(call.Caller) {
			d.that(call.Kind == KindCancelled, "the first caller had its %s before it could be cancelled; a longer --load is needed", call.Kind)
		}
	}
	return d
}

func demandStands(c *cell) []string {
	var d demand
	d.that(!*c.res.Freed, "the release by A freed what B held: %d holders at once", c.res.Holders)
	d.that(!*c.res.Published, "A stored its late value")
	d.that(!*c.res.Accepted, "A was told that its release had worked")
	return d
}

// demandServed is S7's.
func demandServed(c *cell) []string {
	var d demand
	processes := len(c.run.fleet)
	for _, w := range c.res.Waves {
		allowed := 0
		if w.Phase == phaseHerd {
			allowed = processes
		}
		d.that(w.Loads <= allowed, "%s: %d loads instead of at most %d", waveName[w.Phase], w.Loads, allowed)
		d.that(w.Calls.Failed == 0, "%s: %d callers got no answer: %s", waveName[w.Phase], w.Calls.Failed, summary(phaseOf(c.calls, w.Phase)))
		// Beside the load there is what the store is given to answer, and the scheduler of a
		// busy machine: what each caller of a process would need one after the other if
		// nothing took time. The other waves have nothing to wait for.
		slow := min(time.Duration((c.run.cfg.Callers+processes-1)/processes)*c.missTook, time.Second)
		longest := milliseconds(storeTimeout + 250*time.Millisecond + slow)
		if w.Phase == phaseHerd {
			longest += milliseconds(c.run.cfg.Load)
		}
		d.that(w.P99MS < longest, "%s: callers waited %.0f ms, more than the store's timeout and what they had to wait for, %.0f ms", waveName[w.Phase], w.P99MS, longest)
	}
	limit := wavePolicy(c).MaxLoadsDegraded * processes
	d.that(*c.res.MaxInFlight <= limit, "%d operations at once; the limit is %d", *c.res.MaxInFlight, limit)
	return d
}

// waveName names the waves in what is not met.
var waveName = map[string]string{
	phaseHerd: "the first callers", phaseAgain: "the callers after them", phaseKnown: "the callers of a known key",
}

func phaseOf(calls []Call, phase string) []Call {
	var some []Call
	for _, c := range calls {
		if c.Phase == phase {
			some = append(some, c)
		}
	}
	return some
}

// demandBounded is that of the scenarios with traffic.
func demandBounded(c *cell) []string {
	var d demand
	o := c.res.Outage
	d.that(o.MaxInFlight <= o.Limit, "the database had %d operations at once; MaxLoads allows %d", o.MaxInFlight, o.Limit)
	d.that(o.MaxInFlightDown <= o.LimitDegraded, "the database had %d operations at once while the store was away; MaxLoadsDegraded allows %d",
		o.MaxInFlightDown, o.LimitDegraded)
	d.that(c.res.Errors == 0, "%d of %d callers got no answer: %s", c.res.Errors, len(c.calls), summary(failedOf(c.calls)))
	wait := milliseconds(outagePolicy(c).WaitTimeout + 500*time.Millisecond) // the scheduler of a busy machine
	d.that(o.MaxMS <= wait, "a caller waited %.0f ms, longer than WaitTimeout", o.MaxMS)
	d.that(o.RecoveredMS != nil, "the hit rate was not again what it had been, %.0f %%, by the end", 100*o.Before.hitRate())
	return d
}

func failedOf(calls []Call) []Call {
	var some []Call
	for _, c := range calls {
		if c.Kind.Failed() {
			some = append(some, c)
		}
	}
	return some
}

// summary counts outcomes: "11 value, 1 error (text of the first)".
func summary(calls []Call) string {
	if len(calls) == 0 {
		return "nobody asked"
	}
	counts := make(map[string]int)
	texts := make(map[string]string)
	var order []string
	for _, call := range calls {
		name := string(call.Kind)
		if call.Row != "" {
			name += " " + call.Row
		}
		if counts[name]++; counts[name] == 1 {
			order = append(order, name)
			texts[name] = call.Error
		}
	}
	parts := make([]string, len(order))
	for i, name := range order {
		parts[i] = fmt.Sprintf("%d %s", counts[name], name)
		if texts[name] != "" {
			parts[i] += " (" + texts[name] + ")"
		}
	}
	return strings.Join(parts, ", ")
}
