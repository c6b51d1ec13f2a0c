package origin

import (
	"context"
	"errors"
	"math/rand"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill/internal/bubble"
)

var bg = context.Background()

func want(t *testing.T, s *Slots, used, limit, waiting int) {
	t.Helper()
	if at := s.State(); at.Used != used || at.Limit != limit || at.Waiting != waiting {
		t.Errorf("%d used of %d, %d waiting; want %d of %d, %d", at.Used, at.Limit, at.Waiting, used, limit, waiting)
	}
}

func (s *Slots) setLimit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.move(n)
}

// queue makes n goroutines ask in order; each appends its number to order when it
// has a place.
func queue(t *testing.T, s *Slots, n int) (order func() []int, ask func(context.Context, int) <-chan error) {
	t.Helper()
	var mu sync.Mutex
	var got []int
	ask = func(ctx context.Context, i int) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := s.Acquire(ctx, nil)
			if err == nil {
				mu.Lock()
				got = append(got, i)
				mu.Unlock()
			}
			done <- err
		}()
		synctest.Wait()
		return done
	}
	for i := range n {
		ask(bg, i)
	}
	return func() []int { mu.Lock(); defer mu.Unlock(); return slices.Clone(got) }, ask
}

// Places are given in the order of asking, also when one becomes free in the moment
// in which a new caller comes: who waits is first.
func TestFirstComeFirstServed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := NewSlots(Limits{Most: 2})
		order, _ := queue(t, s, 10)
		want(t, s, 2, 2, 8)
		for i := 2; i < 10; i++ {
			s.Release()
			synctest.Wait()
			if got := order(); len(got) != i+1 || got[i] != i {
				t.Fatalf("the order is %v", got)
			}
		}
		s.Release()
		s.Release()
		want(t, s, 0, 2, 0)
	})
}

// Who leaves the queue takes nobody along, and the context's cause is the error.
func TestLeavingTheQueue(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := NewSlots(Limits{Most: 1})
		order, ask := queue(t, s, 1)
		cause := errors.New("had enough")
		ctx, cancel := context.WithCancelCause(bg)
		gone, stays := ask(ctx, 1), ask(bg, 2)
		cancel(cause)
		if err := <-gone; !errors.Is(err, cause) {
			t.Errorf("Acquire: %v", err)
		}
		want(t, s, 1, 1, 1)
		s.Release()
		if err := <-stays; err != nil || !slices.Equal(order(), []int{0, 2}) {
			t.Errorf("%v, %v", err, order())
		}
		s.Release()
		want(t, s, 0, 1, 0)
	})
}

// A place that is given in the moment in which its taker leaves is passed on, not
// lost. Forced: both happen before the taker, asleep in its select, gets to run; which
// one it picks is up to the runtime, so 200 rounds, in either order.
func TestPlaceGivenToOneWhoLeaves(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for round := range 200 {
			s := NewSlots(Limits{Most: 1})
			_, ask := queue(t, s, 1)
			ctx, cancel := context.WithCancel(bg)
			leaves, stays := ask(ctx, 1), ask(bg, 2)
			if round%2 == 0 {
				s.Release()
				cancel()
			} else {
				cancel()
				s.Release()
			}
			if err := <-leaves; err == nil {
				s.Release() // it had the place, and gives it back
			}
			if err := <-stays; err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			want(t, s, 1, 1, 0)
			s.Release()
			want(t, s, 0, 1, 0)
		}
	})
}

// A context that has ended gets a free place, or leaves at once.
func TestEndedContext(t *testing.T) {
	s := NewSlots(Limits{Most: 1})
	ctx, cancel := context.WithCancel(bg)
	cancel()
	if _, err := s.Acquire(ctx, nil); err != nil {
		t.Errorf("a free place: %v", err)
	}
	if _, err := s.Acquire(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("no place: %v", err)
	}
	want(t, s, 1, 1, 0)
}

// A lower limit disturbs nobody who has a place, and nobody gets one until enough
// were given back; a higher one admits at once.
func TestLimitChanges(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := NewSlots(Limits{Most: 100, Least: 1})
		s.setLimit(4)
		order, _ := queue(t, s, 8)
		s.Restart()
		want(t, s, 4, 1, 4)
		for range 3 {
			s.Release()
		}
		synctest.Wait()
		want(t, s, 1, 1, 4)
		s.Release()
		synctest.Wait()
		want(t, s, 1, 1, 3)
		s.setLimit(3) // admits two, who may run in either order
		synctest.Wait()
		want(t, s, 3, 3, 1)
		got := order()
		slices.Sort(got)
		if !slices.Equal(got, []int{0, 1, 2, 3, 4, 5, 6}) {
			t.Errorf("%v have a place or had one", got)
		}
		s.setLimit(100)
		synctest.Wait()
		want(t, s, 4, 100, 0)
	})
}

// Properties, over random operations: never more places are given than the highest
// limit that held while they were; with the limit fixed never more than it; nobody
// who waits long enough is forgotten; at the end nothing is used and nobody waits.
func TestSlotsProperties(t *testing.T) {
	for _, changes := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			const limit = 5
			s := NewSlots(Limits{Most: limit, Least: 1})
			var inside, most atomic.Int64
			var all sync.WaitGroup
			for i := range 300 {
				rnd := rand.New(rand.NewSource(int64(i)))
				all.Go(func() {
					time.Sleep(time.Duration(rnd.Intn(1000)) * time.Millisecond)
					ctx, cancel := context.WithTimeout(bg, time.Hour)
					if rnd.Intn(3) == 0 {
						ctx, cancel = context.WithTimeout(bg, time.Duration(rnd.Intn(300))*time.Millisecond)
					}
					defer cancel()
					if _, err := s.Acquire(ctx, nil); err != nil {
						if d, _ := ctx.Deadline(); time.Until(d) > 0 {
							t.Errorf("a waiter was sent away before its time: %v", err)
						}
						return
					}
					for n, m := inside.Add(1), most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					time.Sleep(time.Duration(rnd.Intn(20)) * time.Millisecond)
					inside.Add(-1)
					s.Release()
				})
				if changes && i%30 == 0 {
					all.Go(func() {
						rnd := rand.New(rand.NewSource(int64(-i)))
						time.Sleep(time.Duration(rnd.Intn(1000)) * time.Millisecond)
						s.setLimit(1 + rnd.Intn(limit))
					})
				}
			}
			all.Wait()
			if m := most.Load(); m > limit || !changes && m != limit {
				t.Errorf("%d places were in use at once, the limit is %d", m, limit)
			}
			if at := s.State(); at.Used != 0 || at.Waiting != 0 {
				t.Errorf("%d used, %d waiting at the end", at.Used, at.Waiting)
			}
		})
	}
}
