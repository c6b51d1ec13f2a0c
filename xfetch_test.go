package onefill

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/local"
)

// What XFetch does by itself, without a lease: of many independent readers, those who
// decide to refresh before the first refresh is done are e^(1/beta) on average, at any
// rate that is high enough. The oracle is that number (2.72, 1.65, 1.28 at beta 1, 2, 4):
// a draw from another distribution, or one that forgets beta or the cost, misses it.
//
// With the lease, and flights, it is 1: TestEarlyRefreshOnceInTheFleet.
func TestEarlyRefreshFollowsTheFormula(t *testing.T) {
	const (
		cost   = 100 * time.Millisecond
		every  = cost / 200 // between two readers, on average
		groups = 3000
	)
	for _, beta := range []float64{1, 2, 4} {
		c := &Cache[string, string]{opts: Options[string, string]{EarlyRefresh: beta}}
		expiry := int64(time.Hour)
		e := &local.Entry[string]{Soft: expiry, Trusted: expiry, Cost: uint32(cost.Microseconds())}
		refreshes, hardMisses := 0, 0
		for range groups {
			now, done := expiry-int64(12*beta*float64(cost)), int64(math.MaxInt64)
			for now < done {
				if c.dueEarly(e, now) || now >= expiry {
					refreshes++
					if now >= expiry {
						hardMisses++
					}
					done = min(done, now+int64(cost))
				}
				now += int64(rand.ExpFloat64() * float64(every))
			}
		}
		got, want := float64(refreshes)/groups, math.Exp(1/beta)
		t.Logf("beta %v: %.3f refreshes, the formula says %.3f; %d misses", beta, got, want, hardMisses)
		if math.Abs(got-want) > 0.12*want {
			t.Errorf("beta %v: %.3f refreshes of one expiry on average, the formula says %.3f", beta, got, want)
		}
	}
}

// At few readers early refresh is no protection: the value expires before anybody has
// drawn an early enough moment in about e^-1 of the cases (39 % in PROTOCOLS at rate
// times cost = 1), so the flight and the lease have to be there all the same.
func TestEarlyRefreshAloneIsNoSingleFlight(t *testing.T) {
	const cost, groups = 100 * time.Millisecond, 20000
	c := &Cache[string, string]{opts: Options[string, string]{EarlyRefresh: 1}}
	expiry := int64(time.Hour)
	e := &local.Entry[string]{Soft: expiry, Trusted: expiry, Cost: uint32(cost.Microseconds())}
	misses := 0
	for range groups {
		now := expiry - int64(15*cost)
		for ; now < expiry && !c.dueEarly(e, now); now += int64(rand.ExpFloat64() * float64(cost)) {
		}
		if now >= expiry {
			misses++
		}
	}
	if share := float64(misses) / groups; share < 0.33 || share > 0.43 {
		t.Errorf("%.3f of the expiries were missed", share)
	}
}
