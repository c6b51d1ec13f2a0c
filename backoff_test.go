package onefill_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onefill/onefill"
	inbubble "github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/store/memstore"
)

// A refresh that fails is tried again after 1, 2, 4, 8, 16, 16 ... times ErrorTTL, by one
// process of the fleet, and everybody gets the stale value at once meanwhile. The count
// is the fleet's: each attempt here is another process's.
func TestFailingRefreshBacksOff(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v", 0)
		var failed atomic.Int64
		caches := fleet(t, st, options{Load: db.load, TTL: time.Minute, StaleFor: time.Hour, Jitter: onefill.NoJitter,
			Observer: onefill.ObserverFunc(func(e onefill.Event) {
				if e.Kind == onefill.EventRefreshFailed {
					failed.Add(1)
				}
			})})
		wantAll(t, herd(bg, 1, "k", caches...), "v")
		time.Sleep(time.Minute + time.Second)
		db.fail(errBroken)
		attempts := db.attempts(1000, 100*time.Millisecond, func(i int) {
			if a := <-ask(bg, caches[i%len(caches)], "k"); a.err != nil || !a.Stale || a.took > 0 {
				t.Fatalf("%+v", a)
			}
		})
		// 0, 1, 3, 7, 15, 31, 47, 63, 79, 95: 10, and a little earlier or later where the
		// store's clock ticks seconds.
		if n := len(attempts); n < 7 || n > 11 || db.most.Load() > 1 {
			t.Errorf("%d attempts in 100 s, %d at once: %v", n, db.most.Load(), attempts)
		}
		if failed.Load() < int64(len(attempts)) {
			t.Errorf("%d failed refreshes were told of %d", failed.Load(), len(attempts))
		}
		db.fail(nil)
		time.Sleep(20 * time.Second)
		herd(bg, 1, "k", caches...)
		time.Sleep(time.Second) // who polls has come by
		for _, a := range herd(bg, 1, "k", caches...) {
			if a.err != nil || a.Stale {
				t.Errorf("after the origin is well again: %+v", a)
			}
		}
	})
}

// The origin hangs: every stale hit is answered at once, and there is one load in
// LoadTimeout at a time, fewer and fewer of them. The end of LoadTimeout is told to
// nobody who comes later.
func TestHungRefreshBacksOff(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v", 0)
		c := newCache(t, with(options{Load: db.load, TTL: 10 * time.Minute, StaleFor: time.Hour, LoadTimeout: time.Second, Jitter: onefill.NoJitter}, st))
		get(t, c, "k", "v")
		must(t, c.Expire(bg, "k"))
		db.pause()
		attempts := db.attempts(1000, 100*time.Millisecond, func(int) {
			if a := <-ask(bg, c, "k"); a.err != nil || !a.Stale || a.took > 0 {
				t.Fatalf("%+v", a)
			}
		})
		if n := len(attempts); n < 6 || n > 12 || db.most.Load() > 1 {
			t.Errorf("%d loads in 100 s, %d at once: %v", n, db.most.Load(), attempts)
		}
	})
}

// A LoadTimeout that holds a refresh back is no answer to who may not have the stale
// value: he loads.
func TestTimedOutRefreshIsNobodysError(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v", 0)
		c := newCache(t, with(options{Load: db.load, TTL: 10 * time.Second, StaleFor: 5 * time.Second, LoadTimeout: time.Second, ErrorTTL: time.Minute, Jitter: onefill.NoJitter}, st))
		get(t, c, "k", "v")
		time.Sleep(12 * time.Second)
		resume := db.pause()
		get(t, c, "k", "v")         // stale; its refresh runs into LoadTimeout
		time.Sleep(4 * time.Second) // StaleFor is over
		resume()
		db.write("v2")
		get(t, c, "k", "v2")
	})
}

// With nothing to serve, the retry is after 1, 1, 2, 4, 4 ... times ErrorTTL, so that
// callers do not get errors for long when the origin is back.
func TestFailingLoadBacksOff(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("", 0)
		db.fail(errBroken)
		caches := fleet(t, st, options{Load: db.load, ErrorTTL: 10 * time.Second, Jitter: onefill.NoJitter})
		attempts := db.attempts(200, time.Second, func(i int) {
			wantErrs(t, herd(bg, 3, "k", caches[i%len(caches)]), onefill.ErrLoadFailed)
		})
		// 0, 10, 20, 40, 80, 120, 160
		if n := len(attempts); n < 6 || n > 8 {
			t.Errorf("%d attempts in 200 s with an ErrorTTL of 10 s: %v", n, attempts)
		}
	})
}

// A success ends the count; so does a write.
func TestBackOffBeginsAnew(t *testing.T) {
	for name, heal := range map[string]func(*cache, *originDB){
		"load":       func(c *cache, db *originDB) { db.fail(nil); inbubble.After(time.Minute); _, _ = c.Get(bg, "k") },
		"invalidate": func(c *cache, _ *originDB) { _ = c.Invalidate(bg, "k") },
		"set":        func(c *cache, _ *originDB) { _ = c.Set(bg, "k", "v") },
	} {
		t.Run(name, func(t *testing.T) {
			layouts(t, func(t *testing.T, st *memstore.Store) {
				db := newOrigin("v", 0)
				c := newCache(t, with(options{Load: db.load, TTL: time.Second, ErrorTTL: 10 * time.Second, Jitter: onefill.NoJitter}, st))
				db.fail(errBroken)
				for range 60 {
					_, _ = c.Get(bg, "k")
					time.Sleep(time.Second)
				}
				heal(c, db)
				db.fail(errBroken)
				time.Sleep(3 * time.Second)
				_, _ = c.Get(bg, "k")
				before := db.loads.Load()
				time.Sleep(12 * time.Second) // one ErrorTTL, and what the stores' clocks add
				_, _ = c.Get(bg, "k")
				db.wantLoads(t, before+1)
			})
		})
	}
}

// After a failure the old value may be served for the rest of its window only: the
// back-off does not outlast it by more than it would be without a stale value.
func TestBackOffEndsWithTheStaleValue(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v", 0)
		c := newCache(t, with(options{Load: db.load, TTL: 10 * time.Second, StaleOnError: time.Minute, ErrorTTL: 10 * time.Second, Jitter: onefill.NoJitter}, st))
		get(t, c, "k", "v")
		time.Sleep(11 * time.Second)
		db.fail(errBroken)
		for range 59 {
			if a := <-ask(context.Background(), c, "k"); a.err != nil || !a.Stale {
				t.Fatalf("%+v", a)
			}
			time.Sleep(time.Second)
		}
		db.fail(nil)
		db.write("v2")
		time.Sleep(42 * time.Second) // four times ErrorTTL, and what the stores' clocks add
		get(t, c, "k", "v2")
	})
}

// The same without the store, where only StaleOnError says how long the value is served, though
// it is kept for StaleFor.
func TestBackOffEndsWithTheStaleValueWithoutStore(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v", 0)
		c := newCache(t, options{Store: st, Load: db.load, TTL: 10 * time.Second, StaleOnError: 100 * time.Second, StaleFor: time.Hour,
			ErrorTTL: 10 * time.Second, Jitter: onefill.NoJitter})
		get(t, c, "k", "v")
		st.Down()
		time.Sleep(11 * time.Second)
		db.fail(errBroken)
		for range 99 {
			if a := <-ask(bg, c, "k"); a.err != nil || !a.Stale {
				t.Fatalf("%+v", a)
			}
			time.Sleep(time.Second)
		}
		db.fail(nil)
		db.write("v2")
		time.Sleep(42 * time.Second) // four times ErrorTTL
		get(t, c, "k", "v2")
	})
}
