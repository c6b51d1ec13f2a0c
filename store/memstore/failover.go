package memstore

import (
	"maps"
	"time"
)

// Snapshot is what a store held at a moment, as a replica has it that has heard of
// nothing since. It never changes.
type Snapshot struct {
	entries     map[id]entry
	values      int
	epochs      map[string]uint64
	generations map[id]generation
}

// Snapshot copies what the store holds now: values, leases and failure records, with
// the moments at which they end. Its cost grows with the store.
func (st *Store) Snapshot() *Snapshot {
	st.mu.Lock()
	defer st.unlock()
	return &Snapshot{entries: copyEntries(st.entries), values: st.values,
		epochs: maps.Clone(st.tags.epochs), generations: maps.Clone(st.tags.generations)}
}

func copyEntries(entries map[id]*entry) map[id]entry {
	copied := make(map[id]entry, len(entries))
	for k, e := range entries {
		copied[k] = entry{value: e.value, claim: e.claim, memory: e.memory} // the timer is the store's
	}
	return copied
}

// Failover does what happens when a primary dies and a replica that lags takes its
// place: the store goes back to what it held at the snapshot, less what has expired
// since, and nothing that was written after that has ever been. Sessions lose the
// pushes that are on their way, held ones too, their watches wake, and they are told
// Lost and then Replaced, which a store with Options.NoPush does too. Operations that
// are not applied by then wait until every session has been told: whatever they are
// answered by the server that has come, they are answered after that.
//
// Failover returns when that server answers. The snapshot can be used again.
func (st *Store) Failover(to *Snapshot) {
	st.mu.Lock()
	for st.failover != nil { // one at a time
		over := st.failover
		st.mu.Unlock()
		<-over
		st.mu.Lock()
	}
	over := make(chan struct{})
	st.failover = over
	clear(st.tags.armed)
	clear(st.tags.awaiting)
	var all []*session
	for _, peers := range st.sessions {
		for _, s := range peers {
			clear(s.armed)
			s.queue = nil
			s.wakeAll()
			all = append(all, s)
		}
	}
	st.unlock()

	defer func() { // also when a session's function panics
		st.mu.Lock()
		defer st.unlock()
		st.restore(to)
		st.failover = nil
		close(over)
	}()
	for _, s := range all {
		s.replaced()
	}
}

// replaced tells a session of a failover.
func (s *session) replaced() {
	s.st.mu.Lock()
	closed := s.closed
	s.st.mu.Unlock()
	if closed {
		return
	}
	if s.events.Lost != nil {
		s.events.Lost()
	}
	if s.events.Replaced != nil {
		s.events.Replaced()
	}
}

// restore replaces everything that is stored.
func (st *Store) restore(to *Snapshot) {
	st.clear()
	now := time.Now()
	for k, e := range to.entries {
		copied := e
		st.entries[k] = &copied
	}
	st.values = to.values
	st.tags.epochs, st.tags.generations = maps.Clone(to.epochs), maps.Clone(to.generations)
	for k := range to.entries {
		if e := st.entry(k, now); e != nil {
			st.settle(k, e, now)
		}
	}
}

// clear removes everything that is stored and tells nobody.
func (st *Store) clear() {
	for _, e := range st.entries {
		e.setTimer(time.Time{}, 0, nil)
	}
	clear(st.entries)
	clear(st.tags.epochs)
	clear(st.tags.generations)
	st.values = 0
}
