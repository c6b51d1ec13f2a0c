package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onefill/onefill/store"
)

// disturbing tests run alone.
var disturbing = []test{
	{"RestartEmptyRefusesFill", func(c *check) {
		c.needs(c.h.RestartEmpty != nil, "the harness has no RestartEmpty")
		old := c.value("old")
		c.a.set("stale", old, long)
		leases := []store.Lease{c.a.wins("absent", long, nil), c.a.wins("stale", long, store.MarkOf(old))}
		c.h.RestartEmpty(c)
		// Somebody else wins the same keys on the new server: its tokens may look
		// like the old ones.
		c.answersAgain(c.b)
		c.b.wins("absent", long, nil)
		c.b.wins("stale", long, nil)
		c.answersAgain(c.a)
		for i, key := range []string{"absent", "stale"} {
			c.neverAccepts(leases[i])
			c.b.absent(key)
			c.b.finds(store.Held, key, nil)
		}
	}},
	{"RestartEmptyForgetsLeases", func(c *check) {
		c.needs(c.h.RestartEmpty != nil, "the harness has no RestartEmpty")
		lease := c.a.wins("k", long, nil)
		c.h.RestartEmpty(c)
		c.answersAgain(c.a)
		c.neverAccepts(lease)
		c.answersAgain(c.b)
		c.b.absent("k")
		c.accepts(c.b.wins("k", long, nil), c.value("v"))
	}},
	{"RestartKeepingKeepsValues", func(c *check) {
		c.needs(c.h.RestartKeeping != nil, "the harness has no RestartKeeping")
		data := c.value("v")
		c.a.set("k", data, long)
		lease := c.a.wins("leased", long, nil)
		c.h.RestartKeeping(c)
		c.answersAgain(c.a)
		c.answersAgain(c.b)
		c.b.holds("k", data)
		c.b.finds(store.Held, "leased", nil)
		c.accepts(lease, data)
		c.b.holds("leased", data)
	}},
	{"RestartEmptyVoidsTags", func(c *check) {
		// Epoch and generations are lost: what is made anew is above all that was there.
		c.needsTags()
		c.needs(c.h.RestartEmpty != nil, "the harness has no RestartEmpty")
		c.a.void("t")
		before := c.a.epoch()
		c.h.RestartEmpty(c)
		c.answersAgain(c.a)
		c.answersAgain(c.b)
		if g := c.a.generation("t"); g <= before || c.b.epoch() < g {
			c.Errorf("generation %d, epoch %d after the restart, want them above %d", g, c.b.epoch(), before)
		}
	}},
	{"RestartKeepingKeepsTags", func(c *check) {
		c.needsTags()
		c.needs(c.h.RestartKeeping != nil, "the harness has no RestartKeeping")
		g := c.a.generation("t")
		c.b.void("another")
		c.h.RestartKeeping(c)
		c.answersAgain(c.a)
		if now := c.a.generation("t"); now != g {
			c.Errorf("the generation has gone from %d to %d", g, now)
		}
	}},
	{"RestartTellsLost", func(c *check) {
		c.needs(c.h.RestartEmpty != nil, "the harness has no RestartEmpty")
		c.needsPush()
		c.a.set("k", c.value("v"), long)
		c.a.get("k")
		c.h.RestartEmpty(c)
		c.hearsLost(c.a)
		c.answersAgain(c.a)
	}},
	{"BreakTellsLostAndWakes", func(c *check) {
		c.needs(c.h.Break != nil, "the harness has no Break")
		c.needsPush()
		c.a.wins("k", long, nil)
		sibling := c.peer(c.b.store)
		watches := []store.Watch{c.b.finds(store.Held, "k", nil).Watch, sibling.finds(store.Held, "k", nil).Watch}
		c.h.Break(c)
		for _, p := range []*peer{c.b, sibling} {
			c.hearsLost(p)
		}
		for _, w := range watches {
			c.wakes(w)
		}
		c.answersAgain(c.a)
		c.answersAgain(c.b)
		c.b.finds(store.Held, "k", nil)
	}},
	{"PushesAfterBreak", func(c *check) {
		// What is read over the new connection is told of again.
		c.needs(c.h.Break != nil, "the harness has no Break")
		c.needsPush()
		c.a.get("k")
		c.h.Break(c)
		c.hearsLost(c.a)
		c.answersAgain(c.a)
		c.answersAgain(c.b)
		for i := range 3 {
			key := fmt.Sprint("k", i)
			c.a.heard.forget()
			c.a.get(key)
			c.b.set(key, c.value("v"), long)
			c.a.hears(key)
		}
	}},
	{"BlockedServer", func(c *check) {
		// The server hangs: every call comes back soon after its deadline, and says
		// that the server is unavailable; afterwards all is well.
		c.needs(c.h.Block != nil, "the harness has no Block")
		ops := c.operations(c.a)
		unblock := c.block()
		for _, op := range ops {
			c.boundedBy(200*time.Millisecond, op)
		}
		c.boundedBy(200*time.Millisecond, operation{"Attach", func(ctx context.Context) error {
			_, err := c.a.store.Attach(ctx, store.Config{Name: c.name})
			return err
		}})
		unblock()
		c.answersAgain(c.a)
		c.answersAgain(c.b)
		c.a.set("k", c.value("v"), long)
	}},
	{"CancelAtABlockedServer", func(c *check) {
		// The caller leaves while the server hangs: the call ends at once.
		c.needs(c.h.Block != nil, "the harness has no Block")
		ops := c.operations(c.a)
		unblock := c.block()
		for _, op := range ops {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(5*time.Millisecond, cancel) // likely, not surely, it is on its way by then
			if e := c.fails(op.name, c.within(ctx, 2*time.Second, op)); !errors.Is(e, context.Canceled) {
				c.Errorf("%s, cancelled: %v, want context.Canceled", op.name, e)
			}
		}
		unblock()
		c.answersAgain(c.a)
		c.answersAgain(c.b)
	}},
	{"CostDoesNotGrow", func(c *check) {
		// The same calls cost as many commands when the store holds more.
		c.needs(c.h.Commands != nil, "the harness has no Commands")
		few := c.cost("few")
		for i := range 500 {
			c.a.set(fmt.Sprint("filler ", i), c.value("v"), long)
		}
		many := c.cost("many")
		c.Logf("commands of a miss, load, hit, refresh and invalidate: %d", few)
		if many > few {
			c.Errorf("%d commands with 500 keys more, %d before", many, few)
		}
	}},
}

// cost is the number of commands of one key's life.
func (c *check) cost(key string) int64 {
	c.Helper()
	c.a.get("warm up " + key)
	before := c.h.Commands(c)
	c.a.absent(key)
	data := c.value("v")
	c.accepts(c.a.wins(key, long, nil), data)
	c.a.holds(key, data)
	c.release(c.a.wins(key, long, store.MarkOf(data)))
	c.a.expire(key)
	c.a.invalidate(key)
	return c.h.Commands(c) - before
}

// answersAgain waits until the peer's client has found the server again, for
// reading and for writing, and with each connection that it may have: it must
// answer many times in a row.
func (c *check) answersAgain(p *peer) {
	c.Helper()
	c.eventually("the server answers again", func() bool {
		for range 20 {
			if err := c.roundTrip(p); err != nil {
				c.fails("after the connection was lost", err)
				return false
			}
		}
		return true
	})
}

func (c *check) roundTrip(p *peer) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := p.Get(ctx, "are you there"); err != nil {
		return err
	}
	if _, err := p.Set(ctx, "are you there", c.value("yes"), long); err != nil {
		return err
	}
	return p.Ping(ctx)
}

// neverAccepts checks that a lease from before a restart is refused: with false,
// or with an error where the store knows the grant's connection to be gone.
func (c *check) neverAccepts(l store.Lease) {
	c.Helper()
	ok, err := l.Fill(c.ctx(), c.value("late"), long)
	if err != nil {
		c.fails("Fill", err)
	}
	if ok {
		c.Fatal("Fill under a lease from before the restart: accepted")
	}
}

func (c *check) hearsLost(p *peer) {
	c.Helper()
	deadline := time.After(c.h.Patience)
	for p.heard.losses() == 0 {
		select {
		case <-p.heard.news:
		case <-deadline:
			c.Fatalf("not told within %v that pushes were lost", c.h.Patience)
		}
	}
}

// block blocks the server until unblock is called or the test ends.
func (c *check) block() (unblock func()) {
	c.Helper()
	unblock = sync.OnceFunc(c.h.Block(c))
	c.Cleanup(unblock)
	return unblock
}

// boundedBy checks that a call at a blocked server ends with its deadline. Two
// seconds more are the machine's, not the store's.
func (c *check) boundedBy(d time.Duration, op operation) {
	c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	err := c.within(ctx, d+2*time.Second, op)
	if e := c.fails(op.name, err); !errors.Is(e, store.ErrUnavailable) {
		c.Errorf("%s at a blocked server: %v, want an unavailable error", op.name, e)
	}
}

// within gives up on a call that does not come back.
func (c *check) within(ctx context.Context, d time.Duration, op operation) error {
	c.Helper()
	done := make(chan error, 1)
	go func() { done <- op.call(ctx) }()
	select {
	case err := <-done:
		return err
	case <-time.After(d):
		c.Fatalf("%s: not back after %v, whatever its context says", op.name, d)
		return nil
	}
}
