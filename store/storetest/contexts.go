package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/onefill/onefill/store"
)

// operation is one call of a session, on a key of its own.
type operation struct {
	name string
	call func(ctx context.Context) error
}

// operations are all the calls that there are. The leases are won at once, by
// this session: the calls come later.
func (c *check) operations(p *peer) []operation {
	c.Helper()
	fill, fail := p.wins("op fill", long, nil), p.wins("op fail", long, nil)
	renew, release := p.wins("op renew", long, nil), p.wins("op release", long, nil)
	ops := []operation{
		{"Get", func(ctx context.Context) error { _, err := p.Get(ctx, "op get"); return err }},
		{"Acquire", func(ctx context.Context) error {
			_, err := p.Acquire(ctx, "op acquire", store.Request{Token: store.NewToken(), TTL: long})
			return err
		}},
		{"Set", func(ctx context.Context) error { _, err := p.Set(ctx, "op set", c.value("v"), long); return err }},
		{"Invalidate", func(ctx context.Context) error { return p.Invalidate(ctx, "op invalidate", "op invalidate 2") }},
		{"Expire", func(ctx context.Context) error { return p.Expire(ctx, time.Now(), "op expire", "op expire 2") }},
		{"Ping", p.Ping},
		{"Fill", func(ctx context.Context) error { _, err := fill.Fill(ctx, c.value("v"), long); return err }},
		{"Fail", func(ctx context.Context) error { _, err := fail.Fail(ctx, []byte("down"), long); return err }},
		{"Renew", func(ctx context.Context) error { _, err := renew.Renew(ctx, long); return err }},
		{"Release", func(ctx context.Context) error { _, err := release.Release(ctx); return err }},
	}
	if m, ok := p.Session.(store.ManyReader); ok {
		ops = append(ops, operation{"GetMany", func(ctx context.Context) error { _, err := m.GetMany(ctx, []string{"op many"}); return err }})
	}
	if t, ok := p.Session.(store.Tagger); ok {
		ops = append(ops, []operation{
			{"Epoch", func(ctx context.Context) error { _, err := t.Epoch(ctx); return err }},
			{"Generations", func(ctx context.Context) error { _, err := t.Generations(ctx, long, "op tag", ""); return err }},
			{"VoidTags", func(ctx context.Context) error { return t.VoidTags(ctx, long, "op tag", "op tag 2") }},
		}...)
	}
	return ops
}

var contexts = []test{
	{"CancelledContext", func(c *check) {
		ctx, cancel := context.WithCancel(context.Background())
		ops := c.operations(c.a)
		cancel()
		for _, op := range ops {
			e := c.fails(op.name, op.call(ctx))
			if !errors.Is(e, context.Canceled) || e.Unavailable {
				c.Errorf("%s with a cancelled context: %v (unavailable: %v), want context.Canceled, which says nothing about the server", op.name, e, e.Unavailable)
			}
		}
		if _, err := c.a.store.Attach(ctx, store.Config{Name: c.name}); err == nil {
			c.Error("Attach with a cancelled context: no error")
		} else {
			c.fails("Attach", err)
		}
		c.a.absent("op set")
		c.a.absent("op fill")
		c.b.finds(store.Held, "op release", nil)
	}},
	{"PastDeadline", func(c *check) {
		ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
		defer cancel()
		for _, op := range c.operations(c.a) {
			e := c.fails(op.name, op.call(ctx))
			if !errors.Is(e, store.ErrUnavailable) {
				c.Errorf("%s after the deadline: %v, want an unavailable error", op.name, e)
			}
		}
		c.a.absent("op set")
		c.a.absent("op fill")
	}},
	{"AfterClose", func(c *check) {
		p := c.peer(c.a.store)
		ops := c.operations(p)
		c.ok("Close", p.Close())
		c.ok("second Close", p.Close())
		for _, op := range ops {
			c.fails(op.name+" after Close", op.call(c.ctx()))
		}
		// The store and its other sessions go on.
		c.a.set("k", c.value("v"), long)
		c.peer(c.a.store).get("k")
	}},
	{"CloseKeepsLeases", func(c *check) {
		// Closing a session frees nothing in the store by itself, neither values
		// nor leases: a lease has its deadline.
		p := c.peer(c.a.store)
		p.set("value", c.value("v"), long)
		p.wins("lease", long, nil)
		c.ok("Close", p.Close())
		if !c.b.get("value").Found {
			c.Error("the value is gone")
		}
		c.b.finds(store.Held, "lease", nil)
	}},
	{"SilentAfterClose", func(c *check) {
		c.needsPush()
		p, witness := c.peer(c.a.store), c.peer(c.a.store)
		p.get("k")
		witness.get("k")
		c.ok("Close", p.Close())
		c.b.set("k", c.value("v"), long)
		witness.hears("k")
		c.quiet(witness, "other")
		if n := p.heard.count("k"); n > 0 {
			c.Errorf("a closed session was told %d times", n)
		}
	}},
}
