package otelonefill

import (
	"sync"

	"github.com/onefill/onefill"
	"go.opentelemetry.io/otel/trace"
)

// followed knows the spans of the flights under way: of those who wait, and of the load. A flight
// is in it while one of them runs, so it is as large as what waits.
type followed struct {
	mu       sync.Mutex // guards everything below; nothing blocks under it
	flights  map[uint64]*follow
	maxLinks int
}

type follow struct {
	running int                 // spans that have not ended
	load    trace.SpanContext   // invalid before there is a load that is sampled
	caller  trace.SpanContext   // who began it
	led     bool                // a wait has turned out to be the caller's
	waiters []trace.SpanContext // at most maxLinks
	more    int                 // waiters beyond
}

func (f *follow) addWaiter(w trace.SpanContext, most int) {
	if len(f.waiters) < most {
		f.waiters = append(f.waiters, w)
		return
	}
	f.more++
}

// begin enters a span for flights, and returns what to end it with: the flights' slice is
// the cache's.
func (s *followed) begin(flights []onefill.Flight, enter func(*follow)) (ids []uint64) {
	ids = make([]uint64, len(flights))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, fl := range flights {
		ids[i] = fl.ID
		f := s.flights[fl.ID]
		if f == nil {
			f = &follow{}
			s.flights[fl.ID] = f
		}
		f.running++
		enter(f)
	}
	return ids
}

// leave takes a span off a flight. mu is held.
func (s *followed) leave(id uint64, f *follow) {
	if f.running--; f.running == 0 {
		delete(s.flights, id)
	}
}

// endWait ends a wait, and returns the loads that it has waited for, each once, and whether it
// was the wait of the call that began one of them: of several by the same caller, the first to
// end passes for it.
func (s *followed) endWait(ids []uint64, caller trace.SpanContext) (loads []trace.SpanContext, led bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := make(map[trace.SpanID]bool, 1)
	for _, id := range ids {
		f := s.flights[id]
		if f.load.IsValid() && !seen[f.load.SpanID()] {
			seen[f.load.SpanID()] = true
			loads = append(loads, f.load)
		}
		if f.load.IsValid() && !f.led && f.caller.Equal(caller) {
			f.led, led = true, true
		}
		s.leave(id, f)
	}
	return loads, led
}

// endLoad ends a load, and returns who has waited for it, as many as may be linked to, and how
// many more there are: at least, since those who wait for several flights and had no room in any
// cannot be told apart.
func (s *followed) endLoad(ids []uint64) (waiters []trace.SpanContext, more int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[trace.SpanID]bool{} // a GetMany waits for several of the load's flights
	beyond := 0
	for _, id := range ids {
		f := s.flights[id]
		beyond = max(beyond, f.more)
		for _, w := range f.waiters {
			switch {
			case seen[w.SpanID()]:
			case len(waiters) < s.maxLinks:
				waiters = append(waiters, w)
			default:
				more++
			}
			seen[w.SpanID()] = true
		}
		s.leave(id, f)
	}
	return waiters, more + beyond
}
