package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill"
)

// TestSoak lets four caches read and write a few rows at random for a while, on a real
// server, while everything goes wrong at random: connections are cut, delayed, thinned,
// stalled, swallowed, half-open, the server is frozen, killed and restarted empty, replies
// are lost after they were applied; loads fail now and then, and hang. The properties:
//
//   - A read that begins after a write of the same cache has returned nil brings the row
//     of that moment or a newer one; in the other caches it does Local.TTL later.
//   - What is not promised is not demanded: nothing of a write that returned an error; a
//     Set that returned one may be applied late, so its row may be read until its cache has
//     repeated it as an Invalidate; a value that is served as stale may have been
//     invalidated unheard while the store could not be asked. While it can, and could when
//     it was invalidated, it is not served beyond Local.TTL either.
//   - A row is never torn, a zero value never comes with a nil error, and no error is one
//     that nobody has caused.
//   - Every read ends within WaitTimeout, every write within StoreTimeout.
//   - No cache has more than MaxLoads loads at once.
//   - At the end, when all is healed and the failed writes have been repeated by the
//     caches themselves, every cache and the store have the rows as they are, a herd loads
//     once, no place is taken, no flight is left, and no goroutine.
//
// ONEFILL_SOAK is how long, 20s if it is not set. ONEFILL_SEED repeats the disturbances,
// though not the moments at which they meet the caches' work.
func TestSoak(t *testing.T) {
	t.Parallel() // it has time
	for _, on := range bothStores {
		t.Run(on, func(t *testing.T) {
			t.Parallel()
			s := newSoak(t, on)
			s.start()
			s.disturb(timeFromEnv(t, "ONEFILL_SOAK", 20*time.Second))
			s.stop()
			s.check()
			s.checkEnd()
		})
	}
}

const (
	soakKeys    = 12
	soakReaders = 6 // for each cache
	soakEvery   = 3 * time.Millisecond
	settling    = 700 * time.Millisecond // after a disturbance: connections are made again, late bytes have come
)

type soak struct {
	t      *testing.T
	w      *world
	random *rand.Rand // of the disturbances
	keys   []string
	turns  map[string]*sync.Mutex // writers of one row take turns, as a queue would have it
	over   chan struct{}
	run    sync.WaitGroup
	done   map[string]int // disturbances by name
	quiet  []span         // when nothing was disturbed, and nothing had been just before

	mu     sync.Mutex // guards what follows
	reads  []soakRead
	writes []soakWrite
	errs   map[string]int
}

type span struct{ begin, end time.Time }

// soakRead is one row that was read.
type soakRead struct {
	member     int
	key        string
	begin, end time.Time
	version    int64
	stale      bool
	joined     bool // another call's flight
	many       bool // by GetMany, which does not say whether a row is stale
}

// soakWrite is one write that has ended.
type soakWrite struct {
	member     int
	op         string
	key        string
	begin, end time.Time
	version    int64 // of the row that was committed before
	err        error
}

func newSoak(t *testing.T, on string) *soak {
	s := &soak{t: t, random: seeded(t), turns: map[string]*sync.Mutex{},
		over: make(chan struct{}), done: map[string]int{}, errs: map[string]int{}}
	s.w = newWorld(t, on, 4, func(o *worldOptions) {
		o.TTL, o.Local.TTL, o.StaleOnError = 2*time.Second, 300*time.Millisecond, 10*time.Second
		o.StoreTimeout, o.LoadTimeout, o.WaitTimeout, o.ErrorTTL = 200*time.Millisecond, 300*time.Millisecond, 3*time.Second, 50*time.Millisecond
		o.Version = func(r row) uint64 { return uint64(r.Version) }
	})
	s.keys = s.w.origin.addMany(soakKeys, time.Millisecond)
	for _, key := range s.keys {
		s.turns[key] = &sync.Mutex{}
	}
	return s
}

// start starts the readers and writers of every cache, and what makes loads go wrong.
func (s *soak) start() {
	for i, m := range s.w.members {
		for range soakReaders {
			s.repeat(soakEvery, func() { s.read(i, m) })
		}
		s.repeat(8*soakEvery, func() { s.write(i, m) })
	}
	s.repeat(50*time.Millisecond, s.trouble)
}

func (s *soak) repeat(every time.Duration, do func()) {
	s.run.Go(func() {
		pause := time.NewTimer(every)
		defer pause.Stop()
		for {
			select {
			case <-s.over:
				return
			case <-pause.C:
			}
			do()
			pause.Reset(time.Duration(rand.Int64N(int64(2 * every))))
		}
	})
}

func (s *soak) anyKey() string { return s.keys[rand.IntN(len(s.keys))] }

// trouble makes the loads of one row fail, or hang, for a moment.
func (s *soak) trouble() {
	key := s.anyKey()
	if rand.IntN(4) == 0 {
		release := s.w.origin.hold(key)
		lasting(s.t, time.Duration(rand.Int64N(int64(2*s.w.opts.LoadTimeout))))
		release()
		return
	}
	s.w.origin.change(key, func(r *memRow) { r.fails = true })
	lasting(s.t, time.Duration(rand.Int64N(int64(50*time.Millisecond))))
	s.w.origin.change(key, func(r *memRow) { r.fails = false })
}

func (s *soak) read(i int, m *member) {
	if rand.IntN(8) == 0 {
		s.readMany(i, m)
		return
	}
	r := m.get(s.anyKey())
	s.wantBound("Get", r.Took, s.w.opts.WaitTimeout)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Class != "" {
		s.failed(r.Class, r.Err)
		return
	}
	s.keep(soakRead{i, r.Key, r.Start, r.end(), r.Row.Version, r.Stale, r.Coalesced, false}, r.Row)
}

func (s *soak) readMany(i int, m *member) {
	keys := make([]string, 3)
	for n := range keys {
		keys[n] = s.anyKey()
	}
	begin := time.Now()
	got, err := m.cache.GetMany(context.Background(), keys)
	end := time.Now()
	s.wantBound("GetMany", end.Sub(begin), s.w.opts.WaitTimeout)
	s.mu.Lock()
	defer s.mu.Unlock()
	var many *onefill.ManyError
	if errors.As(err, &many) {
		for _, err := range many.Errors {
			s.failed(classOf(err), err.Error())
		}
	} else if err != nil {
		s.failed(classOf(err), err.Error())
	}
	for key, r := range got {
		s.keep(soakRead{i, key, begin, end, r.Version, false, false, true}, r)
	}
}

// keep notes a read. The lock is held.
func (s *soak) keep(r soakRead, got row) {
	s.reads = append(s.reads, r)
	if want := fmt.Sprintf("v%d", got.Version); got.Version == 0 || got.Value != want {
		s.t.Errorf("cache %d read a row that is none: %+v", r.member, got)
	}
}

// failed notes an error of a read, which must be one that the soak has caused: a load
// that failed or hung, or who waits behind them. The lock is held.
func (s *soak) failed(class, text string) {
	s.errs[class]++
	if !slices.Contains([]string{"load failed", "origin busy", "wait timeout"}, class) {
		s.t.Errorf("a read ended with %q (%s)", text, class)
	}
}

func (s *soak) wantBound(op string, took, bound time.Duration) {
	if took > bound+slack() {
		s.t.Errorf("%s took %v, want %v at most", op, took, bound)
	}
}

// write commits the next version of a row and tells the cache, once.
func (s *soak) write(i int, m *member) {
	key := s.anyKey()
	s.turns[key].Lock()
	defer s.turns[key].Unlock()
	w := soakWrite{member: i, key: key, version: s.w.origin.write(key), begin: time.Now()}
	ctx := context.Background()
	switch rand.IntN(4) {
	case 0:
		w.op, w.err = "Set", m.cache.Set(ctx, key, row{Value: fmt.Sprintf("v%d", w.version), Version: w.version})
	case 1:
		w.op, w.err = "Expire", m.cache.Expire(ctx, key)
	default:
		w.op, w.err = "Invalidate", m.cache.Invalidate(ctx, key)
	}
	w.end = time.Now()
	s.wantBound(w.op, w.end.Sub(w.begin), s.w.opts.StoreTimeout)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes = append(s.writes, w)
	if w.err != nil && tolerate(w.err) != nil {
		s.t.Errorf("%s ended with %v", w.op, w.err)
	}
}

// disturb makes something go wrong, for a while, again and again.
func (s *soak) disturb(d time.Duration) {
	kinds := s.disturbances()
	names := slices.Sorted(maps.Keys(kinds))
	for end := time.Now().Add(d); time.Now().Before(end); {
		name := names[s.random.IntN(len(names))]
		members := s.w.members
		if s.random.IntN(2) == 0 {
			members = members[:1+s.random.IntN(len(members))]
		}
		s.done[name]++
		heal := kinds[name](members)
		lasting(s.t, time.Duration(50+s.random.IntN(500))*time.Millisecond)
		heal()
		for _, m := range s.w.members {
			m.proxy.Heal()
		}
		lasting(s.t, time.Duration(s.random.IntN(400))*time.Millisecond)
		if s.random.IntN(5) == 0 {
			lasting(s.t, settling)
			begin := time.Now()
			lasting(s.t, 2*settling)
			s.quiet = append(s.quiet, span{begin, time.Now()})
		}
	}
	s.t.Logf("disturbances: %v; %d quiet times", s.done, len(s.quiet))
}

// disturbances are what can go wrong; each begins, and returns what ends it but for what
// Heal ends.
func (s *soak) disturbances() map[string]func([]*member) func() {
	kinds := map[string]func([]*member) func(){
		"reply lost": func(members []*member) func() {
			op := []string{"acquire", "fill", "invalidate"}[s.random.IntN(3)]
			members[s.random.IntN(len(members))].proxy.LoseReply(s.w.isRequest(s.t, op))
			return func() {}
		},
	}
	for _, f := range faults() {
		if f.reply != "" {
			continue
		}
		kinds[f.name] = func(members []*member) func() {
			k := &strike{t: s.t, w: s.w, fault: f, members: members}
			f.begin(k)
			return k.mend
		}
	}
	return kinds
}

func (s *soak) stop() {
	close(s.over)
	s.run.Wait()
}

// check looks at every read.
func (s *soak) check() {
	acked, late := map[string][]soakWrite{}, map[string]map[int64]bool{}
	failed := 0
	slices.SortFunc(s.writes, func(a, b soakWrite) int { return a.end.Compare(b.end) })
	for _, w := range s.writes {
		switch {
		case w.err == nil:
			acked[w.key] = append(acked[w.key], w)
			continue
		case w.op == "Set":
			if late[w.key] == nil {
				late[w.key] = map[int64]bool{}
			}
			late[w.key][w.version] = true
		}
		failed++
	}
	var worst oldest
	stale, excused := 0, 0
	for _, r := range s.reads {
		o, tooOld := s.age(r, acked[r.key])
		switch {
		case o.after > 0 && (r.stale || r.many):
			if stale++; r.stale && s.excuseless(r, acked[r.key]) {
				s.t.Error("a stale row was served that had been invalidated: ", o)
			}
		case o.after > 0 && late[r.key][r.version]:
			excused++
		case tooOld:
			s.t.Error("an old row was read: ", o)
		case o.after > worst.after:
			worst = o
		}
	}
	for i, m := range s.w.members {
		if peak := m.loads.peak(); peak > s.w.opts.MaxLoads {
			s.t.Errorf("cache %d had %d loads at once, MaxLoads is %d", i, peak, s.w.opts.MaxLoads)
		}
	}
	s.t.Logf("the oldest row that was read: %v", worst)
	s.t.Logf("%d reads, %v after the successor was written at most, but for %d old ones that were served as stale, or perhaps (GetMany), and %d of Sets that had failed; "+
		"%d writes, %d of which failed; reads that failed: %v", len(s.reads), worst.after, stale, excused, len(s.writes), failed, s.errs)
	if len(s.reads) < 1000 || len(s.writes)-failed < 50 {
		s.t.Errorf("%d reads and %d writes are too few to say anything", len(s.reads), len(s.writes)-failed)
	}
}

// oldest is the read that brought the oldest row.
type oldest struct {
	after time.Duration
	read  soakRead
	write soakWrite
}

func (o oldest) String() string {
	return fmt.Sprintf("version %d by cache %d, begun %v after version %d was written by cache %d (%s), took %v, joined: %v",
		o.read.version, o.read.member, o.after, o.write.version, o.write.member, o.write.op, o.read.end.Sub(o.read.begin), o.read.joined)
}

// age says how old the row is that a read brought: after how long a time, since which
// write; and whether that is too old.
func (s *soak) age(r soakRead, writes []soakWrite) (most oldest, tooOld bool) {
	for _, w := range writes {
		after := r.begin.Sub(w.end)
		if after <= 0 {
			break // they are sorted by their ends
		}
		if r.version >= w.version {
			continue
		}
		if r.member == w.member || after > s.w.opts.Local.TTL {
			return oldest{after, r, w}, true
		}
		if after > most.after {
			most = oldest{after, r, w}
		}
	}
	return most, false
}

// excuseless says whether a stale row was served although its key had been invalidated,
// or set anew, more than Local.TTL before, and the store could be asked all the time.
func (s *soak) excuseless(r soakRead, writes []soakWrite) bool {
	for _, q := range s.quiet {
		if r.begin.Before(q.begin) || r.end.After(q.end) {
			continue
		}
		for _, w := range writes {
			if w.op != "Expire" && w.version > r.version && w.begin.After(q.begin) && r.begin.Sub(w.end) > s.w.opts.Local.TTL {
				return true
			}
		}
	}
	return false
}

// checkEnd: when all is well again, all is right again.
func (s *soak) checkEnd() {
	w := s.w
	w.recovered(s.t)
	for i, m := range w.members {
		poll(s.t, fmt.Sprintf("cache %d has repeated what failed", i), func() bool { return m.cache.Stats().ReplaysWaiting == 0 })
	}
	for _, key := range s.keys {
		var version int64
		w.origin.change(key, func(r *memRow) { version = r.version })
		for i, m := range w.members {
			var r result
			if !pollFor(patience, func() bool { r = m.get(key); return r.Class == "" && r.Row.Version == version && !r.Stale }) {
				s.t.Errorf("cache %d has %+v, the row is at version %d", i, r, version)
			}
		}
		if stored, _ := w.view.stored(s.t, key); stored != version && stored != 0 {
			s.t.Errorf("the store has version %d of %s, the row is at version %d", stored, key, version)
		}
	}
	for i, m := range w.members {
		m.idle(s.t)
		if st := m.cache.Stats(); st.LoadsStray != 0 || st.StoreDown {
			s.t.Errorf("cache %d: %+v", i, st)
		}
	}
	key := w.origin.add(50 * time.Millisecond)
	for _, results := range herd(w.members, 8, key) {
		for _, r := range results {
			if r.Class != "" {
				s.t.Errorf("at the end: %s", r.Err)
			}
		}
	}
	if n := w.origin.loads(key); n != 1 {
		s.t.Errorf("at the end a herd loads %d times, want once", n)
	}
}
