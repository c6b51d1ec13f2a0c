package onefill_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill/store/memstore"
)

// memcachedLike is a store where asking for the lease is the cheapest way to read.
func memcachedLike() *memstore.Store {
	return memstore.New(memstore.Options{NoPush: true, AcquireReads: true, ForgetsToken: true, Granularity: time.Second, MinLease: 2 * time.Second})
}

// The leader asks for the lease itself, and leaves while it asks: who has joined is served, and
// the row is loaded once. Forced: the question is held; a second caller joins; the first one
// leaves; the question goes on.
func TestLeaderLeavesWhileItAsks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memcachedLike()
		db := newOrigin("v1", 50*time.Millisecond)
		c := newCache(t, options{Store: st, Load: db.load})
		st.SetFault(func(op memstore.Op) memstore.Fault {
			if op.Kind == memstore.OpAcquire {
				return memstore.Fault{Delay: 100 * time.Millisecond}
			}
			return memstore.Fault{}
		})
		ctx, leave := context.WithCancel(bg)
		leader := ask(ctx, c, "k")
		synctest.Wait()
		joined := ask(bg, c, "k")
		synctest.Wait()
		leave()
		if a := <-leader; !errors.Is(a.err, context.Canceled) || a.took != 0 {
			t.Errorf("who left: %v after %v", a.err, a.took)
		}
		if a := <-joined; a.err != nil || a.Value != "v1" {
			t.Errorf("who joined: %+v", a)
		}
		st.SetFault(nil)
		db.wantLoads(t, 1)
		get(t, c, "k", "v1")
	})
}

// What the leader was told is not asked again: one question for a miss, and one for a hit.
func TestLeaderAsksOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memcachedLike()
		db := newOrigin("v1", 50*time.Millisecond)
		a, b := newCache(t, options{Store: st, Load: db.load}), newCache(t, options{Store: st, Load: db.load})
		get(t, a, "k", "v1")
		get(t, b, "k", "v1")
		if n := st.Counts()[memstore.OpAcquire]; n != 2 {
			t.Errorf("%d questions", n)
		}
		db.wantLoads(t, 1)
	})
}

// The cache is closed between the lease's grant and the flight's taking off: the lease is given
// back, and the next process need not wait for its end. Forced: the reply of the grant is held
// until Close has begun.
func TestClosedWhileTheLeaderAsks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memcachedLike()
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: db.load})
		resume := make(chan struct{})
		st.SetFault(func(op memstore.Op) memstore.Fault {
			if op.Kind == memstore.OpAcquire {
				return memstore.Fault{ReplyHold: resume}
			}
			return memstore.Fault{}
		})
		asked := ask(bg, c, "k")
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		synctest.Wait()
		st.SetFault(nil)
		close(resume)
		<-asked
		must(t, <-closed)
		start := time.Now()
		get(t, newCache(t, options{Store: st, Load: db.load}), "k", "v1")
		if took := time.Since(start); took > 0 {
			t.Errorf("the next process waited %v", took)
		}
	})
}
