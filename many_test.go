package onefill_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// rows is an origin that answers for many keys and notes who asked for what.
type rows struct {
	mu    sync.Mutex
	calls [][]string
	err   error
	takes time.Duration
}

func (r *rows) load(ctx context.Context, keys []string) (map[string]string, error) {
	r.mu.Lock()
	r.calls = append(r.calls, slices.Sorted(slices.Values(keys)))
	err := r.err
	r.mu.Unlock()
	select {
	case <-time.After(r.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	out := map[string]string{"unasked": "ignored"}
	for _, k := range keys {
		if k[0] != '-' && err == nil {
			out[k] = "v" + k
		}
	}
	return out, err
}

// perKey counts how often each key was asked for.
func (r *rows) perKey() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := map[string]int{}
	for _, call := range r.calls {
		for _, k := range call {
			n[k]++
		}
	}
	return n
}

func numbers(from, to int) (keys []string) {
	for i := from; i < to; i++ {
		keys = append(keys, fmt.Sprint(i))
	}
	return keys
}

func TestGetManyAsksOnceForWhatIsMissing(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := &rows{takes: loadTime}
		c := newCache(t, with(options{LoadMany: db.load, MaxBatch: 100}, st))
		get(t, c, "3", "v3")
		got, err := c.GetMany(bg, append(numbers(0, 10), "3", "-1", "5"))
		if err != nil || len(got) != 10 || got["3"] != "v3" || got["9"] != "v9" {
			t.Fatalf("%v, %v", got, err)
		}
		if _, there := got["unasked"]; there {
			t.Error("a row that nobody asked for was returned")
		}
		if len(db.calls) != 2 || len(db.calls[1]) != 10 {
			t.Errorf("asked for %v, want 3 and then the ten others", db.calls)
		}
		got, err = c.GetMany(bg, append(numbers(0, 10), "-1"))
		if err != nil || len(got) != 10 || len(db.calls) != 2 {
			t.Errorf("the second time: %v, %v, calls %v", got, err, db.calls)
		}
	})
}

func TestGetManyIsChunked(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := &rows{takes: loadTime}
		c := newCache(t, with(options{LoadMany: db.load, MaxBatch: 40}, st))
		got, err := c.GetMany(bg, numbers(0, 100))
		if err != nil || len(got) != 100 {
			t.Fatalf("%d rows, %v", len(got), err)
		}
		sizes := []int{}
		for _, call := range db.calls {
			sizes = append(sizes, len(call))
		}
		slices.Sort(sizes)
		if !slices.Equal(sizes, []int{20, 40, 40}) {
			t.Errorf("chunks of %v, want 40, 40, 20", sizes)
		}
	})
}

// Four processes ask at the same moment for sets that overlap, in opposite orders:
// each key is loaded once, and nobody waits for somebody who waits for him.
func TestGetManyOverlappingSets(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := &rows{takes: loadTime}
		caches := append(fleet(t, st, options{LoadMany: db.load}), newCache(t, with(options{LoadMany: db.load}, st)))
		if st == nil {
			caches = []*cache{caches[0], caches[0], caches[0], caches[0]}
		}
		var all sync.WaitGroup
		for i, c := range caches {
			all.Go(func() {
				keys := numbers(i*10, i*10+30)
				if i%2 == 1 {
					slices.Reverse(keys)
				}
				if got, err := c.GetMany(bg, keys); err != nil || len(got) != 30 {
					t.Errorf("%d rows, %v", len(got), err)
				}
			})
		}
		all.Wait()
		for k, n := range db.perKey() {
			if n != 1 {
				t.Errorf("key %s was loaded %d times", k, n)
			}
		}
	})
}

// Half of the keys are cached, then the origin fails (sturdyc #21): the cached ones
// are returned, the others have an error each, and nothing is taken for missing.
func TestGetManyPartialFailure(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := &rows{}
		c := newCache(t, with(options{LoadMany: db.load, ErrorTTL: time.Second}, st))
		if _, err := c.GetMany(bg, numbers(0, 5)); err != nil {
			t.Fatal(err)
		}
		db.err = errors.New("connection refused")
		got, err := c.GetMany(bg, numbers(0, 10))
		var many *onefill.ManyError
		if !errors.As(err, &many) || !errors.Is(err, onefill.ErrLoadFailed) {
			t.Fatalf("the error is %v", err)
		}
		if len(got) != 5 || len(many.Errors) != 5 || !errors.Is(many.Errors["7"], db.err) {
			t.Errorf("got %v and %v, want five values and five errors", got, many.Errors)
		}
		db.err = nil
		time.Sleep(3 * time.Second)
		if got, err := c.GetMany(bg, numbers(0, 10)); err != nil || len(got) != 10 {
			t.Errorf("afterwards: %v, %v", got, err)
		}
	})
}

// One flight of the batch finds its lease held by another process, which loads for
// a long time. The batch's load does not wait for it.
func TestGetManyDoesNotWaitToLoad(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		if st == nil {
			t.Skip("needs a second process")
		}
		slow := newOrigin("slow", 5*time.Second)
		other := newCache(t, with(options{Load: slow.load}, st))
		db := &rows{takes: loadTime}
		c := newCache(t, with(options{LoadMany: db.load}, st))
		go other.Get(bg, "1")
		time.Sleep(time.Second)
		start := time.Now()
		quick := make(chan time.Duration, 1)
		go func() {
			c.Get(bg, "2") // joins the batch's flight
			quick <- time.Since(start)
		}()
		got, err := c.GetMany(bg, numbers(0, 3))
		if err != nil || got["1"] != "slow" || got["2"] != "v2" {
			t.Errorf("%v, %v", got, err)
		}
		if d := <-quick; d > time.Second {
			t.Errorf("key 2 took %v", d)
		}
		if n := db.perKey()["1"]; n != 0 {
			t.Errorf("key 1 was loaded %d times more", n)
		}
	})
}

func TestGetManyPanic(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		c := newCache(t, with(options{LoadMany: func(context.Context, []string) (map[string]string, error) { panic("no") }}, st))
		got, err := c.GetMany(bg, numbers(0, 3))
		var p *onefill.PanicError
		if len(got) != 0 || !errors.As(err, &p) {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// Whatever GetMany loads goes to LoadMany, also if it is a single key, or a key that waited for
// somebody else's load until the others' had begun. b holds the lease of "late" and gives it
// back, as its load fails on its own timeout, after a's LoadMany for "other" has begun.
func TestGetManyLoadsByLoadManyOnly(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		r := &rows{}
		a := newCache(t, options{Store: st, LoadMany: r.load,
			Load: func(_ context.Context, key string) (string, error) {
				t.Errorf("Load was asked for %q", key)
				return "", nil
			}})
		b := newCache(t, options{Store: st, LoadTimeout: time.Second,
			Load: func(ctx context.Context, key string) (string, error) { <-ctx.Done(); return "", ctx.Err() }})
		got, err := a.GetMany(bg, []string{"k"})
		must(t, err)
		if got := got["k"]; got != "vk" {
			t.Errorf("got %v, want %v", got, "vk")
		}

		go b.Get(bg, "late")
		synctest.Wait()
		got, err = a.GetMany(bg, []string{"other", "late"})
		must(t, err)
		if got := len(got); got != 2 {
			t.Errorf("got %v, want %v", got, 2)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if want := [][]string{{"k"}, {"other"}, {"late"}}; !slices.EqualFunc(r.calls, want, slices.Equal) {
			t.Errorf("LoadMany was asked for %v, want %v", r.calls, want)
		}
	})
}

// So does the refresh that GetMany begins.
func TestGetManyRefreshesByLoadMany(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		r := &rows{}
		c := newCache(t, with(options{LoadMany: r.load, TTL: time.Second, StaleFor: time.Hour, Jitter: onefill.NoJitter,
			Local: onefill.LocalOptions{TTL: time.Minute},
			Load: func(_ context.Context, key string) (string, error) {
				t.Errorf("Load was asked for %q", key)
				return "", nil
			}}, st))
		for range 2 {
			_, err := c.GetMany(bg, []string{"k"})
			must(t, err)
			synctest.Wait()
			time.Sleep(2 * time.Second)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if want := [][]string{{"k"}, {"k"}}; !slices.EqualFunc(r.calls, want, slices.Equal) {
			t.Errorf("LoadMany was asked for %v, want %v", r.calls, want)
		}
	})
}
