package memstore

import "time"

// Raw returns a copy of the bytes stored under a key of the cache of that name,
// false if there is none. It reads like no session: nothing is armed or counted.
func (st *Store) Raw(name, key string) ([]byte, bool) {
	st.mu.Lock()
	defer st.unlock()
	item := read(st.entry(id{name, key}, time.Now()))
	return item.Data, item.Found
}

// PutRaw stores any bytes under a key for ttl, as a stranger does who writes to
// the same server: leases stay, and those who have read the key are told.
func (st *Store) PutRaw(name, key string, data []byte, ttl time.Duration) {
	st.mu.Lock()
	defer st.unlock()
	now, k := time.Now(), id{name, key}
	e := st.makeEntry(k, now)
	st.put(k, e, data, ttl, now)
	st.changed(k, nil)
	st.settle(k, e, now)
}

// Evict removes the value of a key, as a server does that is short of memory. A
// lease stays.
func (st *Store) Evict(name, key string) {
	st.PutRaw(name, key, nil, 0)
}

// DropLease removes the lease and the failure record of a key, as a server does
// that is short of memory. The value stays.
func (st *Store) DropLease(name, key string) {
	st.mu.Lock()
	defer st.unlock()
	now, k := time.Now(), id{name, key}
	if e := st.entry(k, now); e != nil && (e.claim.kind != noClaim || e.memory.found) {
		e.void()
		st.claimChanged(k, nil)
		st.settle(k, e, now)
	}
}

// Flush removes everything: values, leases and failure records. Sessions are
// told that changes may have gone unheard.
func (st *Store) Flush() {
	st.mu.Lock()
	defer st.unlock()
	st.clear()
	st.lose()
}

// Usage is what a store holds at a moment.
type Usage struct {
	Values, Leases    int
	Failures          int // records that block
	Remembered        int // records that do not block any more
	Sessions, Watches int
}

// Usage counts what the store holds, for tests that want to see nothing left.
// Its cost grows with the store.
func (st *Store) Usage() Usage {
	st.mu.Lock()
	defer st.unlock()
	var u Usage
	now := time.Now()
	for k := range st.entries {
		e := st.entry(k, now)
		if e == nil {
			continue
		}
		if e.value.found {
			u.Values++
		}
		switch e.claim.kind {
		case leased:
			u.Leases++
		case failed:
			u.Failures++
		}
		if e.memory.found && e.claim.kind != failed {
			u.Remembered++
		}
	}
	for _, peers := range st.sessions {
		u.Sessions += len(peers)
		for _, s := range peers {
			for _, ws := range s.watches {
				u.Watches += len(ws)
			}
		}
	}
	return u
}
