package size

import (
	"slices"
	"testing"
)

func TestGrid(t *testing.T) {
	for _, tt := range []struct {
		least, most uint64
		n           int
	}{{1, 1, 1}, {1, 5, 5}, {256, 100_000, gridPoints}, {1, 1 << 40, gridPoints}} {
		got := grid(tt.least, tt.most)
		if len(got) != tt.n || got[0] < tt.least || got[len(got)-1] != tt.most || !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
			t.Errorf("grid(%d, %d) = %d", tt.least, tt.most, got)
		}
	}
}

// Guesses lie strictly between the points, or the search would not end.
func TestGuesses(t *testing.T) {
	for _, tt := range []struct{ over, under uint64 }{{0, 2}, {0, 1000}, {1, 3}, {10, 12}, {10, 13}, {1000, 1414}, {1 << 40, 1 << 41}} {
		for _, allowed := range []int{10, 50, 99} {
			for _, halve := range []bool{false, true} {
				got := guesses(point{tt.over, 100}, point{tt.under, 10}, allowed, halve)
				if len(got) == 0 || !slices.IsSorted(got) || got[0] <= tt.over || got[len(got)-1] >= tt.under || len(got) == 2 && got[0] == got[1] {
					t.Errorf("between %d and %d: %d", tt.over, tt.under, got)
				}
			}
		}
	}
}

// What is found reaches the target in another run, and a tenth less does not, on a
// smooth curve and on a cliff. Runs of small caches differ more.
func TestSearch(t *testing.T) {
	for _, tt := range []struct {
		name    string
		trace   *trace
		targets []float64
	}{
		{"smooth", sampleOf(t, 200_000, 15_000, 10_000, "").done(), []float64{0.1, 0.5, 0.65}}, // 0.1: below the curve's first point
		{"cliff", loop(1000, 10), []float64{0.9}},
	} {
		points, err := runAll(t.Context(), tt.trace, grid(1, tt.trace.everything()), func() {})
		if err != nil {
			t.Fatal(err)
		}
		n := len(tt.trace.refs)
		points = append([]point{{0, n + 1}}, points...)
		for _, target := range tt.targets {
			allowed := tt.trace.allowed(target)
			found, err := search(t.Context(), tt.trace, points, allowed, func() {})
			if err != nil {
				t.Fatal(err)
			}
			again, less := medianMisses(t, tt.trace, found.capacity), medianMisses(t, tt.trace, max(found.capacity*9/10, 1))
			t.Logf("%s %v: %d, %d misses of %d allowed; again %d; a tenth less %d", tt.name, target, found.capacity, found.misses, allowed, again, less)
			slack := n / 30
			if found.capacity > 200 {
				slack = n / 200
			}
			if found.misses > allowed || again > allowed+slack || found.capacity > 200 && less <= allowed {
				t.Errorf("%s %v: found %+v for %d; again %d, with a tenth less %d", tt.name, target, found, allowed, again, less)
			}
		}
	}
}

func TestCapacityAt(t *testing.T) {
	curve := []Point{{Capacity: 10, MissRatio: 0.9}, {Capacity: 100, MissRatio: 0.5}, {Capacity: 200, MissRatio: 0.6}, {Capacity: 1000, MissRatio: 0.2}}
	for _, tt := range []struct {
		ratio float64
		want  uint64
	}{{0.95, 10}, {0.9, 10}, {0.7, 32}, {0.6, 56}, {0.4, 447}, {0.2, 1000}, {0.1, 1000}} {
		if got := capacityAt(curve, tt.ratio); got < tt.want-1 || got > tt.want+1 {
			t.Errorf("at %v: %d, want about %d", tt.ratio, got, tt.want)
		}
	}
}
