package watch

import "sync"

// stream hands the groups to those who listen. Nobody is waited for: who does not take what
// there is, is cut off.
type stream struct {
	mu        sync.Mutex // guards all of it; nothing blocks under it
	listeners map[*listener]struct{}
	closed    bool
}

// listener is one stream that is being read. groups is closed when it is over.
type listener struct{ groups chan Group }

// kept is how many groups wait for a listener before it counts as too slow.
const kept = 1024

// mostListeners bounds what streams cost.
const mostListeners = 32

// listen begins a stream; nil: there are too many.
func (s *stream) listen() *listener {
	l := &listener{groups: make(chan Group, kept)}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		close(l.groups)
		return l
	case len(s.listeners) >= mostListeners:
		return nil
	case s.listeners == nil:
		s.listeners = make(map[*listener]struct{})
	}
	s.listeners[l] = struct{}{}
	return l
}

func (s *stream) leave(l *listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listeners, l)
}

func (s *stream) tell(g Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.listeners {
		select {
		case l.groups <- g:
		default:
			close(l.groups)
			delete(s.listeners, l)
		}
	}
}

func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for l := range s.listeners {
		close(l.groups)
		delete(s.listeners, l)
	}
}

// Followers is how many streams are open.
func (r *Recorder) Followers() int {
	r.stream.mu.Lock()
	defer r.stream.mu.Unlock()
	return len(r.stream.listeners)
}
