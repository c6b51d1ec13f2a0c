package size

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// random returns a trace of that many requests for at most so many keys, some of
// them asked for more often than others.
func random(r *rand.Rand, requests, keys int, bytes bool) *trace {
	s := newSampler(requests, bytes)
	sizes := make([]uint32, keys)
	for k := range sizes {
		sizes[k] = 1 + r.Uint32N(9)
	}
	for range requests {
		k := min(r.IntN(keys), r.IntN(keys))
		s.add(hashKey([]byte{byte(k), byte(k >> 8)}), sizes[k])
	}
	return s.done()
}

// bruteLRU is an LRU cache as one would write it on a blackboard.
func bruteLRU(t *trace, capacity uint64) (misses int) {
	var cache []uint32 // the newest last
	for _, k := range t.refs {
		if i := slices.Index(cache, k); i >= 0 {
			cache = slices.Delete(cache, i, i+1)
		} else {
			misses++
		}
		cache = append(cache, k)
		for held(t, cache) > capacity {
			cache = cache[1:]
		}
	}
	return misses
}

func held(t *trace, cache []uint32) (sum uint64) {
	for _, k := range cache {
		sum += t.size(k)
	}
	return sum
}

// The stack distances say what an LRU cache does, at every capacity; so does the
// cache that checks them; and capacityFor is the least that does it.
func TestLRUIsExact(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		tr := random(r, 1+r.IntN(200), 1+r.IntN(30), i%2 == 1)
		curve := newLRUCurve(tr)
		best := len(tr.hashes)
		for c := uint64(0); c <= tr.everything()+1; c++ {
			want := bruteLRU(tr, c)
			if got := curve.misses(c); got != want {
				t.Fatalf("trace %v %v: the curve has %d misses at %d, the cache %d", tr.refs, tr.sizes, got, c, want)
			}
			if got := runLRU(tr, c); got != want {
				t.Fatalf("trace %v %v: runLRU has %d misses at %d, the cache %d", tr.refs, tr.sizes, got, c, want)
			}
			if c == 0 {
				continue
			}
			at, ok := curve.capacityFor(want)
			if !ok || at > c || bruteLRU(tr, at) > want || at > 1 && bruteLRU(tr, at-1) <= want {
				t.Fatalf("trace %v %v: capacityFor(%d) = %d, %t", tr.refs, tr.sizes, want, at, ok)
			}
		}
		if got := curve.misses(tr.everything()); got != best {
			t.Errorf("a cache for everything misses %d times, for %d keys", got, best)
		}
		if at, ok := curve.capacityFor(best - 1); ok {
			t.Errorf("fewer misses than keys, at a capacity of %d", at)
		}
	}
}
