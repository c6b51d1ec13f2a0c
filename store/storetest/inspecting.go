package storetest

import (
	"fmt"
	"time"

	"github.com/onefill/onefill/store"
)

// inspecting has the tests of sessions that implement store.Inspector.
var inspecting = []test{
	{"InspectAbsent", func(c *check) {
		c.needsInspector()
		for range 2 {
			h := c.a.inspect("k")
			if h.Item.Found || h.Left != 0 || h.Lease.ID != "" || h.Failure.Record != nil || h.Server == "" {
				c.Fatalf("Inspect of an absent key: %+v", h)
			}
		}
		c.wins("k") // looking has made nothing
	}},
	{"InspectValue", func(c *check) {
		c.needsInspector()
		for name, data := range c.oddValues() {
			c.a.set(name, data, long)
			h := c.b.inspect(name)
			if !h.Item.Found || string(h.Item.Data) != string(data) || h.Foreign != "" {
				c.Errorf("%s: %s, foreign %q", name, show(h.Item), h.Foreign)
			}
			c.lasts("the value", h.Left, long)
			if h.Lease.ID != "" || h.Failure.Record != nil {
				c.Errorf("%s: lease %+v, failure %+v", name, h.Lease, h.Failure)
			}
		}
		c.a.set("short", c.value("v"), c.shortLease())
		c.letPass(c.shortLease())
		if h := c.b.inspect("short"); h.Item.Found || h.Left != 0 {
			c.Errorf("after its time: %+v", h)
		}
	}},
	{"InspectOddKeys", func(c *check) {
		c.needsInspector()
		for i, key := range c.allowed(oddKeys()) {
			data := c.value(fmt.Sprint(i))
			c.a.set(key, data, long)
			if h := c.b.inspect(key); string(h.Item.Data) != string(data) {
				c.Errorf("%s: %s", short(key), show(h.Item))
			}
		}
	}},
	{"InspectLease", func(c *check) {
		// A lease on an absent key and one over a value; each has its own name, and keeps its
		// token where the store knows it.
		c.needsInspector()
		c.a.set("over", c.value("v"), long)
		seen := store.MarkOf(c.a.get("over").Data)
		token, other := store.NewToken(), store.NewToken()
		bare := c.a.askAs(token, "bare", long, nil)
		over := c.a.askAs(other, "over", long, seen)
		b, o := c.b.inspect("bare"), c.b.inspect("over")
		for _, h := range []store.Holding{b, o} {
			c.lasts("the lease", h.Lease.Left, long)
			if h.Lease.ID == "" || h.Failure.Record != nil {
				c.Errorf("%+v", h)
			}
		}
		if b.Item.Found || b.Left != 0 || !o.Item.Found || b.Lease.ID == o.Lease.ID {
			c.Errorf("bare %+v, over %+v", b, o)
		}
		c.lasts("the value", o.Left, long)
		if b.Lease.Token != token && b.Lease.Token != (store.Token{}) || o.Lease.Token != other {
			c.Errorf("tokens %v and %v, want %v and %v", b.Lease.Token, o.Lease.Token, token, other)
		}
		// Nobody has been disturbed.
		c.accepts(bare.Lease, c.value("bare"))
		c.accepts(over.Lease, c.value("over"))
		if h := c.b.inspect("over"); h.Lease.ID != "" {
			c.Errorf("after the fill: %+v", h.Lease)
		}
	}},
	{"InspectEndedLease", func(c *check) {
		c.needsInspector()
		c.a.set("k", c.value("v"), long)
		c.a.wins("k", c.shortLease(), store.MarkOf(c.a.get("k").Data))
		c.letPass(c.shortLease())
		if h := c.b.inspect("k"); h.Lease.ID != "" || h.Lease.Left != 0 || !h.Item.Found {
			c.Errorf("%+v", h)
		}
	}},
	{"InspectFailure", func(c *check) {
		c.needsInspector()
		c.a.set("over", c.value("v"), long)
		leases := map[string]store.Lease{"bare": c.a.wins("bare", long, nil), "over": c.a.wins("over", long, store.MarkOf(c.a.get("over").Data))}
		for key, lease := range leases {
			c.fail(lease, []byte("no: route: to host"), long)
			h := c.b.inspect(key)
			if string(h.Failure.Record) != "no: route: to host" || h.Lease.ID != "" || h.Item.Found != (key == "over") {
				c.Errorf("%s: %+v", key, h)
			}
			c.lasts("the failure", h.Failure.Blocks, long)
			c.lasts("its record", h.Failure.Left, 2*long)
			c.b.finds(store.Failed, key, store.MarkOf(h.Item.Data)) // it counts still
		}
	}},
	{"InspectRememberedFailure", func(c *check) {
		// It blocks no more, and is remembered: before, and while the next lease is held.
		c.needsInspector()
		c.longer(c.shortLease(), func(key string, ttl time.Duration) bool {
			c.fail(c.a.wins(key, long, nil), []byte("down"), ttl)
			c.eventually("it blocks no more", func() bool { return c.a.inspect(key).Failure.Blocks == 0 })
			before := c.a.inspect(key)
			if before.Failure.Record == nil {
				return false // too late: forgotten
			}
			if before.Failure.Left <= 0 || before.Lease.ID != "" || before.Item.Found {
				c.Errorf("%+v", before)
			}
			answer := c.b.ask(key, long, nil)
			if answer.State != store.Won || answer.Failure == nil {
				return false
			}
			h := c.a.inspect(key)
			if string(h.Failure.Record) != "down" || h.Failure.Blocks != 0 || h.Failure.Left <= 0 || h.Lease.ID == "" {
				if h.Lease.ID != "" && h.Failure.Record == nil {
					return false // forgotten by now
				}
				c.Errorf("under the next lease: %+v", h)
			}
			return true
		})
	}},
	{"InspectForeign", func(c *check) {
		c.needsInspector()
		c.needs(c.h.PutForeign != nil, "the harness has no PutForeign")
		c.h.PutForeign(c, c.name, "bytes", []byte("somebody else's"))
		if h := c.a.inspect("bytes"); !h.Item.Found || string(h.Item.Data) != "somebody else's" {
			c.Errorf("%+v", h)
		}
		c.needs(c.h.PutForeignType != nil, "the harness has no PutForeignType")
		c.h.PutForeignType(c, c.name, "list")
		if h := c.a.inspect("list"); !h.Item.Found || len(h.Item.Data) > 0 {
			c.Errorf("%+v", h)
		}
	}},
	{"BreakLease", func(c *check) {
		// The holder can do nothing any more, the value stays, the next one wins at once, and
		// under the new lease a fill works.
		c.needsInspector()
		old := c.value("old")
		c.a.set("over", old, long)
		leases := map[string]store.Lease{"bare": c.a.wins("bare", long, nil), "over": c.a.wins("over", long, store.MarkOf(old))}
		for key, lease := range leases {
			c.b.breaks(key, "", true)
			c.lost(lease)
			c.b.breaks(key, "", false) // there is none any more
			seen := []byte(nil)
			if key == "over" {
				c.a.holds(key, old)
				c.lasts("the value", c.b.inspect(key).Left, long)
				seen = store.MarkOf(old)
			}
			next := c.b.wins(key, long, seen)
			c.lost(lease)
			c.accepts(next, c.value("new"))
			c.b.breaks(key, "", false)
			c.a.holds(key, c.a.get(key).Data)
		}
	}},
	{"BreakLeaseByName", func(c *check) {
		// Only the lease that was seen is meant: another one stands.
		c.needsInspector()
		first := c.a.wins("k", long, nil)
		id := c.b.inspect("k").Lease.ID
		for _, wrong := range []string{"0", "x", store.NewToken().String()} {
			c.b.breaks("k", wrong, false)
		}
		c.release(first)
		second := c.a.wins("k", long, nil)
		c.b.breaks("k", id, false)
		if ok, err := second.Renew(c.ctx(), long); err != nil || !ok {
			c.Fatalf("Renew of a lease that nobody meant = %v, %v", ok, err)
		}
		c.b.breaks("k", c.b.inspect("k").Lease.ID, true)
		c.lost(second)
	}},
	{"BreakLeaseWakes", func(c *check) {
		// Interleaving: a holds | b waits | somebody breaks | b is woken, asks, and wins.
		c.needsInspector()
		c.needsPush()
		for i, breaker := range []*peer{c.a, c.b, c.peer(c.h.New(c.T))} {
			key := fmt.Sprint("k", i)
			lease := c.a.wins(key, long, nil)
			waiting := c.b.finds(store.Held, key, nil)
			breaker.breaks(key, "", true)
			c.wakes(waiting.Watch)
			c.wins(key)
			c.lost(lease)
		}
	}},
	{"BreakLeaseKeepsTheFailure", func(c *check) {
		// Neither a failure that blocks, which is no lease, nor what is remembered of one.
		c.needsInspector()
		c.fail(c.a.wins("k", long, nil), []byte("down"), long)
		c.b.breaks("k", "", false)
		c.b.finds(store.Failed, "k", nil)
		c.longer(c.shortLease(), func(key string, ttl time.Duration) bool {
			c.fail(c.a.wins(key, long, nil), []byte("down"), ttl)
			c.eventually("it blocks no more", func() bool { return c.a.inspect(key).Failure.Blocks == 0 })
			if first := c.a.ask(key, long, nil); first.State != store.Won || first.Failure == nil {
				return false // too late: forgotten
			}
			c.b.breaks(key, "", true)
			next := c.b.ask(key, long, nil)
			if next.State != store.Won {
				c.Fatalf("after the lease was broken: %v", next.State)
			}
			return string(next.Failure) == "down" // or it was too late
		})
	}},
	{"InspectTags", func(c *check) {
		c.needsInspector()
		c.needsTags()
		if s := c.a.inspectTags("t", "u"); s.Epoch != 0 || len(s.Generations) != 2 || s.Generations[0] != 0 || s.Valid(0, 1) {
			c.Fatalf("nothing was made yet: %+v", s)
		}
		epoch := c.a.epoch()
		if s := c.b.inspectTags("t"); s.Epoch != epoch || s.Generations[0] != 0 || !s.Valid(0, epoch) || s.Valid(0, epoch-1) {
			c.Errorf("a tag that was never read: %+v, want the epoch %d", s, epoch)
		}
		c.a.generation("t")
		if s := c.b.inspectTags("t"); s.Generations[0] != epoch || !s.Valid(0, epoch) {
			c.Errorf("%+v, want the generation %d", s, epoch)
		}
		c.a.void("t")
		s := c.b.inspectTags("never read", "t")
		if s.Epoch <= epoch || s.Generations[1] <= epoch || s.Valid(1, epoch) || !s.Valid(1, s.Epoch) || s.Generations[0] != 0 || s.Valid(0, epoch) {
			c.Errorf("after the void: %+v", s)
		}
		if s := c.b.inspectTags(); s.Epoch != c.a.epoch() || len(s.Generations) != 0 {
			c.Errorf("of no tags: %+v", s)
		}
	}},
}

func (c *check) needsInspector() {
	c.Helper()
	_, ok := c.a.Session.(store.Inspector)
	c.needs(ok, "the session is no store.Inspector")
}

// wins takes a lease, which must be free, and gives it back.
func (c *check) wins(key string) {
	c.Helper()
	c.release(c.b.wins(key, long, nil))
}

// lasts checks what is said to be left of something that was given ttl a moment ago.
func (c *check) lasts(what string, left, ttl time.Duration) {
	c.Helper()
	if most := ttl + 2*c.f.Granularity; left <= ttl-c.h.Patience-c.f.Granularity || left > most {
		c.Errorf("%v are left of %s, want nearly %v", left, what, ttl)
	}
}

func (p *peer) inspector() store.Inspector { return p.Session.(store.Inspector) }

func (p *peer) inspect(key string) store.Holding {
	p.c.Helper()
	h, err := p.inspector().Inspect(p.c.ctx(), key)
	p.c.ok("Inspect", err)
	return h
}

func (p *peer) inspectTags(tags ...string) store.TagState {
	p.c.Helper()
	s, err := p.inspector().InspectTags(p.c.ctx(), tags...)
	p.c.ok("InspectTags", err)
	return s
}

func (p *peer) breaks(key, id string, want bool) {
	p.c.Helper()
	broken, err := p.inspector().BreakLease(p.c.ctx(), key, id)
	p.c.ok("BreakLease", err)
	if broken != want {
		p.c.Fatalf("BreakLease(%s, %q) = %v, want %v", short(key), id, broken, want)
	}
}
