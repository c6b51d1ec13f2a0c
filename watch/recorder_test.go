package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/store/memstore"
)

type cache = onefill.Cache[string, string]

// newCache is a cache that r watches. Loaders of a key "slow..." take 100 ms.
func newCache(t testing.TB, r onefill.Observer, o onefill.Options[string, string]) *cache {
	t.Helper()
	o.Logger, o.Observer = slog.New(slog.NewTextHandler(io.Discard, nil)), r
	if o.Name == "" {
		o.Name = "test"
	}
	c, err := onefill.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// loader takes a time, by the bubble's clock, and then answers.
func loader(d time.Duration, v string, err error) func(context.Context, string) (string, error) {
	return func(ctx context.Context, _ string) (string, error) {
		select {
		case <-time.After(d):
			return v, err
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// herd makes n callers ask for a key, and waits until they wait for it.
func herd(t *testing.T, c *cache, n int, key string) *sync.WaitGroup {
	t.Helper()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() { c.Get(t.Context(), key) })
	}
	synctest.Wait()
	return &wg
}

// settled checks that nothing is kept of flights that have landed, but for idle ones.
func settled(t *testing.T, r *Recorder) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.idle) > idleKept || len(r.air) > idleKept {
		t.Errorf("%d flights are kept, %d of them idle", len(r.air), len(r.idle))
	}
	for id, f := range r.air {
		if f.id != id || !f.idle || f.waiting != 0 || f.loading != 0 {
			t.Errorf("a flight is kept: %+v", f)
		}
	}
}

// TestHerdIsOneGroup: 12 callers in two processes (two caches on one store) miss a key. While the
// load runs, both groups are live: one loads, one waits. Then both end, each with one load waited
// for, and only one of them has loaded.
func TestHerdIsOneGroup(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a, b, st := New(Options{}), New(Options{}), memstore.New()
		load := loader(100*time.Millisecond, "v", nil)
		first := herd(t, newCache(t, a, onefill.Options[string, string]{Store: st, Load: load}), 7, "k")
		second := herd(t, newCache(t, b, onefill.Options[string, string]{Store: st, Load: load}), 5, "k")
		bubble.After(50 * time.Millisecond)
		for _, tt := range []struct {
			r       *Recorder
			callers int
			outcome Outcome
		}{{a, 7, Loading}, {b, 5, Waiting}} {
			live := tt.r.Live(50*time.Millisecond, Filter{})
			if len(live) != 1 || live[0].Callers != tt.callers || live[0].Waiting != tt.callers || live[0].Outcome != tt.outcome || live[0].Key != "k" {
				t.Errorf("live: %+v", live)
			}
		}
		first.Wait()
		second.Wait()
		synctest.Wait()
		for _, tt := range []struct {
			r       *Recorder
			callers int
			outcome Outcome
			loads   uint64
		}{{a, 7, Loaded, 1}, {b, 5, LeaseWait, 0}} {
			s := tt.r.Snapshot(10, Filter{})
			if len(s.Live) != 0 || len(s.Recent) != 1 || len(s.Missed) != 1 || len(s.Extra) != 0 {
				t.Fatalf("%+v", s)
			}
			if g := s.Recent[0]; g.Callers != tt.callers || g.Loads != 1 || g.Outcome != tt.outcome || g.TookMS < 99 || (g.LoadMS > 99) != (tt.outcome == Loaded) || (g.LeaseMS > 99) != (tt.outcome == LeaseWait) {
				t.Errorf("%+v", g)
			}
			if m := s.Missed[0]; m.Groups != 1 || m.Loads != 1 || m.Error != 0 {
				t.Errorf("%+v", m)
			}
			if c := s.Caches[0]; c.Groups != 1 || c.GroupLoads != 1 || c.Loads != tt.loads {
				t.Errorf("%+v", c)
			}
			if h := s.Hot[0]; h.Calls != float64(tt.callers) || h.Error != 0 {
				t.Errorf("%+v", h)
			}
			if len(s.Slow) != int(tt.loads) {
				t.Errorf("slow: %+v", s.Slow)
			}
			settled(t, tt.r)
		}
	})
}

// TestOutcomes: how a group ended is told from how it went.
func TestOutcomes(t *testing.T) {
	failing := errors.New("no such table")
	old := func(t *testing.T, c *cache) { // a value whose TTL has ended
		if err := c.Set(t.Context(), "k", "old"); err != nil {
			t.Fatal(err)
		}
		bubble.After(11 * time.Second)
	}
	invalidate := func(t *testing.T, c *cache) { // a lease is lost to it
		if err := c.Invalidate(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		outcome Outcome
		o       onefill.Options[string, string]
		before  func(*testing.T, *cache)
		during  func(*testing.T, *cache)
		loads   int
		says    string
	}{
		{outcome: Loaded, o: onefill.Options[string, string]{Load: loader(time.Second, "v", nil)}, loads: 1},
		{outcome: NotFound, o: onefill.Options[string, string]{Load: loader(time.Second, "", onefill.ErrNotFound)}, loads: 1},
		{outcome: Failed, o: onefill.Options[string, string]{Load: loader(time.Second, "", failing)}, loads: 1, says: "no such table"},
		{outcome: Timeout, o: onefill.Options[string, string]{Load: loader(time.Hour, "", nil), LoadTimeout: time.Second}, loads: 1, says: "LoadTimeout"},
		{outcome: Stale, o: onefill.Options[string, string]{Load: loader(time.Second, "", failing), StaleOnError: time.Hour}, before: old, loads: 1},
		{outcome: FillRefused, o: onefill.Options[string, string]{Load: loader(time.Second, "v", nil)}, during: invalidate, loads: 1},
		{outcome: FillRefused, o: onefill.Options[string, string]{Load: loader(time.Second, "", onefill.ErrNotFound)}, during: invalidate, loads: 1, says: "not found"},
		{outcome: Stale, o: onefill.Options[string, string]{Load: loader(8*time.Second, "v", nil), MaxLoads: 1, WaitTimeout: 10 * time.Second, StaleOnError: time.Hour},
			before: func(t *testing.T, c *cache) { old(t, c); herd(t, c, 1, "other") }}, // no place, and an old value instead
		{outcome: Busy, o: onefill.Options[string, string]{Load: loader(8*time.Second, "v", nil), MaxLoads: 1, WaitTimeout: 10 * time.Second},
			before: func(t *testing.T, c *cache) { herd(t, c, 1, "other") }, says: "busy"},
	} {
		t.Run(string(tt.outcome), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := New(Options{})
				tt.o.Store, tt.o.TTL, tt.o.Jitter = memstore.New(), 10*time.Second, onefill.NoJitter
				c := newCache(t, r, tt.o)
				if tt.before != nil {
					tt.before(t, c)
				}
				wg := herd(t, c, 3, "k")
				if tt.during != nil {
					tt.during(t, c)
				}
				wg.Wait()
				bubble.After(20 * time.Second)
				recent := r.Snapshot(10, Filter{Key: "k"}).Recent
				if len(recent) != 1 {
					t.Fatalf("%+v", recent)
				}
				if g := recent[0]; g.Outcome != tt.outcome || g.Loads != tt.loads || g.Callers != 3 || (g.Error == "") != (tt.says == "") || !contains(g.Error, tt.says) {
					t.Errorf("%+v", g)
				}
				settled(t, r)
			})
		})
	}
}

// TestOthersNotFound: a process waits for the load of another one, which finds that the row does not exist. That is
// what its group came to, not a value that another load has brought; how long it waited is there beside it.
func TestOthersNotFound(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a, b, st := New(Options{}), New(Options{}), memstore.New()
		load := loader(100*time.Millisecond, "", onefill.ErrNotFound)
		first := herd(t, newCache(t, a, onefill.Options[string, string]{Store: st, Load: load}), 1, "k")
		second := herd(t, newCache(t, b, onefill.Options[string, string]{Store: st, Load: load}), 3, "k")
		first.Wait()
		second.Wait()
		synctest.Wait()
		for name, r := range map[string]*Recorder{"loads": a, "waits": b} {
			recent := r.Snapshot(10, Filter{}).Recent
			if len(recent) != 1 || recent[0].Outcome != NotFound || recent[0].Error != "" || recent[0].Loads != 1 || (recent[0].LeaseMS > 99) != (r == b) {
				t.Errorf("the one that %s: %+v", name, recent)
			}
		}
	})
}

// TestTwoFlightsOfAKey: a write voids a flight, and the next caller begins another for the same key. What is told
// of the first, its refused fill, is not the second's, although that began later.
//
//	first caller misses, loads ... Invalidate ... second caller misses, waits for a lease or loads ... first load ends, refused
func TestTwoFlightsOfAKey(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := New(Options{})
		c := newCache(t, r, onefill.Options[string, string]{Store: memstore.New(), Load: loader(time.Second, "v", nil)})
		first := herd(t, c, 2, "k")
		if err := c.Invalidate(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		second := herd(t, c, 3, "k")
		first.Wait()
		second.Wait()
		synctest.Wait()
		by := make(map[int]Outcome)
		for _, g := range r.Snapshot(10, Filter{}).Recent {
			by[g.Callers] = g.Outcome
		}
		if len(by) != 2 || by[2] != FillRefused || by[3] != Loaded {
			t.Errorf("%v", by)
		}
		settled(t, r)
	})
}

// TestSampledHits: of 64,000 hits about one in 64 is heard of, and the error that is said holds.
func TestSampledHits(t *testing.T) {
	r := New(Options{})
	c := newCache(t, r, onefill.Options[string, string]{Load: loader(0, "v", nil), TTL: time.Hour})
	const calls = 64_000
	for range calls {
		c.Get(t.Context(), "k")
	}
	s := r.Snapshot(10, Filter{})
	if len(s.Hot) != 1 {
		t.Fatalf("%+v", s.Hot)
	}
	h := s.Hot[0]
	if h.Error < 2000 || h.Error > 10_000 { // 2 * 64 * sqrt(1000) is 4048
		t.Errorf("the error is said to be %v", h.Error)
	}
	if off := h.Calls - calls; max(off, -off) > 3*h.Error { // six standard deviations
		t.Errorf("%v calls ± %v were seen, %d were made", h.Calls, h.Error, calls)
	}
}

// TestBounded: 50,000 keys, and more flights at once than are followed, leave as much as was
// asked for.
func TestBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := New(Options{Keys: 16, Groups: 8, Flights: 32})
		c := newCache(t, r, onefill.Options[string, string]{Load: loader(time.Second, "v", nil), MaxLoads: 100})
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() { c.Get(t.Context(), fmt.Sprintf("at-once-%d", i)) })
		}
		synctest.Wait()
		if live := r.Live(0, Filter{}); len(live) != 32 {
			t.Errorf("%d flights are followed", len(live))
		}
		wg.Wait()
		for i := range 50_000 {
			n := onefill.Flight{ID: uint64(1_000_000 + i), Cache: fmt.Sprint("cache", i%1000), Key: fmt.Sprint("k", i)}
			end := r.TraceWait(t.Context(), []onefill.Flight{n})
			_, loaded := r.TraceLoad(t.Context(), []onefill.Flight{n})
			loaded(nil)
			if end != nil {
				end(nil)
			}
			if i%2 == 0 { // those of the others are never told of
				r.Observe(onefill.Event{Kind: onefill.EventMiss, Cache: n.Cache, Key: n.Key, Flight: n.ID, N: 2, Callers: 1})
			}
		}
		s := r.Snapshot(1000, Filter{})
		if len(s.Recent) != 8 || len(s.Hot) > 16*spans || len(s.Missed) > 16*spans || len(s.Caches) > mostCaches+1 || s.Unfollowed == 0 {
			t.Errorf("%d recent, %d hot, %d missed, %d caches, %d unfollowed", len(s.Recent), len(s.Hot), len(s.Missed), len(s.Caches), s.Unfollowed)
		}
		if s.Recent[0].Key != "k49998" { // the latest first
			t.Errorf("%+v", s.Recent[0])
		}
		settled(t, r)
	})
}

// TestCallersLeaveFirst: of each flight the callers leave before the end of the group is told. However many
// groups there are, none loses what was known of it.
func TestCallersLeaveFirst(t *testing.T) {
	const groups = 5 * idleKept
	r := New(Options{Groups: groups})
	for i := range groups {
		f := []onefill.Flight{{ID: uint64(i + 1), Cache: "c", Key: fmt.Sprint("k", i)}}
		end := r.TraceWait(t.Context(), f)
		_, loaded := r.TraceLoad(t.Context(), f)
		loaded(nil)
		end(nil)
		r.Observe(onefill.Event{Kind: onefill.EventMiss, Cache: "c", Key: f[0].Key, Flight: f[0].ID, N: 1, Callers: 1})
	}
	for _, g := range r.Snapshot(0, Filter{}).Recent {
		if g.Outcome != Loaded {
			t.Errorf("%s is told of as %q", g.Key, g.Outcome)
		}
	}
	settled(t, r)
}

// TestJoinedAgain: everybody has left a flight, and one more joins it. It is followed as before, however many others
// are left and forgotten meanwhile.
func TestJoinedAgain(t *testing.T) {
	r := New(Options{})
	f := []onefill.Flight{{ID: 1, Cache: "c", Key: "k"}}
	_, loaded := r.TraceLoad(t.Context(), f)
	loaded(nil)
	again := r.TraceWait(t.Context(), f)
	for i := range 2 * idleKept {
		r.TraceWait(t.Context(), []onefill.Flight{{ID: uint64(i + 2), Cache: "c", Key: "other"}})(nil)
	}
	r.Observe(onefill.Event{Kind: onefill.EventMiss, Cache: "c", Key: "k", Flight: 1, N: 1, Callers: 1})
	again(nil)
	if recent := r.Snapshot(10, Filter{}).Recent; len(recent) != 1 || recent[0].Outcome != Loaded {
		t.Errorf("%+v", recent)
	}
	settled(t, r)
}

// TestLateTraceWait: a caller has joined a flight, and comes to tell of it after the flight has landed. Its
// record goes with it, and no group is told of twice.
func TestLateTraceWait(t *testing.T) {
	r := New(Options{})
	f := []onefill.Flight{{ID: 1, Cache: "c", Key: "k"}}
	first := r.TraceWait(t.Context(), f)
	r.Observe(onefill.Event{Kind: onefill.EventMiss, Cache: "c", Key: "k", Flight: 1, N: 1, Callers: 2})
	late := r.TraceWait(t.Context(), f)
	first(nil)
	late(nil)
	settled(t, r)
	if s := r.Snapshot(10, Filter{}); len(s.Recent) != 1 || len(s.Live) != 0 {
		t.Errorf("%+v", s)
	}
}

// TestManyIsFollowedByKey: of one GetMany each key is a group of its own.
func TestManyIsFollowedByKey(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := New(Options{})
		c := newCache(t, r, onefill.Options[string, string]{Load: loader(time.Second, "v", nil), LoadMany: func(ctx context.Context, keys []string) (map[string]string, error) {
			bubble.After(time.Second)
			return map[string]string{"a": "1", "b": "2"}, nil
		}})
		if _, err := c.GetMany(t.Context(), []string{"a", "b", "c"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		var keys []string
		for _, g := range r.Snapshot(10, Filter{}).Recent {
			keys = append(keys, g.Key)
			if g.Loads != 1 || g.LoadMS < 999 {
				t.Errorf("%+v", g)
			}
		}
		slices.Sort(keys)
		if fmt.Sprint(keys) != "[a b c]" {
			t.Errorf("groups of %v", keys)
		}
		settled(t, r)
	})
}
