package onefill_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// Panics and deadlocks: nobody waits for ever, nobody gets a zero value with a nil
// error, and the key works again.

// crashes are the ways in which a loader ends without returning.
var crashes = map[string]struct {
	load func()
	want func(error) bool
}{
	"panic": {func() { panic("boom") }, func(err error) bool {
		p := (*onefill.PanicError)(nil)
		return errors.As(err, &p) && p.Value == "boom" && strings.Contains(string(p.Stack), "panics_test.go")
	}},
	"panic(error)": {func() { panic(fmt.Errorf("wrapped: %w", errBroken)) }, func(err error) bool { return errors.Is(err, errBroken) }},
	"panic(nil)":   {func() { panic(nil) }, func(err error) bool { return errors.As(err, new(*onefill.PanicError)) }},
	"Goexit":       {runtime.Goexit, func(err error) bool { return errors.Is(err, onefill.ErrGoexit) }},
}

var errBroken = errors.New("broken")

// Waiters hang after a panic (golang/go 33519, mailgun/groupcache 38), or get the
// zero value and nil (seaweedfs 9100, sturdyc), also on Goexit; or the key is dead
// for the value's whole TTL (rueidisaside). The loader crashes at once in one half
// of the runs: also that must not keep the key (FusionCache 647).
func TestCrashingLoader(t *testing.T) {
	for name, crash := range crashes {
		for _, takes := range []time.Duration{0, loadTime} {
			t.Run(fmt.Sprint(name, " after ", takes), func(t *testing.T) {
				layouts(t, func(t *testing.T, st *memstore.Store) {
					var loads atomic.Int64
					sane := newOrigin("v1", 0)
					caches := fleet(t, st, options{MaxLoads: 1, TTL: time.Hour, LeaseTTL: time.Minute,
						Load: func(ctx context.Context, key string) (string, error) {
							if loads.Add(1) == 1 {
								time.Sleep(takes)
								crash.load()
							}
							return sane.load(ctx, key)
						}})
					first := ask(bg, caches[0], "k")
					synctest.Wait()
					answers := herd(bg, 4, "k", caches...)
					wantErrs(t, append(answers, <-first), onefill.ErrLoadFailed)
					if n := loads.Load(); n != 1 {
						t.Errorf("%d loads, want 1", n)
					}
					if _, err := caches[0].Get(bg, "k"); !crash.want(err) {
						t.Errorf("the process that crashed remembers %v", err)
					}
					if s := caches[0].Stats(); s.Panics != 1 || s.LoadsInFlight != 0 {
						t.Errorf("%d panics counted, %d places kept", s.Panics, s.LoadsInFlight)
					}
					time.Sleep(3 * time.Second) // past ErrorTTL, far within TTL and LeaseTTL
					wantAll(t, herd(bg, 4, "k", caches...), "v1")
				})
			})
		}
	}
}

// A nil loader registers a call for ever (otter 257).
func TestNilLoader(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		c := newCache(t, with(options{}, st))
		_, errGet := c.Get(bg, "k")
		_, errFetch := c.Fetch(bg, "k")
		_, errLoad := c.GetOrLoad(bg, "k", nil)
		for _, err := range []error{errGet, errFetch, errLoad} {
			if err == nil || !strings.Contains(err.Error(), "Options.Load") {
				t.Errorf("without a loader: %v; it must name Options.Load", err)
			}
		}
		v, err := c.GetOrLoad(bg, "k", newOrigin("v1", 0).load)
		if v != "v1" || err != nil {
			t.Errorf("then with a loader: %q, %v", v, err)
		}
		if _, err := c.Get(bg, "k"); err == nil {
			t.Error("Get without a loader hit")
		}
	})
}

// An invalidation over the push connection while waiters leave deadlocks (rueidis
// 457). Forced: 50 waiters in B, A holds the lease; the connection breaks, the key
// is invalidated and all 50 cancel, in every order of the three.
func TestConnectionCutWhileAllWaitersCancel(t *testing.T) {
	for order := range 6 {
		bubble(t, func(t *testing.T) {
			st := memstore.New()
			db := newOrigin("v1", time.Millisecond)
			caches := fleet(t, st, options{Load: db.load})
			resume := db.pause()
			a := ask(bg, caches[0], "k")
			pending(t, a)
			ctx, cancel := context.WithCancel(bg)
			var waiters []<-chan answer
			for range 50 {
				waiters = append(waiters, ask(ctx, caches[1], "k"))
			}
			synctest.Wait()
			steps := []func(){st.LosePushes, cancel, func() { must(t, caches[2].Invalidate(bg, "k")) }}
			for i := range steps {
				go steps[(order%3+(1+order/3)*i)%3]()
			}
			for _, w := range waiters {
				<-w
			}
			resume()
			<-a
			db.write("v2")
			synctest.Wait()
			must(t, caches[2].Invalidate(bg, "k"))
			wantAll(t, herd(bg, 1, "k", caches...), "v2")
		})
	}
}

// A slow load blocks other keys of its shard (theine: 450 ms, caffeine 672). One
// key hangs; a thousand others, more than there are shards, are loaded, set, hit
// and invalidated in no time.
func TestSlowKeySlowsNoOther(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, with(options{Load: db.load}, st))
		resume := db.pause()
		slow := ask(bg, c, "slow")
		pending(t, slow)
		db.paused.Store(nil)
		start := time.Now()
		for i := range 1000 {
			key := fmt.Sprint("fast", i)
			get(t, c, key, "v1")
			get(t, c, key, "v1")
			must(t, c.Set(bg, key, "v2"))
			get(t, c, key, "v2")
			must(t, c.Invalidate(bg, key))
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("other keys took %v", d)
		}
		pending(t, slow)
		resume()
		wantAll(t, []answer{<-slow}, "v1")
	})
}

// A loader that ignores its context holds its key and its place for ever
// (Altinn/dialogporten 4300). Here it is left behind; its late result is dropped.
func TestLoaderThatIgnoresItsContext(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		stuck := make(chan struct{})
		c := newCache(t, with(options{LoadTimeout: time.Second, MaxLoads: 1, Load: func(context.Context, string) (string, error) {
			<-stuck
			return "late", nil
		}}, st))
		for _, a := range herd(bg, 5, "k", c) {
			if !errors.Is(a.err, context.DeadlineExceeded) || a.took > 1100*time.Millisecond {
				t.Fatalf("%q, %v after %v", a.Value, a.err, a.took)
			}
		}
		if s := c.Stats(); s.LoadsAbandoned != 1 || s.LoadsInFlight != 0 {
			t.Errorf("%d loads left behind, %d places kept", s.LoadsAbandoned, s.LoadsInFlight)
		}
		nothingHeld(t, st)
		v, err := c.GetOrLoad(bg, "k", newOrigin("v1", 0).load)
		if v != "v1" || err != nil {
			t.Errorf("the key is dead: %q, %v", v, err)
		}
		close(stuck)
		synctest.Wait()
		peek(t, c, "k", "v1")
	})
}

// Loads nest: A's loader gets B, in the same cache, with a single place at the
// origin. The outer load lends its place to the inner one.
func TestNestedLoad(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("row", loadTime)
		var c *cache
		c = newCache(t, with(options{MaxLoads: 1, Load: func(ctx context.Context, key string) (string, error) {
			if inner, ok := strings.CutPrefix(key, "outer:"); ok {
				v, err := c.Get(ctx, inner)
				return "of " + v, err
			}
			return db.load(ctx, key)
		}}, st))
		a := <-ask(bg, c, "outer:outer:inner")
		wantAll(t, []answer{a}, "of of row")
		if a.took > 2*loadTime {
			t.Errorf("nested loads took %v", a.took)
		}
		db.wantLoads(t, 1)
	})
}

// A lent place stays in use until the inner load ends, also if the outer one ends
// first: the origin is bounded (G6). Forced: MaxLoads 1; the outer load asks for
// "inner", whose load pauses, with a context that ends; the outer load returns. A
// third load must not begin before the inner one has ended.
func TestLentPlaceOutlivesItsLender(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("row", time.Millisecond)
		var c *cache
		c = newCache(t, with(options{MaxLoads: 1, Load: func(ctx context.Context, key string) (string, error) {
			if key == "outer" {
				ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
				defer cancel()
				_, err := c.Get(ctx, "inner")
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the inner call got %v", err)
				}
				return "without it", nil
			}
			return db.load(ctx, key)
		}}, st))
		resume := db.pause()
		get(t, c, "outer", "without it")
		third := ask(bg, c, "third")
		pending(t, third)
		if n := db.running.Load(); n != 1 {
			t.Errorf("%d loads run, MaxLoads is 1", n)
		}
		if s := c.Stats(); s.LoadsInFlight != 1 || s.LoadsWaiting != 1 {
			t.Errorf("%d places in use, %d wait", s.LoadsInFlight, s.LoadsWaiting)
		}
		resume()
		wantAll(t, []answer{<-third}, "row")
		if n := db.most.Load(); n != 1 {
			t.Errorf("%d loads at once", n)
		}
	})
}

// A load that asks for itself, directly, over another key, or over another cache,
// is an error at once and not a deadlock; everybody gets an answer.
func TestLoadCycles(t *testing.T) {
	next := map[string]string{"self": "self", "a": "b", "b": "c", "c": "a"}
	layouts(t, func(t *testing.T, st *memstore.Store) {
		var caches [2]*cache
		for i := range caches {
			caches[i] = newCache(t, with(options{Name: fmt.Sprint("cache", i), Load: func(ctx context.Context, key string) (string, error) {
				return caches[1-i].Get(ctx, next[key])
			}}, st))
		}
		for _, key := range []string{"self", "a"} {
			a := <-ask(bg, caches[0], key)
			if !errors.Is(a.err, onefill.ErrCycle) || a.took != 0 {
				t.Errorf("a cycle from %q: %v after %v", key, a.err, a.took)
			}
		}
	})
}

// Two flights that close a circle from both ends: one of them is refused, both end.
// Forced: a's load and b's load both run before either asks for the other.
func TestLoadCycleFromBothEnds(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		other := map[string]string{"a": "b", "b": "a"}
		start := make(chan struct{})
		var c *cache
		c = newCache(t, with(options{Load: func(ctx context.Context, key string) (string, error) {
			<-start
			return c.Get(ctx, other[key])
		}}, st))
		a, b := ask(bg, c, "a"), ask(bg, c, "b")
		synctest.Wait()
		close(start)
		for _, a := range []answer{<-a, <-b} {
			if !errors.Is(a.err, onefill.ErrCycle) || a.took != 0 {
				t.Errorf("%v after %v", a.err, a.took)
			}
		}
	})
}

// Two loads that share an inner key are no cycle.
func TestNestedLoadsShareAKey(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("row", loadTime)
		var c *cache
		c = newCache(t, with(options{Load: func(ctx context.Context, key string) (string, error) {
			if key == "shared" {
				return db.load(ctx, key)
			}
			return c.Get(ctx, "shared")
		}}, st))
		a, b := ask(bg, c, "a"), ask(bg, c, "b")
		wantAll(t, []answer{<-a, <-b}, "row")
		db.wantLoads(t, 1)
	})
}

type panickyCodec struct{ encode, decode bool }

func (panickyCodec) Name() string { return "panicky" }
func (p panickyCodec) Encode(v string) ([]byte, error) {
	if p.encode {
		panic("encode")
	}
	return []byte(v), nil
}
func (p panickyCodec) Decode(data []byte) (string, error) {
	if p.decode {
		panic("decode")
	}
	return string(data), nil
}

// What users give us besides the loader may panic too: no lock, no lease and no
// flight may be left behind.
func TestPanicsInUserCode(t *testing.T) {
	var armed bool
	boom := func() {
		if armed {
			panic("boom")
		}
	}
	for name, o := range map[string]options{
		"Version":  {Version: func(string) uint64 { boom(); return 1 }},
		"Clone":    {Clone: func(v string) string { boom(); return v }},
		"Key":      {Key: func(k string) string { boom(); return k }},
		"Observer": {Observer: onefill.ObserverFunc(func(onefill.Event) { boom() })},
		"Encode":   {Codec: panickyCodec{encode: true}},
		"Decode":   {Codec: panickyCodec{decode: true}},
	} {
		t.Run(name, func(t *testing.T) {
			layouts(t, func(t *testing.T, st *memstore.Store) {
				o.Load, o.LeaseTTL = newOrigin("v1", 0).load, time.Hour
				armed = true
				caches := fleet(t, st, o)
				for _, c := range caches {
					func() {
						defer func() { _ = recover() }() // in the caller's goroutine it is the caller's
						if v, err := c.Get(bg, "k"); err == nil && v != "v1" {
							t.Errorf("a wrong value without an error: %q", v)
						}
						_ = c.Set(bg, "k2", "v1")
					}()
				}
				synctest.Wait()
				nothingHeld(t, st)
				armed = false
				for _, c := range caches {
					get(t, c, "k", "v1")
					get(t, c, "k2", "v1")
				}
			})
		})
	}
}
