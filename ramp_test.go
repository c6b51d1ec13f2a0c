package onefill_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// An outage of the store under load: in it never more than MaxLoadsDegraded loads run;
// when it is over everybody misses at once, and the limit begins there and grows in
// steps. At no moment do more loads run than the limit of that moment allows.
func TestRampAfterAnOutage(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v", 100*time.Millisecond)
		var limits []int
		var mu sync.Mutex
		c := newCache(t, options{Store: st, Load: db.load, MaxLoads: 18, MaxLoadsDegraded: 2, LeaseTTL: time.Minute,
			Observer: onefill.ObserverFunc(func(e onefill.Event) {
				if e.Kind == onefill.EventLoadLimit {
					mu.Lock()
					limits = append(limits, e.N)
					mu.Unlock()
				}
			})})
		crowd := func(name string, n int) (most int64) {
			db.most.Store(0)
			var all sync.WaitGroup
			for i := range n {
				all.Go(func() {
					if _, err := c.Get(bg, fmt.Sprint(name, i)); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			return db.most.Load()
		}
		if most := crowd("before", 100); most != 18 {
			t.Errorf("%d loads at once before the outage", most)
		}
		st.Down()
		for range 5 { // the breaker opens
			_ = c.Invalidate(bg, "x")
			time.Sleep(50 * time.Millisecond)
		}
		if most := crowd("in it", 20); most != 2 {
			t.Errorf("%d loads at once in the outage", most)
		}
		st.Up()
		time.Sleep(5 * time.Second) // the replay finds out
		if most := crowd("just after", 8); most != 2 {
			t.Errorf("%d loads at once after the outage", most)
		}
		if most := crowd("then", 8); most > 4 {
			t.Errorf("%d loads at once in the second round", most)
		}
		if most := crowd("later", 500); most != 18 {
			t.Errorf("%d loads at once in the end", most)
		}
		if want := []int{2, 4, 6, 8, 10, 12, 14, 16, 18}; !slices.Equal(limits, want) {
			t.Errorf("the limit went to %v, want %v", limits, want)
		}
		if n := c.Stats().LoadLimit; n != 18 {
			t.Errorf("Stats.LoadLimit is %d", n)
		}
	})
}

// A failing origin gets fewer loads at once, and the limit grows back when it is well.
// A row that does not exist, a panic, a cancellation are no failures of the origin; an
// end of LoadTimeout is.
func TestFailingOriginLowersTheLimit(t *testing.T) {
	broken := errors.New("too many connections")
	for _, c := range []struct {
		name string
		load func(ctx context.Context, key string) (string, error)
		want int
	}{
		{"errors", func(context.Context, string) (string, error) { return "", broken }, 4},
		{"timeouts", func(ctx context.Context, _ string) (string, error) { <-ctx.Done(); return "", ctx.Err() }, 4},
		{"not found", func(context.Context, string) (string, error) { return "", onefill.ErrNotFound }, 32},
		{"panics", func(context.Context, string) (string, error) { panic("a bug") }, 32},
		{"cancelled", func(context.Context, string) (string, error) { return "", context.Canceled }, 32},
	} {
		t.Run(c.name, func(t *testing.T) {
			layouts(t, func(t *testing.T, st *memstore.Store) {
				cache := newCache(t, with(options{Load: c.load, MaxLoads: 32, MaxLoadsDegraded: 4, LoadTimeout: 100 * time.Millisecond}, st))
				each := func(name string, load onefill.LoadFunc[string, string]) {
					for i := range 200 {
						_, _ = cache.GetOrLoad(bg, fmt.Sprint(name, i), load)
					}
				}
				each("bad", c.load)
				if n := cache.Stats().LoadLimit; n != c.want {
					t.Errorf("the limit is %d, want %d", n, c.want)
				}
				each("good", func(context.Context, string) (string, error) { return "v", nil })
				if n := cache.Stats().LoadLimit; n != 32 {
					t.Errorf("the limit is %d after 200 loads that went well", n)
				}
			})
		})
	}
}

// The queue for a place is bounded: who comes too late is told at once, and not after
// half of WaitTimeout. Forced: one load runs, two wait.
func TestLoadQueueIsBounded(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v", 0)
		c := newCache(t, with(options{Load: db.load, MaxLoads: 1, MaxLoadsWaiting: 2}, st))
		resume := db.pause()
		var waiting []<-chan answer
		for i := range 3 {
			waiting = append(waiting, ask(bg, c, fmt.Sprint(i)))
			pending(t, waiting[i])
		}
		a := <-ask(bg, c, "late")
		if !errors.Is(a.err, onefill.ErrOriginBusy) || a.took > time.Second || !strings.Contains(a.err.Error(), "MaxLoadsWaiting (2)") {
			t.Errorf("%+v", a)
		}
		resume()
		for _, answers := range waiting {
			if a := <-answers; a.err != nil {
				t.Error(a.err)
			}
		}
	})
}

// Loaders that never return give their places back after LoadTimeout, and the key works
// again; but they are counted, and when there are 64 of them no other load begins until
// one has returned.
func TestLoadersThatNeverReturnAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCache(t, options{MaxLoads: 8, LoadTimeout: time.Second})
		stuck := make(chan struct{})
		hang := func(context.Context, string) (string, error) { <-stuck; return "", nil }
		for i := range 300 {
			go c.GetOrLoad(bg, fmt.Sprint(i), hang)
			time.Sleep(time.Second / 2)
		}
		time.Sleep(time.Minute)
		s := c.Stats()
		if s.LoadsStray < 64 || s.LoadsStray > 64+7 { // as many more as ran when it was reached
			t.Errorf("%d loaders were left behind and still run", s.LoadsStray)
		}
		if s.Loads != uint64(s.LoadsStray) || s.LoadsAbandoned != uint64(s.LoadsStray) || s.LoadsInFlight != 0 {
			t.Errorf("%+v", s)
		}
		quick := func(context.Context, string) (string, error) { return "v", nil }
		ctx, cancel := context.WithTimeout(bg, 30*time.Second)
		defer cancel()
		if _, err := c.GetOrLoad(ctx, "next", quick); !errors.Is(err, onefill.ErrOriginBusy) || !strings.Contains(err.Error(), "left behind") {
			t.Errorf("with 64 strays: %v", err)
		}
		close(stuck)
		synctest.Wait()
		if v, err := c.GetOrLoad(bg, "next", quick); err != nil || v != "v" {
			t.Errorf("when they have returned: %q, %v", v, err)
		}
		if s := c.Stats(); s.LoadsStray != 0 {
			t.Errorf("%d strays in the end", s.LoadsStray)
		}
	})
}

// A loader that leaves by runtime.Goexit after it was left behind has returned, too.
func TestStrayThatExits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCache(t, options{LoadTimeout: time.Second})
		stuck := make(chan struct{})
		_, err := c.GetOrLoad(bg, "k", func(context.Context, string) (string, error) {
			<-stuck
			panic("late")
		})
		if !errors.Is(err, context.DeadlineExceeded) || c.Stats().LoadsStray != 1 {
			t.Errorf("%v, %d strays", err, c.Stats().LoadsStray)
		}
		close(stuck)
		synctest.Wait()
		if n := c.Stats().LoadsStray; n != 0 {
			t.Errorf("%d strays in the end", n)
		}
	})
}

// Queue full: a nested load waits for the outer one's place all the same.
func TestNestedLoadsWithAFullQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var c *cache
		c = newCache(t, options{MaxLoads: 1, MaxLoadsWaiting: 1, WaitTimeout: time.Minute, Load: func(ctx context.Context, key string) (string, error) {
			if key == "outer" {
				time.Sleep(time.Second) // somebody else comes to wait
				r, err := c.GetMany(ctx, []string{"a", "b", "c"})
				return fmt.Sprint(len(r)), err
			}
			time.Sleep(100 * time.Millisecond)
			return "v", nil
		}})
		outer := ask(bg, c, "outer")
		synctest.Wait()
		other := ask(bg, c, "other")
		if a := <-outer; a.err != nil || a.Value != "3" {
			t.Errorf("%+v", a)
		}
		<-other
	})
}
