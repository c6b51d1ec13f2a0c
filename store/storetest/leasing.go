package storetest

import (
	"sync"
	"time"

	"github.com/onefill/onefill/store"
)

var leasing = []test{
	{"LeaseIsWonOnce", func(c *check) {
		lease := c.a.wins("k", long, nil)
		for _, p := range []*peer{c.a, c.b, c.peer(c.a.store)} {
			held := p.finds(store.Held, "k", nil)
			if held.Remaining > long+c.f.Granularity {
				c.Errorf("a lease of %v has %v left", long, held.Remaining)
			}
			if held.Item.Found {
				c.Errorf("held on an absent key, with item %s", show(held.Item))
			}
		}
		data := c.value("v")
		c.accepts(lease, data)
		c.b.holds("k", data)
	}},
	{"LeaseIsPerKey", func(c *check) {
		one, two := c.a.wins("1", long, nil), c.a.wins("2", long, nil)
		c.accepts(one, c.value("1"))
		c.b.finds(store.Held, "2", nil)
		c.accepts(two, c.value("2"))
	}},
	{"LeaseIsTakenOverAfterItsEnd", func(c *check) {
		ttl, start := c.shortLease(), time.Now()
		c.a.wins("k", ttl, nil)
		lease := c.b.takesOver("k", nil)
		if after := time.Since(start); after < ttl-c.f.Granularity-2*time.Millisecond {
			c.Errorf("a lease of %v was taken over after %v", ttl, after)
		}
		c.accepts(lease, c.value("v"))
	}},
	{"StaleLeaseIsTakenOverAfterItsEnd", func(c *check) {
		// The dead winner has left a value behind: somebody else must still win.
		old := c.value("old")
		c.a.set("k", old, long)
		c.a.wins("k", c.shortLease(), store.MarkOf(old))
		fresh := c.value("fresh")
		c.accepts(c.b.takesOver("k", store.MarkOf(old)), fresh)
		c.a.holds("k", fresh)
	}},
	{"AcquireLooksAgain", func(c *check) {
		// b misses | a loads and fills | b asks for the lease.
		c.b.absent("k")
		data := c.value("v")
		c.accepts(c.a.wins("k", long, nil), data)
		hit := c.b.finds(store.Hit, "k", nil)
		if string(hit.Item.Data) != string(data) {
			c.Errorf("hit with %s", show(hit.Item))
		}
	}},
	{"OneOfManyWins", func(c *check) {
		// All ask at the same time: one wins, the others are held, and once it
		// has filled none of them wins.
		peers := []*peer{c.a, c.b, c.peer(c.a.store), c.peer(c.b.store)}
		for _, seen := range [][]byte{nil, c.value("old")} {
			key := "absent"
			if seen != nil {
				key = "stale"
				c.a.set(key, seen, long)
			}
			states, leases := c.allAsk(peers, 4, key, mark(seen))
			if states[store.Won] != 1 || states[store.Held] != 15 {
				c.Fatalf("%s key, 16 asked at once: %v, want 1 won, 15 held", key, states)
			}
			c.accepts(leases[0], c.value("new"))
			if states, _ = c.allAsk(peers, 4, key, mark(seen)); states[store.Hit] != 16 {
				c.Fatalf("%s key, 16 asked after the fill: %v, want 16 hits", key, states)
			}
		}
	}},
	{"SeenValueIsReplaced", func(c *check) {
		old := c.value("old")
		c.a.set("k", old, long)
		won := c.b.finds(store.Won, "k", store.MarkOf(old))
		if won.Item.Found && string(won.Item.Data) != string(old) {
			c.Errorf("won with item %s", show(won.Item))
		}
		c.a.holds("k", old)
		fresh := c.value("fresh")
		c.accepts(won.Lease, fresh)
		c.a.holds("k", fresh)
	}},
	{"OtherValueIsAHit", func(c *check) {
		old, fresh := c.value("same"), c.value("same") // same payload, other version
		c.a.set("k", fresh, long)
		hit := c.b.finds(store.Hit, "k", store.MarkOf(old))
		if string(hit.Item.Data) != string(fresh) {
			c.Errorf("hit with %s", show(hit.Item))
		}
	}},
	{"OtherValueIsAHitThoughLeased", func(c *check) {
		old, fresh := c.value("old"), c.value("fresh")
		c.a.set("k", fresh, long)
		lease := c.a.wins("k", long, store.MarkOf(fresh))
		c.b.finds(store.Hit, "k", store.MarkOf(old))
		c.b.finds(store.Hit, "k", nil)
		c.accepts(lease, c.value("fresher"))
	}},
	{"UnseenValueIsAHit", func(c *check) {
		c.a.set("k", c.value("v"), long)
		c.b.finds(store.Hit, "k", nil)
	}},
	{"SeenEmptyValue", func(c *check) {
		// Empty bytes are a value: unseen they hit; their mark, which is empty but
		// not nil, replaces them; and they differ from another value's mark.
		c.a.set("k", []byte{}, long)
		c.b.finds(store.Hit, "k", nil)
		c.b.finds(store.Hit, "k", store.MarkOf(c.value("v")))
		c.release(c.b.wins("k", long, store.MarkOf(nil)))
		c.a.set("k", c.value("v"), long)
		c.b.finds(store.Hit, "k", store.MarkOf(nil))
	}},
	{"SeenPrefixIsAnotherValue", func(c *check) {
		// Values shorter than a mark are their own marks: a prefix is not enough.
		c.a.set("k", []byte("abc"), long)
		c.b.finds(store.Hit, "k", []byte("ab"))
		c.b.finds(store.Hit, "k", []byte("abcd"))
		c.release(c.b.wins("k", long, []byte("abc")))
	}},
	{"SeenValueIsGone", func(c *check) {
		old := c.value("old")
		lease := c.a.wins("k", long, store.MarkOf(old))
		fresh := c.value("fresh")
		c.accepts(lease, fresh)
		c.b.holds("k", fresh)
	}},
	{"SameTokenWinsAgain", func(c *check) {
		c.needs(c.f.KeepsToken, "the store declares no KeepsToken")
		token := store.NewToken()
		first := c.a.askAs(token, "k", long, nil)
		again := c.a.askAs(token, "k", long, nil)
		if first.State != store.Won || again.State != store.Won {
			c.Fatalf("the same token twice: %v, %v, want won, won", first.State, again.State)
		}
		c.b.finds(store.Held, "k", nil)
		c.accepts(again.Lease, c.value("v"))
		c.refuses(first.Lease, c.value("twice"))
	}},
	{"SameTokenOfAFilledKeyHits", func(c *check) {
		c.needs(c.f.KeepsToken, "the store declares no KeepsToken")
		token := store.NewToken()
		c.a.askAs(token, "k", long, nil)
		c.b.set("k", c.value("v"), long)
		if again := c.a.askAs(token, "k", long, nil); again.State != store.Hit {
			c.Fatalf("the same token after a Set: %v, want hit", again.State)
		}
	}},
	{"ReleasedLeaseIsFreeAtOnce", func(c *check) {
		old := c.value("old")
		c.a.set("stale", old, long)
		c.release(c.a.wins("absent", long, nil))
		c.release(c.b.wins("absent", long, nil))
		c.release(c.a.wins("stale", long, store.MarkOf(old)))
		c.b.holds("stale", old)
		c.accepts(c.b.wins("stale", long, store.MarkOf(old)), c.value("fresh"))
	}},
	{"ReleaseTwice", func(c *check) {
		lease := c.a.wins("k", long, nil)
		c.release(lease)
		if ok, err := lease.Release(c.ctx()); err != nil || ok {
			c.Fatalf("second Release = %v, %v, want false, nil", ok, err)
		}
		// The second one must not free what is somebody else's by now.
		c.b.wins("k", long, nil)
		if ok, err := lease.Release(c.ctx()); err != nil || ok {
			c.Fatalf("third Release = %v, %v, want false, nil", ok, err)
		}
		c.a.finds(store.Held, "k", nil)
	}},
	{"RenewKeepsTheLease", func(c *check) {
		// Win for a moment, renew for long, let the moment pass: still held, and
		// the fill is accepted.
		c.longer(2*c.shortLease(), func(key string, ttl time.Duration) bool {
			start := time.Now()
			lease := c.a.wins(key, ttl, nil)
			ok, err := lease.Renew(c.ctx(), long)
			c.ok("Renew", err)
			if !ok && time.Since(start) > ttl-c.f.Granularity {
				return false
			}
			if !ok {
				c.Fatalf("Renew of a lease of %v, %v old = false", ttl, time.Since(start))
			}
			c.letPass(ttl)
			c.b.finds(store.Held, key, nil)
			c.accepts(lease, c.value("v"))
			return true
		})
	}},
	{"RenewedLeaseEnds", func(c *check) {
		lease := c.a.wins("k", long, nil)
		if ok, err := lease.Renew(c.ctx(), c.shortLease()); err != nil || !ok {
			c.Fatalf("Renew = %v, %v", ok, err)
		}
		c.b.takesOver("k", nil)
		c.lost(lease)
	}},
	{"WrongOwnerLeavesTheLeaseStanding", func(c *check) {
		// a's lease ends, b takes over: whatever a does, b's lease stands. Once on
		// an absent key, once on a stale value; ended by time and by Invalidate.
		old := c.value("old")
		c.a.set("stale", old, long)
		for _, key := range []string{"absent", "stale"} {
			var seen []byte
			if key == "stale" {
				seen = store.MarkOf(old)
			}
			late := c.a.wins(key, c.shortLease(), seen)
			c.stands(late, c.b.takesOver(key, seen), key, seen)

			late = c.a.wins(key+"2", long, nil)
			c.b.invalidate(key + "2")
			c.stands(late, c.b.wins(key+"2", long, nil), key+"2", nil)
		}
	}},
}

// stands checks that nothing that the holder of the late lease does touches the
// lease that somebody else holds.
func (c *check) stands(late, lease store.Lease, key string, seen []byte) {
	c.Helper()
	c.lost(late)
	c.a.finds(store.Held, key, seen)
	c.peer(c.a.store).finds(store.Held, key, seen)
	data := c.value("the owner's")
	c.accepts(lease, data)
	c.a.holds(key, data)
	c.lost(late)
	c.a.holds(key, data)
}

// allAsk lets each peer ask n times at once and counts the answers.
func (c *check) allAsk(peers []*peer, n int, key string, seen []byte) (map[store.State]int, []store.Lease) {
	c.Helper()
	var (
		mu     sync.Mutex
		states = make(map[store.State]int)
		leases []store.Lease
		wg     sync.WaitGroup
		ctx    = c.ctx()
		start  = make(chan struct{})
	)
	for _, p := range peers {
		for range n {
			wg.Go(func() {
				<-start
				answer, err := p.Acquire(ctx, key, store.Request{Token: store.NewToken(), TTL: long, Seen: seen})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					c.Errorf("Acquire: %v", err)
				}
				states[answer.State]++
				if answer.Lease != nil {
					leases = append(leases, answer.Lease)
				}
				if answer.Watch != nil {
					answer.Watch.Stop()
				}
			})
		}
	}
	close(start)
	wg.Wait()
	return states, leases
}

// mark is the mark of data, nil for none.
func mark(data []byte) []byte {
	if data == nil {
		return nil
	}
	return store.MarkOf(data)
}
