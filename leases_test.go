package onefill_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// Leases and wake-ups.

// A release without an owner check frees the next holder's lease (superset 43462,
// redis-py 415). Forced: A wins and loads; its lease is evicted; B wins and loads;
// A's load ends with a context error, so A releases what it no longer has; C comes:
// it must wait for B, not load.
func TestLateReleaseFreesNobodyElsesLease(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		dba, db := newOrigin("", 0), newOrigin("v1", 0)
		dba.fail(context.Canceled)
		a := newCache(t, with(options{Load: dba.load, LeaseTTL: time.Hour}, st))
		b, c := newCache(t, with(options{Load: db.load}, st)), newCache(t, with(options{Load: db.load}, st))
		resumeA, resumeB := dba.pause(), db.pause()
		first := ask(bg, a, "k")
		pending(t, first)
		st.DropLease("test", "k")
		second := ask(bg, b, "k")
		pending(t, second)
		resumeA()
		if a := <-first; !errors.Is(a.err, context.Canceled) {
			t.Errorf("A's caller got %v", a.err)
		}
		third := ask(bg, c, "k")
		pending(t, third)
		db.wantLoads(t, 1)
		resumeB()
		wantAll(t, []answer{<-second, <-third}, "v1")
		db.wantLoads(t, 1)
	})
}

// A lock without an end makes all wait for ever (spring-data-redis 231). The holder
// is killed; exactly one of three processes takes over at the end of the lease.
func TestKilledHolderIsReplacedOnce(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", loadTime)
		stranger(t, st, "k", 5*time.Second)
		caches := fleet(t, st, options{Load: db.load})
		for _, a := range herd(bg, 4, "k", caches...) {
			if a.err != nil || a.took < 5*time.Second || a.took > 6*time.Second+2*loadTime {
				t.Errorf("%q, %v after %v", a.Value, a.err, a.took)
			}
		}
		db.wantLoads(t, 1)
	})
}

// A waiter that never sleeps (rueidis 602). A process that waits half a minute for
// somebody else's load costs the store a few commands a second, whether pushes
// come or not.
func TestWaitingCostsFewCommands(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		stranger(t, st, "k", time.Hour)
		c := newCache(t, with(options{Load: newOrigin("v1", 0).load, WaitTimeout: 30 * time.Second}, st))
		begun := commands(st)
		wantErrs(t, herd(bg, 100, "k", c), onefill.ErrWaitTimeout)
		if n := commands(st) - begun; n > 30*12 {
			t.Errorf("a wait of 30 s cost %d commands", n)
		}
	})
}

// Waiters who time out all load (layercache 65, nginx's lock timeout). Here they
// get ErrWaitTimeout, or a stale value where that is allowed; none loads.
func TestWaitersWhoTimeOutDoNotLoad(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		warm := newOrigin("v1", 0)
		db := newOrigin("v2", 0)
		o := options{Load: warm.load, TTL: time.Second, Jitter: onefill.NoJitter, StaleOnError: time.Hour}
		must(t, first(newCache(t, with(o, st)).Get(bg, "stale")))
		time.Sleep(2 * time.Second)
		o.Load, o.WaitTimeout = db.load, 2*time.Second
		caches := fleet(t, st, o)
		stranger(t, st, "absent", time.Hour)
		s, err := st.Attach(bg, store.Config{Name: "test"})
		must(t, err)
		defer s.Close()
		data, _ := st.Raw("test", "stale")
		a, err := s.Acquire(bg, "stale", store.Request{Token: store.NewToken(), TTL: time.Hour, Seen: store.MarkOf(data)})
		if err != nil || a.State != store.Won {
			t.Fatalf("acquire: %v, %v", a.State, err)
		}
		wantErrs(t, herd(bg, 4, "absent", caches...), onefill.ErrWaitTimeout)
		for _, a := range herd(bg, 4, "stale", caches...) {
			if a.err == nil && (a.Value != "v1" || !a.Stale) || a.err != nil && !errors.Is(a.err, onefill.ErrWaitTimeout) {
				t.Errorf("%+v", a)
			}
		}
		db.wantLoads(t, 0)
	})
}

func first[V any](_ V, err error) error { return err }

// The lock is kept after a loader error (rockscache 4). Another process's next
// caller is served at once after a context error, after ErrorTTL otherwise.
func TestLeaseIsFreeAfterAnError(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := fleet(t, st, options{Load: db.load, LeaseTTL: time.Hour, ErrorTTL: 2 * time.Second})
		db.fail(context.DeadlineExceeded)
		wantErrs(t, herd(bg, 1, "k", caches[0]), context.DeadlineExceeded)
		nothingHeld(t, st)
		db.fail(errBroken)
		wantErrs(t, herd(bg, 1, "k", caches[1]), errBroken)
		db.fail(nil)
		wantErrs(t, herd(bg, 1, "k", caches[2]), onefill.ErrLoadFailed)
		time.Sleep(3 * time.Second)
		wantAll(t, herd(bg, 1, "k", caches...), "v1")
		db.wantLoads(t, 3)
	})
}

// A failover that forgets the lease makes two holders (infrahub 9450): FLUSHALL in
// mid-load. Only the newer token may write. Forced: A loads v1 and pauses; flush;
// v2 is committed; B loads and fills v2; A ends.
func TestFlushInMidLoad(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := fleet(t, st, options{Load: db.load})
		resume := db.pause()
		a := ask(bg, caches[0], "k")
		pending(t, a)
		st.Flush()
		db.paused.Store(nil)
		db.write("v2")
		get(t, caches[1], "k", "v2")
		resume()
		wantAll(t, []answer{<-a}, "v1") // who waited gets it
		wantStored(t, st, "k", "v2")
		wantAll(t, herd(bg, 2, "k", caches...), "v2")
		db.wantLoads(t, 2)
		if s := caches[0].Stats(); s.FillsRefused != 1 {
			t.Errorf("%d fills refused, want A's", s.FillsRefused)
		}
	})
}

// Del every 40 ms against a load of 100 ms: 20 loads and no answer (redcache,
// otter). Here each caller is answered by its own load at the latest, and a refused
// fill does not start over (m10).
func TestInvalidationsFasterThanLoads(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 100*time.Millisecond)
		caches := fleet(t, st, options{Load: db.load})
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(40 * time.Millisecond):
					must(t, caches[len(caches)-1].Invalidate(bg, "k"))
				}
			}
		}()
		for range 10 {
			a := <-ask(bg, caches[0], "k")
			if a.err != nil || a.Value != "v1" || a.took > 100*time.Millisecond {
				t.Errorf("%q, %v after %v", a.Value, a.err, a.took)
			}
		}
		stop <- struct{}{}
		db.wantLoads(t, 10) // one for each caller
		if s := caches[0].Stats(); st != nil && s.FillsRefused != 10 {
			t.Errorf("%d fills were refused: the test forced nothing", s.FillsRefused)
		}
	})
}

// The lease is renewed while the load lives (S4 has the load count): nobody else
// wins it, though the load takes ten times as long.
func TestLeaseIsRenewed(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 30*time.Second)
		c := newCache(t, with(options{Load: db.load, LeaseTTL: 3 * time.Second, LoadTimeout: time.Minute}, st))
		a := ask(bg, c, "k")
		for range 29 {
			time.Sleep(time.Second)
			if u := st.Usage(); u.Leases != 1 {
				t.Fatalf("the lease is gone: %+v", u)
			}
		}
		wantAll(t, []answer{<-a}, "v1")
		wantStored(t, st, "k", "v1")
		if n := st.Counts()[memstore.OpRenew]; n < 28 || n > 30 {
			t.Errorf("%d renewals in 30 s, want one a second", n)
		}
	})
}

// A process that was paused past its lease: what it loaded is late. Forced: renewals
// hang as they would in a stopped process, the lease ends, another process fills.
func TestPausedPastItsLease(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		slow := newCache(t, with(options{Load: db.load, LeaseTTL: 2 * time.Second, StoreTimeout: time.Hour}, st))
		other := newCache(t, with(options{Load: db.load}, st))
		resume := db.pause()
		a := ask(bg, slow, "k")
		pending(t, a)
		stopped := make(chan struct{})
		st.SetFault(func(op memstore.Op) memstore.Fault {
			if op.Kind == memstore.OpRenew {
				return memstore.Fault{Hold: stopped}
			}
			return memstore.Fault{}
		})
		time.Sleep(3 * time.Second)
		db.paused.Store(nil)
		db.write("v2")
		get(t, other, "k", "v2")
		close(stopped)
		resume()
		wantAll(t, []answer{<-a}, "v1")
		wantStored(t, st, "k", "v2")
		get(t, slow, "k", "v2")
		db.wantLoads(t, 2)
		if s := slow.Stats(); s.Fills != 0 {
			t.Errorf("the paused process filled: %+v", s)
		}
	})
}

// A wake-up that never comes: the push is lost without a sign. The end of the lease
// is looked at in any case.
func TestLostWakeUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", loadTime)
		caches := fleet(t, st, options{Load: db.load, LeaseTTL: 2 * time.Second})
		resume := db.pause()
		a := ask(bg, caches[0], "k")
		pending(t, a)
		b := ask(bg, caches[1], "k")
		pending(t, b)
		st.HoldPushes()
		resume()
		wantAll(t, []answer{<-a}, "v1")
		st.DropPushes()
		got := <-b
		wantAll(t, []answer{got}, "v1")
		if got.took > 3*time.Second {
			t.Errorf("the wake-up was lost, and the waiter slept for %v", got.took)
		}
		db.wantLoads(t, 1)
	})
}

// A lost connection wakes everybody: waiters ask again at once, as what they wait
// for may have happened unheard. Forced: pushes are held, so B does not hear A's
// fill; they are dropped; the connection breaks, and that is told.
func TestLostConnectionWakesWaiters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		caches := fleet(t, st, options{Load: db.load, LeaseTTL: time.Hour, WaitTimeout: time.Hour})
		resume := db.pause()
		a := ask(bg, caches[0], "k")
		pending(t, a)
		b := ask(bg, caches[1], "k")
		pending(t, b)
		st.HoldPushes()
		resume()
		<-a
		st.DropPushes()
		st.LosePushes()
		st.ReleasePushes()
		got := <-b
		wantAll(t, []answer{got}, "v1")
		if got.took != 0 {
			t.Errorf("the waiter was woken after %v", got.took)
		}
	})
}

// Wake-ups are one-shot: after a spurious one the waiter asks again and is woken
// again. Forced: the holder renews ten times, each renewal wakes B; then it fills.
func TestWaiterIsArmedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		lease := stranger(t, st, "k", time.Hour)
		c := newCache(t, options{Store: st, Load: newOrigin("never", 0).load})
		a := ask(bg, c, "k")
		pending(t, a)
		begun := st.Counts()[memstore.OpAcquire]
		for range 10 {
			ok, err := lease.Renew(bg, time.Hour)
			if err != nil || !ok {
				t.Fatalf("renew: %t, %v", ok, err)
			}
			pending(t, a)
		}
		// A flight woken by the lease goes straight to acquire, once for each wake-up.
		if n := st.Counts()[memstore.OpAcquire] - begun; n != 10 {
			t.Errorf("10 wake-ups made the waiter ask %d times", n)
		}
		if n := st.Counts()[memstore.OpGet]; n != 1 {
			t.Errorf("%d gets, want the first one only", n)
		}
		env := store.Envelope{Kind: store.KindValue, Codec: onefill.CodecID("raw"), Created: time.Now(), SoftExpiry: time.Now().Add(time.Minute), Payload: []byte("v1")}
		if ok, err := lease.Fill(bg, env.Encode(), time.Minute); err != nil || !ok {
			t.Fatalf("fill: %t, %v", ok, err)
		}
		got := <-a
		wantAll(t, []answer{got}, "v1")
		if got.took != 0 {
			t.Errorf("after the fill the waiter slept for %v", got.took)
		}
	})
}

// hog-waittimeout of the model: WaitTimeout is absolute, wake-ups do not restart it.
// The holder renews every 100 ms and so wakes the waiter before any of its pauses
// has ended.
func TestWakeUpsDoNotRestartWaitTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		lease := stranger(t, st, "k", time.Hour)
		db := newOrigin("never", 0)
		c := newCache(t, options{Store: st, Load: db.load, WaitTimeout: time.Second})
		a := ask(bg, c, "k")
		for range 15 {
			time.Sleep(100 * time.Millisecond)
			must(t, first(lease.Renew(bg, time.Hour)))
		}
		got := <-a
		if !errors.Is(got.err, onefill.ErrWaitTimeout) || got.took != time.Second {
			t.Errorf("%v after %v; WaitTimeout is 1 s", got.err, got.took)
		}
		synctest.Wait()
		if n := c.InFlight(); n != 0 {
			t.Errorf("%d flights still wait for nobody", n)
		}
	})
}

// The same flight serves callers of different patience: it waits as long as the
// last one does, and each caller leaves after its own WaitTimeout.
func TestFlightWaitsForTheLastJoiner(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		lease := stranger(t, st, "k", time.Hour)
		db := newOrigin("v1", 0)
		c := newCache(t, with(options{Load: db.load, WaitTimeout: 2 * time.Second}, st))
		early := ask(bg, c, "k")
		time.Sleep(1500 * time.Millisecond)
		late := ask(bg, c, "k")
		if a := <-early; !errors.Is(a.err, onefill.ErrWaitTimeout) || a.took != 2*time.Second {
			t.Errorf("the early caller: %v after %v", a.err, a.took)
		}
		must(t, first(lease.Release(bg)))
		wantAll(t, []answer{<-late}, "v1")
		db.wantLoads(t, 1)
	})
}

// A push on the value leaves a flight in the table that waits for somebody else's
// load: it carries no data. Forced: B waits; the value key changes ten times
// without bringing a value; each time another caller comes, and joins.
func TestWaitingFlightStaysJoinable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		lease := stranger(t, st, "k", time.Hour)
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: db.load})
		answers := []<-chan answer{ask(bg, c, "k")}
		for range 10 {
			synctest.Wait()
			st.Evict("test", "k")
			answers = append(answers, ask(bg, c, "k"))
		}
		synctest.Wait()
		if n := st.Counts()[memstore.OpGet]; n != 1 {
			t.Errorf("%d flights were begun, want 1", n)
		}
		must(t, first(lease.Release(bg)))
		for _, a := range answers {
			wantAll(t, []answer{<-a}, "v1")
		}
		db.wantLoads(t, 1)
	})
}

// noloop-no-ownwake of the model: a process hears nothing of its own writes, and two
// flights of one key can exist in it. Forced: A1 wins and loads; A invalidates, so
// A1 is void; A2 acquires: won, as the lease is void too, and loads; A invalidates
// again; A3 wins; A2 and A1 end, refused. In every step who waits in A must be
// woken by A's own write.
func TestOwnWriteWakesOwnWaiters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: db.load, LeaseTTL: time.Hour, WaitTimeout: time.Hour, LoadTimeout: time.Hour})
		other := newCache(t, options{Store: st, Load: db.load, LeaseTTL: time.Hour, WaitTimeout: time.Hour, LoadTimeout: time.Hour})
		resume := db.pause()
		a1 := ask(bg, other, "k") // the holder is elsewhere
		pending(t, a1)
		a2 := ask(bg, c, "k") // waits for it
		pending(t, a2)
		db.paused.Store(nil)
		must(t, c.Invalidate(bg, "k")) // voids the lease: a2 may go on
		got := <-a2
		wantAll(t, []answer{got}, "v1")
		if got.took != 0 {
			t.Errorf("the waiter slept for %v after its own process's write", got.took)
		}
		resume()
		wantAll(t, []answer{<-a1}, "v1")
		db.wantLoads(t, 2)
	})
}

// orphan-sametoken of the model: the reply to a won acquire is lost. The flight asks
// again with its token and has the lease; with a new token, or none, the whole
// fleet would wait for a lease that nobody renews.
func TestLostAcquireReply(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		caches := fleet(t, st, options{Load: db.load, LeaseTTL: time.Hour})
		faultNext(st, memstore.OpAcquire, 1, memstore.Fault{LoseReply: true})
		for _, a := range herd(bg, 2, "k", caches...) {
			if a.err != nil || a.took > time.Second {
				t.Errorf("%q, %v after %v", a.Value, a.err, a.took)
			}
		}
		db.wantLoads(t, 1)
		nothingHeld(t, st)
	})
}

// The reply to a fill is lost: nobody knows whether it was applied, so the lease is
// released under its token, and nobody waits for it.
func TestLostFillReply(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		for name, fault := range map[string]memstore.Fault{
			"applied":     {LoseReply: true},
			"not applied": {Err: errBroken},
		} {
			db := newOrigin("v1", 0)
			caches := fleet(t, st, options{Load: db.load, LeaseTTL: time.Hour})
			faultNext(st, memstore.OpFill, 1, fault)
			get(t, caches[0], name, "v1")
			synctest.Wait() // the release runs after the answer
			nothingHeld(t, st)
			wantAll(t, herd(bg, 1, name, caches...), "v1")
			if n := db.loads.Load(); n > 2 || name == "applied" && n != 1 {
				t.Errorf("%s: %d loads", name, n)
			}
		}
	})
}

// The reply to a fail is lost or the record could not be written: nobody waits for
// the lease longer than for its end, and the origin is asked again.
func TestLostFailReply(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		for name, fault := range map[string]memstore.Fault{
			"applied":     {LoseReply: true},
			"not applied": {Err: errBroken},
		} {
			db := newOrigin("v1", 0)
			db.fail(errBroken)
			caches := fleet(t, st, options{Load: db.load, LeaseTTL: time.Hour, WaitTimeout: time.Minute})
			faultNext(st, memstore.OpFail, 1, fault)
			wantErrs(t, herd(bg, 1, name, caches[0]), errBroken)
			db.fail(nil)
			time.Sleep(2 * time.Second)
			wantAll(t, herd(bg, 1, name, caches...), "v1")
			nothingHeld(t, st)
		}
	})
}

// Keys do not share leases, waits or wake-ups: a hundred keys held by strangers,
// released one after the other, each frees its own waiters only.
func TestLeasesArePerKey(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, with(options{Load: db.load}, st))
		var leases []store.Lease
		var answers []<-chan answer
		for i := range 20 {
			key := fmt.Sprint("k", i)
			leases = append(leases, stranger(t, st, key, time.Hour))
			answers = append(answers, ask(bg, c, key))
		}
		for i, l := range leases {
			must(t, first(l.Release(bg)))
			wantAll(t, []answer{<-answers[i]}, "v1")
			db.wantLoads(t, int64(i+1))
		}
	})
}
