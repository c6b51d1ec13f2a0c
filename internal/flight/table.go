// Package flight keeps the in-flight misses of one cache: who leads, who may
// join, and whose result may still be published.
//
// A flight is one miss of one key in one process. Everybody who misses while it
// is in the table joins it. The table decides three things, each in one place
// and under the lock of the key's shard:
//
//   - who may join: [Table.Join]. A flight can be joined until its result is
//     visible in local, unless what it carries may have become old: a push on
//     its key takes it out of the table ([Table.Changed]), unless it waits for
//     somebody else's load and so carries nothing; this process's own write takes
//     it out in any case ([Table.BeginWrite]); and at last its age does.
//   - whose result may be published: [Table.Land]. Not that of a flight that was
//     in the air when this process wrote the key, in the table or not: the voids
//     are counted per key as long as any flight or write of the key is alive.
//     What others wrote is the business of the local cache's stamps.
//   - what a finished flight leaves behind: nothing, and it removes nothing but
//     itself.
//
// Nothing blocks under the lock, and no user code runs under it.
package flight

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

const shards = 64

// lastID is the ID of the flight that began last, in whatever table of the process.
var lastID atomic.Uint64

// Table holds the flights of one cache. R is the result that all who joined get.
type Table[R any] struct {
	seed   maphash.Seed
	now    func() int64
	shards [shards]shard[R]
}

type shard[R any] struct {
	mu   sync.Mutex
	keys map[string]*key[R] // guarded by mu
	_    [40]byte           // a shard's lock does not share its cache line with the next one's
}

// key is what is known of one key while a flight or a write of it is alive. All
// fields are guarded by the shard's lock.
type key[R any] struct {
	current *Flight[R] // the flight that can be joined, or nil
	alive   int        // flights and writes that have not ended
	voids   uint64     // begun and ended writes of this process
	spare   *Flight[R] // the memory of the first flight, until it begins
}

// Flight is one miss. Its leader calls Land once; everybody waits on Done.
type Flight[R any] struct {
	ID   uint64 // unique in the process
	Key  string
	Node Node // for the detection of cycles of loads
	// Background: whoever began it does not wait for it. It never changes.
	Background bool
	// Interim is what a flight in the background is to replace: callers who may be
	// given that need not wait. Nil for the flight of a miss. It never changes.
	Interim *R

	done    chan struct{} // made under the shard's lock when somebody is to wait
	result  R             // written before done is closed, read after
	until   atomic.Int64  // the latest moment for which anybody waits
	born    int64
	shard   *shard[R] // of the key
	key     *key[R]
	voids   uint64 // of the key, when the flight began
	waiting bool   // guarded by the shard's lock: waits for somebody else's load
	callers int    // guarded by the shard's lock: who has joined, the leader included
}

// Call is what a caller wants of a flight.
type Call[R any] struct {
	// Now is the moment of the call.
	Now int64
	// Until is the moment for which the caller will wait.
	Until int64
	// MaxAge: an older flight is not joined, unless it waits. Pushes take a flight whose
	// key has changed out of the table long before, but pushes can be swallowed unnoticed;
	// so a join stays within the bound of local staleness whatever happens to them.
	MaxAge time.Duration
	// Room may be given for a new flight, once: whoever joins many makes one piece of memory
	// for all.
	Room *Room[R]
	// Background: the caller, if it leads, does not wait.
	Background bool
	// Accept says whether the caller may be given the Interim of a refresh. A refresh
	// whose interim is not accepted is not joined: its load may take long, and the
	// store may have a value that can be served meanwhile. Nil: joined all the same.
	Accept func(*R) bool
	// Interim gives a new flight its Interim. Nil: it has none.
	Interim func() *R
}

// NewTable returns an empty table. now is the clock of all moments.
func NewTable[R any](now func() int64) *Table[R] {
	t := &Table[R]{seed: maphash.MakeSeed(), now: now}
	for i := range t.shards {
		t.shards[i].keys = make(map[string]*key[R])
	}
	return t
}

func (t *Table[R]) shard(k string) *shard[R] {
	return &t.shards[maphash.String(t.seed, k)%shards]
}

// Room is the memory of a key's state and of its first flight, which most keys have only
// one of.
type Room[R any] struct {
	key    key[R]
	flight Flight[R]
}

// hold returns the key's state, in room if it is new, and counts the caller in. The lock is
// held.
func (s *shard[R]) hold(k string, room *Room[R]) *key[R] {
	ks := s.keys[k]
	if ks == nil {
		if room == nil {
			room = &Room[R]{}
		}
		ks = &room.key
		ks.spare = &room.flight
		s.keys[k] = ks
	}
	ks.alive++
	return ks
}

// drop is the opposite of hold.
func (s *shard[R]) drop(k string, ks *key[R]) {
	if ks.alive--; ks.alive == 0 {
		delete(s.keys, k)
	}
}

// Join returns the flight of k that can be joined or, with leads, a new one that
// the caller must run and Land. The flight will wait until the caller's moment at
// least, as far as it waits at all. The call's functions run under the lock.
func (t *Table[R]) Join(k string, call Call[R]) (f *Flight[R], leads bool) {
	s := t.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if ks := s.keys[k]; ks != nil && ks.current != nil && ks.current.joinable(&call) {
		ks.current.Extend(call.Until)
		ks.current.open()
		ks.current.callers++
		return ks.current, false
	}
	f = s.begin(k, s.hold(k, call.Room), call.Now)
	f.Background, f.callers = call.Background, 1
	if call.Interim != nil {
		f.Interim = call.Interim()
	}
	f.until.Store(call.Until)
	return f, true
}

func (f *Flight[R]) joinable(call *Call[R]) bool {
	if f.Interim != nil && call.Accept != nil && !call.Accept(f.Interim) {
		return false
	}
	return f.waiting || time.Duration(call.Now-f.born) <= call.MaxAge
}

// begin makes the flight that can be joined from now on. The lock is held.
func (s *shard[R]) begin(k string, ks *key[R], now int64) *Flight[R] {
	f := ks.spare
	if ks.spare = nil; f == nil {
		f = &Flight[R]{}
	}
	f.ID, f.Key, f.born, f.shard, f.key, f.voids = lastID.Add(1), k, now, s, ks, ks.voids
	ks.current = f
	return f
}

// Extend moves the moment until which the flight waits, if it is later.
func (f *Flight[R]) Extend(until int64) {
	for {
		old := f.until.Load()
		if until <= old || f.until.CompareAndSwap(old, until) {
			return
		}
	}
}

// Until is the latest moment for which anybody who joined will wait.
func (f *Flight[R]) Until() int64 { return f.until.Load() }

// open makes the channel on which others wait. The lock is held.
func (f *Flight[R]) open() {
	if f.done == nil {
		f.done = make(chan struct{})
	}
}

// Open readies the flight for Done: its leader calls it before it waits itself. A
// leader that lands the flight without having waited needs no channel.
func (t *Table[R]) Open(f *Flight[R]) {
	s := f.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	f.open()
}

// Done is closed when the flight has landed.
func (f *Flight[R]) Done() <-chan struct{} { return f.done }

// Age is how long ago the flight began.
func (f *Flight[R]) Age(now int64) time.Duration { return time.Duration(now - f.born) }

// Callers is how many have joined the flight, its leader included. It may be called
// after Land.
func (f *Flight[R]) Callers() int { return f.callers }

// Result is what the flight came back with. It may be called after Done.
func (f *Flight[R]) Result() R { return f.result }

// SetWaiting says whether the flight waits for somebody else's load. While it
// does it carries no data, and pushes leave it in the table. It is set when the
// store has said "held", and cleared before the store is asked again.
func (t *Table[R]) SetWaiting(f *Flight[R], waiting bool) {
	s := f.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	f.waiting = waiting
}

// Leave takes the flight out of the table before it lands, so that Until is final.
func (t *Table[R]) Leave(f *Flight[R]) {
	s := f.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.key.current == f {
		f.key.current = nil
	}
}

// Land ends the flight with its result. If nothing of this process has voided
// the flight, publish is called, under the lock, to make the result visible in
// local: in the same step in which the flight leaves the table, so that nobody
// can miss both. It may be nil.
//
// If interim is given and the flight could be joined until now, the flight of a
// refresh follows in the same step, with that interim, and the caller must run and
// Land it: nobody comes in between who would neither find the value nor the refresh.
func (t *Table[R]) Land(f *Flight[R], result R, publish func(), interim *R) (next *Flight[R]) {
	s := f.shard
	s.mu.Lock()
	f.result = result
	if publish != nil && f.voids == f.key.voids {
		publish()
	}
	if f.key.current == f {
		f.key.current = nil
		if interim != nil {
			s.hold(f.Key, nil)
			next = s.begin(f.Key, f.key, t.now())
			next.Interim, next.Background = interim, true
			next.until.Store(f.Until())
		}
	}
	s.drop(f.Key, f.key)
	done := f.done
	s.mu.Unlock()
	if done != nil {
		close(done)
	}
	return next
}

// Changed says that somebody else has changed the key. The flight that could be
// joined cannot be joined any more, unless it waits and so carries nothing.
func (t *Table[R]) Changed(k string) {
	s := t.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if ks := s.keys[k]; ks != nil {
		ks.detach()
	}
}

// ChangedAll says that any key may have changed unheard.
func (t *Table[R]) ChangedAll() {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		for _, ks := range s.keys {
			ks.detach()
		}
		s.mu.Unlock()
	}
}

func (ks *key[R]) detach() {
	if ks.current != nil && !ks.current.waiting {
		ks.current = nil
	}
}

// Write is a write of a key by this process that is under way.
type Write[R any] struct {
	k     string
	key   *key[R]
	voids uint64
}

// BeginWrite voids every flight of k, whether in the table or not: none of them
// is joined from now on, and none publishes its result. drop is called under
// the lock, to take the key out of local.
func (t *Table[R]) BeginWrite(k string, drop func()) Write[R] {
	s := t.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	ks := s.hold(k, nil)
	ks.void(drop)
	return Write[R]{k: k, key: ks, voids: ks.voids}
}

// EndWrite voids the key again: a flight that began meanwhile may have read what
// was there before the write. Then, if the write is the only one that began
// since it did, publish is called under the lock to put what was written into
// local; of two writes that overlapped neither knows which one the store has.
func (t *Table[R]) EndWrite(w Write[R], drop, publish func()) {
	s := t.shard(w.k)
	s.mu.Lock()
	defer s.mu.Unlock()
	alone := w.voids == w.key.voids
	w.key.void(drop)
	if alone && publish != nil {
		publish()
	}
	s.drop(w.k, w.key)
}

// Void is a write of k that is over in one step: it voids every flight of k, and
// do is called under the lock to put what was written into local.
func (t *Table[R]) Void(k string, do func()) {
	s := t.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if ks := s.keys[k]; ks != nil {
		ks.void(do)
	} else {
		do()
	}
}

func (ks *key[R]) void(drop func()) {
	ks.voids++
	ks.current = nil
	drop()
}

// InFlight counts the flights and writes that have not ended: 0 when all is
// quiet. It looks at every shard.
func (t *Table[R]) InFlight() int {
	n := 0
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		for _, ks := range s.keys {
			n += ks.alive
		}
		s.mu.Unlock()
	}
	return n
}

// Check returns what is wrong with the table, for the validator that runs after
// each test: states without anybody alive, or a current flight that has landed.
func (t *Table[R]) Check() []string {
	var wrong []string
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		for k, ks := range s.keys {
			if ks.alive <= 0 {
				wrong = append(wrong, "key "+k+" is kept although nothing of it is alive")
			}
			if f := ks.current; f != nil {
				select {
				case <-f.done: // a nil channel is never ready
					wrong = append(wrong, "key "+k+" has a landed flight in the table")
				default:
				}
				if f.key != ks {
					wrong = append(wrong, "key "+k+" has a flight of another state")
				}
			}
		}
		s.mu.Unlock()
	}
	return wrong
}
