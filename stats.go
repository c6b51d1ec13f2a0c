package onefill

import (
	"sync/atomic"
	"unsafe"
)

// Stats are counters since New, and gauges of this moment. Each counts one thing.
type Stats struct {
	LocalHits       uint64 // calls answered from local with a fresh value
	StoreHits       uint64 // flights answered by a fresh value in the store
	Loads           uint64 // calls of the loader
	Coalesced       uint64 // calls that joined another call's flight
	LeaseWaits      uint64 // flights that waited for a load in another flight or process
	Fills           uint64 // loaded values that the store accepted
	FillsRefused    uint64 // loaded values that the store refused: their lease was lost
	LeasesLost      uint64 // leases that were found lost while the load ran
	NotFound        uint64 // calls answered by ErrNotFound
	StaleServed     uint64 // calls answered with a stale value
	Refreshes       uint64 // background flights begun for a stale value
	RefreshesFailed uint64 // background flights that brought nothing
	EarlyRefreshes  uint64 // background flights begun before the value's expiry
	LoadErrors      uint64 // loads that failed, panics included, ErrNotFound not
	Panics          uint64 // loads that panicked or called runtime.Goexit
	LoadsAbandoned  uint64 // loads whose loader had not returned after LoadTimeout
	SharedFailures  uint64 // flights answered by the remembered failure of another load
	WaitTimeouts    uint64 // calls that ended with ErrWaitTimeout
	OriginBusy      uint64 // flights that got no place at the origin in time
	StoreErrors     uint64 // operations of the store that failed
	Replayed        uint64 // writes of keys and tags repeated after an outage or a failover
	Undecodable     uint64 // stored entries that could not be read
	Unstorable      uint64 // loaded values that could not be encoded or were too large

	BusPublished uint64 // messages about writes that the Bus has taken
	BusHeard     uint64 // messages about writes of other processes
	BusGaps      uint64 // times that all of local was taken for old, as something may have gone unheard
	BusErrors    uint64 // attempts to publish a message that failed
	BusForeign   uint64 // messages that could not be understood

	LoadsInFlight  int    // places at the origin in use
	LoadLimit      int    // places at the origin now: from MaxLoadsDegraded to MaxLoads
	LoadsWaiting   int    // flights that wait for a place
	LoadsStray     int    // loads that were left behind and whose loader still runs
	ReplaysWaiting int    // keys and tags whose write failed, and is to be repeated
	LocalEntries   int    // in local, including some that have expired
	LocalBytes     uint64 // what they weigh, where Local.MaxBytes is set
	StoreDown      bool   // the store, or one of its servers, is unreachable
}

type counters struct {
	localHits striped

	storeHits, loads, coalesced, leaseWaits, fills, fillsRefused, leasesLost,
	notFound, staleServed, refreshes, earlyRefreshes, loadErrors, panics,
	abandoned, sharedFailures, waitTimeouts, originBusy, storeErrors,
	undecodable, unstorable, replayed, refreshesFailed atomic.Uint64
}

// striped is a counter for the hot path: each hit goes to one of a few cells, each
// in a cache line of its own, so that readers on different cores do not meet. Where the
// caller's stack lies picks the cell, so that a goroutine stays with one, whose cache line
// stays with its core: with a die to pick it, each hit would wait for a line that another
// core has written last.
type striped [1 << stripedBits]struct {
	n atomic.Uint64
	_ [56]byte
}

const (
	stripedBits = 6
	stackBits   = 11 // of the smallest stack's size
)

// inc returns how many its cell has counted.
func (s *striped) inc() uint64 {
	var here byte
	return s[spread(uint64(uintptr(unsafe.Pointer(&here)))>>stackBits, stripedBits)].n.Add(1)
}

// spread deals numbers evenly to 1<<bits places, also if they grow by the same step each time.
func spread(x uint64, bits int) uint64 {
	const goldenRatio = 0x9E3779B97F4A7C15 // of 1<<64
	return x * goldenRatio >> (64 - bits)
}

func (s *striped) load() (n uint64) {
	for i := range s {
		n += s[i].n.Load()
	}
	return n
}

// Stats returns the counters.
func (c *Cache[K, V]) Stats() Stats {
	n := &c.stats
	s := Stats{
		LocalHits:       n.localHits.load(),
		StoreHits:       n.storeHits.Load(),
		Loads:           n.loads.Load(),
		Coalesced:       n.coalesced.Load(),
		LeaseWaits:      n.leaseWaits.Load(),
		Fills:           n.fills.Load(),
		FillsRefused:    n.fillsRefused.Load(),
		LeasesLost:      n.leasesLost.Load(),
		NotFound:        n.notFound.Load(),
		StaleServed:     n.staleServed.Load(),
		Refreshes:       n.refreshes.Load(),
		EarlyRefreshes:  n.earlyRefreshes.Load(),
		LoadErrors:      n.loadErrors.Load(),
		Panics:          n.panics.Load(),
		LoadsAbandoned:  n.abandoned.Load(),
		SharedFailures:  n.sharedFailures.Load(),
		WaitTimeouts:    n.waitTimeouts.Load(),
		OriginBusy:      n.originBusy.Load(),
		StoreErrors:     n.storeErrors.Load(),
		Undecodable:     n.undecodable.Load(),
		Unstorable:      n.unstorable.Load(),
		Replayed:        n.replayed.Load(),
		RefreshesFailed: n.refreshesFailed.Load(),
		LocalBytes:      c.local.Weight(),
		LocalEntries:    c.local.Len(),
	}
	if b := c.bus; b != nil {
		s.BusPublished, s.BusHeard, s.BusGaps = b.published.Load(), b.heard.Load(), b.gaps.Load()
		s.BusErrors, s.BusForeign = b.errors.Load(), b.foreign.Load()
	}
	at := c.slots.State()
	s.LoadsInFlight, s.LoadLimit, s.LoadsWaiting, s.LoadsStray = at.Used, at.Limit, at.Waiting, at.Strays
	if c.remote != nil {
		s.StoreDown, s.ReplaysWaiting = c.remote.down(), c.debts.count()
	}
	return s
}
