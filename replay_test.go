package onefill_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// An Invalidate that failed because the store was away must not be undone by its
// coming back with the old value: neither for the first reader, who comes before
// anything was repeated, nor for the other processes a moment later.
func TestInvalidateInAnOutageIsReplayed(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := fleet(t, st, options{Load: db.load, TTL: time.Hour, Local: onefill.LocalOptions{TTL: time.Second}})
		wantAll(t, herd(bg, 1, "k", caches...), "v1")
		db.write("v2")
		st.Down()
		if err := caches[0].Invalidate(bg, "k"); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("Invalidate with the store down: %v", err)
		}
		st.Up()
		get(t, caches[0], "k", "v2")
		time.Sleep(2 * time.Second)
		wantAll(t, herd(bg, 1, "k", caches...), "v2")
		if s := caches[0].Stats(); s.Replayed != 1 || s.ReplaysWaiting != 0 {
			t.Errorf("%d replayed, %d are waiting", s.Replayed, s.ReplaysWaiting)
		}
	})
}

// The same for a long outage, in which nobody reads and the breaker is open, for all
// kinds of writes: they are repeated when the store is back, though nobody asks.
func TestWritesOfAnOutageAreReplayedUnasked(t *testing.T) {
	for name, write := range map[string]func(*cache) error{
		"invalidate": func(c *cache) error { return c.Invalidate(bg, "k", "other") },
		"set":        func(c *cache) error { return errors.Join(c.Set(bg, "k", "v2"), c.Set(bg, "other", "v2")) },
		"expire":     func(c *cache) error { return c.Expire(bg, "k", "other") },
	} {
		t.Run(name, func(t *testing.T) {
			stores(t, func(t *testing.T, st *memstore.Store) {
				db := newOrigin("v1", 0)
				c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour, StaleFor: time.Hour})
				get(t, c, "k", "v1")
				st.Down()
				for range 20 {
					if err := write(c); err == nil {
						t.Fatal("a write succeeds although the store is down")
					}
					time.Sleep(time.Second)
				}
				if s := c.Stats(); s.ReplaysWaiting != 2 || !s.StoreDown {
					t.Errorf("%d wait, store down: %t", s.ReplaysWaiting, s.StoreDown)
				}
				st.Up()
				time.Sleep(10 * time.Second)
				env, there := stored(t, st, "k")
				if name == "expire" && (!there || time.Until(env.SoftExpiry) > 0) || name != "expire" && there {
					t.Errorf("after the %s was repeated the store holds %q, fresh until %v", name, env.Payload, env.SoftExpiry)
				}
				if s := c.Stats(); s.Replayed != 2 || s.ReplaysWaiting != 0 || s.StoreDown {
					t.Errorf("%d replayed, %d wait, store down: %t", s.Replayed, s.ReplaysWaiting, s.StoreDown)
				}
			})
		})
	}
}

// After a long outage, when the pauses between attempts have grown, the first answer of
// the store to anybody starts the replay.
func TestReplayBeginsWithTheFirstAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		c := newCache(t, options{Store: st, Load: newOrigin("v1", 0).load, TTL: time.Hour})
		get(t, c, "k", "v1")
		st.Down()
		for range 20 {
			_ = c.Invalidate(bg, "k")
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute)
		st.Up()
		must(t, c.Set(bg, "other", "v"))
		synctest.Wait()
		wantStored(t, st, "k", "")
	})
}

// A later write that succeeds pays for an earlier one that failed, so that its value is
// not removed by a replay.
func TestLaterWritePaysForAnEarlierOne(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		c := newCache(t, options{Store: st, Load: newOrigin("v1", 0).load, TTL: time.Hour})
		st.Down()
		_ = c.Invalidate(bg, "k")
		st.Up()
		must(t, c.Set(bg, "k", "v2"))
		time.Sleep(10 * time.Second)
		wantStored(t, st, "k", "v2")
		get(t, c, "k", "v2")
	})
}

// But a write that began before the one that failed pays nothing, though it ends later:
// it was applied before. Forced: a Set is applied and its answer held; an Invalidate,
// after a change of the row, fails; the Set's answer comes.
func TestEarlierWritePaysForNothing(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v2", 0)
		c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour, StoreTimeout: time.Hour})
		stopped, resume := holdNext(st, memstore.OpSet, true)
		done := make(chan error)
		go func() { done <- c.Set(bg, "k", "v1") }()
		stopped()
		faultNext(st, memstore.OpInvalidate, 1, memstore.Fault{Err: memstore.ErrDown})
		if err := c.Invalidate(bg, "k"); err == nil {
			t.Fatal("the Invalidate did not fail")
		}
		resume()
		must(t, <-done)
		time.Sleep(10 * time.Second)
		wantStored(t, st, "k", "")
		get(t, c, "k", "v2")
	})
}

// What the caller cancelled may have been applied or not: it is repeated.
func TestCancelledInvalidateIsReplayed(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour})
		get(t, c, "k", "v1")
		ctx, cancel := context.WithCancel(bg)
		cancel()
		if err := c.Invalidate(ctx, "k"); err == nil {
			t.Skip("the store heeds no context")
		}
		time.Sleep(time.Second)
		wantStored(t, st, "k", "")
	})
}

// Peek pays, too.
func TestPeekSeesNoOwedValue(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		c := newCache(t, options{Store: st, Load: newOrigin("v1", 0).load, TTL: time.Hour, StaleFor: time.Hour})
		get(t, c, "k", "v1")
		st.Down()
		_ = c.Invalidate(bg, "k")
		st.Up()
		peek(t, c, "k", "")
		wantStored(t, st, "k", "")
	})
}

// A flight that pays can be joined, while it does and after it: it carries nothing.
// Forced: its replay is held; ten more callers come; it goes on and its load is paused;
// one more comes.
func TestFlightThatPaysIsJoined(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour, StoreTimeout: time.Hour})
		get(t, c, "k", "v1")
		db.write("v2")
		st.Down()
		_ = c.Invalidate(bg, "k")
		st.Up()
		stopped, resume := holdNext(st, memstore.OpInvalidate, false)
		first := ask(bg, c, "k")
		stopped()
		var rest []<-chan answer
		for range 10 {
			rest = append(rest, ask(bg, c, "k"))
		}
		synctest.Wait()
		goOn := db.pause()
		resume()
		synctest.Wait()
		rest = append(rest, ask(bg, c, "k"))
		synctest.Wait()
		goOn()
		for _, answers := range append(rest, first) {
			if a := <-answers; a.err != nil || a.Value != "v2" {
				t.Errorf("%+v", a)
			}
		}
		db.wantLoads(t, 2)
		if n := c.Stats().Coalesced; n != 11 {
			t.Errorf("%d callers joined, want 11", n)
		}
	})
}

// The replay of a key that has been loaded again meanwhile removes it from the store,
// and then this process hears of the key's changes no more: local must not keep it.
// Forced: the background's replay is held before it is applied; a reader pays for
// himself, loads, and local has the value; the replay is applied; another process
// changes the row and invalidates.
func TestLateReplayIsNoBlindSpot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		caches := fleet(t, st, options{Load: db.load, TTL: time.Hour, StoreTimeout: time.Hour})
		st.Down()
		_ = caches[0].Invalidate(bg, "k")
		st.Up()
		stopped, resume := holdNext(st, memstore.OpInvalidate, false)
		stopped() // after its pause
		get(t, caches[0], "k", "v1")
		resume()
		synctest.Wait()
		wantStored(t, st, "k", "")
		get(t, caches[1], "k", "v1")
		db.write("v2")
		must(t, caches[1].Invalidate(bg, "k"))
		get(t, caches[0], "k", "v2")
	})
}

// When more keys are owed than are kept, nothing that the store has from before the
// outage is trusted, in this process; what is loaded or Set after it is.
func TestOverflowingDebts(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour, StaleFor: time.Hour, StaleOnError: time.Hour})
		c.KeepDebts(2)
		keys := []string{"k0", "k1", "k2", "k3", "untouched"}
		for _, k := range keys {
			get(t, c, k, "v1")
		}
		db.write("v2")
		st.Down()
		_ = c.Invalidate(bg, keys[:4]...)
		if n := c.Stats().ReplaysWaiting; n != 2 {
			t.Errorf("%d debts are kept, want 2", n)
		}
		st.Up()
		time.Sleep(3 * time.Second) // the clocks' margin, and local's trust in what it has
		must(t, c.Expire(bg, "untouched"))
		peek(t, c, "k3", "")
		for _, k := range keys {
			get(t, c, k, "v2")
		}
		loads := db.loads.Load()
		c2 := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour})
		for _, k := range keys {
			get(t, c, k, "v2")
			get(t, c2, k, "v2") // what was filled since is trusted
		}
		db.wantLoads(t, loads)
	})
}

// A replica that has missed the last writes takes the primary's place: with the old
// value and the old lease. The writer's process repeats them before it reads, and at
// once also if nobody reads.
func TestFailover(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := fleet(t, st, options{Load: db.load, TTL: time.Hour, Local: onefill.LocalOptions{TTL: time.Second}})
		for _, k := range []string{"read", "idle", "set"} {
			wantAll(t, herd(bg, 1, k, caches...), "v1")
		}
		lagging := st.Snapshot()
		db.write("v2")
		must(t, caches[0].Invalidate(bg, "read", "idle"))
		must(t, caches[0].Set(bg, "set", "v2"))
		wantAll(t, herd(bg, 1, "read", caches[0]), "v2")
		st.Failover(lagging)
		get(t, caches[0], "read", "v2")
		time.Sleep(2 * time.Second)
		if env, there := stored(t, st, "idle"); there {
			t.Errorf("the store still has %q of before the invalidation", env.Payload)
		}
		for _, k := range []string{"read", "idle", "set"} {
			wantAll(t, herd(bg, 1, k, caches...), "v2")
		}
		if s := caches[0].Stats(); s.Replayed < 3 || s.ReplaysWaiting != 0 {
			t.Errorf("%d replayed, %d wait", s.Replayed, s.ReplaysWaiting)
		}
	})
}

// A load that began before an invalidation and ends after the failover that brings its
// lease back is fenced: the replay voids it. Forced: the load is paused after it has
// read v1; a snapshot has its lease; the row is changed and invalidated; failover; the
// replay; the load goes on.
func TestFailoverBringsALeaseBack(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := fleet(t, st, options{Load: db.load, TTL: time.Hour, LoadTimeout: time.Hour, LeaseTTL: time.Hour, Local: onefill.LocalOptions{TTL: time.Second}})
		resume := db.pause()
		old := ask(bg, caches[0], "k")
		pending(t, old)
		lagging := st.Snapshot()
		db.write("v2")
		must(t, caches[1].Invalidate(bg, "k"))
		st.Failover(lagging)
		time.Sleep(2 * time.Second)
		resume()
		if a := <-old; a.Value != "v1" {
			t.Errorf("who waited got %+v", a)
		}
		time.Sleep(2 * time.Second)
		wantStored(t, st, "k", "")
		wantAll(t, herd(bg, 1, "k", caches...), "v2")
	})
}

// A write that was under way when the server was replaced may have been answered by the
// old one. Forced: an Invalidate is applied and its answer held; failover; the answer.
func TestFailoverDuringAWrite(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := fleet(t, st, options{Load: db.load, TTL: time.Hour, StoreTimeout: time.Hour, Local: onefill.LocalOptions{TTL: time.Second}})
		wantAll(t, herd(bg, 1, "k", caches...), "v1")
		lagging := st.Snapshot()
		db.write("v2")
		stopped, resume := holdNext(st, memstore.OpInvalidate, true)
		done := make(chan error)
		go func() { done <- caches[0].Invalidate(bg, "k") }()
		stopped()
		st.Failover(lagging)
		resume()
		must(t, <-done)
		get(t, caches[0], "k", "v2")
		time.Sleep(2 * time.Second)
		wantAll(t, herd(bg, 1, "k", caches...), "v2")
	})
}

// More writes in the window than are kept: after a failover what the store has from
// before is not trusted.
func TestFailoverAfterTooManyWrites(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour})
		c.KeepDebts(2)
		get(t, c, "k", "v1")
		lagging := st.Snapshot()
		db.write("v2")
		must(t, c.Invalidate(bg, "k"))
		for i := range 5 {
			must(t, c.Invalidate(bg, fmt.Sprint(i)))
		}
		st.Failover(lagging)
		time.Sleep(3 * time.Second)
		wantStored(t, st, "k", "v1") // its invalidation was not kept
		get(t, c, "k", "v2")
	})
}

// Close repeats what it can. The store is back, and nobody has noticed yet.
func TestCloseReplays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour})
		get(t, c, "k", "v1")
		st.Down()
		_ = c.Invalidate(bg, "k")
		st.Up()
		must(t, c.Close())
		wantStored(t, st, "k", "")
	})
}

// Close does not wait for a store that is away, though writes are owed.
func TestCloseWithDebts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		c := newCache(t, options{Store: st, Load: newOrigin("v1", 0).load})
		st.Down()
		_ = c.Invalidate(bg, "k")
		time.Sleep(time.Minute) // the pauses have grown
		start := time.Now()
		must(t, c.Close())
		if d := time.Since(start); d > time.Second {
			t.Errorf("Close took %v", d)
		}
	})
}

// The store refuses a write for good: it is tried again at growing pauses, and not in a
// loop.
func TestRefusedReplaysPause(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		c := newCache(t, options{Store: st, Load: newOrigin("v1", 0).load})
		var tries atomic.Int64
		st.SetFault(func(op memstore.Op) memstore.Fault {
			if op.Kind != memstore.OpInvalidate {
				return memstore.Fault{}
			}
			tries.Add(1)
			return memstore.Fault{Err: errors.New("no permission"), Refused: true}
		})
		_ = c.Invalidate(bg, "k")
		time.Sleep(time.Minute)
		if n := tries.Load(); n < 10 || n > 30 {
			t.Errorf("%d attempts in a minute", n)
		}
	})
}

// Every event of an outage is told: down, up, the replay with its number of keys, the
// limit that begins low.
func TestOutageIsTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		told := make(chan onefill.Event, 1000)
		c := newCache(t, options{Store: st, Load: newOrigin("v1", 0).load, MaxLoads: 16,
			Observer: onefill.ObserverFunc(func(e onefill.Event) { told <- e })})
		st.Down()
		for range 5 {
			_ = c.Invalidate(bg, "a", "b")
			time.Sleep(100 * time.Millisecond)
		}
		st.Up()
		time.Sleep(5 * time.Second)
		var kinds []onefill.EventKind
		for len(told) > 0 {
			switch e := <-told; e.Kind {
			case onefill.EventStoreDown, onefill.EventStoreUp:
				kinds = append(kinds, e.Kind)
			case onefill.EventReplay:
				kinds = append(kinds, e.Kind)
				if e.N != 2 {
					t.Errorf("%d keys are said to be replayed", e.N)
				}
			case onefill.EventLoadLimit:
				kinds = append(kinds, e.Kind)
				if e.N != 2 {
					t.Errorf("the limit is %d", e.N)
				}
			}
		}
		want := []onefill.EventKind{onefill.EventStoreDown, onefill.EventLoadLimit, onefill.EventStoreUp, onefill.EventReplay}
		if fmt.Sprint(kinds) != fmt.Sprint(want) {
			t.Errorf("told %v, want %v", kinds, want)
		}
	})
}
