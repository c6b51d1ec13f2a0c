package memstore

import (
	"sync"

	"github.com/onefill/onefill/store"
)

// event is one push to one session.
type event struct {
	kind eventKind
	key  string
}

type eventKind uint8

const (
	valueChanged eventKind = iota // of a key: Changed, and its watches wake
	leaseChanged                  // of a key: its watches wake
	lost                          // Lost, and all watches wake
	tagVoided                     // Voided, of a tag
	epochRaised                   // Raised
)

// arm makes the session hear of the next change of the key, once.
func (s *session) arm(key string) {
	if s.st.options.NoPush || s.closed {
		return
	}
	if _, ok := s.armed[key]; !ok && len(s.armed) >= s.st.options.MaxTracked {
		for other := range s.armed { // any: a push too many costs a reload, no more
			delete(s.armed, other)
			s.tell(event{valueChanged, other})
			break
		}
	}
	s.armed[key] = struct{}{}
}

// changed tells everybody but the writer (nil: the server itself) that a value
// has changed. The writer is woken, and its arming is used up: it has written,
// so what it had read is history.
func (st *Store) changed(k id, writer *session) {
	if st.options.NoPush {
		return
	}
	for _, s := range st.sessions[k.name] {
		_, armed := s.armed[k.key]
		delete(s.armed, k.key)
		switch {
		case s == writer:
			s.wake(k.key)
		case armed:
			s.tell(event{valueChanged, k.key})
		case len(s.watches[k.key]) > 0:
			s.tell(event{leaseChanged, k.key})
		}
	}
}

// claimChanged wakes everybody who waits for somebody else's lease of the key.
// The writer's own process needs no push for that.
func (st *Store) claimChanged(k id, writer *session) {
	for _, s := range st.sessions[k.name] {
		switch {
		case len(s.watches[k.key]) == 0:
		case s == writer:
			s.wake(k.key)
		default:
			s.tell(event{leaseChanged, k.key})
		}
	}
}

// lose tells every session that changes may have gone unheard.
func (st *Store) lose() {
	if st.options.NoPush {
		return
	}
	clear(st.tags.armed)
	clear(st.tags.awaiting)
	for _, peers := range st.sessions {
		for _, s := range peers {
			clear(s.armed)
			s.tell(event{kind: lost})
		}
	}
}

// tell queues a push; Store.unlock delivers it.
func (s *session) tell(ev event) {
	s.queue = append(s.queue, ev)
	s.st.dirty = append(s.st.dirty, s)
}

// drain delivers the session's pushes in order. One goroutine does it at a time;
// another one leaves its pushes to it.
func (s *session) drain() {
	st := s.st
	st.mu.Lock()
	defer st.mu.Unlock()
	if s.draining {
		return
	}
	s.draining = true
	defer func() { s.draining = false }()
	for len(s.queue) > 0 && !st.held {
		ev := s.queue[0]
		s.queue = s.queue[1:]
		switch ev.kind {
		case lost:
			s.wakeAll()
		case valueChanged, leaseChanged:
			s.wake(ev.key)
		}
		s.call(ev)
	}
}

// call runs the user's function without the lock, also when it panics.
func (s *session) call(ev event) {
	s.st.mu.Unlock()
	defer s.st.mu.Lock()
	switch {
	case ev.kind == valueChanged && s.events.Changed != nil:
		s.events.Changed(ev.key)
	case ev.kind == lost && s.events.Lost != nil:
		s.events.Lost()
	case ev.kind == tagVoided && s.events.Voided != nil:
		s.events.Voided(ev.key)
	case ev.kind == epochRaised && s.events.Raised != nil:
		s.events.Raised()
	}
}

// watch implements store.Watch.
type watch struct {
	s    *session
	key  string
	c    chan struct{}
	once sync.Once // closes c
}

// watch subscribes to the key; nil where nothing is pushed.
func (s *session) watch(key string) store.Watch {
	if s.st.options.NoPush {
		return nil
	}
	w := &watch{s: s, key: key, c: make(chan struct{})}
	if s.closed {
		w.fire()
		return w
	}
	if s.watches[key] == nil {
		s.watches[key] = make(map[*watch]struct{})
	}
	s.watches[key][w] = struct{}{}
	return w
}

func (w *watch) fire() { w.once.Do(func() { close(w.c) }) }

// C implements store.Watch.
func (w *watch) C() <-chan struct{} { return w.c }

// Stop implements store.Watch.
func (w *watch) Stop() {
	w.s.st.mu.Lock()
	defer w.s.st.mu.Unlock()
	peers := w.s.watches[w.key]
	delete(peers, w)
	if len(peers) == 0 {
		delete(w.s.watches, w.key)
	}
}

// wake ends the watches of a key.
func (s *session) wake(key string) {
	for w := range s.watches[key] {
		w.fire()
	}
	delete(s.watches, key)
}

func (s *session) wakeAll() {
	for key := range s.watches {
		s.wake(key)
	}
}
