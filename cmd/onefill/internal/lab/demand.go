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
