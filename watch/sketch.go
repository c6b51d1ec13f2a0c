package watch

import "strings"

// name is a key of a cache.
type name struct{ cache, key string }

// sketch keeps the keys with the largest sums of weights, in bounded memory: the algorithm
// is Space-Saving (Metwally, Agrawal, El Abbadi: "Efficient Computation of Frequent and
// Top-k Elements in Data Streams", 2005). A key that is not there takes the place of the
// lightest and inherits its weight, as its own may have been as large before; that is its
// error. So weight-error <= true <= weight for the keys that are there, and the true weight of any
// other is at most that of the lightest.
type sketch struct {
	room  int
	cells map[name]*cell
	heap  []*cell // the lightest first
}

// cell is what is known of one key. What is beside the weight counts from when the key came.
type cell struct {
	name
	at            int // in the heap
	weight, error uint64
	variance      float64 // of the weight, where it is estimated from samples
	loads, failed uint64
	longest       uint64
}

func newSketch(room int) *sketch { return &sketch{room: room, cells: make(map[name]*cell)} }

// add adds weight to a key, and returns its cell.
func (s *sketch) add(n name, weight uint64) *cell {
	c := s.cells[n]
	switch {
	case c != nil:
	case len(s.heap) < s.room:
		c = &cell{name: name{n.cache, strings.Clone(n.key)}, at: len(s.heap)}
		s.heap = append(s.heap, c)
		s.cells[c.name] = c
	default:
		c = s.heap[0]
		delete(s.cells, c.name)
		*c = cell{name: name{n.cache, strings.Clone(n.key)}, weight: c.weight, error: c.weight}
		s.cells[c.name] = c
	}
	c.weight += weight
	s.settle(c)
	return c
}

// settle puts a cell in its place in the heap: a new one may have to go up, and one that has become
// heavier down.
func (s *sketch) settle(c *cell) {
	for c.at > 0 && s.heap[(c.at-1)/2].weight > c.weight {
		s.swap(c.at, (c.at-1)/2)
	}
	for {
		least := 2*c.at + 1
		if least >= len(s.heap) {
			return
		}
		if right := least + 1; right < len(s.heap) && s.heap[right].weight < s.heap[least].weight {
			least = right
		}
		if s.heap[least].weight >= c.weight {
			return
		}
		s.swap(c.at, least)
	}
}

func (s *sketch) swap(i, j int) {
	s.heap[i], s.heap[j] = s.heap[j], s.heap[i]
	s.heap[i].at, s.heap[j].at = i, j
}

// missing is the most that a key which is not there can weigh.
func (s *sketch) missing() uint64 {
	if len(s.heap) < s.room {
		return 0
	}
	return s.heap[0].weight
}

func (s *sketch) reset() {
	clear(s.cells)
	s.heap = s.heap[:0]
}

// merge adds up sketches of the same kind. In a sketch that is full and has not got a key, the key
// may weigh as much as the lightest there.
func merge(sketches []*sketch) map[name]*cell {
	sum, absent := make(map[name]*cell), uint64(0)
	for _, s := range sketches {
		absent += s.missing()
	}
	for _, s := range sketches {
		for n, c := range s.cells {
			m := sum[n]
			if m == nil {
				m = &cell{name: n, weight: absent, error: absent}
				sum[n] = m
			}
			m.weight += c.weight - s.missing()
			m.error += c.error
			m.error -= s.missing()
			m.variance += c.variance
			m.loads, m.failed = m.loads+c.loads, m.failed+c.failed
			m.longest = max(m.longest, c.longest)
		}
	}
	return sum
}
