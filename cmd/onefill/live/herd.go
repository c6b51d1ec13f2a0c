package live

import (
	"context"
	"sync"
)

// herd is what became of callers that missed at once, in one mode.
type herd struct {
	Callers int  `json:"callers"`
	Done    bool `json:"done"`
	// Loads is what the database had to do for them; the others are as in Counters.
	Loads     uint64 `json:"loads"`
	Flights   uint64 `json:"flights"`
	Coalesced uint64 `json:"coalesced"`
	Waits     uint64 `json:"waits"`
	Stale     uint64 `json:"stale"`
	Errors    uint64 `json:"errors"`
	// P50MS and P99MS are the callers' waits.
	P50MS float64 `json:"p50_ms"`
	P99MS float64 `json:"p99_ms"`

	before Counters
}

// play sends a herd: nothing is in any cache, and all callers ask in the same moment. The
// traffic must have been halted.
func (a *arm) play(ctx context.Context, callers int) {
	a.clear(ctx)
	h := &herd{Callers: callers, before: a.count()}
	a.mu.Lock()
	a.herd = h
	a.mu.Unlock()

	var parked, all sync.WaitGroup
	start := make(chan struct{})
	samples := make([]sample, callers)
	parked.Add(callers)
	for i := range callers {
		all.Go(func() {
			parked.Done()
			<-start
			samples[i] = sample{wait: a.call(ctx, i%len(a.readers)).took}
		})
	}
	parked.Wait()
	close(start)
	all.Wait()

	a.mu.Lock()
	defer a.mu.Unlock()
	h.update(a.count())
	p50, p99 := percentiles(samples)
	h.Done, h.P50MS, h.P99MS = true, *p50, *p99
}

// update takes the difference that the herd has made so far.
func (h *herd) update(now Counters) {
	h.Loads = now.Loads - h.before.Loads
	h.Flights = now.Flights - h.before.Flights
	h.Coalesced = now.Coalesced - h.before.Coalesced
	h.Waits = now.Waits - h.before.Waits
	h.Stale = now.Stale - h.before.Stale
	h.Errors = now.Errors - h.before.Errors
}

// latest is the latest herd as it stands; nil: there was none.
func (a *arm) latest() *herd {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.herd == nil {
		return nil
	}
	if !a.herd.Done {
		a.herd.update(a.count())
	}
	seen := *a.herd
	return &seen
}
