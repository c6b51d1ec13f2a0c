package pgqueue

import (
	"sync"
	"time"
)

// floor keeps claims from looking at what they have looked at before.
//
// The index on run_at holds an entry for each job that was there, until a vacuum removes
// it; while an old transaction is open anywhere in the database, none can. They pile up
// at the index's beginning, just where a claim begins to look, so that each claim costs
// more than the one before. So most claims begin where the last one has ended, a little
// before that (floorMargin) for transactions that commit late. What is committed later
// still, or comes back because its claim was rolled back, is found by a sweep, a claim
// that begins at the beginning. Sweeps take a tenth of the time at most: every claim or
// so is one where they are quick, and where they are slow they cost no more than that.
//
// All moments are ages on their way to the server, so that no clock but its own decides:
// "due for no longer than".
type floor struct {
	// mu guards the rest. Nothing waits under it.
	mu sync.Mutex
	// frontier: what was due before it, and to be seen, has been claimed. Zero if nothing
	// is known. By this process's monotonic clock, as all here.
	frontier time.Time
	// sweeps counts those that have ended, so that a claim that began before a sweep moves
	// nothing that the sweep has found.
	sweeps int
	// sweeping says that one is under way; none begins before rested.
	sweeping bool
	rested   time.Time
}

const (
	floorMargin = 500 * time.Millisecond
	sweepShare  = 10 // sweeps take one of so many parts of the time
)

// look is one claim as floor sees it.
type look struct {
	sweep bool
	back  time.Duration // unless it is a sweep: for how long a job may have been due
	began time.Time
	after int // sweeps before it
}

// next says how to look. must asks for a sweep whatever it costs.
func (f *floor) next(must bool) look {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	l := look{began: now, after: f.sweeps}
	if must || f.frontier.IsZero() || !f.sweeping && !now.Before(f.rested) {
		f.sweeping, l.sweep = true, true
		return l
	}
	l.back = max(now.Sub(f.frontier), 0) + floorMargin
	return l
}

// done notes what a look has come to: whether it has found as much as it wanted, and if
// so, for how long the last one that it found had been due.
func (f *floor) done(l look, failed, full bool, lastLag time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l.sweep {
		now := time.Now()
		f.sweeping = false
		f.rested = now.Add((sweepShare - 1) * now.Sub(l.began))
	}
	if failed {
		return
	}
	frontier := l.began
	if full {
		frontier = frontier.Add(-lastLag)
	}
	switch {
	case l.sweep: // also back, to what it was the first to find
		f.sweeps++
		f.frontier = frontier
	case l.after == f.sweeps && frontier.After(f.frontier):
		f.frontier = frontier
	}
}
