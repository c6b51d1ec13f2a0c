package local

import (
	"sync"
	"sync/atomic"

	"github.com/maypok86/otter/v2"
)

// What has expired, or was pushed away, is not served, and is replaced by the next load of its
// key. What is never asked for again would lie there until the policy evicts it: in a cache
// that is larger than what is in use, for ever. So after as many puts as there are entries, a
// sweep walks over all of them and drops what has ended. Each put pays for the look at one
// entry or two, and there are never more entries that have ended than were alive at the last
// sweep and have been put since, which is about as many again. Without puts there is no sweep.

// sweepAfter is the least number of puts between two sweeps.
const sweepAfter = 1024

type sweeper struct {
	left    atomic.Int64 // puts until the next sweep; below 0 while one is due or runs
	mu      sync.Mutex   // held by a sweep, and by stop
	stopped atomic.Bool
}

// maySweep counts a put, and begins a sweep in a goroutine of its own if one is due: a put is
// made under the lock of the key's flights.
func (c *Cache[K, V]) maySweep() {
	if c.sweeper.left.Add(-1) == 0 {
		go c.sweep()
	}
}

func (c *Cache[K, V]) sweep() {
	s := &c.sweeper
	s.mu.Lock()
	defer s.mu.Unlock()
	now := c.Now()
	for k, e := range c.otter.All() {
		if s.stopped.Load() {
			return
		}
		if kept, _ := c.Kept(e, now); kept == nil {
			c.dropIf(k, e)
		}
	}
	s.left.Store(max(int64(c.otter.EstimatedSize()), sweepAfter))
}

// dropIf drops the entry of k if it is e still.
func (c *Cache[K, V]) dropIf(k K, e *Entry[V]) {
	c.otter.ComputeIfPresent(k, func(there *Entry[V]) (*Entry[V], otter.ComputeOp) {
		if there == e {
			return nil, otter.InvalidateOp
		}
		return nil, otter.CancelOp
	})
}

// stop ends a sweep that runs, and lets none do anything from now on.
func (s *sweeper) stop() {
	s.stopped.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock() // a sweep that was running has returned
}
