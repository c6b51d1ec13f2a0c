package onefill_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

func numbered(n int) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range n {
			if !yield(fmt.Sprint("k", i)) {
				return
			}
		}
	}
}

// Warm loads each key once in the fleet, in batches, no faster than it may, and tells
// how far it is. A second process that warms the same keys loads nothing.
func TestWarm(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		var batches []int
		o := with(options{MaxBatch: 25, TTL: time.Hour, LoadMany: func(_ context.Context, keys []string) (map[string]string, error) {
			batches = append(batches, len(keys))
			rows := map[string]string{}
			for _, k := range keys {
				if !strings.HasSuffix(k, "0") {
					rows[k] = "v"
				}
			}
			return rows, nil
		}}, st)
		c := newCache(t, o)
		var told []onefill.Warmed
		start := time.Now()
		done, err := c.Warm(bg, numbered(1000), onefill.WarmRate(500), onefill.WarmProgress(func(w onefill.Warmed) { told = append(told, w) }))
		if want := (onefill.Warmed{Keys: 1000, Found: 900, Absent: 100}); err != nil || done != want {
			t.Errorf("%+v, %v; want %+v", done, err, want)
		}
		// 40 batches, of which the first begins at once.
		if d := time.Since(start); d < 1900*time.Millisecond || d > 2500*time.Millisecond {
			t.Errorf("1,000 keys at 500 per second took %v", d)
		}
		if len(told) != 40 || told[39] != done || told[0].Keys != 25 {
			t.Errorf("told %d times, %+v in the end", len(told), told[len(told)-1])
		}
		if len(batches) != 40 || slices.Max(batches) != 25 {
			t.Errorf("%d batches: %v", len(batches), batches)
		}
		if st != nil {
			other := newCache(t, o)
			done, err := other.Warm(bg, numbered(1000))
			if err != nil || done.Found != 900 || len(batches) != 40 {
				t.Errorf("the second process: %+v, %v; %d batches in all", done, err, len(batches))
			}
		}
	})
}

// Keys that fail are passed over and told of; keys that come twice are asked for once in
// a batch; no keys are no error.
func TestWarmWithFailures(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCache(t, options{Load: func(_ context.Context, k string) (string, error) {
			if k == "k7" {
				return "", errBroken
			}
			return "v", nil
		}})
		done, err := c.Warm(bg, numbered(20))
		if done.Failed != 1 || done.Found != 19 || done.Keys != 20 || !errors.Is(err, errBroken) || !strings.Contains(err.Error(), "1 of 20") {
			t.Errorf("%+v, %v", done, err)
		}
		done, err = c.Warm(bg, slices.Values([]string{"a", "a", "a"}))
		if done.Keys != 1 || err != nil {
			t.Errorf("the same key three times: %+v, %v", done, err)
		}
		if done, err := c.Warm(bg, numbered(0)); done != (onefill.Warmed{}) || err != nil {
			t.Errorf("no keys: %+v, %v", done, err)
		}
		if _, err := c.Warm(bg, numbered(1), onefill.WarmRate(0)); err == nil || !strings.Contains(err.Error(), "must be positive") {
			t.Errorf("a rate of 0: %v", err)
		}
	})
}

// Warm ends with its context, and with the cache, also while it waits for its turn.
func TestWarmEndsEarly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		db := newOrigin("v", 0)
		c := newCache(t, options{Load: db.load})
		ctx, cancel := context.WithTimeout(bg, time.Minute)
		defer cancel()
		done, err := c.Warm(ctx, numbered(1000), onefill.WarmRate(1))
		if !errors.Is(err, context.DeadlineExceeded) || done.Keys < 59 || done.Keys > 61 {
			t.Errorf("%+v, %v", done, err)
		}
		ended := make(chan error)
		go func() { _, err := c.Warm(bg, numbered(1000), onefill.WarmRate(1)); ended <- err }()
		time.Sleep(10 * time.Second)
		must(t, c.Close())
		if err := <-ended; !errors.Is(err, onefill.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// How many round trips GetMany needs does not grow with the number of keys: one where
// the store has them, three and one LoadMany where it has none. Each operation takes
// 10 ms here, so the time tells.
func TestGetManyRoundTrips(t *testing.T) {
	for _, c := range []struct {
		st         memstore.Options
		warm, cold time.Duration
	}{
		{memstore.Options{}, 1, 3},
		{memstore.Options{AcquireReads: true, NoPush: true}, 1, 3},
	} {
		bubble(t, func(t *testing.T) {
			st := memstore.New(c.st)
			loads := 0
			o := options{Store: st, TTL: time.Hour, LoadMany: func(_ context.Context, keys []string) (map[string]string, error) {
				loads++
				rows := map[string]string{}
				for _, k := range keys {
					rows[k] = k
				}
				return rows, nil
			}}
			keys := slices.Collect(numbered(100))
			cold, warm := newCache(t, o), newCache(t, o)
			st.SetFault(func(memstore.Op) memstore.Fault { return memstore.Fault{Delay: 10 * time.Millisecond} })
			for _, run := range []struct {
				cache *cache
				trips time.Duration
				loads int
			}{{cold, c.cold, 1}, {warm, c.warm, 1}, {warm, 0, 1}} {
				start := time.Now()
				rows, err := run.cache.GetMany(bg, keys)
				if err != nil || len(rows) != 100 {
					t.Fatalf("%d rows, %v", len(rows), err)
				}
				if d := time.Since(start); d != run.trips*10*time.Millisecond || loads != run.loads {
					t.Errorf("%v for 100 keys, %d calls of LoadMany; want %d round trips, %d", d, loads, run.trips, run.loads)
				}
			}
			st.SetFault(nil)
		})
	}
}
