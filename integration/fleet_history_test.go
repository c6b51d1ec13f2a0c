package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// TestFleetHistory lets a fleet of caches work on a few rows at random, while the store,
// the connections and the loader are disturbed, and records everything: each call with
// its beginning, its end and the row version that it brought. Porcupine then checks what
// every cache saw of every row against the register of docs/guarantees.md ("The model
// that histories are checked against"; register_test.go). The properties:
//
//   - A read brings no row older than the newest one that its own cache had been told of
//     (by Set, Invalidate, Expire, InvalidateTag) when it began, and none older than
//     what others had told the bound before: a push's delay where the store pushes and
//     nothing was disturbed, else Local.TTL.
//   - After Expire that holds for rows that are not said to be stale; for stale ones it
//     does when StaleFor is over, too.
//   - No read brings a row that is not committed, a torn one, or an error.
//   - At the end every cache has every row as it is.
//
// No interleaving is forced: the random ones are meant. That the check can fail is shown
// in each run, on its own history with one read changed (disprove), and by TestRegister.
//
// ONEFILL_FLEET is how long, in rounds of a few seconds with rows of their own; ONEFILL_SEED
// repeats what every goroutine does, though not the moments at which they meet.
func TestFleetHistory(t *testing.T) {
	t.Parallel()
	for _, on := range []struct {
		store string
		nodes int
	}{{onRedis, 20}, {onMemc, 8}, {onMemory, 8}} {
		t.Run(fmt.Sprintf("%d on %s", on.nodes, on.store), func(t *testing.T) {
			t.Parallel()
			s := newFleetSaga(t, on.store, on.nodes)
			rounds := max(1, int(timeFromEnv(t, "ONEFILL_FLEET", sagaRound)/sagaRound))
			// On a busy machine a round sees less than it should. Then there are more of them.
			for round := 0; round < rounds || s.tooFew() && round < rounds+sagaMoreRounds; round++ {
				s.round(round)
				if t.Failed() {
					t.Logf("in round %d of %d", round+1, rounds)
					break
				}
			}
			s.report()
		})
	}
}

const (
	onMemory = "memstore"

	sagaRound      = 4 * time.Second
	sagaMoreRounds = 10
	sagaKeys       = 12
	sagaTags       = 3
	sagaWorkers    = 3 // for each cache
	sagaEvery      = 5 * time.Millisecond
	sagaLocalTTL   = time.Second
	sagaStaleFor   = 700 * time.Millisecond
)

// saga is one run of TestFleetHistory on one store.
type saga struct {
	t      *testing.T
	on     string
	w      *world          // nil on memstore
	memory *memstore.Store // nil on the others
	origin *rows
	nodes  []*onefill.Cache[string, row]
	random *rand.Rand
	clock  time.Time // moments are since then
	worst  *stall

	keys  []string                 // of this round
	turns map[string]*sync.RWMutex // of this round: see write

	mu      sync.Mutex // guards what follows
	history map[string]*chronicle
	unheard map[int][]span64
	tally   map[string]int
	totals  struct {
		reads, writes, histories int
		bounds, byPush           int // of writes in caches other than the writer's; those that are a push's
		push                     []int64
	}
	checked time.Duration
}

func newFleetSaga(t *testing.T, on string, nodes int) *saga {
	s := &saga{t: t, on: on, random: seeded(t), clock: time.Now(), unheard: map[int][]span64{}, tally: map[string]int{}}
	change := func(o *worldOptions) {
		o.Local.TTL, o.StaleFor, o.StaleOnError = sagaLocalTTL, sagaStaleFor, 0
		o.MaxLoads, o.MaxLoadsDegraded = 32, 8
		o.TagsOf = func(key string, _ row) []string { return []string{sagaTag(key)} }
		o.LoadMany = func(ctx context.Context, keys []string) (map[string]row, error) {
			all := make(map[string]row, len(keys))
			for _, key := range keys {
				r, err := s.origin.load(ctx, key)
				if err != nil {
					return all, err
				}
				all[key] = r
			}
			return all, nil
		}
	}
	if on == onMemory {
		s.memory, s.origin = memstore.New(), &rows{byKey: map[string]*memRow{}}
		s.inMemory(nodes, change)
	} else {
		s.w = newWorld(t, on, nodes, change)
		s.origin = s.w.origin
		for _, m := range s.w.members {
			s.nodes = append(s.nodes, m.cache)
		}
	}
	s.worst = s.measureStalls()
	return s
}

// inMemory makes caches on one memstore, which stand for as many processes.
func (s *saga) inMemory(nodes int, change func(*worldOptions)) {
	for i := range nodes {
		o := worldOptions{
			Name: "saga", TTL: worldTTL, Jitter: onefill.NoJitter, LeaseTTL: time.Second, WaitTimeout: 15 * time.Second,
			Load: s.origin.load, Store: s.memory, Logger: slog.New(slog.DiscardHandler),
		}
		change(&o)
		cache, err := onefill.New(o)
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() {
			if err := cache.Close(); err != nil {
				s.t.Errorf("cache %d: %v", i, err)
			}
		})
		s.nodes = append(s.nodes, cache)
	}
}

// sagaTag is the one tag of a key.
func sagaTag(key string) string { return fmt.Sprintf("tag-%d", key[len(key)-1]%sagaTags) }

func (s *saga) now() int64 { return int64(time.Since(s.clock)) }

// round works on new rows for a while, and checks what was seen.
func (s *saga) round(number int) {
	s.worst.most.Store(0) // a stall of one round is no excuse in another
	s.history, s.turns = map[string]*chronicle{}, map[string]*sync.RWMutex{}
	s.keys = s.origin.addMany(sagaKeys, 0)
	for i, key := range s.keys {
		s.history[key], s.turns[key] = &chronicle{}, &sync.RWMutex{}
		s.origin.change(key, func(r *memRow) { r.wait = time.Duration(i%4) * 4 * time.Millisecond })
	}
	seed := s.random.Uint64()
	over := make(chan struct{})
	var working sync.WaitGroup
	for node := range s.nodes {
		for worker := range sagaWorkers {
			random := rand.New(rand.NewPCG(seed, uint64(number)<<32|uint64(node)<<8|uint64(worker)))
			working.Go(func() { s.work(node, random, over) })
		}
	}
	s.disturb(sagaRound)
	close(over)
	working.Wait()
	s.lastLook()
	s.check()
}

// work is what one goroutine does: a sequence of operations that depends on its random
// numbers alone.
func (s *saga) work(node int, random *rand.Rand, over <-chan struct{}) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-over:
			return
		case <-pause.C:
		}
		s.step(node, random)
		pause.Reset(time.Duration(random.Int64N(int64(2 * sagaEvery))))
	}
}

// step is one operation. Most are reads. The rows that come first are written most, so
// that the last ones stand still for long enough to be seen when they should not be.
func (s *saga) step(node int, random *rand.Rand) {
	key := s.keys[random.IntN(sagaKeys)]
	written := s.keys[int(sagaKeys*random.Float64()*random.Float64())]
	expires := slices.Index(s.keys, written)%2 == 1 // else fresh rows only, so that Get and GetMany are checked in full
	switch n := random.IntN(1000); {
	case n < 450:
		s.glance(node, key)
	case n < 600:
		s.get(node, key)
	case n < 720:
		s.getMany(node, random)
	case n < 960:
		s.peek(node, key)
	case n < 962:
		s.invalidateTag(node, sagaTag(written))
	case n < 970 && expires:
		s.write(node, "Expire", written)
	case n < 980:
		s.write(node, "Set", written)
	default:
		s.write(node, "Invalidate", written)
	}
}

// mayBeStale says whether a read that does not tell may have brought a stale row.
func (s *saga) mayBeStale(key string) bool { return slices.Index(s.keys, key)%2 == 1 }

func (s *saga) fetch(node int, key string) {
	begin := s.now()
	got, err := s.nodes[node].Fetch(context.Background(), key)
	s.saw(looked{node, "Fetch", key, got.Value.Version, got.Stale, span64{begin, s.now()}}, got.Value, err)
}

// glance is a Fetch by somebody who soon leaves.
func (s *saga) glance(node int, key string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	begin := s.now()
	got, err := s.nodes[node].Fetch(ctx, key)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		s.count("Fetch given up by its caller")
		return
	}
	s.saw(looked{node, "Fetch", key, got.Value.Version, got.Stale, span64{begin, s.now()}}, got.Value, err)
}

func (s *saga) get(node int, key string) {
	begin := s.now()
	got, err := s.nodes[node].Get(context.Background(), key)
	s.saw(looked{node, "Get", key, got.Version, s.mayBeStale(key), span64{begin, s.now()}}, got, err)
}

func (s *saga) peek(node int, key string) {
	begin := s.now()
	got, found, err := s.nodes[node].Peek(context.Background(), key)
	if err == nil && !found {
		s.count("Peek found nothing")
		return
	}
	if err != nil && tolerate(err) == nil { // of a connection that was cut
		s.count("Peek failed")
		return
	}
	s.saw(looked{node, "Peek", key, got.Value.Version, got.Stale, span64{begin, s.now()}}, got.Value, err)
}

func (s *saga) getMany(node int, random *rand.Rand) {
	keys := make([]string, 1+random.IntN(5))
	for i := range keys {
		keys[i] = s.keys[random.IntN(sagaKeys)]
	}
	begin := s.now()
	got, err := s.nodes[node].GetMany(context.Background(), keys)
	end := s.now()
	if err != nil {
		s.t.Errorf("cache %d: GetMany: %v", node, err)
	}
	for key, r := range got {
		s.saw(looked{node, "GetMany", key, r.Version, s.mayBeStale(key), span64{begin, end}}, r, nil)
	}
}

// saw notes a read.
func (s *saga) saw(l looked, got row, err error) {
	if err != nil {
		s.t.Errorf("cache %d: %s %q: %v", l.node, l.op, l.key, err)
		return
	}
	if want := fmt.Sprintf("v%d", got.Version); got.Version == 0 || got.Value != want {
		s.t.Errorf("cache %d: %s %q brought a row that is none: %+v", l.node, l.op, l.key, got)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history[l.key].looks = append(s.history[l.key].looks, l)
	s.tally[l.op]++
	if l.stale && l.op == "Fetch" {
		s.tally["Fetch brought a stale row"]++
	}
}

func (s *saga) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tally[what]++
}

// write commits the next version of a row and tells the cache. A Set has the row's turn
// for itself: it is only right where rows are set in the order of their commits. What
// removes a row may overlap with its like, and be told in another order.
func (s *saga) write(node int, op, key string) {
	var turn sync.Locker = s.turns[key].RLocker()
	if op == "Set" {
		turn = s.turns[key]
	}
	turn.Lock()
	defer turn.Unlock()
	s.commitAndTell(node, op, []string{key}, func(version int64) error {
		ctx, cache := context.Background(), s.nodes[node]
		switch op {
		case "Set":
			return cache.Set(ctx, key, row{Value: fmt.Sprintf("v%d", version), Version: version})
		case "Expire":
			return cache.Expire(ctx, key)
		}
		return cache.Invalidate(ctx, key)
	})
	s.fetch(node, key) // who has written is the first to read
}

// invalidateTag commits new versions of all rows under a tag, and voids the tag.
func (s *saga) invalidateTag(node int, tag string) {
	var keys []string
	for _, key := range s.keys {
		if sagaTag(key) == tag {
			keys = append(keys, key)
			s.turns[key].RLock() // in one order, so that two of them do not wait for each other
			defer s.turns[key].RUnlock()
		}
	}
	if len(keys) == 0 {
		return
	}
	s.commitAndTell(node, "InvalidateTag", keys, func(int64) error { return s.nodes[node].InvalidateTag(context.Background(), tag) })
	s.fetch(node, keys[0])
}

// commitAndTell tells the cache as often as it takes, as the queue would do. From the
// second time on it invalidates: what a failed Set has left is removed, not guessed at.
func (s *saga) commitAndTell(node int, op string, keys []string, tell func(version int64) error) {
	all := make([]wrote, len(keys))
	for i, key := range keys {
		begin := s.now()
		version := s.origin.write(key)
		all[i] = wrote{node: node, op: op, key: key, version: version, commit: span64{begin, s.now()}}
	}
	// Somebody else asks this very cache meanwhile: between the two voids of a write.
	defer s.aside(func() { s.fetch(node, keys[0]) })()
	told := span64{begin: s.now()}
	err := tell(all[0].version)
	for tries := 1; err != nil; tries++ {
		if tolerate(err) != nil || tries == 1000 {
			s.t.Errorf("cache %d: %s %v: %v", node, op, keys, err)
			return
		}
		s.count(op + " failed")
		if op == "InvalidateTag" {
			err = tell(0)
		} else {
			err = s.nodes[node].Invalidate(context.Background(), keys...)
		}
	}
	told.end = s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tally[op]++
	for _, w := range all {
		w.told = told
		s.history[w.key].writes = append(s.history[w.key].writes, w)
	}
}

// lastLook lets every cache read every row when all bounds are over.
func (s *saga) lastLook() {
	b := s.bounds()
	lasting(s.t, time.Duration(b.localTTL+b.push+b.staleFor))
	for node := range s.nodes {
		for _, key := range s.keys {
			s.fetch(node, key)
		}
	}
}

// bounds are those of this round. To each the longest time is added, twice, that a
// question to the server took in it: a machine that is busy delays what it
// delays.
func (s *saga) bounds() *bounds {
	stalled := 2 * s.worst.longest()
	s.mu.Lock()
	defer s.mu.Unlock()
	b := &bounds{
		pushes: s.on != onMemc, push: int64(100*time.Millisecond + stalled), staleFor: int64(sagaStaleFor),
		localTTL: int64(sagaLocalTTL + 100*time.Millisecond + stalled), unheard: map[int][]span64{},
	}
	for node, times := range s.unheard {
		for _, u := range times {
			b.unheard[node] = append(b.unheard[node], span64{u.begin, u.end + b.localTTL})
		}
	}
	return b
}

// tooFew says whether the rounds have seen too little for a verdict.
func (s *saga) tooFew() bool { return s.totals.reads < 1000 || s.totals.writes < 100 }

// report logs what the run came to.
func (s *saga) report() {
	var lines []string
	for what, n := range s.tally {
		lines = append(lines, fmt.Sprintf("%s %d", what, n))
	}
	slices.Sort(lines)
	slices.Sort(s.totals.push)
	rounds := len(s.totals.push)
	s.t.Logf("%d caches, %d reads, %d writes, %d histories (a row as a cache saw it) checked in %v", len(s.nodes), s.totals.reads, s.totals.writes, s.totals.histories, s.checked.Round(time.Millisecond))
	s.t.Logf("bounds: own 0; a push's, in %d %% of the cases: from %v to %v over %d rounds, median %v; else %v more, which is Local.TTL",
		100*s.totals.byPush/max(1, s.totals.bounds), time.Duration(s.totals.push[0]), time.Duration(s.totals.push[rounds-1]), rounds, time.Duration(s.totals.push[rounds/2]), sagaLocalTTL)
	s.t.Log(strings.Join(lines, ", "))
	if s.tooFew() && !s.t.Failed() {
		s.t.Errorf("%d reads and %d writes are too few to say anything", s.totals.reads, s.totals.writes)
	}
}
