package storetest

import (
	"strings"

	"github.com/onefill/onefill/store"
)

// fencing has a test for each way to lose a lease, on an absent key and on a
// stale value: what the holder does afterwards is refused and changes nothing,
// and the key works.
var fencing = append(losses(), []test{
	{"FillEndsTheLease", func(c *check) {
		lease, data := c.a.wins("k", long, nil), c.value("v")
		c.accepts(lease, data)
		c.lost(lease)
		c.b.holds("k", data)
		c.b.finds(store.Hit, "k", nil)
		c.accepts(c.b.wins("k", long, store.MarkOf(data)), c.value("next"))
	}},
	{"VoidedKeyIsFreeAtOnce", func(c *check) {
		c.a.wins("i", long, nil)
		c.a.wins("e", long, nil)
		c.b.invalidate("i")
		c.b.expire("e")
		c.accepts(c.b.wins("i", long, nil), c.value("v"))
		c.accepts(c.b.wins("e", long, nil), c.value("v"))
	}},
	{"VoidsManyKeys", func(c *check) {
		keys := strings.Split("abcdefgh", "")
		leases := make([]store.Lease, len(keys))
		for i, key := range keys {
			leases[i] = c.a.wins(key, long, nil)
		}
		c.b.invalidate(keys[:4]...)
		c.b.expire(keys[4:]...)
		for i, key := range keys {
			c.refuses(leases[i], c.value("late"))
			c.b.absent(key)
		}
	}},
	{"OwnSessionVoidsToo", func(c *check) {
		// The writer and the holder are the same session: no difference.
		one, two, three := c.a.wins("1", long, nil), c.a.wins("2", long, nil), c.a.wins("3", long, nil)
		data := c.value("set")
		c.a.invalidate("1")
		c.a.expire("2")
		c.a.set("3", data, long)
		for _, lease := range []store.Lease{one, two, three} {
			c.lost(lease)
		}
		c.b.absent("1")
		c.b.absent("2")
		c.b.holds("3", data)
	}},
	{"GoneAndFilledByAnother", func(c *check) {
		// a loads the old row | b writes the row, invalidates, loads, fills |
		// a fills: the textbook race.
		late := c.a.wins("k", long, nil)
		c.b.invalidate("k")
		fresh := c.value("new row")
		c.accepts(c.b.wins("k", long, nil), fresh)
		c.refuses(late, c.value("old row"))
		c.a.holds("k", fresh)
	}},
}...)

// loss is a way to lose a lease. It gets the key and, on a stale value, its
// mark; it says whether somebody else holds the lease afterwards.
type loss struct {
	name string
	lose func(c *check, lease store.Lease, key string, seen []byte) (taken bool)
	ttl  bool // of the lease: a short one
}

func losses() []test {
	var tests []test
	for _, l := range []loss{
		{name: "Expiry", ttl: true, lose: func(c *check, _ store.Lease, _ string, _ []byte) bool {
			c.letPass(c.shortLease())
			return false
		}},
		{name: "Takeover", ttl: true, lose: func(c *check, _ store.Lease, key string, seen []byte) bool {
			c.b.takesOver(key, seen)
			return true
		}},
		{name: "Invalidate", lose: func(c *check, _ store.Lease, key string, _ []byte) bool {
			c.b.invalidate(key)
			return false
		}},
		{name: "Expire", lose: func(c *check, _ store.Lease, key string, _ []byte) bool {
			c.b.expire(key)
			return false
		}},
		{name: "Set", lose: func(c *check, _ store.Lease, key string, _ []byte) bool {
			c.b.set(key, c.value("set"), long)
			return false
		}},
		{name: "Release", lose: func(c *check, lease store.Lease, _ string, _ []byte) bool {
			c.release(lease)
			return false
		}},
		{name: "Fail", lose: func(c *check, lease store.Lease, _ string, _ []byte) bool {
			c.fail(lease, []byte("failure"), c.h.Tick)
			return false
		}},
		{name: "Eviction", lose: func(c *check, _ store.Lease, key string, _ []byte) bool {
			c.needs(c.h.EvictLease != nil, "the harness has no EvictLease")
			c.h.EvictLease(c, c.name, key)
			return false
		}},
	} {
		tests = append(tests,
			test{"FillRefusedAfter" + l.name + "/absent", func(c *check) { c.losesAbsent(l) }},
			test{"FillRefusedAfter" + l.name + "/stale", func(c *check) { c.losesStale(l) }})
	}
	return tests
}

func (c *check) losesAbsent(l loss) {
	ttl := long
	if l.ttl {
		ttl = c.shortLease()
	}
	lease := c.a.wins("k", ttl, nil)
	c.afterLoss(lease, l.lose(c, lease, "k", nil), "k")
}

func (c *check) losesStale(l loss) {
	ttl := long
	if l.ttl {
		ttl = c.shortLease()
	}
	old := c.value("old")
	c.a.set("k", old, long)
	lease := c.a.wins("k", ttl, store.MarkOf(old))
	c.afterLoss(lease, l.lose(c, lease, "k", store.MarkOf(old)), "k")
}

// afterLoss checks that the lost lease changes nothing and that the key, unless
// somebody else holds its lease, can be won and filled.
func (c *check) afterLoss(lease store.Lease, taken bool, key string) {
	c.Helper()
	before := c.b.get(key)
	c.lost(lease)
	after := c.b.get(key)
	if before.Found != after.Found || string(before.Data) != string(after.Data) {
		c.Fatalf("after the lease was lost: %s; after the late calls: %s", show(before), show(after))
	}
	if taken {
		c.a.finds(store.Held, key, seen(after))
		return
	}
	data := c.value("next")
	c.eventually("the next caller wins", func() bool { // a failure record must end first
		answer := c.b.ask(key, long, seen(after))
		if answer.State == store.Failed {
			return false
		}
		if answer.State != store.Won {
			c.Fatalf("Acquire after the loss = %v, want won", answer.State)
		}
		c.accepts(answer.Lease, data)
		return true
	})
	c.a.holds(key, data)
}

// seen is the mark of what was read, nil after a miss.
func seen(item store.Item) []byte {
	if !item.Found {
		return nil
	}
	return store.MarkOf(item.Data)
}
