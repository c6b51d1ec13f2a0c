package onefill_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// TTLs and jitter.

var (
	oddTTLs    = []time.Duration{math.MinInt64, -1, 0, 1, time.Microsecond, time.Minute, 30*24*time.Hour + 1, math.MaxInt64 - 1, math.MaxInt64}
	oddJitters = []float64{onefill.NoJitter, 1e-300, 1e-9, 0.1, 1}
)

// The arithmetic saturates, and jitter never shortens, whatever the numbers are (a
// random number below 1 panics: smallstep 81, dragonfly 4955).
func TestArithmeticSaturates(t *testing.T) {
	for _, d := range oddTTLs {
		for _, f := range append(oddJitters, 0) {
			for range 100 {
				got := onefill.Jittered(d, f)
				if got < d || d > 0 && float64(got) > float64(d)*(1+f)+1 {
					t.Fatalf("jittered(%v, %v) = %v", d, f, got)
				}
			}
		}
		for _, e := range oddTTLs {
			if sum := onefill.After(d, e); d >= 0 && e >= 0 && (sum < d || sum < e) {
				t.Errorf("after(%v, %v) = %v", d, e, sum)
			}
		}
		now := time.Now()
		if at := onefill.WallAfter(now, d); d >= 0 && (at.Before(now) || at.UnixMicro() < now.UnixMicro()) {
			t.Errorf("wallAfter(now, %v) = %v", d, at)
		}
	}
}

// ttl {0, 1 ns, -1, MaxInt64} x jitter {0, tiny, 1}, for values and for not-found
// marks, on every layout: no panic, and either stored or not, never half.
func TestOddTTLs(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		for _, jitter := range oddJitters {
			for _, ttl := range oddTTLs {
				for _, failure := range []error{nil, onefill.ErrNotFound} {
					key := fmt.Sprint(ttl, jitter, failure)
					loads := 0
					c := newCache(t, with(options{Jitter: jitter, StaleFor: time.Hour, Local: onefill.LocalOptions{TTL: math.MaxInt64},
						Load: func(ctx context.Context, _ string) (string, error) {
							loads++
							onefill.SetTTL(ctx, ttl)
							return "v1", failure
						}}, st))
					for range 2 {
						if v, err := c.Get(bg, key); !errors.Is(err, failure) || failure == nil && v != "v1" {
							t.Fatalf("%s: %q, %v", key, v, err)
						}
					}
					switch {
					case ttl <= 0 && loads != 2:
						t.Errorf("%s: %d loads, but nothing may be stored", key, loads)
					case ttl >= time.Second && loads != 1:
						t.Errorf("%s: %d loads, want 1", key, loads)
					}
					if st != nil {
						if _, found := stored(t, st, key); found && ttl <= 0 {
							t.Errorf("%s: it was stored", key)
						}
					}
					time.Sleep(time.Millisecond)
				}
			}
		}
	})
}

// The same for the options: what New accepts works, and what is 0 is the default.
func TestOddOptionTTLs(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		for _, ttl := range []time.Duration{0, 1, time.Microsecond, math.MaxInt64} {
			for _, jitter := range oddJitters {
				db := newOrigin("v1", 0)
				c := newCache(t, with(options{Load: db.load, TTL: ttl, NotFoundTTL: ttl, ErrorTTL: ttl, StaleFor: ttl, StaleOnError: ttl, Jitter: jitter,
					LoadTimeout: max(ttl, time.Second), WaitTimeout: max(ttl, time.Second), Local: onefill.LocalOptions{TTL: ttl}}, st))
				key := fmt.Sprint(ttl, jitter)
				get(t, c, key, "v1")
				get(t, c, key, "v1")
				must(t, c.Set(bg, key, "v2"))
				if ttl != 1 && ttl != time.Microsecond {
					get(t, c, key, "v2")
				}
				must(t, c.Expire(bg, key))
				must(t, c.Invalidate(bg, key))
			}
		}
	})
}

// Jitter that changes nothing (samber/hot). Proved on the stored TTLs, on every way
// by which a value gets into the store: a load, GetOrLoad, GetMany, Set, a refresh.
func TestJitterOnEveryWritePath(t *testing.T) {
	const n, ttl, jitter = 50, time.Hour, 0.5
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, with(options{Load: db.load, TTL: ttl, Jitter: jitter, StaleFor: ttl}, st))
		other := func(ctx context.Context, k string) (string, error) { return db.load(ctx, k) }
		for name, write := range map[string]func(string) error{
			"Get":       func(k string) error { return first(c.Get(bg, k)) },
			"GetOrLoad": func(k string) error { return first(c.GetOrLoad(bg, k, other)) },
			"GetMany":   func(k string) error { return first(c.GetMany(bg, []string{k, k + "2"})) },
			"Set":       func(k string) error { return c.Set(bg, k, "v1") },
			"refresh": func(k string) error {
				if err := errors.Join(first(c.Get(bg, k)), c.Expire(bg, k), first(c.Get(bg, k))); err != nil {
					return err
				}
				synctest.Wait()
				return nil
			},
		} {
			seen := make(map[time.Duration]bool)
			shortest, longest := time.Duration(math.MaxInt64), time.Duration(0)
			for i := range n {
				key := fmt.Sprint(name, i)
				must(t, write(key))
				env, ok := stored(t, st, key)
				if !ok {
					t.Fatalf("%s stored nothing", name)
				}
				got := env.SoftExpiry.Sub(env.Created)
				if got < ttl-time.Microsecond || got > ttl+ttl/2 {
					t.Errorf("%s: a TTL of %v", name, got)
				}
				seen[got], shortest, longest = true, min(shortest, got), max(longest, got)
			}
			if len(seen) < n*9/10 || longest-shortest < ttl/4 {
				t.Errorf("%s: %d different TTLs of %d, from %v to %v", name, len(seen), n, shortest, longest)
			}
		}
	})
}

// Local outlives the store (go-redis/cache 49). B reads a value that has a second
// left, with a Local.TTL of an hour: a second later it must be gone everywhere.
func TestLocalDoesNotOutliveTheStore(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := fleet(t, st, options{Load: db.load, TTL: 10 * time.Second, Jitter: onefill.NoJitter, Local: onefill.LocalOptions{TTL: time.Hour}})
		get(t, caches[0], "k", "v1")
		time.Sleep(9 * time.Second)
		wantAll(t, herd(bg, 1, "k", caches...), "v1")
		db.write("v2")
		time.Sleep(time.Second)
		wantAll(t, herd(bg, 1, "k", caches...), "v2")
		db.wantLoads(t, 2)
	})
}

// A value ends with its TTL, is stale for StaleFor, and then a miss, in the process
// that loaded it and in the others alike.
func TestTTLThenStaleForThenMiss(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := fleet(t, st, options{Load: db.load, TTL: 10 * time.Second, StaleFor: 5 * time.Second, Jitter: onefill.NoJitter})
		wantAll(t, herd(bg, 1, "k", caches...), "v1")
		time.Sleep(9500 * time.Millisecond)
		for _, a := range herd(bg, 1, "k", caches...) {
			if a.Stale || a.err != nil {
				t.Errorf("at 9.5 s: %+v", a)
			}
		}
		db.wantLoads(t, 1)
		resume := db.pause() // refreshes go nowhere
		time.Sleep(time.Second)
		for _, a := range herd(bg, 1, "k", caches...) {
			if !a.Stale || a.err != nil || a.Age < 10*time.Second || a.Age > 11*time.Second {
				t.Errorf("at 10.5 s: %+v", a)
			}
		}
		time.Sleep(5 * time.Second)
		db.write("v2")
		var late []<-chan answer
		for _, c := range caches {
			peek(t, c, "k", "")
			late = append(late, ask(bg, c, "k"))
		}
		for _, a := range late {
			pending(t, a)
		}
		resume()
		for _, a := range late {
			if a := <-a; a.Stale || a.err != nil {
				t.Errorf("at 15.5 s: %+v", a)
			}
		}
	})
}

// SetTTL is the loader's word on its own value only.
func TestSetTTL(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		var failure error
		caches := fleet(t, st, options{TTL: time.Hour, NotFoundTTL: time.Hour, Jitter: onefill.NoJitter,
			Load: func(ctx context.Context, k string) (string, error) {
				if k != "default" {
					onefill.SetTTL(ctx, time.Hour)
					onefill.SetTTL(ctx, 10*time.Second) // the last word counts
				}
				v, _ := db.load(ctx, k)
				return v, failure
			}})
		onefill.SetTTL(bg, time.Second) // outside of a load: nothing
		wantAll(t, herd(bg, 1, "value", caches...), "v1")
		wantAll(t, herd(bg, 1, "default", caches...), "v1")
		failure = onefill.ErrNotFound
		wantErrs(t, herd(bg, 1, "absent", caches...), onefill.ErrNotFound)
		db.wantLoads(t, 3)
		time.Sleep(11 * time.Second)
		failure = nil
		wantAll(t, herd(bg, 1, "value", caches...), "v1")
		wantAll(t, herd(bg, 1, "absent", caches...), "v1")
		wantAll(t, herd(bg, 1, "default", caches...), "v1")
		db.wantLoads(t, 5)
	})
}

// SetTTL(0): what must not be stored is given to everybody who waits, and to nobody
// else.
func TestSetTTLZero(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", loadTime)
		c := newCache(t, with(options{Load: func(ctx context.Context, k string) (string, error) {
			onefill.SetTTL(ctx, 0)
			return db.load(ctx, k)
		}}, st))
		wantAll(t, herd(bg, 10, "k", c), "v1")
		db.wantLoads(t, 1)
		nothingHeld(t, st)
		peek(t, c, "k", "")
		get(t, c, "k", "v1")
		db.wantLoads(t, 2)
	})
}

// A writer's clock that runs ahead cannot make a value live longer than a whole TTL
// from when it is read; one that is behind can only shorten it.
func TestClockSkew(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		for name, skew := range map[string]time.Duration{"ahead": time.Hour, "behind": -30 * time.Second} {
			db := newOrigin("v2", 0)
			c := newCache(t, with(options{Load: db.load, Local: onefill.LocalOptions{TTL: time.Hour}}, st))
			created := time.Now().Add(skew)
			env := store.Envelope{Kind: store.KindValue, Codec: onefill.CodecID("raw"), Created: created,
				SoftExpiry: created.Add(time.Minute), Payload: []byte("v1")}
			st.PutRaw("test", name, env.Encode(), 2*time.Hour)
			r, err := c.Fetch(bg, name)
			if err != nil || r.Value != "v1" || r.Age < 0 {
				t.Errorf("%s: %+v, %v", name, r, err)
			}
			time.Sleep(time.Minute + time.Second)
			st.Evict("test", name)
			get(t, c, name, "v2")
		}
	})
}

// Age counts from the load, in every process and from every source.
func TestAge(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := fleet(t, st, options{Load: db.load, TTL: time.Hour})
		get(t, caches[0], "k", "v1")
		for want := time.Duration(0); want < time.Minute; want += 7 * time.Second {
			for _, a := range herd(bg, 1, "k", caches...) {
				if d := a.Age - want; d < 0 || d > time.Millisecond {
					t.Errorf("an age of %v, want %v", a.Age, want)
				}
			}
			time.Sleep(7 * time.Second)
		}
	})
}

// The physical TTL in the store covers what the options allow after the soft one,
// and not more: an entry nobody may serve costs no memory.
func TestPhysicalTTL(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		c := newCache(t, options{Store: st, Load: newOrigin("v1", 0).load, TTL: 10 * time.Second, Jitter: onefill.NoJitter, StaleFor: 20 * time.Second, StaleOnError: 30 * time.Second})
		get(t, c, "k", "v1")
		time.Sleep(40*time.Second - 1)
		wantStored(t, st, "k", "v1")
		time.Sleep(1)
		wantStored(t, st, "k", "")
	})
}
