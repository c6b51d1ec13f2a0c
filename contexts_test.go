package onefill_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// Contexts: who leaves takes nobody along.

// The first caller's deadline ends everybody's load (spicedb 925, bucketeer 2552).
// S6 has the cancellation; here each caller of a herd has less patience than the
// one before, and the last one has enough.
func TestDeadlinesArePrivate(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", loadTime)
		c := newCache(t, with(options{Load: db.load}, st))
		var answers []<-chan answer
		for i := range 10 {
			ctx, cancel := context.WithTimeout(bg, loadTime/10*time.Duration(i)+time.Millisecond)
			defer cancel()
			answers = append(answers, ask(ctx, c, "k"))
			synctest.Wait()
		}
		last := ask(bg, c, "k")
		for i, a := range answers {
			if a := <-a; !errors.Is(a.err, context.DeadlineExceeded) || a.took > loadTime/10*time.Duration(i)+time.Millisecond {
				t.Errorf("caller %d: %v after %v", i, a.err, a.took)
			}
		}
		wantAll(t, []answer{<-last}, "v1")
		db.wantLoads(t, 1)
	})
}

// A new caller joins a flight that its last waiter has cancelled, and gets that
// cancellation (tailscale 18919). Here the flight runs on and serves it.
func TestJoinAfterEverybodyLeft(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", loadTime)
		c := newCache(t, with(options{Load: db.load}, st))
		resume := db.pause()
		ctx, cancel := context.WithCancel(bg)
		first := ask(ctx, c, "k")
		pending(t, first)
		cancel()
		if a := <-first; !errors.Is(a.err, context.Canceled) {
			t.Fatalf("the first caller got %v", a.err)
		}
		second := ask(bg, c, "k")
		pending(t, second)
		resume()
		wantAll(t, []answer{<-second}, "v1")
		db.wantLoads(t, 1)
	})
}

// The load is detached, the store's write is not (e2b-dev/infra 1916). Forced: the
// only caller cancels while the fill is on its way.
func TestCancelDuringTheFillStillStores(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", time.Millisecond)
		c := newCache(t, with(options{Load: db.load}, st))
		stopped, resume := holdNext(st, memstore.OpFill, false)
		ctx, cancel := context.WithCancel(bg)
		a := ask(ctx, c, "k")
		stopped()
		cancel()
		if a := <-a; !errors.Is(a.err, context.Canceled) {
			t.Fatalf("the caller got %v", a.err)
		}
		resume()
		synctest.Wait()
		wantStored(t, st, "k", "v1")
		peek(t, c, "k", "v1")
		nothingHeld(t, st)
	})
}

// A load that takes a minute dies with each page refresh, so the key stays cold
// for ever (aeman 109). Here a caller a second comes and leaves; the load ends.
func TestLongLoadSurvivesImpatientCallers(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", time.Minute)
		c := newCache(t, with(options{Load: db.load, LoadTimeout: 2 * time.Minute, TTL: time.Hour, Local: onefill.LocalOptions{TTL: time.Hour}}, st))
		for range 59 {
			ctx, cancel := context.WithTimeout(bg, time.Second)
			if _, err := c.Get(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("an impatient caller got %v", err)
			}
			cancel()
		}
		time.Sleep(time.Second + time.Millisecond)
		peek(t, c, "k", "v1")
		db.wantLoads(t, 1)
	})
}

// The unlock runs on the cancelled context (ncps 913), and the lock stays. Forced:
// the caller has left when the load fails with a context error, which leaves
// nothing but a release to do, and when it fails with an error of the row.
func TestReleaseAndFailAfterTheCallerLeft(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		for key, failure := range map[string]error{"release": context.Canceled, "fail": errors.New("broken")} {
			db := newOrigin("", time.Millisecond)
			db.fail(failure)
			c := newCache(t, with(options{Load: db.load, LeaseTTL: time.Hour, WaitTimeout: time.Minute}, st))
			resume := db.pause()
			ctx, cancel := context.WithCancel(bg)
			a := ask(ctx, c, key)
			pending(t, a)
			cancel()
			<-a
			resume()
			time.Sleep(2 * time.Millisecond)
			if u := st.Usage(); u.Leases != 0 {
				t.Errorf("%s: the lease was kept: %+v", key, u)
			}
			// And another process is served at once, by a load or by the failure.
			other := newCache(t, with(options{Load: newOrigin("v1", 0).load}, st))
			if a := <-ask(bg, other, key); a.took > time.Second || (a.err == nil) != (key == "release") {
				t.Errorf("%s: then another process got %q, %v after %v", key, a.Value, a.err, a.took)
			}
			time.Sleep(2 * time.Second)
		}
	})
}

// A hung origin that heeds its context poisons the key for ever (data-accelerator/
// dart 4). Here the load ends at LoadTimeout and gives its place back.
func TestHungLoadEndsAtLoadTimeout(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", time.Millisecond)
		c := newCache(t, with(options{Load: db.load, LoadTimeout: time.Second, MaxLoads: 1}, st))
		resume := db.pause()
		for _, a := range herd(bg, 10, "k", c) {
			if !errors.Is(a.err, onefill.ErrLoadFailed) || !errors.Is(a.err, context.DeadlineExceeded) || a.took != time.Second {
				t.Fatalf("%v after %v", a.err, a.took)
			}
		}
		resume()
		get(t, c, "k", "v1") // at once: a timeout says nothing about the row
		get(t, c, "other", "v1")
		db.wantLoads(t, 3)
	})
}

// Cancellations counted as failures of the peer, of the breaker or of the key
// (mailgun/groupcache 30, FusionCache 608).
func TestCancellationsAreNoFailures(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", time.Millisecond)
		c := newCache(t, with(options{Load: db.load}, st))
		resume := db.pause()
		for range 20 {
			ctx, cancel := context.WithCancel(bg)
			a := ask(ctx, c, "k")
			pending(t, a)
			cancel()
			<-a
		}
		// Writers whose context ends while the store works on their write.
		if st != nil {
			st.SetFault(func(memstore.Op) memstore.Fault { return memstore.Fault{Delay: 50 * time.Millisecond} })
			for range 20 {
				ctx, cancel := context.WithTimeout(bg, time.Millisecond)
				if err := c.Invalidate(ctx, "other"); err == nil {
					t.Fatal("an invalidation that was cut short returned nil")
				}
				cancel()
			}
			st.SetFault(nil)
		}
		resume()
		time.Sleep(10 * time.Millisecond)
		if s := c.Stats(); s.StoreDown || s.LoadErrors != 0 || s.Loads != 1 {
			t.Errorf("after cancellations: %+v", s)
		}
		peek(t, c, "k", "v1")
	})
}

type ctxKey struct{}

// The flight's context keeps the values of the caller's, drops its cancellation
// and its deadline, and has LoadTimeout.
func TestLoadersContext(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		var value any
		var left time.Duration
		c := newCache(t, with(options{LoadTimeout: 7 * time.Second, Load: func(ctx context.Context, _ string) (string, error) {
			value = ctx.Value(ctxKey{})
			if d, ok := ctx.Deadline(); ok {
				left = time.Until(d)
			}
			time.Sleep(2 * time.Second)
			return "v1", ctx.Err()
		}}, st))
		ctx, cancel := context.WithTimeout(context.WithValue(bg, ctxKey{}, "trace"), time.Second)
		defer cancel()
		if _, err := c.Get(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the caller got %v", err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if value != "trace" || left != 7*time.Second {
			t.Errorf("the loader's context had %v, and %v left", value, left)
		}
		peek(t, c, "k", "v1")
	})
}

// WaitTimeout bounds a call, whatever it waits for; the load runs on and is stored.
func TestWaitTimeout(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 3*time.Second)
		caches := fleet(t, st, options{Load: db.load, WaitTimeout: time.Second})
		for _, a := range herd(bg, 3, "k", caches...) {
			if !errors.Is(a.err, onefill.ErrWaitTimeout) || a.took > time.Second+10*time.Millisecond {
				t.Errorf("%v after %v", a.err, a.took)
			}
		}
		time.Sleep(3 * time.Second)
		wantAll(t, herd(bg, 3, "k", caches...), "v1")
		db.wantLoads(t, 1)
	})
}

// A context that has ended is still served from local, and loads nothing else.
func TestEndedContext(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", time.Millisecond)
		c := newCache(t, with(options{Load: db.load}, st))
		ctx, cancel := context.WithCancel(bg)
		cancel()
		if _, err := c.Get(ctx, "k"); !errors.Is(err, context.Canceled) {
			t.Errorf("a miss with an ended context: %v", err)
		}
		db.wantLoads(t, 0)
		get(t, c, "k", "v1")
		if v, err := c.Get(ctx, "k"); v != "v1" || err != nil {
			t.Errorf("a hit with an ended context: %q, %v", v, err)
		}
	})
}

// lateContext is alive until a caller waits on it; Done waits for a signal and
// has then ended.
type lateContext struct {
	context.Context
	landed <-chan struct{}
	once   sync.Once
	asked  atomic.Bool // whether Done was called
	ended  context.Context
}

func (c *lateContext) Done() <-chan struct{} {
	c.once.Do(func() {
		<-c.landed
		synctest.Wait()
		c.asked.Store(true)
	})
	return c.ended.Done()
}

func (c *lateContext) Err() error {
	if c.asked.Load() {
		return c.ended.Err()
	}
	return nil
}

// A flight that has landed beats a context that has ended. Forced by a context
// whose Done returns, ended, only after the flight has landed: the caller's select
// then has two ready cases and picks one at random, 40 times.
func TestLandedFlightBeatsEndedContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ended, cancel := context.WithCancel(bg)
		cancel()
		for range 40 {
			loaded := make(chan struct{})
			c := newCache(t, options{Load: func(context.Context, string) (string, error) {
				close(loaded)
				return "v1", nil
			}})
			v, err := c.Get(&lateContext{Context: bg, landed: loaded, ended: ended}, "k")
			if v != "v1" || err != nil {
				t.Fatalf("got %q, %v", v, err)
			}
		}
	})
}

// Close waits for flights, answers later calls with ErrClosed, and twice is fine.
func TestClose(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", time.Second)
		c := newCache(t, with(options{Load: db.load}, st))
		a := ask(bg, c, "k")
		pending(t, a)
		closed := make(chan error)
		go func() { closed <- c.Close() }()
		synctest.Wait()
		_, errGet := c.Get(bg, "k")
		_, _, errPeek := c.Peek(bg, "k")
		for _, err := range []error{errGet, errPeek, c.Set(bg, "k", "v"), c.Invalidate(bg, "k"), c.Expire(bg, "k")} {
			if !errors.Is(err, onefill.ErrClosed) {
				t.Errorf("a call after Close: %v", err)
			}
		}
		wantAll(t, []answer{<-a}, "v1")
		must(t, <-closed)
		must(t, c.Close())
		nothingHeld(t, st)
		if st != nil {
			wantStored(t, st, "k", "v1")
		}
	})
}

// Close is bounded: a load that hangs is cut off after five seconds, and says so.
func TestCloseIsBounded(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", time.Hour)
		c, err := onefill.New(with(options{Name: "test", Load: db.load, LoadTimeout: time.Hour}, st))
		must(t, err)
		a := ask(bg, c, "k")
		pending(t, a)
		start := time.Now()
		if err := c.Close(); err == nil || time.Since(start) > 6*time.Second {
			t.Errorf("Close: %v after %v", err, time.Since(start))
		}
		if a := <-a; a.err == nil {
			t.Error("the caller of a load that was cut off got no error")
		}
		nothingHeld(t, st)
	})
}

// A process that closes in the moment in which it was to refresh gives the lease
// back: the others need not wait for its end. Forced: the flight that found the
// stale value (and, in stores that lease as they read, won the lease) is held
// before its answer until Close has begun.
func TestCloseReleasesTheRefreshsLease(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", time.Millisecond)
		o := options{Load: db.load, TTL: time.Second, StaleFor: time.Hour, LeaseTTL: time.Hour}
		a, b := newCache(t, with(o, st)), newCache(t, with(o, st))
		get(t, a, "k", "v1")
		time.Sleep(2 * time.Second)
		kind := memstore.OpGet
		if b.Features().AcquireReads {
			kind = memstore.OpAcquire
		}
		stopped, resume := holdNext(st, kind, true)
		answer := ask(bg, b, "k")
		stopped()
		closed := make(chan error)
		go func() { closed <- b.Close() }()
		synctest.Wait()
		resume()
		if a := <-answer; a.Value != "v1" || !a.Stale {
			t.Errorf("the caller got %+v", a)
		}
		must(t, <-closed)
		nothingHeld(t, st)
	})
}
