package size

import (
	"fmt"
	"math"
	"math/rand"
	"slices"
	"testing"
)

// zipf calls add for requests whose keys follow Zipf's law. salt changes the keys'
// names, and so the sample, but not the trace.
func zipf(requests, keys int, salt string, add func(key string)) {
	z := rand.NewZipf(rand.New(rand.NewSource(1)), 1.05, 1, uint64(keys-1))
	for range requests {
		add(fmt.Sprint(salt, z.Uint64()))
	}
}

func sampleOf(t *testing.T, keep, requests, keys int, salt string) *sampler {
	t.Helper()
	s := newSampler(keep, false)
	zipf(requests, keys, salt, func(key string) {
		if !s.add(hashKey([]byte(key)), 0) {
			t.Fatal("the sample is full")
		}
	})
	return s
}

// A sample that was thinned out on the way is what the lower rate would have kept
// from the start, and no more than the bound.
func TestThinning(t *testing.T) {
	const keep = 20_000
	s := newSampler(keep, true)
	var all []uint64
	size := func(hash uint64, i int) uint32 { return uint32(hash%1000) + uint32(i%7) }
	zipf(200_000, 100_000, "", func(key string) {
		h := hashKey([]byte(key))
		s.add(h, size(h, len(all)))
		all = append(all, h)
		if len(s.trace.refs) > keep {
			t.Fatalf("%d requests are kept", len(s.trace.refs))
		}
	})
	if s.shift < 3 {
		t.Fatalf("kept 1 key in %d of 10 times as many requests", 1<<s.shift)
	}
	var want []uint64
	largest := map[uint64]uint32{}
	for i, h := range all {
		if h>>(64-s.shift) == 0 {
			want = append(want, h)
			largest[h] = max(largest[h], size(h, i))
		}
	}
	tr := s.done()
	var got []uint64
	for _, k := range tr.refs {
		got = append(got, tr.hashes[k])
	}
	if !slices.Equal(got, want) || len(tr.hashes) != len(largest) {
		t.Errorf("kept %d requests for %d keys; at that rate there are %d for %d", len(got), len(tr.hashes), len(want), len(largest))
	}
	for k, h := range tr.hashes {
		// A key's early requests may be larger; they must have counted.
		if tr.sizes[k] != largest[h] {
			t.Errorf("key %x has size %d, want %d", h, tr.sizes[k], largest[h])
		}
	}
	if want := float64(len(all)) / float64(int(1)<<s.shift); tr.stands != want {
		t.Errorf("stands for %v requests, want %v", tr.stands, want)
	}
}

// Few keys are not thinned out; then more requests are kept, and that ends as well.
func TestFewKeys(t *testing.T) {
	const keep = 1000
	s := newSampler(keep, false)
	i := 0
	for s.add(hashKey([]byte{byte(i)}), 0) {
		i++
	}
	if s.shift != 0 || len(s.trace.refs) != few*keep || len(s.trace.hashes) != 256 {
		t.Errorf("kept %d requests for %d keys, 1 in %d", len(s.trace.refs), len(s.trace.hashes), 1<<s.shift)
	}
}

// The stated error holds on a trace of Zipf's law: for at least nine in ten
// capacities of several samples, and no ratio is off by twice as much. The parts of a
// sample add up to it.
func TestSampleWithinStatedError(t *testing.T) {
	const requests, keys = 1_000_000, 400_000
	exact := newLRUCurve(sampleOf(t, requests, requests, keys, "").done())
	within, all, worst := 0, 0, 0.0
	for _, salt := range []string{"", "a", "b", "c"} {
		s := sampleOf(t, 60_000, requests, keys, salt)
		tr, rate := s.done(), 1/float64(int(1)<<s.shift)
		samples := split(tr)
		sum := 0
		for _, p := range samples {
			sum += len(p.refs)
		}
		if sum != len(tr.refs) {
			t.Errorf("the parts have %d requests, the sample has %d", sum, len(tr.refs))
		}
		curve, capacities := newLRUCurve(tr), grid(256, tr.everything())
		for i, e := range lruErrors(samples, capacities, rate) {
			got := tr.missRatio(curve.misses(capacities[i]))
			want := exact.trace.missRatio(exact.misses(capacities[i] << s.shift))
			off := math.Abs(got - want)
			all++
			worst = max(worst, off/e)
			if off <= e {
				within++
			}
			if off > 2*e || e <= 0 || e > 0.05 {
				t.Errorf("1 key in %d, capacity %d: miss ratio %.4f ±%.4f, the truth is %.4f", 1<<s.shift, capacities[i]<<s.shift, got, e, want)
			}
		}
	}
	t.Logf("%d of %d within the stated error, the worst is off by %.2f of it", within, all, worst)
	if within*10 < all*9 {
		t.Errorf("%d of %d within the stated error", within, all)
	}
}

func TestSpreadError(t *testing.T) {
	if got := spreadError([]float64{0.5, 0.5, 0.5}, 0.1); got != 0 {
		t.Errorf("equal parts: %v", got)
	}
	// A standard deviation of 0.1 among 4: a standard error of 0.05.
	ratios := []float64{0.4, 0.4, 0.6, 0.6}
	sd := math.Sqrt(0.04 / 3)
	if got, want := spreadError(ratios, 0), student*sd/2; math.Abs(got-want) > 1e-12 {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := spreadError(ratios, 1); got != 0 {
		t.Errorf("all keys were kept: %v", got)
	}
}
