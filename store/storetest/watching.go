package storetest

import (
	"fmt"
	"sync"
	"time"

	"github.com/onefill/onefill/store"
)

// watching has a test for each thing that must wake those who wait for somebody
// else's lease. In all of them the change comes after the answer Held and before
// anybody looks at the watch, so one that subscribed too late would never wake.
var watching = append(wakers(), []test{
	{"WatchWakesOnLeaseExpiry", func(c *check) {
		c.needsPush()
		c.longer(c.shortLease(), func(key string, ttl time.Duration) bool {
			c.a.wins(key, ttl, nil)
			held := c.b.ask(key, long, nil)
			if held.State != store.Held {
				return false
			}
			c.wakes(held.Watch)
			c.b.takesOver(key, nil)
			return true
		})
	}},
	{"WatchWakesEveryWaiter", func(c *check) {
		c.needsPush()
		lease := c.a.wins("k", long, nil)
		var watches []store.Watch
		for _, p := range []*peer{c.a, c.a, c.b, c.b, c.peer(c.b.store)} {
			watches = append(watches, p.finds(store.Held, "k", nil).Watch)
		}
		c.accepts(lease, c.value("v"))
		for _, w := range watches {
			c.wakes(w)
		}
	}},
	{"WatchStop", func(c *check) {
		c.needsPush()
		lease := c.a.wins("k", long, nil)
		stays, goes := c.b.finds(store.Held, "k", nil).Watch, c.b.finds(store.Held, "k", nil).Watch
		goes.Stop()
		goes.Stop()
		c.release(lease)
		c.wakes(stays) // the other one's Stop was not this one's
		stays.Stop()
		stays.Stop()
	}},
	{"WatchOfAnotherKeySleeps", func(c *check) {
		c.needsPush()
		one, two := c.a.wins("1", long, nil), c.a.wins("2", long, nil)
		first, second := c.b.finds(store.Held, "1", nil).Watch, c.b.finds(store.Held, "2", nil).Watch
		c.release(one)
		c.wakes(first)
		select {
		case <-second.C():
			c.Log("the watch of a key that did not change woke up: allowed, but wasteful")
		default:
		}
		c.release(two)
		c.wakes(second)
	}},
	{"WatchWokenByClose", func(c *check) {
		c.needsPush()
		c.a.wins("k", long, nil)
		p := c.peer(c.b.store)
		w := p.finds(store.Held, "k", nil).Watch
		c.ok("Close", p.Close())
		c.wakes(w)
		w.Stop()
	}},
	{"WatchMissesNothing", func(c *check) {
		// The lease ends at the same time as the question is asked: whoever is told
		// Held is woken, however the two cross.
		c.needsPush()
		for i := range 200 {
			key := fmt.Sprint(i)
			lease := c.a.wins(key, long, nil)
			var wg sync.WaitGroup
			start, ctx := make(chan struct{}), c.ctx()
			wg.Go(func() {
				<-start
				if ok, err := lease.Release(ctx); err != nil || !ok {
					c.Errorf("Release = %v, %v", ok, err)
				}
			})
			close(start)
			answer := c.b.ask(key, long, nil)
			if answer.State == store.Held {
				c.wakes(answer.Watch)
			}
			wg.Wait()
		}
	}},
}...)

// wakers tests each change of a lease by its holder or by a writer, waited for
// by another client, by another session of the same client, and by the session
// that makes the change.
func wakers() []test {
	var tests []test
	for _, w := range []struct {
		name   string
		change func(c *check, lease store.Lease, key string)
	}{
		{"Fill", func(c *check, lease store.Lease, _ string) { c.accepts(lease, c.value("v")) }},
		{"Fail", func(c *check, lease store.Lease, _ string) { c.fail(lease, []byte("down"), long) }},
		{"Release", func(c *check, lease store.Lease, _ string) { c.release(lease) }},
		{"Invalidate", func(c *check, _ store.Lease, key string) { c.a.invalidate(key) }},
		{"Expire", func(c *check, _ store.Lease, key string) { c.a.expire(key) }},
		{"Set", func(c *check, _ store.Lease, key string) { c.a.set(key, c.value("v"), long) }},
	} {
		for _, state := range []string{"absent", "stale"} {
			tests = append(tests, test{"WatchWakesOn" + w.name + "/" + state, func(c *check) {
				c.needsPush()
				for who, waiter := range map[string]*peer{
					"other client": c.b, "sibling": c.peer(c.a.store), "writer": c.a,
				} {
					key := who
					if state == "stale" {
						c.b.set(key, c.value("old"), long)
					}
					mark := seen(c.a.get(key))
					lease := c.a.wins(key, long, mark)
					held := waiter.finds(store.Held, key, mark)
					w.change(c, lease, key)
					c.wakes(held.Watch)
				}
			}})
		}
	}
	return tests
}
