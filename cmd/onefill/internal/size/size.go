package size

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
)

// InputError says what is wrong with the trace or the target.
type InputError struct{ Msg string }

func (e *InputError) Error() string { return e.Msg }

// Options of [Run].
type Options struct {
	Name     string // of the trace, for messages
	Format   Format
	Target   float64 // hit rate, above 0 and below 1
	Keep     int     // requests to keep in memory; 0: DefaultKeep
	Progress func(Progress)
}

// Progress is how far a stage has come. Of is 0 while reading: how much there is
// to read is for the caller to know.
type Progress struct {
	Stage    string
	Done, Of int64
}

// Result is what a trace says about the size of a cache.
type Result struct {
	Trace    string `json:"trace"`
	Requests int64  `json:"requests"`
	LeftOut  int64  `json:"lines_left_out"` // lines without a key
	Keys     int64  `json:"keys"`           // of a sample: estimated
	Unit     string `json:"unit"`           // of capacities: "entries" or "bytes"
	// Everything is the capacity that holds all keys.
	Everything uint64 `json:"everything"`

	OneKeyIn       int64 `json:"one_key_in"` // 1: all keys were kept
	SampleRequests int64 `json:"sample_requests"`
	SampleKeys     int64 `json:"sample_keys"`
	// Truncated: the trace was not read to its end.
	Truncated bool `json:"truncated"`

	// BestHitRate is that of a cache that evicts nothing.
	BestHitRate float64 `json:"best_hit_rate"`
	Target      float64 `json:"target"`
	WTinyLFU    Policy  `json:"w_tinylfu"`
	LRU         Policy  `json:"lru"`

	// fine is LRU's curve at more capacities, for the plot.
	fine []Point
}

// Policy is what one way to evict gives.
type Policy struct {
	// Capacity reaches the target. HitRate is that of a run at it, for W-TinyLFU the
	// median of several.
	Capacity uint64  `json:"capacity"`
	HitRate  float64 `json:"hit_rate"`
	// Error holds the whole trace's hit rate within HitRate ± Error in 95 of 100
	// samples; 0 if all keys were kept.
	Error float64 `json:"error"`
	// Low and High are where the hit rate is the target less and plus Error, by the
	// curve; absent if all keys were kept.
	Low   uint64  `json:"capacity_low,omitempty"`
	High  uint64  `json:"capacity_high,omitempty"`
	Curve []Point `json:"curve"`
}

// bound fills in Low and High.
func (p *Policy) bound(curve []Point, target float64) {
	curve = append([]Point{{Capacity: 1, MissRatio: 1}}, curve...)
	p.Low = min(capacityAt(curve, 1-target+p.Error), p.Capacity)
	p.High = max(capacityAt(curve, 1-target-p.Error), p.Capacity)
}

// capacityAt is the capacity from which the curve stays at or below the miss ratio,
// between its points by the logarithm of the capacity; its last one if it never does.
func capacityAt(curve []Point, ratio float64) uint64 {
	i := len(curve) - 1
	for i > 0 && curve[i-1].MissRatio <= ratio {
		i--
	}
	if i == 0 || curve[i].MissRatio > ratio {
		return curve[i].Capacity
	}
	over, under := curve[i-1], curve[i]
	share := (over.MissRatio - ratio) / (over.MissRatio - under.MissRatio)
	return uint64(math.Round(float64(over.Capacity) * math.Pow(float64(under.Capacity)/float64(over.Capacity), share)))
}

// Point of a miss ratio curve. LRU's has an error; W-TinyLFU's is about the same.
type Point struct {
	Capacity  uint64  `json:"capacity"`
	MissRatio float64 `json:"miss_ratio"`
	Error     float64 `json:"error,omitempty"`
}

// Sampled says that the result is an estimate.
func (r *Result) Sampled() bool { return r.OneKeyIn > 1 }

// Run reads a trace and sizes a cache by it. Its errors are *[InputError] where
// the trace or the target is to blame.
func Run(ctx context.Context, r io.Reader, o Options) (*Result, error) {
	if !(o.Target > 0 && o.Target < 1) {
		return nil, &InputError{fmt.Sprintf("--target: %v; it is a hit rate above 0 and below 1, such as 0.95", o.Target)}
	}
	if o.Keep == 0 {
		o.Keep = DefaultKeep
	}
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
	s := newSampler(o.Keep, o.Format.Size > 0)
	res := &Result{Trace: o.Name, Target: o.Target, Unit: "entries"}
	if o.Format.Size > 0 {
		res.Unit = "bytes"
	}
	in := lines{name: o.Name, format: o.Format}
	add := func(hash uint64, size uint32) bool {
		res.Truncated = !s.add(hash, size)
		return !res.Truncated
	}
	if err := in.each(ctx, r, add, func(n int64) { o.Progress(Progress{"reading", n, 0}) }); err != nil {
		return nil, err
	}
	res.LeftOut = in.leftOut
	if err := res.describe(s); err != nil {
		return nil, err
	}
	sz := &sizing{Result: res, trace: s.done(), options: o, rate: 1 / float64(res.OneKeyIn)}
	return res, sz.run(ctx)
}

// describe fills in what is known when the trace has been read, and refuses what
// cannot be reached.
func (r *Result) describe(s *sampler) error {
	t := s.done()
	r.OneKeyIn = int64(1) << s.shift
	r.Requests = s.requests
	r.SampleRequests, r.SampleKeys = int64(len(t.refs)), int64(len(t.hashes))
	r.Keys = r.SampleKeys * r.OneKeyIn
	r.Everything = t.everything() * uint64(r.OneKeyIn)
	if r.Requests == 0 {
		if r.LeftOut > 0 {
			return &InputError{fmt.Sprintf("%s: none of the %d lines has a key", r.Trace, r.LeftOut)}
		}
		return &InputError{r.Trace + ": the trace is empty"}
	}
	r.BestHitRate = 1 - t.missRatio(len(t.hashes))
	if len(t.hashes) <= t.allowed(r.Target) {
		return nil
	}
	about := ""
	if r.Sampled() {
		about = "about "
	}
	return &InputError{fmt.Sprintf("--target: %s cannot be reached: the best hit rate that this trace allows is %s%s, as the first request of each of its %s%s keys finds nothing in any cache; "+
		"take a longer trace, or a lower target", percent(r.Target), about, percent(r.BestHitRate), about, count(r.Keys))}
}

// sizing is the work on a trace that has been read. Capacities are those of the
// sample until they go into the result.
type sizing struct {
	*Result
	trace   *trace
	options Options
	rate    float64
}

// whole is the capacity for the whole trace.
func (s *sizing) whole(capacity uint64) uint64 { return capacity * uint64(s.OneKeyIn) }

func (s *sizing) run(ctx context.Context) error {
	everything := s.trace.everything()
	least := uint64(1)
	if s.Sampled() {
		const leastEntries = 64 // below, the parts' caches hold next to nothing
		least = min(everything, everything/uint64(len(s.trace.hashes))*leastEntries)
	}
	capacities := grid(least, everything)
	var samples []*trace
	if s.Sampled() {
		samples = split(s.trace)
	}
	if err := s.lru(capacities, samples); err != nil {
		return err
	}
	return s.wtinylfu(ctx, capacities, samples)
}

func (s *sizing) lru(capacities []uint64, samples []*trace) error {
	s.options.Progress(Progress{"LRU", 0, 1})
	curve := newLRUCurve(s.trace)
	capacity, ok := curve.capacityFor(s.trace.allowed(s.Target))
	if !ok {
		return errors.New("LRU reaches the target at no capacity, although one that holds everything does: please report this")
	}
	misses := runLRU(s.trace, capacity)
	if misses != curve.misses(capacity) {
		return fmt.Errorf("an LRU cache of %d misses %d times and the curve says %d: please report this", capacity, misses, curve.misses(capacity))
	}
	at := make([]float64, len(capacities)+1)
	if samples != nil {
		at = lruErrors(samples, append(capacities[:len(capacities):len(capacities)], capacity), s.rate)
	}
	s.LRU = Policy{Capacity: s.whole(capacity), HitRate: 1 - s.trace.missRatio(misses), Error: at[len(capacities)]}
	for i, c := range capacities {
		s.LRU.Curve = append(s.LRU.Curve, Point{s.whole(c), s.trace.missRatio(curve.misses(c)), at[i]})
	}
	const finePoints = 400
	least, most := float64(capacities[0]), float64(capacities[len(capacities)-1])
	for i := range finePoints {
		c := uint64(math.Round(least * math.Pow(most/least, float64(i)/(finePoints-1))))
		s.fine = append(s.fine, Point{Capacity: s.whole(c), MissRatio: s.trace.missRatio(curve.misses(c))})
	}
	if samples != nil {
		s.LRU.bound(s.fine, s.Target)
	}
	return nil
}

func (s *sizing) wtinylfu(ctx context.Context, capacities []uint64, samples []*trace) error {
	points, err := runAll(ctx, s.trace, capacities, s.counting("W-TinyLFU's curve", len(capacities)))
	if err != nil {
		return err
	}
	for _, p := range points {
		s.WTinyLFU.Curve = append(s.WTinyLFU.Curve, Point{Capacity: s.whole(p.capacity), MissRatio: s.trace.missRatio(p.misses)})
	}
	// The target may be reached below the curve's first point.
	points = append([]point{{capacity: 0, misses: len(s.trace.refs) + 1}}, points...)
	found, err := search(ctx, s.trace, points, s.trace.allowed(s.Target), s.counting("W-TinyLFU at the target", 0))
	if err != nil {
		return err
	}
	s.WTinyLFU.Capacity = s.whole(found.capacity)
	s.WTinyLFU.HitRate = 1 - s.trace.missRatio(found.misses)
	if samples != nil {
		s.WTinyLFU.Error, err = wtinylfuError(ctx, samples, found.capacity, s.rate, s.counting("W-TinyLFU's error", parts))
		s.WTinyLFU.bound(s.WTinyLFU.Curve, s.Target)
	}
	return err
}

// counting reports each of the runs of a stage. They may be side by side.
func (s *sizing) counting(stage string, of int) func() {
	var mu sync.Mutex // guards done, and keeps reports in order
	done := int64(0)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		done++
		s.options.Progress(Progress{stage, done, int64(of)})
	}
}
