package size

// trace is what is kept of a trace: requests by the numbers of their keys.
type trace struct {
	refs   []uint32 // the requests, in order: numbers of keys
	hashes []uint64 // of the keys
	sizes  []uint32 // of the keys, in bytes; nil where capacities count entries
	// stands is how many requests of the whole trace it stands for, scaled by the
	// sampling rate: len(refs) if nothing was left out.
	stands float64
}

func (t *trace) size(key uint32) uint64 {
	if t.sizes == nil {
		return 1
	}
	return uint64(t.sizes[key])
}

// everything is the capacity that holds all keys.
func (t *trace) everything() (sum uint64) {
	for k := range t.hashes {
		sum += t.size(uint32(k))
	}
	return sum
}

// missRatio is the share of all requests that misses of the kept ones stand for.
func (t *trace) missRatio(misses int) float64 { return min(float64(misses)/t.stands, 1) }

// allowed is how many of the kept requests may miss for the hit rate to be
// reached. What is added keeps a target that is hit exactly from being lost to
// rounding.
func (t *trace) allowed(target float64) int {
	return int((1-target)*t.stands + 1e-9*t.stands)
}

// part is the n-th of a number of parts of the trace, by the last bits of the
// keys' hashes: a sample of it. of is a power of 2.
func (t *trace) part(n, of uint64) *trace {
	p := &trace{stands: t.stands / float64(of)}
	number := make([]uint32, len(t.hashes))
	for k, h := range t.hashes {
		if h%of != n {
			continue
		}
		number[k] = uint32(len(p.hashes))
		p.hashes = append(p.hashes, h)
		if t.sizes != nil {
			p.sizes = append(p.sizes, t.sizes[k])
		}
	}
	for _, k := range t.refs {
		if t.hashes[k]%of == n {
			p.refs = append(p.refs, number[k])
		}
	}
	return p
}
