// Package origin bounds how many loads run at once.
package origin

import (
	"container/list"
	"context"
	"sync"
)

// Slots are the places at the origin, given in the order of asking.
type Slots struct {
	mu    sync.Mutex // leaf: nothing is called under it
	limit int        // guarded by mu
	used  int        // guarded by mu; above limit for a while after the limit fell
	queue list.List  // guarded by mu: of chan struct{}, closed when a place is given
}

// NewSlots returns limit free places.
func NewSlots(limit int) *Slots { return &Slots{limit: limit} }

// Acquire waits for a place, first come, first served, until ctx is done; then it
// returns the context's cause. A place that was given must be given back with
// Release, once.
//
// A caller who may use a place that somebody else has is told of it by spare, which
// may be nil: what is received from there counts as a place, too (borrowed), and is
// not given back here.
func (s *Slots) Acquire(ctx context.Context, spare <-chan struct{}) (borrowed bool, err error) {
	select {
	case <-spare:
		return true, nil
	default:
	}
	s.mu.Lock()
	if s.used < s.limit && s.queue.Len() == 0 {
		s.used++
		s.mu.Unlock()
		return false, nil
	}
	turn := make(chan struct{})
	at := s.queue.PushBack(turn)
	s.mu.Unlock()

	select {
	case <-turn:
		return false, nil
	case <-spare:
		borrowed = true
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-turn: // given in the same moment: pass it on
		s.used--
		s.admit()
	default:
		s.queue.Remove(at)
	}
	return borrowed, err
}

// Release gives a place back.
func (s *Slots) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	s.admit()
}

// SetLimit changes the number of places. Loads that run are not disturbed.
func (s *Slots) SetLimit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = n
	s.admit()
}

func (s *Slots) admit() {
	for s.used < s.limit && s.queue.Len() > 0 {
		s.used++
		close(s.queue.Remove(s.queue.Front()).(chan struct{}))
	}
}

// State returns the places in use, the limit, and how many wait.
func (s *Slots) State() (used, limit, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used, s.limit, s.queue.Len()
}
