package storetest

import (
	"math"

	"github.com/onefill/onefill/store"
)

// trying has a test for each order in which the attempts of one flight may reach the
// server: a connection that was given up may deliver its attempt at any time.
var trying = []test{
	{"LaterTryOwnsTheLease", func(c *check) {
		c.needs(c.f.KeepsToken, "the store declares no KeepsToken")
		for _, tries := range [][2]uint32{{0, 1}, {1, 2}, {1, math.MaxUint32}, {255, 256}, {1 << 16, 1<<16 + 1}, {math.MaxInt32, math.MaxInt32 + 1}} {
			c.laterTryOwns("k", tries[0], tries[1])
			c.a.invalidate("k")
		}
	}},
	{"LateTryTakesNothingAway", func(c *check) {
		// Try 1 is sent and delayed | try 2 wins | try 1 arrives | try 2 fills.
		c.needs(c.f.KeepsToken, "the store declares no KeepsToken")
		for _, tries := range [][2]uint32{{1, 2}, {0, math.MaxUint32}, {255, 256}, {math.MaxInt32, math.MaxInt32 + 1}} {
			token, key := store.NewToken(), "k"
			owner := c.a.tries(token, tries[1], key, long)
			late := c.b.tries(token, tries[0], key, long)
			if owner.State != store.Won || late.State != store.Won {
				c.Fatalf("try %d, then try %d: %v, %v, want won, won", tries[1], tries[0], owner.State, late.State)
			}
			c.lost(late.Lease)
			c.b.finds(store.Held, key, nil)
			data := c.value("the later try's")
			c.accepts(owner.Lease, data)
			c.b.holds(key, data)
			c.a.invalidate(key)
		}
	}},
	{"LateTryDoesNotShortenTheLease", func(c *check) {
		c.needs(c.f.KeepsToken, "the store declares no KeepsToken")
		token := store.NewToken()
		owner := c.a.tries(token, 2, "k", long)
		c.a.tries(token, 1, "k", c.shortLease())
		c.letPass(c.shortLease())
		c.b.finds(store.Held, "k", nil)
		c.accepts(owner.Lease, c.value("v"))
	}},
	{"LateTryMakesNoLeaseToFillUnder", func(c *check) {
		// Try 1 is sent and delayed | try 2 wins and loads | the row is written and
		// Invalidate voids the lease | try 1 arrives and finds the key free | try 2
		// fills: what it has loaded is old.
		c.needs(c.f.KeepsToken, "the store declares no KeepsToken")
		for name, void := range map[string]func(key string){
			"Invalidate": func(key string) { c.b.invalidate(key) },
			"Expire":     func(key string) { c.b.expire(key) },
		} {
			token := store.NewToken()
			owner := c.a.tries(token, 2, name, long)
			void(name)
			late := c.a.tries(token, 1, name, c.shortLease())
			if owner.State != store.Won || late.State != store.Won {
				c.Fatalf("try 2, %s, then try 1: %v, %v, want won, won", name, owner.State, late.State)
			}
			c.lost(owner.Lease)
			c.b.absent(name)
			// What nobody waits for ends by itself.
			data := c.value("new row")
			c.accepts(c.b.takesOver(name, nil), data)
			c.a.holds(name, data)
		}
	}},
	{"TryOfAnotherTokenCountsNothing", func(c *check) {
		// Attempts are counted within one flight: another flight's high number takes
		// no lease away, and a low one wins what is free.
		c.a.tries(store.NewToken(), 1, "k", long)
		if other := c.b.tries(store.NewToken(), 9, "k", long); other.State != store.Held {
			c.Fatalf("try 9 of another token: %v, want held", other.State)
		}
		c.a.invalidate("k")
		first := c.b.tries(store.NewToken(), 1, "k", long)
		if first.State != store.Won {
			c.Fatalf("try 1 of a free key: %v, want won", first.State)
		}
		c.accepts(first.Lease, c.value("v"))
	}},
}

// laterTryOwns checks that the lease goes from one attempt of a flight to a later one.
func (c *check) laterTryOwns(key string, earlier, later uint32) {
	c.Helper()
	token := store.NewToken()
	first := c.a.tries(token, earlier, key, long)
	again := c.b.tries(token, later, key, long)
	if first.State != store.Won || again.State != store.Won {
		c.Fatalf("tries %d and %d: %v, %v, want won, won", earlier, later, first.State, again.State)
	}
	c.lost(first.Lease)
	c.b.finds(store.Held, key, nil)
	if ok, err := again.Lease.Renew(c.ctx(), long); err != nil || !ok {
		c.Fatalf("Renew by try %d = %v, %v, want it done", later, ok, err)
	}
	data := c.value("the later try's")
	c.accepts(again.Lease, data)
	c.a.holds(key, data)
}
