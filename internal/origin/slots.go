// Package origin bounds how many loads run at once.
package origin

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// Limits of Slots.
type Limits struct {
	Most    int // places, and what the limit grows back to
	Least   int // what the limit falls to; 0: it does not move
	Waiting int // who may wait for a place; 0: no bound
	Strays  int // loads that were left behind and still run, before no place is given any more; 0: no bound
}

// Slots are the places at the origin, given in the order of asking. How many there
// are moves with what the loads report: see [Slots.Report].
type Slots struct {
	limits Limits

	mu     sync.Mutex // leaf: nothing is called under it
	limit  int        // guarded by mu
	used   int        // guarded by mu; above limit for a while after the limit fell
	strays int        // guarded by mu: loads that were left behind and still run
	queue  list.List  // guarded by mu: of chan struct{}, closed when a place is given
	round  round      // guarded by mu
	falls  int        // guarded by mu: how often the limit has fallen
}

// round is the loads that have ended since the limit was last decided about.
type round struct{ ended, failed int }

// ErrFull says that too many wait for a place already.
var ErrFull = errors.New("too many loads wait already")

// NewSlots returns free places, as many as l allows.
func NewSlots(l Limits) *Slots {
	if l.Least == 0 {
		l.Least = l.Most
	}
	return &Slots{limits: l, limit: l.Most}
}

// Acquire waits for a place, first come, first served, until ctx is done; then it
// returns the context's cause. It does not wait if as many wait as may, unless there is a
// spare place to wait for: ErrFull. A
// place that was given must be given back with Release, once.
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
	if s.free() && s.queue.Len() == 0 {
		s.used++
		s.mu.Unlock()
		return false, nil
	}
	if spare == nil && s.limits.Waiting > 0 && s.queue.Len() >= s.limits.Waiting {
		s.mu.Unlock()
		return false, ErrFull
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

// Strayed says that a load was left behind: its place will be released, and yet it
// goes on. Too many of them stop everything, until one has Returned: a loader that never
// returns must not fill the process, or the origin, without bound.
func (s *Slots) Strayed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.strays++
}

// Returned ends what Strayed began.
func (s *Slots) Returned() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.strays--
	s.admit()
}

// The limit moves in rounds, of as many loads as it allows at once, but of minRound at
// least: additive increase, multiplicative decrease (Chiu and Jain, 1989), as for a TCP
// connection's window. A round of which no more than a tenth failed raises it by an eighth
// of the way from Least to Most. As soon as more than half of a round has failed, it is halved.
// Growth is paced by the loads themselves: a slow origin gets more of them slowly.
const (
	minRound = 8
	steps    = 8
)

// Begin is called when a load begins. What it returns is for its Report.
func (s *Slots) Begin() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.falls
}

// Report says how a load at the origin has ended, and returns the limit and whether
// that has changed it. The failure of one that began before the limit last fell says
// nothing about whether that was enough.
func (s *Slots) Report(failed bool, begun int) (limit int, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if failed && begun != s.falls {
		return s.limit, false
	}
	s.round.ended++
	if failed {
		s.round.failed++
	}
	size := max(s.limit, minRound)
	switch {
	case 2*s.round.failed > size:
		return s.move(s.limit / 2)
	case s.round.ended >= size && 10*s.round.failed <= s.round.ended:
		return s.move(s.limit + max(1, (s.limits.Most-s.limits.Least)/steps))
	case s.round.ended >= size:
		s.round = round{}
	}
	return s.limit, false
}

// Restart lets the limit grow anew, from Least: after an outage of the cache, when
// everybody misses at once. Half only halves it: a part of the cache was away.
func (s *Slots) Restart() (limit int, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.move(s.limits.Least)
}

// Half is Restart for a part of the cache.
func (s *Slots) Half() (limit int, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.move(s.limit / 2)
}

// move sets the limit, within its limits, and begins a round. Loads that run are not
// disturbed. The lock is held.
func (s *Slots) move(to int) (limit int, changed bool) {
	before := s.limit
	s.limit = min(max(to, s.limits.Least), s.limits.Most)
	if s.limit < before {
		s.falls++
	}
	s.round = round{}
	s.admit()
	return s.limit, s.limit != before
}

func (s *Slots) free() bool {
	return s.used < s.limit && (s.limits.Strays == 0 || s.strays < s.limits.Strays)
}

func (s *Slots) admit() {
	for s.free() && s.queue.Len() > 0 {
		s.used++
		close(s.queue.Remove(s.queue.Front()).(chan struct{}))
	}
}

// State is what Slots are at in one moment.
type State struct {
	Used    int // places
	Limit   int // places there are now
	Waiting int // for a place
	Strays  int // loads that were left behind and still run
}

// State returns the state of this moment.
func (s *Slots) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return State{Used: s.used, Limit: s.limit, Waiting: s.queue.Len(), Strays: s.strays}
}
