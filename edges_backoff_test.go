package onefill_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// An old value that is there but served to nobody makes no back-off patient: callers get
// the error, and are to notice soon that the origin is back. Here the key was invalidated
// elsewhere, where nobody can push that: A's local has it still, past its Local.TTL.
func TestUnservableOldValueIsNoPatience(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v", 0)
		caches := fleet(t, st, options{Load: db.load, TTL: time.Hour, StaleOnError: time.Hour, ErrorTTL: 10 * time.Second, Jitter: onefill.NoJitter, Local: onefill.LocalOptions{TTL: time.Second}})
		get(t, caches[0], "k", "v")
		time.Sleep(2 * time.Second)
		must(t, caches[1].Invalidate(bg, "k"))
		db.fail(errBroken)
		attempts := db.attempts(200, time.Second, func(int) {
			if _, err := caches[0].Get(bg, "k"); err == nil {
				t.Fatal("the invalidated value was served")
			}
		})
		// 0, 10, 20, 40, 80, 120, 160; patient: 0, 10, 30, 70, 150
		if n := len(attempts); n < 6 || n > 8 {
			t.Errorf("%d attempts in 200 s with an ErrorTTL of 10 s: %v", n, attempts)
		}
	})
}

// An origin that hangs, and a loader that gives up by itself, in its own time: the same as
// the end of LoadTimeout for who has a stale value, and for the limit of loads.
func TestOwnTimeoutOfALoaderBacksOff(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v", 0)
		c := newCache(t, with(options{TTL: 10 * time.Minute, StaleFor: time.Hour, Jitter: onefill.NoJitter,
			Load: func(ctx context.Context, key string) (string, error) {
				ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				defer cancel()
				return db.load(ctx, key)
			}}, st))
		get(t, c, "k", "v")
		must(t, c.Expire(bg, "k"))
		db.pause()
		attempts := db.attempts(1000, 100*time.Millisecond, func(int) {
			if a := <-ask(bg, c, "k"); a.err != nil || !a.Stale || a.took > 0 {
				t.Fatalf("%+v", a)
			}
		})
		if n := len(attempts); n > 12 {
			t.Errorf("%d loads in 100 s: %v", n, attempts)
		}
	})
}

func TestOwnTimeoutsLowerTheLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCache(t, options{MaxLoads: 64, MaxLoadsDegraded: 4, Load: func(ctx context.Context, _ string) (string, error) {
			ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			<-ctx.Done() // the database hangs
			return "", ctx.Err()
		}})
		for i := range 1000 {
			_, _ = c.Get(bg, fmt.Sprint(i))
		}
		if n := c.Stats().LoadLimit; n != 4 {
			t.Errorf("the limit is %d after 1,000 loads in a row that timed out", n)
		}
	})
}

// A burst of failures is one burst: loads that began under the old limit halve it once.
func TestBurstOfFailures(t *testing.T) {
	bubble(t, func(t *testing.T) {
		db := newOrigin("", time.Second)
		db.fail(errBroken)
		c := newCache(t, options{Load: db.load, MaxLoads: 256})
		var all []<-chan answer
		for i := range 256 {
			all = append(all, ask(bg, c, fmt.Sprint(i)))
		}
		for _, a := range all {
			<-a
		}
		if n := c.Stats().LoadLimit; n != 128 {
			t.Errorf("the limit is %d after one burst", n)
		}
	})
}

// While the store is down, a load that takes longer than Local.TTL is not joined for longer
// than that: one load of the key begins in each Local.TTL, and no more.
func TestDegradedLoadsOfOneKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v", 5*time.Second)
		c := newCache(t, options{Store: st, Load: db.load, TTL: time.Second})
		st.Down()
		for range 10 {
			_ = c.Invalidate(bg, "other")
			time.Sleep(100 * time.Millisecond)
		}
		var all []<-chan answer
		for range 100 { // for 10 s
			all = append(all, ask(bg, c, "k"))
			time.Sleep(100 * time.Millisecond)
		}
		for _, a := range all {
			<-a
		}
		if n := db.loads.Load(); n > 11 || db.most.Load() > 5 {
			t.Errorf("%d loads in 10 s, %d at once", n, db.most.Load())
		}
	})
}

func TestRefreshFailedIsCountedWithoutStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{NoPush: true})
		db := newOrigin("v", 0)
		c := newCache(t, options{Store: st, Load: db.load, TTL: 10 * time.Second, StaleFor: time.Hour, OnStoreDown: onefill.Fail, Local: onefill.LocalOptions{TTL: time.Hour}})
		get(t, c, "k", "v")
		st.Down()
		time.Sleep(12 * time.Second)
		for range 5 {
			get(t, c, "k", "v")
			time.Sleep(time.Second)
		}
		if s := c.Stats(); s.RefreshesFailed != s.Refreshes {
			t.Errorf("%d refreshes, %d failed", s.Refreshes, s.RefreshesFailed)
		}
	})
}

// ErrorTTL at its ends.
func TestErrorTTLLimits(t *testing.T) {
	for _, ttl := range []time.Duration{1, math.MaxInt64} {
		for _, stale := range []time.Duration{0, time.Hour, math.MaxInt64} {
			layouts(t, func(t *testing.T, st *memstore.Store) {
				db := newOrigin("v", 0)
				c := newCache(t, with(options{Load: db.load, TTL: time.Minute, ErrorTTL: ttl, StaleFor: stale, StaleOnError: stale}, st))
				get(t, c, "k", "v")
				time.Sleep(90 * time.Second)
				db.fail(errBroken)
				for range 50 {
					_, err := c.Get(bg, "k")
					if (err != nil) != (stale == 0) {
						t.Errorf("%v %v: %v", ttl, stale, err)
					}
					time.Sleep(2 * time.Second)
				}
				if n := db.loads.Load(); ttl > 1 && n != 2 {
					t.Errorf("ttl %v stale %v: %d loads", ttl, stale, n)
				}
			})
		}
	}
}
