package size

import (
	"context"
	"math"
	"slices"

	"golang.org/x/sync/errgroup"
)

const (
	// parallel is how many caches run at once: each takes about 80 bytes an entry.
	parallel = 2
	// gridPoints are the capacities that the table shows and W-TinyLFU runs at.
	gridPoints = 21
	// gridSpan is how many times the largest is as large as the smallest.
	gridSpan = 1024
	// near is how close to one another two capacities are of which one reaches the
	// target and the other does not, for the search to end.
	near = 0.02
	// rounds bounds the search.
	rounds = 8
	// confirmations are the runs whose median must reach the target.
	confirmations = 3
)

// grid are capacities from least to most at even ratios, without repetition.
func grid(least, most uint64) (capacities []uint64) {
	least = max(least, most/gridSpan, 1)
	ratio := float64(most) / float64(least)
	for i := range gridPoints {
		c := uint64(math.Round(float64(least) * math.Pow(ratio, float64(i)/(gridPoints-1))))
		c = min(max(c, least), most)
		if n := len(capacities); n == 0 || c > capacities[n-1] {
			capacities = append(capacities, c)
		}
	}
	return capacities
}

// point is a run at a capacity.
type point struct {
	capacity uint64
	misses   int
}

// runAll runs W-TinyLFU at each of the capacities.
func runAll(ctx context.Context, t *trace, capacities []uint64, each func()) ([]point, error) {
	points := make([]point, len(capacities))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	// The largest first: they take longest.
	for i := len(capacities) - 1; i >= 0; i-- {
		g.Go(func() (err error) {
			points[i].capacity = capacities[i]
			points[i].misses, err = runWTinyLFU(ctx, t, capacities[i])
			each()
			return err
		})
	}
	return points, g.Wait()
}

// search finds a capacity at which W-TinyLFU misses no more than allowed, little
// above one at which it misses more: the median of runs that had no part in finding
// it says so.
//
// curve is by capacity and ends with a point that misses no more than allowed.
// Where the curve goes up and down, the search looks between the last point that
// misses more and the next.
func search(ctx context.Context, t *trace, curve []point, allowed int, each func()) (point, error) {
	i := len(curve) - 1
	for i > 0 && curve[i-1].misses <= allowed {
		i--
	}
	if i == 0 {
		return confirm(ctx, t, curve[0].capacity, allowed, each)
	}
	over, under := curve[i-1], curve[i]
	for round := range rounds {
		if gap := under.capacity - over.capacity; gap <= 1 || float64(gap) <= near*float64(under.capacity) {
			break
		}
		tried, err := runAll(ctx, t, guesses(over, under, allowed, round%2 == 1), each)
		if err != nil {
			return point{}, err
		}
		for _, p := range tried { // by capacity
			if p.misses > allowed {
				over = p
			} else {
				under = p
				break
			}
		}
	}
	return confirm(ctx, t, under.capacity, allowed, each)
}

// confirm returns the median of runs at the capacity, or at a larger one if that is
// what it takes: runs differ a little, and of several that were tried the search may
// have taken a lucky one.
func confirm(ctx context.Context, t *trace, capacity uint64, allowed int, each func()) (point, error) {
	everything := t.everything()
	for step := near / 2; ; step *= 2 {
		runs, err := runAll(ctx, t, slices.Repeat([]uint64{capacity}, confirmations), each)
		if err != nil {
			return point{}, err
		}
		slices.SortFunc(runs, func(a, b point) int { return a.misses - b.misses })
		if median := runs[confirmations/2]; median.misses <= allowed || capacity >= everything {
			return median, nil
		}
		capacity = min(max(capacity+1, uint64(float64(capacity)*(1+step))), everything)
	}
}

// guesses are two capacities a little below and above the one at which a straight
// line, over the logarithm of the capacity, meets what is allowed; strictly between
// the points, and one where there is no room for two. halve takes the middle instead:
// where the curve is a cliff, the line gets nowhere.
func guesses(over, under point, allowed int, halve bool) []uint64 {
	share := float64(over.misses-allowed) / float64(over.misses-under.misses)
	if halve {
		share = 0.5
	}
	from := float64(max(over.capacity, 1))
	at := from * math.Pow(float64(under.capacity)/from, share)
	inside := func(c float64) uint64 {
		return min(max(uint64(math.Round(c)), over.capacity+1), under.capacity-1)
	}
	low, high := inside(at*(1-near/2.1)), inside(at*(1+near/2.1))
	if low == high {
		return []uint64{low}
	}
	return []uint64{low, high}
}
