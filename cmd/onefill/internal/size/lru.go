package size

import (
	"slices"
	"sort"
)

// lruCurve is what LRU does at every capacity: the stack distances of the
// requests that are not their key's first, sorted. A request is a hit from the
// capacity on that its distance says.
type lruCurve struct {
	trace     *trace
	distances []uint64
}

func newLRUCurve(t *trace) *lruCurve {
	c := &lruCurve{trace: t, distances: make([]uint64, 0, len(t.refs)-len(t.hashes))}
	last := make([]int, len(t.hashes)) // moment of the key's last request, from 1; 0: none yet
	stack := newSums(len(t.refs))      // at each of these moments, the key's size
	total := uint64(0)
	for i, k := range t.refs {
		size, now := t.size(k), i+1
		if then := last[k]; then != 0 {
			c.distances = append(c.distances, total-stack.before(then))
			stack.add(then, -size)
			total -= size
		}
		stack.add(now, size)
		total += size
		last[k] = now
	}
	slices.Sort(c.distances)
	return c
}

// misses is how many of the requests miss at that capacity.
func (c *lruCurve) misses(capacity uint64) int {
	hits := sort.Search(len(c.distances), func(i int) bool { return c.distances[i] > capacity })
	return len(c.trace.refs) - hits
}

// capacityFor is the least capacity at which no more requests miss, or false if
// there is none.
func (c *lruCurve) capacityFor(misses int) (uint64, bool) {
	hits := len(c.trace.refs) - misses
	switch {
	case hits > len(c.distances):
		return 0, false
	case hits <= 0:
		return 1, true
	}
	return c.distances[hits-1], true
}

// sums is a Fenwick tree: sums of what is at the moments up to one, in
// logarithmic time. Differences may wrap around; the sums are never negative.
type sums []uint64

func newSums(n int) sums { return make(sums, n+1) }

func (s sums) add(i int, d uint64) {
	for ; i < len(s); i += i & -i {
		s[i] += d
	}
}

// before is the sum of what is at earlier moments.
func (s sums) before(i int) (sum uint64) {
	for i--; i > 0; i -= i & -i {
		sum += s[i]
	}
	return sum
}

// runLRU counts the misses of an LRU cache of that capacity by being one: the
// check on what the distances say. It evicts from the old end until what it holds
// fits, be it that the newest goes as well.
func runLRU(t *trace, capacity uint64) (misses int) {
	end := uint32(len(t.hashes)) // of the ring: its next is the newest key, its prev the oldest
	next, prev := make([]uint32, end+1), make([]uint32, end+1)
	in := make([]bool, end)
	next[end], prev[end] = end, end
	held := uint64(0)
	unlink := func(k uint32) { next[prev[k]], prev[next[k]] = next[k], prev[k] }
	for _, k := range t.refs {
		if in[k] {
			unlink(k)
		} else {
			misses++
			in[k] = true
			held += t.size(k)
		}
		next[k], prev[k] = next[end], end
		prev[next[end]], next[end] = k, k
		for held > capacity {
			oldest := prev[end]
			unlink(oldest)
			in[oldest] = false
			held -= t.size(oldest)
		}
	}
	return misses
}
