package storetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/onefill/onefill/store"
)

// owning has the tests of Config.Owner: it is told to those who inspect a key, and decides
// nothing.
var owning = []test{
	{"OwnerIsShown", func(c *check) {
		c.needsInspector()
		for i, owner := range oddOwners() {
			p := c.owned(c.a.store, owner)
			bare, over := fmt.Sprint("bare", i), fmt.Sprint("over", i)
			c.a.set(over, c.value("v"), long)
			for key, seen := range map[string][]byte{bare: nil, over: store.MarkOf(c.a.get(over).Data)} {
				lease := p.wins(key, long, seen)
				c.heldBy(key, owner)
				c.keeps(lease, long)
				c.heldBy(key, owner)
				if key == over && string(c.b.inspect(key).Item.Data) != string(c.a.get(key).Data) {
					c.Errorf("%q: what a look sees of the value is not what a reader gets", owner)
				}
				c.accepts(lease, c.value("new"))
				c.heldByNobody(key)
			}
		}
	}},
	{"OwnerIsShownOverAFailure", func(c *check) {
		// The record of the failure before the lease is as if there was no owner.
		c.needsInspector()
		for record, stale := range map[string]bool{"@x 5:y": false, "": true} {
			c.remembers(stale, []byte(record), func(won store.Answer, key string, _ []byte) {
				c.heldBy(key, c.b.owner)
				c.keeps(won.Lease, long)
				c.heldBy(key, c.b.owner)
				if f := c.a.inspect(key).Failure; f.Record != nil && string(f.Record) != record { // or it is forgotten by now
					c.Errorf("under the lease the record is %q, want %q", f.Record, record)
				}
				c.release(won.Lease)
				c.heldByNobody(key)
				if f := c.a.inspect(key).Failure; f.Record != nil && string(f.Record) != record {
					c.Errorf("after the lease the record is %q, want %q", f.Record, record)
				}
			})
		}
	}},
	{"OwnerAfterATakeover", func(c *check) {
		// Whoever has the lease now is shown, and nothing of who had it before, also where he
		// has no owner.
		c.needsInspector()
		old := c.value("old")
		ends := map[string]func(key string, l store.Lease){
			"Release":    func(_ string, l store.Lease) { c.release(l) },
			"BreakLease": func(key string, _ store.Lease) { c.b.breaks(key, "", true) },
			"Invalidate": func(key string, _ store.Lease) { c.b.invalidate(key) },
			"Expire":     func(key string, _ store.Lease) { c.b.expire(key) },
			"Set":        func(key string, _ store.Lease) { c.b.set(key, old, long) },
		}
		for _, next := range []*peer{c.b, c.peer(c.b.store)} {
			for what, end := range ends {
				for _, key := range []string{what, what + " over a value"} {
					if key != what {
						c.a.set(key, old, long)
					}
					first := c.a.wins(key, long, seen(c.a.get(key)))
					end(key, first)
					c.isTakenOver(next, key, first)
				}
			}
		}
	}},
	{"OwnerAfterALeaseThatEnded", func(c *check) {
		c.needsInspector()
		nobody, leases := c.peer(c.b.store), map[string]store.Lease{}
		for _, key := range []string{"bare", "bare, nobody's", "over", "over, nobody's"} {
			if strings.HasPrefix(key, "over") {
				c.a.set(key, c.value("v"), long)
			}
			leases[key] = c.a.wins(key, c.shortLease(), seen(c.a.get(key)))
		}
		c.letPass(c.shortLease())
		for key, first := range leases {
			next := c.b
			if strings.HasSuffix(key, "nobody's") {
				next = nobody
			}
			c.isTakenOver(next, key, first)
		}
	}},
	{"OwnerIsOverWithTheLease", func(c *check) {
		c.needsInspector()
		old := c.value("old")
		for _, key := range []string{"bare", "over"} {
			if key == "over" {
				c.a.set(key, old, long)
			}
			c.fail(c.a.wins(key, long, seen(c.a.get(key))), []byte("down"), long)
			c.heldByNobody(key)
			if f := c.b.inspect(key).Failure; string(f.Record) != "down" {
				c.Errorf("%s: the failure is %q", key, f.Record)
			}
		}
	}},
	{"OwnerIsNoToken", func(c *check) {
		// Interleaving: a's flight holds | another flight of the same owner asks: held | a's
		// lease is broken, the other one wins | a can do nothing, though the owner is the same.
		c.needsInspector()
		twin := c.owned(c.b.store, c.a.owner)
		for _, key := range []string{"bare", "over"} {
			if key == "over" {
				c.a.set(key, c.value("old"), long)
			}
			mark := seen(c.a.get(key))
			first := c.a.wins(key, long, mark)
			twin.finds(store.Held, key, mark)
			c.b.breaks(key, "", true)
			second := twin.wins(key, long, mark)
			c.lost(first)
			c.heldBy(key, twin.owner)
			c.accepts(second, c.value("new"))
		}
	}},
	{"OwnerOfALaterTry", func(c *check) {
		// A flight's later try has its lease, whatever owner it says, and the earlier one's is
		// no more.
		c.needsInspector()
		c.needs(c.f.KeepsToken, "the store declares no KeepsToken")
		for _, later := range []*peer{c.a, c.b, c.peer(c.a.store)} {
			token, key := store.NewToken(), fmt.Sprintf("%q", later.owner)
			first := c.a.tries(token, 1, key, long)
			second := later.tries(token, 2, key, long)
			if first.State != store.Won || second.State != store.Won {
				c.Fatalf("%v, then %v", first.State, second.State)
			}
			c.heldBy(key, later.owner)
			c.a.tries(token, 1, key, long) // late: it changes nothing
			c.heldBy(key, later.owner)
			c.lost(first.Lease)
			c.accepts(second.Lease, c.value("v"))
		}
	}},
	{"InvalidOwnersAreRefused", func(c *check) {
		for _, owner := range []string{" ", "a b", "a\x00", "\x1b[2J", "ä", "a\r\n", strings.Repeat("o", store.MaxOwnerBytes+1)} {
			for _, down := range []bool{false, true} {
				_, err := c.a.store.Attach(c.ctx(), store.Config{Name: c.name, Owner: owner, AllowDown: down})
				c.fails("Attach of owner "+short(owner), err)
			}
		}
	}},
}

// oddOwners are printable, and look like what may lie beside them; the empty one is none.
func oddOwners() []string {
	return []string{"", "web-3:4711", "a", "@", "@@", "0:", "60000:down", "f1:", "t", "%s", "%d+", `"'\{}*`, strings.Repeat("~", store.MaxOwnerBytes)}
}

// heldBy checks that somebody holds the lease of a key, and that it is said who. Where the
// server does not keep the token of a lease, it does not keep the owner.
func (c *check) heldBy(key, owner string) {
	c.Helper()
	l := c.a.inspect(key).Lease
	if l.Token == (store.Token{}) {
		owner = ""
	}
	if l.ID == "" || l.Owner != owner {
		c.Fatalf("%s: %+v, want a lease that %q holds", short(key), l, owner)
	}
}

func (c *check) heldByNobody(key string) {
	c.Helper()
	if l := c.a.inspect(key).Lease; l != (store.LeaseInfo{}) {
		c.Fatalf("%s: %+v, want none", short(key), l)
	}
}

func (c *check) keeps(l store.Lease, ttl time.Duration) {
	c.Helper()
	if ok, err := l.Renew(c.ctx(), ttl); err != nil || !ok {
		c.Fatalf("Renew = %v, %v, want it done", ok, err)
	}
}

// isTakenOver checks that a key is free, and that the next lease is all its holder's.
func (c *check) isTakenOver(next *peer, key string, first store.Lease) {
	c.Helper()
	c.heldByNobody(key)
	second := next.wins(key, long, seen(c.a.get(key)))
	c.heldBy(key, next.owner)
	c.lost(first)
	c.keeps(second, long)
	c.heldBy(key, next.owner)
	c.accepts(second, c.value("new"))
	c.a.invalidate(key)
}
