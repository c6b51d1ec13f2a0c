package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/servers/servertest"
)

// TestClusterUnderLoad: three primaries and three replicas; four caches, each with a client
// of its own, one of which cannot push; readers and writers that go on all the time. Slots
// with values and held leases in them are moved from one node to another, then a primary is
// killed, and its replica takes its place. The properties:
//
//   - No Get fails, and no operation is answered CROSSSLOT, MOVED, ASK or TRYAGAIN: what the
//     cluster says of slots that move stays below. TRYAGAIN lasts as long as a slot is on its way.
//   - A Get that begins after an acknowledged Invalidate plus the cache's bound returns the
//     row of that moment or a newer one: everywhere but for the killed primary's keys, from
//     then on until every cache is back with the replica, has repeated its writes, and has
//     forgotten what it has loaded without a lease; there no row is older than what was
//     acknowledged a second before the kill.
//   - A key that all caches ask for at the same time is loaded once, also while its slot
//     moves, and while another node is dead. What is loaded more often, since its node died,
//     is counted, and bounded by how long a cache keeps what it has loaded by itself.
//   - A load that began before its key's slot moved is stored behind it, and is the only one.
//   - Keys that nobody writes are loaded once, as long as their node lives.
//   - 99 of 100 Gets take no longer than StoreTimeout and a load; on nodes that live the
//     bound does not change while another one is dead, and no operation there fails.
func TestClusterUnderLoad(t *testing.T) {
	l := newClusterLoad(t)
	l.start()
	l.during("calm", func() { l.herds(2*time.Second, l.grounds[:]...) })
	l.during("moving", l.move)
	l.during("dead", l.kill)
	l.during("after", func() { l.herds(2*time.Second, l.grounds[:]...) })
	l.stop()
	l.checkStore()
	l.checkReads()
	l.checkLoads()
	l.checkTimes()
}

const (
	clusterStoreTimeout = time.Second
	clusterLocalTTL     = 300 * time.Millisecond // of the cache that hears no pushes
	clusterLoadTime     = 5 * time.Millisecond
	clusterSlots        = 16384
	movedSlots          = 8
	// degraded is how long a cache keeps what it has loaded without a lease.
	degraded = 2 * time.Second
)

// place is where a key lies.
type place int

const (
	staying place = iota // with the second primary, all the time
	moving               // with the first primary, and then with the second
	dying                // with the third primary, and then with its replica
	places
)

var placeNames = [places]string{"staying", "moving", "dying"}

// ground is the keys of one place.
type ground struct {
	place          place
	written, quiet []*register
	held           []*register // their first load waits at a gate
	fresh          []*register // for herds, each asked for once
	next           int         // of fresh; used by the test's goroutine alone
}

// register is a row and what is known of it.
type register struct {
	key   string
	place place
	gate  chan struct{} // nil: none

	version atomic.Int64 // committed
	loads   atomic.Int64
	tries   atomic.Int64 // to invalidate

	writing sync.Mutex // writers take turns
	mu      sync.Mutex // guards acks
	acks    []ack
}

// clusterGet is one Get. Moments are Unix nanoseconds.
type clusterGet struct {
	of         *register
	cache      int
	begin, end int64
	version    int64
	phase      string
}

type clusterLoad struct {
	t       testing.TB
	cluster servertest.Cluster
	caches  []*onefill.Cache[string, row]
	bounds  []time.Duration // of what a cache may serve after an invalidation elsewhere
	all     map[string]*register
	phase   atomic.Pointer[string]

	grounds [places]*ground

	stopping context.Context
	stopAll  context.CancelFunc
	running  sync.WaitGroup

	mu          sync.Mutex // guards what follows
	gets        []clusterGet
	storeErrors []clusterError
	failed      []string

	killed, back int64 // the primary's death; all caches are back
	herdsOf      map[string]map[place][2]int
}

type clusterError struct {
	cache int
	of    *register // nil: of none, or of several
	phase string
	err   string
}

func newClusterLoad(t *testing.T) *clusterLoad {
	l := &clusterLoad{t: t, cluster: servertest.RedisCluster(t, 3, "--cluster-require-full-coverage", "no"),
		all: map[string]*register{}, herdsOf: map[string]map[place][2]int{}}
	l.grow()
	for i, kind := range []storeKind{viaOpen, viaOpen, viaOpen, viaNew} {
		st, done, err := openStore(l.cluster.URL(), kind)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { done() })
		local, bound := time.Minute, pushBound()
		if kind == viaNew {
			local = clusterLocalTTL
			bound += local
		}
		c, err := onefill.New(onefill.Options[string, row]{
			Name: "load", Load: l.load, Store: st, TTL: time.Hour, LeaseTTL: 2 * time.Second, StoreTimeout: clusterStoreTimeout,
			MaxLoads: 256, MaxLoadsDegraded: 256, Local: onefill.LocalOptions{TTL: local},
			Observer: onefill.ObserverFunc(func(e onefill.Event) { l.observe(i, e) }),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		l.caches, l.bounds = append(l.caches, c), append(l.bounds, bound)
	}
	return l
}

// grow makes the keys. Those that move are those of a few slots, so there are many tries.
func (l *clusterLoad) grow() {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{l.cluster[0].Primary.Addr()}})
	if err != nil {
		l.t.Fatal(err)
	}
	defer client.Close()
	for at := range places {
		l.grounds[at] = &ground{place: at}
	}
	for i := 0; ; i++ {
		key := fmt.Sprint("key-", i)
		cmd := client.B().Arbitrary("GET").Keys(valueKey("load", key)).Build()
		slot := int(cmd.Slot()) % clusterSlots
		g := l.grounds[dying]
		switch {
		case slot < movedSlots:
			g = l.grounds[moving]
		case slot <= clusterSlots/3:
			continue // with the first primary, but not moving
		case slot < 2*clusterSlots/3:
			g = l.grounds[staying]
		}
		if !l.plant(g, key) && l.full() {
			return
		}
	}
}

func (l *clusterLoad) full() bool {
	for _, g := range l.grounds {
		if len(g.fresh) < freshKeys {
			return false
		}
	}
	return true
}

const (
	writtenKeys, quietKeys, heldKeys, freshKeys = 40, 40, 4, 120
)

func (l *clusterLoad) plant(g *ground, key string) bool {
	r := &register{key: key, place: g.place}
	r.version.Store(1)
	switch {
	case len(g.held) < heldKeys:
		r.gate = make(chan struct{})
		g.held = append(g.held, r)
	case len(g.written) < writtenKeys:
		g.written = append(g.written, r)
	case len(g.quiet) < quietKeys:
		g.quiet = append(g.quiet, r)
	case len(g.fresh) < freshKeys:
		g.fresh = append(g.fresh, r)
	default:
		return false
	}
	l.all[key] = r
	return true
}

// load reads the row first, as a query does, and then takes its time.
func (l *clusterLoad) load(ctx context.Context, key string) (row, error) {
	r := l.all[key]
	r.loads.Add(1)
	version := r.version.Load()
	select {
	case <-time.After(clusterLoadTime):
	case <-ctx.Done():
		return row{}, ctx.Err()
	}
	if r.gate != nil {
		select {
		case <-r.gate:
		case <-ctx.Done():
			return row{}, ctx.Err()
		}
	}
	return row{Value: key, Version: version}, nil
}

func (l *clusterLoad) observe(cache int, e onefill.Event) {
	if e.Kind != onefill.EventStoreError {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.storeErrors = append(l.storeErrors, clusterError{cache, l.all[e.Key], *l.phase.Load(), e.Err.Error()})
}

func (l *clusterLoad) during(phase string, do func()) {
	l.phase.Store(&phase)
	begin := time.Now()
	do()
	l.t.Logf("%s: %v", phase, time.Since(begin).Round(time.Millisecond))
}

// start begins the load, and waits until each key that is not for herds has been read.
func (l *clusterLoad) start() {
	starting := "start"
	l.phase.Store(&starting)
	l.stopping, l.stopAll = context.WithCancel(context.Background())
	l.t.Cleanup(l.stopAll)
	var written, read []*register
	for _, g := range l.grounds {
		written, read = append(written, g.written...), append(append(read, g.written...), g.quiet...)
	}
	for _, r := range read {
		l.herd(r)
	}
	for cache := range l.caches {
		for range 6 {
			l.running.Go(func() { l.repeat(4*time.Millisecond, func() { l.get(cache, read[rand.IntN(len(read))]) }) })
		}
		for range 2 {
			l.running.Go(func() {
				l.repeat(40*time.Millisecond, func() { l.invalidate(cache, written[rand.IntN(len(written))]) })
			})
		}
	}
}

func (l *clusterLoad) repeat(every time.Duration, do func()) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-l.stopping.Done():
			return
		case <-pause.C:
		}
		do()
		pause.Reset(time.Duration(rand.Int64N(int64(2 * every))))
	}
}

func (l *clusterLoad) get(cache int, r *register) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	phase, begin := *l.phase.Load(), time.Now().UnixNano()
	got, err := l.caches[cache].Get(ctx, r.key)
	end := time.Now().UnixNano()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil || got.Value != r.key {
		l.failed = append(l.failed, fmt.Sprintf("cache %d, %s, %s key %s: %q, %v", cache, phase, placeNames[r.place], r.key, got.Value, err))
		return
	}
	l.gets = append(l.gets, clusterGet{r, cache, begin, end, got.Version, phase})
}

// invalidate commits the next version and tells the cache, until it says that it knows.
func (l *clusterLoad) invalidate(cache int, r *register) {
	r.writing.Lock()
	defer r.writing.Unlock()
	version := r.version.Add(1)
	for deadline := time.Now().Add(patience); ; <-time.After(50 * time.Millisecond) {
		r.tries.Add(1)
		err := l.caches[cache].Invalidate(context.Background(), r.key)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			l.t.Errorf("Invalidate of %s fails for %v: %v", r.key, patience, err)
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acks = append(r.acks, ack{time.Now().UnixNano(), r.key, version})
}

// herd lets all caches ask for a key at the same time, by two callers each.
func (l *clusterLoad) herd(r *register) {
	start := make(chan struct{})
	var all sync.WaitGroup
	for cache := range l.caches {
		for range 2 {
			all.Go(func() {
				<-start
				l.get(cache, r)
			})
		}
	}
	close(start)
	all.Wait()
}

// herds sends herds to fresh keys of several places in turn, for a while or until none is
// left.
func (l *clusterLoad) herds(d time.Duration, grounds ...*ground) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		for _, g := range grounds {
			l.herdOn(g)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// herdOn sends a herd to a place's next fresh key.
func (l *clusterLoad) herdOn(g *ground) {
	if g.next == len(g.fresh) {
		return
	}
	r := g.fresh[g.next]
	g.next++
	l.herd(r)
	phase := *l.phase.Load()
	if l.herdsOf[phase] == nil {
		l.herdsOf[phase] = map[place][2]int{}
	}
	sum := l.herdsOf[phase][g.place]
	l.herdsOf[phase][g.place] = [2]int{sum[0] + 1, sum[1] + int(r.loads.Load())}
}

// hold lets all caches ask for the keys whose loads wait at their gates, and waits until
// one cache loads each.
func (l *clusterLoad) hold(g *ground) (done *sync.WaitGroup) {
	done = &sync.WaitGroup{}
	for _, r := range g.held {
		done.Go(func() { l.herd(r) })
	}
	poll(l.t, "the held keys are loading", func() bool {
		for _, r := range g.held {
			if r.loads.Load() == 0 {
				return false
			}
		}
		return true
	})
	return done
}

func (g *ground) release() {
	for _, r := range g.held {
		close(r.gate)
	}
}

// movingPause is how long a slot stays as it is before the next step of its move.
const movingPause = 20 * time.Millisecond

// move moves the slots one by one, each while herds ask for keys of it.
func (l *clusterLoad) move() {
	held := l.hold(l.grounds[moving])
	from, to := l.cluster[0].Primary, l.cluster[1].Primary
	keys := 0
	for slot := range movedSlots {
		m := l.cluster.Move(l.t, slot, from, to)
		var herd sync.WaitGroup
		herd.Go(func() { l.herdOn(l.grounds[moving]) }) // its lease waits if it is of this slot
		lasting(l.t, movingPause)
		keys += m.AllKeys()
		lasting(l.t, movingPause)
		m.End()
		herd.Wait()
		l.herdOn(l.grounds[moving])
		l.herdOn(l.grounds[staying])
	}
	l.t.Logf("moved %d keys of ours", keys)
	if keys < movedSlots*5 {
		l.t.Errorf("%d keys were moved, too few to say anything", keys)
	}
	l.grounds[moving].release()
	held.Wait()
}

// kill kills a primary that has leases of ours, and waits until every cache is back.
func (l *clusterLoad) kill() {
	held := l.hold(l.grounds[dying])
	l.killed = time.Now().UnixNano()
	if err := l.cluster[2].Primary.Kill(); err != nil {
		l.t.Fatal(err)
	}
	poll(l.t, "the replica is the primary", func() bool {
		l.herds(time.Millisecond, l.grounds[:]...)
		return strings.Contains(servertest.Say(l.t, l.cluster[2].Replica, "INFO", "replication"), "role:master")
	})
	l.t.Logf("the replica is the primary after %v", time.Duration(time.Now().UnixNano()-l.killed).Round(time.Millisecond))
	l.grounds[dying].release()
	held.Wait()
	poll(l.t, "every cache is back", func() bool {
		for i, c := range l.caches {
			l.get(i, l.grounds[dying].quiet[0])
			if s := c.Stats(); s.StoreDown || s.ReplaysWaiting > 0 {
				return false
			}
		}
		return true
	})
	l.back = time.Now().UnixNano()
	l.t.Logf("every cache is back after %v", time.Duration(l.back-l.killed).Round(time.Millisecond))
}

func (l *clusterLoad) stop() {
	l.stopAll()
	l.running.Wait()
}
