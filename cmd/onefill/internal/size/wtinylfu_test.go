package size

import (
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/local"
)

func loop(keys, times int) *trace {
	s := newSampler(keys*times, false)
	for range times {
		for k := range keys {
			s.add(hashKey([]byte{byte(k), byte(k >> 8)}), 0)
		}
	}
	return s.done()
}

// medianMisses are those of the middle one of three runs: one in a hundred is two points
// worse, by the seed of its hash.
func medianMisses(t *testing.T, tr *trace, capacity uint64) int {
	t.Helper()
	runs := []int{tinyMisses(t, tr, capacity), tinyMisses(t, tr, capacity), tinyMisses(t, tr, capacity)}
	slices.Sort(runs)
	return runs[1]
}

func tinyMisses(t *testing.T, tr *trace, capacity uint64) int {
	t.Helper()
	misses, err := runWTinyLFU(t.Context(), tr, capacity)
	if err != nil {
		t.Fatal(err)
	}
	return misses
}

// A loop over one key more than fits is the worst for LRU, which never hits; W-TinyLFU
// keeps a part of it.
func TestLoop(t *testing.T) {
	const keys, times = 1000, 50
	tr := loop(keys, times)
	curve := newLRUCurve(tr)
	for _, c := range []uint64{1, 500, keys - 1} {
		if got := curve.misses(c); got != len(tr.refs) {
			t.Errorf("LRU of %d misses %d times of %d", c, got, len(tr.refs))
		}
	}
	if got := curve.misses(keys); got != keys {
		t.Errorf("LRU of %d misses %d times", keys, got)
	}
	if got := tr.missRatio(tinyMisses(t, tr, keys/2)); got > 0.8 {
		t.Errorf("W-TinyLFU of half the keys misses %.3f", got)
	}
	if got := tinyMisses(t, tr, keys); got != keys {
		t.Errorf("W-TinyLFU of all keys misses %d times", got)
	}
}

// What is simulated is what a process has: internal/local's hit rate is about that of
// the simulation. The process leaves maintenance to a goroutine, which is given its
// turn as it has it where requests do not come in a tight loop.
func TestSimulationIsTheLocalCache(t *testing.T) {
	tr := sampleOf(t, 200_000, 40_000, 15_000, "").done()
	for _, bytes := range []bool{false, true} {
		capacity, o := int64(1000), local.Options{MaxEntries: 1000}
		if bytes {
			tr.sizes = make([]uint32, len(tr.hashes))
			for k, h := range tr.hashes {
				tr.sizes[k] = 500 + uint32(h%1000)
			}
			capacity *= 1000
			o = local.Options{MaxWeight: capacity}
		}
		want := tr.missRatio(tinyMisses(t, tr, uint64(capacity)))
		c := local.New[uint32, struct{}](o)
		never := c.Now() + int64(time.Hour)
		misses := 0
		for _, k := range tr.refs {
			if _, hit := c.Look(k); !hit {
				misses++
				e := &local.Entry[struct{}]{Soft: never, Trusted: never, Rare: &local.Rare{Weight: uint32(tr.size(k))}}
				c.Put(k, e)
			}
			runtime.Gosched()
		}
		c.Close()
		got := tr.missRatio(misses)
		t.Logf("bytes %t: local misses %.4f, the simulation %.4f", bytes, got, want)
		if math.Abs(got-want) > 0.03 {
			t.Errorf("bytes %t: local misses %.4f, the simulation %.4f", bytes, got, want)
		}
	}
}

// An entry that is larger than the cache is not kept, and evicts nothing else.
func TestTooLargeEntry(t *testing.T) {
	tr := &trace{hashes: []uint64{1, 2}, sizes: []uint32{10, 1000}, stands: 8}
	tr.refs = []uint32{0, 1, 0, 1, 0, 1, 0, 1}
	if got := tinyMisses(t, tr, 100); got != 5 {
		t.Errorf("%d misses; 4 for the large one and 1 for the small one are due", got)
	}
}
