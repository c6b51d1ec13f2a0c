package memstore

import (
	"bytes"
	"context"
	"time"

	"github.com/onefill/onefill/store"
)

// session implements store.Session. Everything below events is guarded by
// Store.mu.
type session struct {
	st     *Store
	name   string
	owner  string // Config.Owner
	events store.Events

	closed   bool
	armed    map[string]struct{}            // keys whose next change is told
	watches  map[string]map[*watch]struct{} // by key
	queue    []event                        // not told yet
	draining bool                           // a goroutine is telling
}

func (s *session) id(key string) id { return id{s.name, key} }

// do runs one operation of the session; see Store.do.
func (s *session) do(ctx context.Context, kind Kind, key string, apply func(now time.Time)) error {
	if err := s.open(kind); err != nil {
		return err
	}
	if err := s.st.checkSize(kind, key, nil); err != nil {
		return err
	}
	return s.st.do(ctx, Op{Kind: kind, Name: s.name, Key: key}, apply)
}

func (s *session) open(kind Kind) error {
	s.st.mu.Lock()
	defer s.st.mu.Unlock()
	if s.closed {
		return fail(kind, ErrClosed)
	}
	return nil
}

// Features implements store.Session.
func (s *session) Features() store.Features { return s.st.features() }

// Get implements store.Session.
func (s *session) Get(ctx context.Context, key string) (store.Item, error) {
	var item store.Item
	err := s.do(ctx, OpGet, key, func(now time.Time) {
		item = read(s.st.entry(s.id(key), now))
		s.arm(key)
	})
	if err != nil {
		return store.Item{}, err
	}
	return item, nil
}

// read returns a copy of the value, as a server does.
func read(e *entry) store.Item {
	if e == nil || !e.value.found {
		return store.Item{}
	}
	return store.Item{Data: append([]byte{}, e.value.data...), Found: true}
}

// GetMany implements store.ManyReader.
func (s *session) GetMany(ctx context.Context, keys []string) ([]store.Item, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	for _, key := range keys {
		if err := s.st.checkSize(OpGetMany, key, nil); err != nil {
			return nil, err
		}
	}
	items := make([]store.Item, len(keys))
	err := s.do(ctx, OpGetMany, keys[0], func(now time.Time) {
		for i, key := range keys {
			items[i] = read(s.st.entry(s.id(key), now))
			s.arm(key)
		}
	})
	if err != nil {
		return nil, err
	}
	return items, nil
}

// Acquire implements store.Session.
func (s *session) Acquire(ctx context.Context, key string, req store.Request) (store.Answer, error) {
	var answer store.Answer
	err := s.do(ctx, OpAcquire, key, func(now time.Time) {
		answer = s.acquire(key, req, now)
		s.arm(key)
	})
	if err != nil {
		if answer.Watch != nil { // the reply was lost, nobody can stop it later
			answer.Watch.Stop()
		}
		return store.Answer{}, err
	}
	return answer, nil
}

func (s *session) acquire(key string, req store.Request, now time.Time) store.Answer {
	k := s.id(key)
	e := s.st.makeEntry(k, now)
	defer s.st.settle(k, e, now)
	item := read(e)
	if item.Found && !store.SameMark(req.Seen, item.Data) {
		return store.Answer{State: store.Hit, Item: item}
	}
	switch {
	case e.claim.kind == failed:
		return store.Answer{State: store.Failed, Item: item,
			Failure: bytes.Clone(e.memory.record), Remaining: remaining(e.claim.until, now)}
	case e.claim.kind == leased && (e.claim.owner.token != req.Token || s.st.options.ForgetsToken):
		return store.Answer{State: store.Held, Item: item,
			Remaining: remaining(e.claim.until, now), Watch: s.watch(key)}
	}
	mine := owner{req.Token, req.Try}
	// An attempt that comes behind a later one of its flight changes nothing, and the
	// lease that it gets can do nothing: it is not the owner's.
	if e.claim.kind != leased || e.claim.owner.try <= req.Try {
		e.claim = claim{kind: leased, owner: mine, by: s.owner, until: s.st.leaseDeadline(now, req.TTL)}
	}
	return store.Answer{State: store.Won, Item: item, Lease: &lease{s: s, key: key, owner: mine},
		Failure: bytes.Clone(e.memory.record)}
}

// Set implements store.Session. With a ttl of 0 or less the value is gone at
// once, as if it had been invalidated.
func (s *session) Set(ctx context.Context, key string, data []byte, ttl time.Duration) (bool, error) {
	if err := s.st.checkSize(OpSet, key, data); err != nil {
		return false, err
	}
	stored := false
	err := s.do(ctx, OpSet, key, func(now time.Time) {
		e := s.st.makeEntry(s.id(key), now)
		e.void()
		stored = s.write(key, e, data, ttl, now)
	})
	return stored && err == nil, err
}

// write puts a value in unless the stored one is of a newer row version, and
// tells those who have to know. The caller has ended the claim.
func (s *session) write(key string, e *entry, data []byte, ttl time.Duration, now time.Time) bool {
	k := s.id(key)
	defer s.st.settle(k, e, now)
	if mine := store.RowVersionOf(data); mine != 0 && e.value.found && store.RowVersionOf(e.value.data) > mine {
		s.st.claimChanged(k, s)
		return false
	}
	s.st.put(k, e, data, ttl, now)
	s.st.changed(k, s)
	s.arm(key)
	return true
}

// put replaces the value of an entry; a ttl of 0 or less removes it.
func (st *Store) put(k id, e *entry, data []byte, ttl time.Duration, now time.Time) {
	if ttl <= 0 {
		st.setValue(e, value{})
		return
	}
	st.setValue(e, value{data: bytes.Clone(data), found: true, until: st.deadline(now, ttl)})
	st.makeRoom(k, now)
}

// Invalidate implements store.Session. Each key is an operation of its own, with
// its own fault and its own count; the first error ends it.
func (s *session) Invalidate(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		err := s.do(ctx, OpInvalidate, key, func(now time.Time) {
			k := s.id(key)
			e := s.st.makeEntry(k, now)
			s.st.setValue(e, value{})
			e.void()
			s.st.changed(k, s)
			s.st.settle(k, e, now)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Expire implements store.Session. Each key is an operation of its own, as with
// Invalidate.
func (s *session) Expire(ctx context.Context, softExpiry time.Time, keys ...string) error {
	for _, key := range keys {
		err := s.do(ctx, OpExpire, key, func(now time.Time) {
			k := s.id(key)
			e := s.st.makeEntry(k, now)
			e.void()
			if data, ok := store.Expired(e.value.data, softExpiry); ok {
				e.value.data = data
			} else {
				s.st.setValue(e, value{})
			}
			s.st.changed(k, s)
			s.st.settle(k, e, now)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Ping implements store.Session.
func (s *session) Ping(ctx context.Context) error {
	return s.do(ctx, OpPing, "", func(time.Time) {})
}

// Close implements store.Session. Closing twice is fine. An event that another
// goroutine is telling at that moment may still end after Close.
func (s *session) Close() error {
	st := s.st
	st.mu.Lock()
	defer st.unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.armed, s.queue = nil, nil
	s.disarmTags()
	s.wakeAll()
	peers := st.sessions[s.name]
	left := make([]*session, 0, len(peers))
	for _, p := range peers {
		if p != s {
			left = append(left, p)
		}
	}
	if st.sessions[s.name] = left; len(left) == 0 {
		delete(st.sessions, s.name)
	}
	return nil
}
