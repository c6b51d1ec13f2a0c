package size

import "math/bits"

const (
	// DefaultKeep is how many requests are kept if nothing else is said.
	DefaultKeep = 1_000_000
	// leastKeys are never thinned out further: the error would be past use.
	leastKeys = 1024
	// few is how many times Keep requests are kept where the keys cannot be thinned out.
	few = 16
)

// sampler keeps the requests of as many keys as fit into its bound.
type sampler struct {
	keep     int // requests
	bytes    bool
	requests int64 // seen
	shift    int   // one key in 2^shift is kept
	ids      map[uint64]uint32
	trace    trace
}

func newSampler(keep int, bytes bool) *sampler {
	return &sampler{keep: keep, bytes: bytes, ids: make(map[uint64]uint32)}
}

// add takes the next request. It returns false when nothing more can be taken:
// there are so many requests for so few keys that leaving keys out does not help.
//
// A key that comes with several sizes has its largest: the small ones are
// answers without a body, or partial ones.
func (s *sampler) add(hash uint64, size uint32) (more bool) {
	s.requests++
	if !s.keeps(hash) {
		return true
	}
	t := &s.trace
	id, ok := s.ids[hash]
	if !ok {
		id = uint32(len(t.hashes))
		s.ids[hash] = id
		t.hashes = append(t.hashes, hash)
		if s.bytes {
			t.sizes = append(t.sizes, size)
		}
	}
	if s.bytes {
		t.sizes[id] = max(t.sizes[id], size)
	}
	t.refs = append(t.refs, id)
	for len(t.refs) > s.keep && len(t.hashes) >= 2*leastKeys {
		s.thin()
	}
	return len(t.refs) < few*s.keep
}

func (s *sampler) keeps(hash uint64) bool { return bits.LeadingZeros64(hash) >= s.shift }

// thin leaves out every other key, with all its requests. What is left is what
// would have been kept had the rate been the lower one from the start.
func (s *sampler) thin() {
	s.shift++
	t := &s.trace
	const gone = ^uint32(0)
	number := make([]uint32, len(t.hashes))
	n := 0
	for k, h := range t.hashes {
		if !s.keeps(h) {
			number[k] = gone
			delete(s.ids, h)
			continue
		}
		number[k] = uint32(n)
		s.ids[h] = uint32(n)
		t.hashes[n] = h
		if s.bytes {
			t.sizes[n] = t.sizes[k]
		}
		n++
	}
	t.hashes = t.hashes[:n]
	if s.bytes {
		t.sizes = t.sizes[:n]
	}
	left := t.refs[:0]
	for _, k := range t.refs {
		if number[k] != gone {
			left = append(left, number[k])
		}
	}
	t.refs = left
}

// done returns what was kept; nothing can be added any more.
func (s *sampler) done() *trace {
	s.ids = nil
	s.trace.stands = float64(s.requests) / float64(uint64(1)<<s.shift)
	return &s.trace
}

// hashKey is FNV-1a with a finalizer that spreads it over all bits, so that the
// first ones decide about the sample and the last ones about its parts. It is the
// same in every run: the same trace has the same sample.
func hashKey(key []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range key {
		h = (h ^ uint64(b)) * 1099511628211
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
