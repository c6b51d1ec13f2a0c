package redisstore

import (
	"hash/maphash"
	"sync"
	"time"
)

// board is where a Store pins up, by the key of the value or generation, what pushes are
// about: who waits for the end of a lease, and which writes of the own are under way.
//
// Each shard's lock guards its maps and the entries in them. It is held for map
// operations and for closing channels; nothing waits and no event is told under it.
type board struct {
	seed   maphash.Seed
	shards [64]shard
}

type shard struct {
	mu      sync.Mutex
	watches map[string][]*watch
	writes  map[string][]*ownWrite
}

func newBoard() *board {
	b := &board{seed: maphash.MakeSeed()}
	for i := range b.shards {
		b.shards[i].watches = map[string][]*watch{}
		b.shards[i].writes = map[string][]*ownWrite{}
	}
	return b
}

func (b *board) shard(key string) *shard {
	return &b.shards[maphash.String(b.seed, key)%uint64(len(b.shards))]
}

// watch implements store.Watch. It is pinned up from before its acquire is sent
// until it has been woken or stopped, so that no push falls between the answer and
// the waiting.
type watch struct {
	owner *session
	key   string // the value's key
	c     chan struct{}
}

func (w *watch) C() <-chan struct{} { return w.c }

func (w *watch) Stop() {
	s := w.owner.store.board.shard(w.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	unpin(s.watches, w.key, w)
}

func (b *board) watch(owner *session, key string) *watch {
	w := &watch{owner: owner, key: key, c: make(chan struct{})}
	s := b.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches[key] = append(s.watches[key], w)
	return w
}

// wake wakes everybody who waits for a key.
func (b *board) wake(key string) {
	s := b.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.watches[key] {
		close(w.c)
	}
	delete(s.watches, key)
}

// wakeAll wakes everybody, or all of one session.
func (b *board) wakeAll(owner *session) {
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		for key, list := range s.watches {
			for _, w := range list {
				if owner == nil || w.owner == owner {
					close(w.c)
					unpin(s.watches, key, w)
				}
			}
		}
		s.mu.Unlock()
	}
}

// An ownWrite is a Fill, Set, Invalidate or Expire of one key, or the VoidTags of one tag,
// that is under way. The
// server tells us of it as of any change: one push, behind its reply and before the
// reply of the next command, which is a marker that we send for this purpose. So at the
// marker's reply all has been heard, and a push more than the write's own one is
// somebody else's.
//
// Until then the first push is kept from the writing session, which must not take
// its own value for a change. It is kept no longer than ownPushDelay: if the marker
// does not follow at once, the push was somebody else's, or it does no harm to say
// so. Other sessions of the name are told at once.
type ownWrite struct {
	session *session
	of      parsed // the value or generation that is written
	pushes  int
	told    bool
	timer   *time.Timer
}

const ownPushDelay = 20 * time.Millisecond

func (b *board) begin(by *session, of parsed) *ownWrite {
	w := &ownWrite{session: by, of: of}
	s := b.shard(of.full)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes[of.full] = append(s.writes[of.full], w)
	return w
}

// end says that the marker's reply is there (or will never be) and how many pushes
// the write has caused.
func (b *board) end(w *ownWrite, caused int) {
	s := b.shard(w.of.full)
	s.mu.Lock()
	unpin(s.writes, w.of.full, w)
	if w.timer != nil {
		w.timer.Stop()
	}
	tell := w.pushes > caused && !w.told
	s.mu.Unlock()
	if tell {
		w.session.tell(w.of)
	}
}

// defers counts a push on the key of a value or a generation and says whose sessions are
// not to be told of it yet.
func (b *board) defers(full string) []*session {
	s := b.shard(full)
	s.mu.Lock()
	defer s.mu.Unlock()
	var later []*session
	for _, w := range s.writes[full] {
		switch w.pushes++; {
		case w.pushes == 1:
			later = append(later, w.session)
			w.timer = time.AfterFunc(ownPushDelay, func() { b.late(w) })
		default:
			w.told = true
		}
	}
	return later
}

// late tells a session of a push after all.
func (b *board) late(w *ownWrite) {
	s := b.shard(w.of.full)
	s.mu.Lock()
	tell := !w.told
	w.told = true
	s.mu.Unlock()
	if tell {
		w.session.tell(w.of)
	}
}

// unpin removes one entry. The caller holds the lock.
func unpin[T comparable](m map[string][]T, key string, gone T) {
	var kept []T
	for _, each := range m[key] {
		if each != gone {
			kept = append(kept, each)
		}
	}
	if len(kept) == 0 {
		delete(m, key)
		return
	}
	m[key] = kept
}

// counts are for tests: what nobody unpins is a leak.
func (b *board) counts() (watches, writes int) {
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		for _, list := range s.watches {
			watches += len(list)
		}
		for _, list := range s.writes {
			writes += len(list)
		}
		s.mu.Unlock()
	}
	return watches, writes
}
