package memstore

import (
	"math"
	"time"

	"github.com/onefill/onefill/store"
)

// entry is what the store holds under a key. All of it is guarded by Store.mu.
type entry struct {
	value  value
	claim  claim
	memory memory
	// timer fires at wakeAt, the earliest moment at which something here ends.
	timer  *time.Timer
	wakeAt time.Time
}

// value is a stored value. data is never changed in place.
type value struct {
	data  []byte
	found bool
	until time.Time // zero: for ever
}

// claim is a lease, or says that the last load failed; a key has at most one of them.
type claim struct {
	kind  claimKind
	owner owner     // of a lease
	by    string    // of a lease: the session's Config.Owner, which decides nothing
	until time.Time // zero: for ever
}

// owner is whose lease it is: that of one attempt of one flight.
type owner struct {
	token store.Token
	try   uint32
}

// memory is the record of the last failure. It outlasts the claim that it comes
// with, and the lease of whoever tries next: only a write forgets it.
type memory struct {
	record []byte
	found  bool
	until  time.Time // zero: for ever
}

type claimKind uint8

const (
	noClaim claimKind = iota
	leased
	failed
)

// entry returns the entry of a key after it has removed what has expired, nil if
// nothing is left.
func (st *Store) entry(k id, now time.Time) *entry {
	e := st.entries[k]
	if e == nil {
		return nil
	}
	valueOver, claimOver, memoryOver := over(e.value.until, now), over(e.claim.until, now), over(e.memory.until, now)
	if !valueOver && !claimOver && !memoryOver {
		return e
	}
	if valueOver {
		st.setValue(e, value{})
		st.changed(k, nil)
	}
	if claimOver {
		e.claim = claim{}
		st.claimChanged(k, nil)
	}
	if memoryOver {
		e.memory = memory{}
	}
	st.settle(k, e, now)
	return st.entries[k]
}

// setValue replaces the value of an entry and counts the values.
func (st *Store) setValue(e *entry, v value) {
	if e.value.found {
		st.values--
	}
	if v.found {
		st.values++
	}
	e.value = v
}

// makeRoom removes values of other keys, whichever come first, while there are
// too many.
func (st *Store) makeRoom(k id, now time.Time) {
	if st.values <= st.options.MaxValues {
		return
	}
	for other, e := range st.entries { // in random order, says the language
		if other != k && e.value.found {
			st.setValue(e, value{})
			st.changed(other, nil)
			st.settle(other, e, now)
			if st.values <= st.options.MaxValues {
				return
			}
		}
	}
}

// makeEntry returns the entry of a key, a new one if there is none.
func (st *Store) makeEntry(k id, now time.Time) *entry {
	e := st.entry(k, now)
	if e == nil {
		e = &entry{}
		st.entries[k] = e
	}
	return e
}

// settle is called after every change of an entry: it drops an empty one and
// sets the timer of another one.
func (st *Store) settle(k id, e *entry, now time.Time) {
	if !e.value.found && e.claim.kind == noClaim && !e.memory.found {
		e.setTimer(time.Time{}, 0, nil)
		delete(st.entries, k)
		return
	}
	next := earlier(earlier(e.value.until, e.claim.until), e.memory.until)
	e.setTimer(next, next.Sub(now), func() {
		st.mu.Lock()
		defer st.unlock()
		if st.entries[k] != e {
			return
		}
		e.wakeAt = time.Time{} // it has fired: settle must set it again
		now := time.Now()
		if st.entry(k, now) == e {
			st.settle(k, e, now)
		}
	})
}

// void ends the lease or the failure of a key and forgets the record, as every
// write does.
func (e *entry) void() { e.claim, e.memory = claim{}, memory{} }

func (e *entry) setTimer(at time.Time, in time.Duration, f func()) {
	if at.Equal(e.wakeAt) {
		return
	}
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	if e.wakeAt = at; !at.IsZero() {
		e.timer = time.AfterFunc(in, f)
	}
}

// over says whether a deadline has passed.
func over(until, now time.Time) bool { return !until.IsZero() && !now.Before(until) }

// earlier returns the earlier of two deadlines, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// deadline is the moment ttl from now, rounded up to the granularity; zero, for
// ever, for the longest ttl there is.
func (st *Store) deadline(now time.Time, ttl time.Duration) time.Time {
	if g := st.options.Granularity; g > 0 {
		if rest := ttl % g; rest > 0 {
			if ttl > math.MaxInt64-(g-rest) {
				ttl = math.MaxInt64
			} else {
				ttl += g - rest
			}
		}
	}
	if ttl == math.MaxInt64 {
		return time.Time{}
	}
	return now.Add(ttl)
}

// leaseDeadline is deadline for leases, which are never shorter than MinLease.
func (st *Store) leaseDeadline(now time.Time, ttl time.Duration) time.Time {
	return st.deadline(now, max(ttl, st.options.MinLease))
}

// remaining is how long until is away, 0 if it never comes.
func remaining(until, now time.Time) time.Duration {
	if until.IsZero() {
		return 0
	}
	return until.Sub(now)
}
