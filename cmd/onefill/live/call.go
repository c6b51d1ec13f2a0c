package live

import (
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
)

// call is one call of a caller, when it has its answer.
type call struct {
	mode   string
	answer recipe.Answer
	err    error
	took   time.Duration
	gone   bool // its caller was called off: it counts as nothing
}

// glance is what a look into the store takes at most, as the page counts: who took
// longer has waited for a load. No load of the page is as short.
const glance = 10 * time.Millisecond

// waited says that the caller was not answered at once.
func (c call) waited() bool { return c.took >= glance }

func (c call) count(n *Counters) {
	n.Calls++
	if c.err != nil {
		n.Errors++
	}
	if c.answer.Stale {
		n.Stale++
	}
	if c.answer.Waited {
		n.Waits++
	}
	switch {
	case c.answer.Coalesced:
		n.Coalesced++
	case c.waited():
		n.Flights++
	case c.err != nil: // the failure was remembered, or the store was away: nobody set out
	case c.answer.Source == recipe.SourceLocal:
		n.Local++
	default:
		n.Stored++
		if c.mode == ModeOnefill { // it goes to the store in a flight, too
			n.Flights++
		}
	}
}
