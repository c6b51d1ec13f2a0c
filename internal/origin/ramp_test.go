package origin

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/onefill/onefill/internal/bubble"
)

// After Restart the limit grows additively: as many loads as it allows, 8 at least, for
// each of eight equal steps, and never further than Most.
func TestLimitGrowsInSteps(t *testing.T) {
	s := NewSlots(Limits{Most: 100, Least: 4})
	s.Restart()
	var limits, loads []int
	for n, last := 0, 0; n < 2000; n++ {
		limit, changed := s.Report(false, s.Begin())
		if changed {
			limits, loads = append(limits, limit), append(loads, n+1-last)
			last = n + 1
		}
	}
	if want := []int{16, 28, 40, 52, 64, 76, 88, 100}; !slices.Equal(limits, want) {
		t.Errorf("the limit went to %v, want %v", limits, want)
	}
	if want := []int{8, 16, 28, 40, 52, 64, 76, 88}; !slices.Equal(loads, want) {
		t.Errorf("after %v loads, want %v", loads, want)
	}
}

// A small limit grows too, by one.
func TestSmallLimitGrows(t *testing.T) {
	s := NewSlots(Limits{Most: 3, Least: 1})
	s.Restart()
	for range 16 {
		s.Report(false, s.Begin())
	}
	want(t, s, 0, 3, 0)
}

// More than half of a round fails: the limit is halved at once, not at the round's end,
// and again for each round that fails, but not below Least.
func TestLimitFallsByHalf(t *testing.T) {
	s := NewSlots(Limits{Most: 64, Least: 5})
	var limits, loads []int
	for n, last := 0, 0; n < 1000; n++ {
		if limit, changed := s.Report(true, s.Begin()); changed {
			limits, loads = append(limits, limit), append(loads, n+1-last)
			last = n + 1
		}
	}
	if want := []int{32, 16, 8, 5}; !slices.Equal(limits, want) {
		t.Errorf("the limit went to %v, want %v", limits, want)
	}
	if want := []int{33, 17, 9, 5}; !slices.Equal(loads, want) {
		t.Errorf("after %v failures, want %v", loads, want)
	}
}

// What fails now and then neither lowers the limit nor, up to a tenth, keeps it from
// growing; between a tenth and a half it stays.
func TestSomeFailuresAreNormal(t *testing.T) {
	for _, c := range []struct {
		every, want int
	}{{0, 80}, {16, 80}, {8, 40}, {2, 40}, {1, 8}} {
		s := NewSlots(Limits{Most: 80, Least: 8})
		s.setLimit(40)
		for n := range 4000 {
			s.Report(c.every > 0 && n%c.every == 0, s.Begin())
		}
		if at := s.State(); at.Limit != c.want {
			t.Errorf("with one failure in %d loads the limit is %d, want %d", c.every, at.Limit, c.want)
		}
	}
}

// Where only a part of the cache was away the limit is halved.
func TestHalf(t *testing.T) {
	s := NewSlots(Limits{Most: 40, Least: 8})
	for _, wanted := range []int{20, 10, 8, 8} {
		s.Half()
		want(t, s, 0, wanted, 0)
	}
}

// Without Least the limit does not move.
func TestFixedLimit(t *testing.T) {
	s := NewSlots(Limits{Most: 4})
	for range 100 {
		s.Report(true, s.Begin())
	}
	s.Restart()
	s.Half()
	want(t, s, 0, 4, 0)
}

// Who comes when the queue is full is sent away at once; who is in it stays.
func TestQueueIsBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := NewSlots(Limits{Most: 1, Waiting: 2})
		order, _ := queue(t, s, 3)
		if _, err := s.Acquire(bg, nil); !errors.Is(err, ErrFull) {
			t.Errorf("Acquire: %v", err)
		}
		want(t, s, 1, 1, 2)
		for range 2 {
			s.Release()
			synctest.Wait()
		}
		if got := order(); !slices.Equal(got, []int{0, 1, 2}) {
			t.Errorf("the order is %v", got)
		}
		s.Release()
	})
}

// Loads that were left behind give their places back, and do not count until there are
// too many of them; then nobody gets a place until one has returned.
func TestStraysAreBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := NewSlots(Limits{Most: 1, Strays: 3})
		for range 3 {
			if _, err := s.Acquire(bg, nil); err != nil {
				t.Fatal(err)
			}
			s.Strayed()
			s.Release()
		}
		ctx, cancel := context.WithCancel(bg)
		gone := make(chan error)
		go func() {
			_, err := s.Acquire(ctx, nil)
			gone <- err
		}()
		synctest.Wait()
		want(t, s, 0, 1, 1)
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("Acquire: %v", err)
		}
		order, _ := queue(t, s, 1)
		if got := order(); len(got) != 0 {
			t.Fatal("a place was given")
		}
		s.Returned()
		synctest.Wait()
		if got := order(); len(got) != 1 {
			t.Fatal("no place was given")
		}
		s.Release()
		if at := s.State(); at.Strays != 2 {
			t.Errorf("%d strays", at.Strays)
		}
	})
}

// Loads that began under the old limit and fail after it has fallen do not make it fall
// again: a burst of failures halves it once.
func TestOneBurstHalvesOnce(t *testing.T) {
	s := NewSlots(Limits{Most: 64, Least: 1})
	begun := s.Begin()
	for range 64 {
		s.Report(true, begun)
	}
	want(t, s, 0, 32, 0)
	for range 17 {
		s.Report(true, s.Begin())
	}
	want(t, s, 0, 16, 0)
}
