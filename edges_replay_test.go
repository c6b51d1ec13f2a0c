package onefill_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// An Expire does not pay for an Invalidate that failed: that value may not be served, not
// even as stale. Forced: the Invalidate fails; the store is back; the Expire succeeds
// before the replay has begun.
func TestExpireDoesNotPayForAnInvalidate(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour, StaleFor: time.Hour})
		get(t, c, "k", "v1")
		db.write("v2")
		st.Down()
		_ = c.Invalidate(bg, "k")
		st.Up()
		must(t, c.Expire(bg, "k"))
		get(t, c, "k", "v2")
	})
}

// The same within the replay: what was soft when it was listed has become hard.
// Forced: an Expire fails; an Invalidate begins and is held; the replay lists the debt,
// as soft, and its Expire is held; the Invalidate fails; the replay's Expire is answered.
func TestSoftReplayDoesNotPayForAHardDebt(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour, StaleFor: time.Hour, StoreTimeout: time.Hour})
		get(t, c, "k", "v1")
		db.write("v2")
		inv, exp := make(chan struct{}), make(chan struct{})
		var first atomic.Bool
		st.SetFault(func(op memstore.Op) memstore.Fault {
			switch {
			case op.Kind == memstore.OpExpire && first.CompareAndSwap(false, true):
				return memstore.Fault{Err: errors.New("cut")}
			case op.Kind == memstore.OpExpire:
				return memstore.Fault{ReplyHold: exp}
			case op.Kind == memstore.OpInvalidate:
				return memstore.Fault{Hold: inv, Err: errors.New("cut")}
			}
			return memstore.Fault{}
		})
		_ = c.Expire(bg, "k")
		done := make(chan error)
		go func() { done <- c.Invalidate(bg, "k") }()
		synctest.Wait()
		time.Sleep(time.Second) // the replay's Expire is on its way
		close(inv)
		if err := <-done; err == nil {
			t.Fatal("the Invalidate did not fail")
		}
		close(exp)
		synctest.Wait()
		st.SetFault(nil)
		get(t, c, "k", "v2")
	})
}

// Two failovers in a row, both to replicas that lack the invalidation: what the first
// one's replay has written is as new as any write, and may be lost like it.
func TestFailoverTwice(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour, Local: onefill.LocalOptions{TTL: time.Second}})
		get(t, c, "k", "v1")
		lagging := st.Snapshot()
		db.write("v2")
		must(t, c.Invalidate(bg, "k"))
		for range 2 {
			st.Failover(lagging)
			time.Sleep(5 * time.Second)
			wantStored(t, st, "k", "")
		}
		get(t, c, "k", "v2")
	})
}

// An outage, and a failover soon after it.
func TestReplayIsLostByAFailover(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour, Local: onefill.LocalOptions{TTL: time.Second}})
		get(t, c, "k", "v1")
		lagging := st.Snapshot()
		db.write("v2")
		st.Down()
		_ = c.Invalidate(bg, "k")
		st.Up()
		time.Sleep(5 * time.Second)
		wantStored(t, st, "k", "")
		st.Failover(lagging)
		time.Sleep(5 * time.Second)
		get(t, c, "k", "v2")
	})
}

// A failover while a debt is being paid: the old server's answer pays nothing. Forced:
// the replay's Invalidate is applied and its answer held; failover; the answer.
func TestFailoverDuringAReplay(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour, StoreTimeout: time.Hour, Local: onefill.LocalOptions{TTL: time.Second}})
		get(t, c, "k", "v1")
		lagging := st.Snapshot()
		db.write("v2")
		st.Down()
		_ = c.Invalidate(bg, "k")
		st.Up()
		stopped, resume := holdNext(st, memstore.OpInvalidate, true)
		stopped()
		st.Failover(lagging)
		resume()
		time.Sleep(5 * time.Second)
		get(t, c, "k", "v2")
	})
}

// A Set that the store did not take, since it has a newer row version, pays nothing: what
// the store has is what the failed Invalidate was about.
func TestRefusedSetPaysForNothing(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("5", 0)
		c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour, Version: func(v string) uint64 { return uint64(v[0]) }})
		get(t, c, "k", "5")
		db.write("6")
		st.Down()
		_ = c.Invalidate(bg, "k")
		st.Up()
		must(t, c.Set(bg, "k", "4"))
		get(t, c, "k", "6")
	})
}

// What a loader wants to be fresh for longer than Options.TTL can be brought back by a
// failover for as long, too.
func TestFailoverWithSetTTL(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, TTL: 5 * time.Second, Local: onefill.LocalOptions{TTL: time.Second},
			Load: func(ctx context.Context, key string) (string, error) {
				onefill.SetTTL(ctx, time.Hour)
				return db.load(ctx, key)
			}})
		get(t, c, "k", "v1")
		lagging := st.Snapshot()
		db.write("v2")
		must(t, c.Invalidate(bg, "k"))
		time.Sleep(10 * time.Second)
		st.Failover(lagging)
		time.Sleep(5 * time.Second)
		get(t, c, "k", "v2")
	})
}

// Many writes of one key are one key.
func TestWindowCountsKeys(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour})
		c.KeepDebts(2)
		get(t, c, "untouched", "v1")
		lagging := st.Snapshot()
		for range 5 {
			must(t, c.Invalidate(bg, "k"))
		}
		st.Failover(lagging)
		time.Sleep(3 * time.Second)
		get(t, c, "untouched", "v1")
		db.wantLoads(t, 1)
	})
}

// The connection is lost in the last moment of a replay: the store is asked again whether
// it was replaced. Forced: the observer hears of the replay's end and breaks the connection.
func TestLostAtTheEndOfAReplay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		pings := -1
		c := newCache(t, options{Store: st, Load: newOrigin("v1", 0).load, TTL: time.Hour,
			Observer: onefill.ObserverFunc(func(e onefill.Event) {
				if e.Kind == onefill.EventReplay {
					pings = st.Counts()[memstore.OpPing]
					st.LosePushes()
				}
			})})
		must(t, c.Invalidate(bg, "other"))
		faultNext(st, memstore.OpInvalidate, 1, memstore.Fault{Err: errors.New("cut")})
		_ = c.Invalidate(bg, "k")
		time.Sleep(time.Minute)
		if n := st.Counts()[memstore.OpPing]; pings < 0 || n == pings {
			t.Errorf("%d pings before the connection was lost, %d after", pings, n)
		}
	})
}

// An observer that exits ends the goroutine that pays, not the paying.
func TestObserverThatExitsDuringAReplay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		var once atomic.Bool
		c := newCache(t, options{Store: st, Load: newOrigin("v1", 0).load, TTL: time.Hour,
			Observer: onefill.ObserverFunc(func(e onefill.Event) {
				if e.Kind == onefill.EventReplay && once.CompareAndSwap(false, true) {
					runtime.Goexit()
				}
			})})
		for range 2 {
			faultNext(st, memstore.OpInvalidate, 1, memstore.Fault{Err: errors.New("cut")})
			_ = c.Invalidate(bg, "k")
			time.Sleep(time.Minute)
		}
		if n := c.Stats().ReplaysWaiting; n != 0 {
			t.Errorf("%d debts after a minute", n)
		}
	})
}

// While one of several servers is away and writes of many of its keys are owed, local goes
// on serving the other servers' keys.
func TestReplayLeavesOtherServersLocalAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		c := newCache(t, options{Store: shardedStore{st}, Load: newOrigin("v1", 0).load, TTL: time.Hour})
		st.SetFault(func(op memstore.Op) memstore.Fault {
			if op.Key != "" && op.Key[0] == 'b' {
				return memstore.Fault{Err: errors.New("down")}
			}
			return memstore.Fault{}
		})
		keys := make([]string, 40_000)
		for i := range keys {
			keys[i] = fmt.Sprint("b", i)
		}
		for range 5 { // the server is known to be away
			_ = c.Invalidate(bg, "b")
			time.Sleep(50 * time.Millisecond)
		}
		_ = c.Invalidate(bg, keys...)
		get(t, c, "a", "v1")
		before := st.Counts()[memstore.OpGet]
		for range 60 {
			time.Sleep(time.Second)
			get(t, c, "a", "v1")
		}
		if n := st.Counts()[memstore.OpGet] - before; n > 3 {
			t.Errorf("a key of a server that is well was dropped from local %d times in 60 reads", n)
		}
	})
}

// A read that is on its way when the server is replaced reaches the new one before anything
// was replayed: its answer does not count. Forced: an Invalidate has been answered; a read
// is held before it is applied; failover to a replica without the Invalidate; the read.
func TestReadThatMeetsTheFailover(t *testing.T) {
	for _, op := range []memstore.Kind{memstore.OpGet, memstore.OpAcquire} {
		bubble(t, func(t *testing.T) {
			st := memstore.New(memstore.Options{AcquireReads: op == memstore.OpAcquire})
			db := newOrigin("v1", 0)
			c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour, StoreTimeout: time.Hour, WaitTimeout: 3 * time.Hour})
			get(t, c, "k", "v1")
			lagging := st.Snapshot()
			db.write("v2")
			must(t, c.Invalidate(bg, "k"))
			stopped, resume := holdNext(st, op, false)
			answers := ask(bg, c, "k")
			stopped()
			st.Failover(lagging)
			resume()
			if a := <-answers; a.err != nil || a.Value != "v2" {
				t.Errorf("%v: began after Invalidate had returned, got %+v", op, a)
			}
		})
	}
}

// A flight whose payment was answered by the old server pays again. Forced: an Invalidate
// failed; the payment is applied and its answer held; failover; the answer.
func TestPaymentAnsweredByTheOldServer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour, StoreTimeout: time.Hour, WaitTimeout: 3 * time.Hour})
		get(t, c, "k", "v1")
		lagging := st.Snapshot()
		db.write("v2")
		st.Down()
		_ = c.Invalidate(bg, "k")
		st.Up()
		stopped, resume := holdNext(st, memstore.OpInvalidate, true)
		answers := ask(bg, c, "k")
		stopped()
		st.Failover(lagging)
		resume()
		if a := <-answers; a.err != nil || a.Value != "v2" {
			t.Errorf("%+v", a)
		}
		time.Sleep(10 * time.Second)
		get(t, c, "k", "v2")
		wantStored(t, st, "k", "v2")
	})
}

// Close while a replay of 50,000 keys hangs takes as long as the operations under way may.
func TestCloseWhileReplayHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		c, err := onefill.New(options{Store: st, Name: "test", Load: newOrigin("v1", 0).load})
		must(t, err)
		st.Down()
		keys := make([]string, 50_000)
		for i := range keys {
			keys[i] = fmt.Sprint(i)
		}
		_ = c.Invalidate(bg, keys...)
		st.Up()
		st.SetFault(func(op memstore.Op) memstore.Fault {
			if op.Kind == memstore.OpInvalidate {
				return memstore.Fault{Delay: time.Hour}
			}
			return memstore.Fault{}
		})
		time.Sleep(300 * time.Millisecond)
		start := time.Now()
		err = c.Close()
		if d := time.Since(start); err != nil || d > 2*time.Second {
			t.Errorf("Close took %v: %v", d, err)
		}
	})
}

// A payment comes before the look, so that takes longer: it is not the caller's own where it
// may take longer than WaitTimeout. Forced: the payment's answer comes late; the read fails
// late, and comes to no answer when it is tried again.
func TestSlowPaymentKeepsNobodyPastWaitTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		c := newCache(t, options{Store: st, Load: newOrigin("v", 0).load, StoreTimeout: time.Second, WaitTimeout: 2200 * time.Millisecond})
		st.Down()
		_ = c.Invalidate(bg, "k")
		st.Up()
		var asked atomic.Int64
		st.SetFault(func(op memstore.Op) memstore.Fault {
			switch {
			case op.Kind == memstore.OpInvalidate:
				return memstore.Fault{Delay: 990 * time.Millisecond}
			case op.Kind == memstore.OpGet && asked.Add(1) == 1:
				return memstore.Fault{Delay: 490 * time.Millisecond, Err: memstore.ErrDown}
			case op.Kind == memstore.OpGet:
				return memstore.Fault{Delay: time.Hour}
			}
			return memstore.Fault{}
		})
		if a := <-ask(bg, c, "k"); a.took > 2200*time.Millisecond {
			t.Errorf("an answer after %v, with a WaitTimeout of 2.2 s: %+v", a.took, a)
		}
		st.SetFault(nil)
	})
}
