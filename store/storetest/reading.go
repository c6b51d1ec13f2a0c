package storetest

import (
	"time"

	"github.com/onefill/onefill/store"
)

var reading = []test{
	{"Hit", func(c *check) {
		data := c.value("v")
		c.a.set("k", data, long)
		c.a.holds("k", data)
		c.b.holds("k", data)
		c.peer(c.a.store).holds("k", data)
	}},
	{"MissIsNoError", func(c *check) {
		c.a.absent("k")
		c.a.absent("k")
	}},
	{"SetReplaces", func(c *check) {
		c.a.set("k", c.value("one"), long)
		two := c.value("two")
		c.b.set("k", two, long)
		c.a.holds("k", two)
	}},
	{"InvalidateRemoves", func(c *check) {
		c.a.set("k", c.value("v"), long)
		c.b.invalidate("k")
		c.a.absent("k")
	}},
	{"InvalidateMany", func(c *check) {
		keys := []string{"1", "2", "3", "4", "never there"}
		for _, key := range keys[:4] {
			c.a.set(key, c.value(key), long)
		}
		other := c.value("other")
		c.a.set("other", other, long)
		c.b.invalidate(keys...)
		for _, key := range keys {
			c.a.absent(key)
		}
		c.a.holds("other", other)
	}},
	{"NoKeysIsNoError", func(c *check) {
		c.a.invalidate()
		c.a.expire()
	}},
	{"GetTakesNoLease", func(c *check) {
		c.a.absent("k")
		c.release(c.b.wins("k", long, nil))
		c.a.absent("k")
	}},
	{"GetUsesUpNobodysTurn", func(c *check) {
		// On a key that somebody loads, and on one whose stale value somebody
		// replaces, any number of Gets changes nothing.
		old, fresh := c.value("old"), c.value("fresh")
		c.a.set("stale", old, long)
		absent := c.a.wins("absent", long, nil)
		stale := c.a.wins("stale", long, store.MarkOf(old))
		for range 3 {
			c.b.absent("absent")
			c.b.holds("stale", old)
		}
		c.b.finds(store.Held, "absent", nil)
		c.b.finds(store.Held, "stale", store.MarkOf(old))
		c.accepts(absent, fresh)
		c.accepts(stale, fresh)
		c.b.holds("absent", fresh)
		c.b.holds("stale", fresh)
	}},
	{"NamesDoNotMeet", func(c *check) {
		other := c.peerNamed(c.a.store, c.name+"x")
		mine, theirs := c.value("mine"), c.value("theirs")
		c.a.set("k", mine, long)
		other.absent("k")
		other.set("k", theirs, long)
		c.a.holds("k", mine)
		other.invalidate("k")
		c.a.holds("k", mine)
		other.absent("xk")

		lease := c.a.wins("l", long, nil)
		c.release(other.wins("l", long, nil))
		other.invalidate("l")
		c.accepts(lease, mine)
	}},
	{"InvalidNamesAreRefused", func(c *check) {
		for _, name := range []string{"", "a b", "a:b", "a{b}", "ä", "a\r\n"} {
			_, err := c.a.store.Attach(c.ctx(), store.Config{Name: name})
			c.fails("Attach with name "+short(name), err)
			_, err = c.a.store.Attach(c.ctx(), store.Config{Name: name, AllowDown: true})
			c.fails("Attach, AllowDown, with name "+short(name), err)
		}
	}},
	{"Ping", func(c *check) {
		c.ok("Ping", c.a.Ping(c.ctx()))
	}},
	{"NilEventsAreFine", func(c *check) {
		s, err := c.a.store.Attach(c.ctx(), store.Config{Name: c.name})
		c.ok("Attach", err)
		_, err = s.Get(c.ctx(), "k")
		c.ok("Get", err)
		c.b.set("k", c.value("v"), long)
		c.eventually("the session goes on", func() bool {
			item, err := s.Get(c.ctx(), "k")
			c.ok("Get", err)
			return item.Found
		})
		c.ok("Close", s.Close())
	}},
	{"SaneFeatures", func(c *check) {
		if c.f != c.b.Features() {
			c.Errorf("two clients of one server: %+v and %+v", c.f, c.b.Features())
		}
		if c.f.Granularity < 0 || c.f.MinLease < 0 || c.f.MaxKeyBytes < 0 || c.f.MaxValueBytes < 0 {
			c.Errorf("negative limits: %+v", c.f)
		}
		if c.h.Tick < c.f.Granularity || c.h.Tick < time.Millisecond {
			c.Errorf("the harness's Tick %v is shorter than what the store declares: %+v", c.h.Tick, c.f)
		}
		c.Logf("features: %+v", c.f)
	}},
}
