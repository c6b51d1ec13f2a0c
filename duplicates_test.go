package onefill_test

import (
	"errors"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// Duplicate loads: every way in which two callers were seen to load one key.

// A loader behind a cache is called by each goroutine that misses (eko/gocache
// 242, 192).
func TestThousandCallersLoadOnce(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", loadTime)
		c := newCache(t, with(options{Load: db.load}, st))
		wantAll(t, herd(bg, 1000, "k", c), "v1")
		db.wantLoads(t, 1)
		if s := c.Stats(); s.Coalesced != 999 {
			t.Errorf("%d callers joined, want 999", s.Coalesced)
		}
		nothingHeld(t, st)
	})
}

// The same with real goroutines and real time. A herd costs the store a handful
// of commands, however large it is, and leaves no goroutine behind.
func TestTenThousandCallersLoadOnce(t *testing.T) {
	before := runtime.NumGoroutine()
	st := memstore.New()
	db := newOrigin("v1", 50*time.Millisecond)
	c := newCache(t, options{Load: db.load, Store: st})
	begun := commands(st)
	wantAll(t, herd(bg, 10_000, "k", c), "v1")
	db.wantLoads(t, 1)
	if n := commands(st) - begun; n > 6 {
		t.Errorf("the herd cost %d commands, at most 6 are allowed: %v", n, st.Counts())
	}
	finish(t, c)
	eventually(t, "the herd's goroutines are gone", func() bool { return runtime.NumGoroutine() <= before })
}

// Commands grow with processes, never with callers: 1 caller or 100.
func TestCommandsPerHerd(t *testing.T) {
	cost := func(t *testing.T, callers int) (n int) {
		bubble(t, func(t *testing.T) {
			st := memstore.New()
			db := newOrigin("v1", loadTime)
			caches := fleet(t, st, options{Load: db.load})
			begun := commands(st)
			wantAll(t, herd(bg, callers, "k", caches...), "v1")
			db.wantLoads(t, 1)
			n = commands(st) - begun
		})
		return n
	}
	one, many := cost(t, 1), cost(t, 100)
	if one != many || many > 6*3 {
		t.Errorf("a herd of 1 a process cost %d commands, of 100 %d; they must be equal, and at most 18", one, many)
	}
}

// Two loads in series, because the second caller comes between the end of the
// load and the store's write (eko/gocache 251). Forced: the fill is held before
// it is applied, then its reply is; a caller comes each time.
func TestCallerDuringTheFillJoins(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		for _, reply := range []bool{false, true} {
			key := map[bool]string{false: "before", true: "after"}[reply]
			db := newOrigin("v1", time.Millisecond)
			c := newCache(t, with(options{Load: db.load}, st))
			stopped, resume := holdNext(st, memstore.OpFill, reply)
			first := ask(bg, c, key)
			stopped()
			second := ask(bg, c, key)
			pending(t, second)
			resume()
			wantAll(t, []answer{<-first, <-second}, "v1")
			db.wantLoads(t, 1)
		}
	})
}

// After its own fill the next Get of a process costs no round trip, nor does it
// when the store takes 50 ms for everything.
func TestNextGetIsLocal(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		st.SetFault(func(memstore.Op) memstore.Fault { return memstore.Fault{Delay: 50 * time.Millisecond} })
		db := newOrigin("v1", loadTime)
		c := newCache(t, with(options{Load: db.load}, st))
		get(t, c, "k", "v1")
		begun := commands(st)
		r, err := c.Fetch(bg, "k")
		must(t, err)
		if r.Source != onefill.SourceLocal || commands(st) != begun {
			t.Errorf("the next Get came from %v and cost %d commands", r.Source, commands(st)-begun)
		}
		db.wantLoads(t, 1)
	})
}

// N processes past the early-refresh threshold refresh N times, as none looks at
// the store (FusionCache 651). beta is so large that every
// reader draws "now": one in 10^11 does not.
func TestEarlyRefreshOnceInTheFleet(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", loadTime)
		caches := make([]*cache, 20)
		for i := range caches {
			caches[i] = newCache(t, with(options{Load: db.load, EarlyRefresh: 1e15, TTL: time.Hour}, st))
		}
		get(t, caches[0], "k", "v1")
		for _, c := range caches[1:] {
			get(t, c, "k", "v1") // from the store
		}
		db.wantLoads(t, 1)
		resume := db.pause()
		for _, c := range caches {
			get(t, c, "k", "v1") // from local, and due
		}
		db.write("v2")
		resume()
		time.Sleep(5 * time.Second)
		db.wantLoads(t, 2)
		var refreshes uint64
		for _, c := range caches {
			refreshes += c.Stats().EarlyRefreshes
		}
		if refreshes != 20 {
			t.Errorf("%d early refreshes began, want 20: the test forced nothing", refreshes)
		}
	})
}

// XFetch draws cost * beta * -ln(rand): its mean is cost * beta, and a fraction
// 1/e of the draws lies above it.
func TestEarlyRefreshDraws(t *testing.T) {
	const n, cost, beta = 200_000, 100 * time.Millisecond, 2.0
	sum, above := 0.0, 0
	for range n {
		d := onefill.EarlyBy(cost, beta)
		sum += float64(d)
		if d > 200*time.Millisecond {
			above++
		}
	}
	if mean := sum / n / float64(cost); math.Abs(mean-beta) > 0.05 {
		t.Errorf("the mean draw is %.3f costs, want %.1f", mean, beta)
	}
	if share := float64(above) / n; math.Abs(share-1/math.E) > 0.01 {
		t.Errorf("%.3f of the draws are above the mean, want %.3f", share, 1/math.E)
	}
	if d := onefill.EarlyBy(math.MaxInt64, math.MaxFloat64); d < 0 {
		t.Errorf("a draw overflowed: %v", d)
	}
}

// Each stale hit starts a goroutine (coredns 7904): 1,000 stale hits while the
// origin hangs, one refresh.
func TestStaleHitsStartOneRefresh(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", time.Millisecond)
		c := newCache(t, with(options{Load: db.load, TTL: time.Second, StaleFor: time.Hour, Jitter: onefill.NoJitter}, st))
		get(t, c, "k", "v1")
		time.Sleep(time.Second)
		resume := db.pause()
		for _, a := range herd(bg, 1000, "k", c) {
			if a.err != nil || !a.Stale || a.took != 0 {
				t.Fatalf("a stale hit: %+v", a)
			}
		}
		synctest.Wait()
		// Where Local.TTL has ended too, the first of them asks the store; then one
		// refresh runs, whoever started it.
		if s := c.Stats(); s.Refreshes != 1 || s.LoadsInFlight != 1 {
			t.Errorf("%d refreshes, %d loads in flight; want 1 of each", s.Refreshes, s.LoadsInFlight)
		}
		db.write("v2")
		resume()
		time.Sleep(time.Millisecond)
		synctest.Wait()
		db.wantLoads(t, 2)
	})
}

// The protection of stale values is none when there is no value (Laravel 60920):
// ten cold processes, one load.
func TestColdProcessesWithStaleFor(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", loadTime)
		caches := make([]*cache, 10)
		for i := range caches {
			caches[i] = newCache(t, with(options{Load: db.load, StaleFor: time.Hour}, st))
		}
		wantAll(t, herd(bg, 2, "k", caches...), "v1")
		db.wantLoads(t, 1)
	})
}

// A failing loader is called by one waiter after the other (Rails, BentoCache).
// Here the failure is shared, and the retry is one caller per ErrorTTL in the
// fleet, however many ask.
func TestFailingLoadIsRetriedOncePerErrorTTL(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("", time.Millisecond)
		db.fail(errors.New("relation does not exist"))
		caches := fleet(t, st, options{Load: db.load, ErrorTTL: 10 * time.Second})
		for range 30 { // for 30 seconds
			wantErrs(t, herd(bg, 20, "k", caches...), onefill.ErrLoadFailed)
			time.Sleep(time.Second)
		}
		if n := db.loads.Load(); n < 3 || n > 4 {
			t.Errorf("%d loads in 30 s with an ErrorTTL of 10 s", n)
		}
		if n := db.most.Load(); n != 1 {
			t.Errorf("%d loads at once", n)
		}
	})
}

// Who misses while a background refresh runs joins it, though the value has gone
// meanwhile.
func TestMissJoinsTheRefresh(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", time.Millisecond)
		c := newCache(t, with(options{Load: db.load, TTL: time.Second, StaleFor: time.Second, Jitter: onefill.NoJitter}, st))
		get(t, c, "k", "v1")
		time.Sleep(time.Second)
		resume := db.pause()
		get(t, c, "k", "v1") // stale: the refresh begins and pauses
		synctest.Wait()
		db.wantLoads(t, 2)
		time.Sleep(time.Second) // past StaleFor
		late := ask(bg, c, "k")
		pending(t, late)
		db.write("v2") // too late for the load that has read v1
		resume()
		wantAll(t, []answer{<-late}, "v1")
		db.wantLoads(t, 2)
	})
}

// Peek never loads, never joins a flight and never takes a lease.
func TestPeekOnlyLooks(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", loadTime)
		c := newCache(t, with(options{Load: db.load, StaleFor: time.Minute, TTL: time.Second, Jitter: onefill.NoJitter}, st))
		peek(t, c, "k", "")
		resume := db.pause()
		a := ask(bg, c, "k")
		pending(t, a)
		peek(t, c, "k", "") // at once, although a flight is in the air
		if st != nil && st.Usage().Leases != 1 {
			t.Errorf("%+v, want the one lease of the flight", st.Usage())
		}
		resume()
		wantAll(t, []answer{<-a}, "v1")
		peek(t, c, "k", "v1")
		time.Sleep(time.Second)
		r, ok, err := c.Peek(bg, "k")
		if !ok || err != nil || !r.Stale || r.Value != "v1" {
			t.Errorf("a peek at a stale value: %+v, %t, %v", r, ok, err)
		}
		db.wantLoads(t, 1)
		if n := c.Stats().Refreshes; n != 0 {
			t.Errorf("peeks started %d refreshes", n)
		}
		nothingHeld(t, st)
	})
}

// A peek in another process reads the store and takes nothing from it: where
// leases lie in the value's item a plain read would use up the one turn.
func TestPeekElsewhere(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", loadTime)
		caches := fleet(t, st, options{Load: db.load})
		get(t, caches[0], "k", "v1")
		peek(t, caches[1], "k", "v1")
		must(t, caches[0].Invalidate(bg, "k"))
		peek(t, caches[1], "k", "")
		nothingHeld(t, st)
		db.wantLoads(t, 1)
	})
}

// m9 of the model: acquire without a second look. B reads "absent" and stops
// there; A loads and fills; B goes on to acquire: it must hit, not load.
func TestModelM9AcquireLooksAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", time.Millisecond)
		caches := fleet(t, st, options{Load: db.load, StoreTimeout: time.Hour})
		stopped, resume := holdNext(st, memstore.OpGet, true)
		b := ask(bg, caches[1], "k")
		stopped()
		get(t, caches[0], "k", "v1")
		pending(t, b)
		resume()
		wantAll(t, []answer{<-b}, "v1")
		db.wantLoads(t, 1)
	})
}

// A flight that could not load because everybody else was faster costs one look
// at local: the flight that follows a landing in the same moment must not load.
// Forced by a caller that misses, then is held in Options.Key until another
// caller's flight has landed.
func TestFlightLooksAtLocalAgain(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", time.Millisecond)
		there, hold := make(chan struct{}), make(chan struct{})
		armed := make(chan bool, 1)
		armed <- true
		c := newCache(t, with(options{Load: db.load, Key: func(k string) string {
			select {
			case <-armed: // the first caller, after its miss
				close(there)
				<-hold
			default:
			}
			return k
		}}, st))
		late := ask(bg, c, "k")
		<-there
		get(t, c, "k", "v1")
		close(hold)
		a := <-late
		wantAll(t, []answer{a}, "v1")
		if a.Source != onefill.SourceLocal {
			t.Errorf("the late flight's answer came from %v", a.Source)
		}
		db.wantLoads(t, 1)
	})
}
