package onefill_test

import (
	"fmt"
	"testing"
	"time"

	inbubble "github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/store/memstore"
)

// A store that is silent costs the first call StoreTimeout, and later ones nothing: one call
// after the other, each of another key.
func TestSilentStoreCostsOneTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		c := newCache(t, options{Store: st, Load: newOrigin("v1", 0).load})
		get(t, c, "before", "v1")
		inbubble.After(time.Second)
		st.SetFault(func(memstore.Op) memstore.Fault { return memstore.Fault{Delay: time.Hour} })
		defer st.SetFault(nil)
		var took []time.Duration
		for i := range 5 {
			start := time.Now()
			get(t, c, fmt.Sprint(i), "v1")
			took = append(took, time.Since(start))
		}
		if took[0] > 250*time.Millisecond || took[1] > 0 || took[2] > 0 {
			t.Errorf("the calls took %v", took)
		}
	})
}

// A store that refuses costs a few calls the pause before the second attempt, and no more.
func TestRefusingStoreCostsLittle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		c := newCache(t, options{Store: st, Load: newOrigin("v1", 0).load})
		st.Down()
		defer st.Up()
		start := time.Now()
		for i := range 100 {
			get(t, c, fmt.Sprint(i), "v1")
		}
		if took := time.Since(start); took > 30*time.Millisecond {
			t.Errorf("100 calls took %v", took)
		}
	})
}

// One operation that is not answered says nothing while others are: the breaker stays closed.
// Forced: the operation on one key hangs for StoreTimeout; others, which begin later, are answered.
func TestOneSlowOperationOpensNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		c := newCache(t, options{Store: st, Load: newOrigin("v1", 0).load})
		st.SetFault(func(op memstore.Op) memstore.Fault {
			if op.Key == "slow" {
				return memstore.Fault{Delay: time.Hour}
			}
			return memstore.Fault{}
		})
		defer st.SetFault(nil)
		slow := ask(bg, c, "slow")
		for i := range 30 {
			inbubble.After(10 * time.Millisecond)
			get(t, c, fmt.Sprint(i), "v1")
		}
		<-slow
		if s := c.Stats(); s.StoreDown || s.StoreErrors == 0 {
			t.Errorf("down: %t, after %d errors", s.StoreDown, s.StoreErrors)
		}
	})
}
