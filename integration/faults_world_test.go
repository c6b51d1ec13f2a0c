package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/faultproxy"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/memcachestore"
	"github.com/onefill/onefill/store"
)

// The world of the tests of faults: a real server that nobody else uses, and several
// caches of one name, each with a store of its own over a proxy of its own. They share
// nothing but the server, so they are as far apart as processes are.

const (
	onRedis  = "Redis"
	onMemc   = "memcached"
	worldTTL = time.Hour
)

var bothStores = []string{onRedis, onMemc}

type worldOptions = onefill.Options[string, row]

type world struct {
	t       *testing.T
	on      string
	name    string
	server  *servers.Server
	origin  *rows
	members []*member
	view    *view
	opts    worldOptions
}

// member is one cache, with what lies between it and the server.
type member struct {
	w     *world
	cache *onefill.Cache[string, row]
	proxy *faultproxy.Proxy
	loads gauge
}

// newWorld starts a server and n caches on it. change may change their options. When
// the test ends all is closed, and nothing may be left of it.
func newWorld(t *testing.T, on string, n int, change func(*worldOptions)) *world {
	t.Helper()
	w := &world{t: t, on: on, name: fmt.Sprintf("world-%d", serial.Add(1)), origin: &rows{byKey: map[string]*memRow{}}}
	w.watchGoroutines()
	if on == onRedis {
		w.server = servertest.Redis(t, servers.RedisOptions{})
	} else {
		w.server = servertest.Memcached(t, servers.MemcachedOptions{})
	}
	w.opts = worldOptions{
		Name: w.name, TTL: worldTTL, Jitter: onefill.NoJitter, LeaseTTL: w.lease(), ErrorTTL: 300 * time.Millisecond,
		LoadTimeout: 5 * time.Second, WaitTimeout: 15 * time.Second, StoreTimeout: 2 * time.Second,
		StaleOnError: time.Hour, MaxLoads: 8, MaxLoadsDegraded: 2,
		Local:  onefill.LocalOptions{TTL: 500 * time.Millisecond},
		Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&w.opts)
	}
	w.view = newView(w)
	for i := range n {
		w.members = append(w.members, w.join(i))
	}
	return w
}

func (w *world) lease() time.Duration {
	if w.on == onRedis {
		return time.Second
	}
	return memcachedLease
}

// join makes the i-th cache.
func (w *world) join(i int) *member {
	w.t.Helper()
	proxy, err := faultproxy.Start(w.server.Addr())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(proxy.Stop)
	m := &member{w: w, proxy: proxy}
	st, done, err := w.open(proxy.Addr(), i)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := done(); err != nil {
			w.t.Errorf("closing the store of cache %d: %v", i, err)
		}
	})
	opts := w.opts
	opts.Store = st
	opts.Load = func(ctx context.Context, key string) (row, error) {
		m.loads.enter()
		defer m.loads.leave()
		return w.origin.load(ctx, key)
	}
	if m.cache, err = onefill.New(opts); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { m.finish(i) })
	return m
}

// open makes a store the ways a user would, by turns.
func (w *world) open(addr string, i int) (store.Store, func() error, error) {
	if w.on == onMemc {
		st := memcachestore.New(addr)
		return st, st.Close, nil
	}
	return openStore("redis://"+addr, []storeKind{viaOpen, viaNew}[i%2])
}

// finish validates a cache when all is over: no place is taken, nobody waits, the
// counters fit together, and it closes in order.
func (m *member) finish(i int) {
	t := m.w.t
	m.proxy.Heal()
	if err := m.cache.Close(); err != nil {
		t.Errorf("cache %d: %v", i, err)
	}
	s := m.cache.Stats()
	if s.LoadsInFlight != 0 || s.LoadsWaiting != 0 {
		t.Errorf("cache %d is closed, and %d loads run and %d wait", i, s.LoadsInFlight, s.LoadsWaiting)
	}
	// One call of LoadMany brings many rows to fill.
	if m.w.opts.LoadMany == nil && s.Fills+s.FillsRefused > s.Loads || s.LoadErrors > s.Loads || s.Panics > s.LoadErrors {
		t.Errorf("cache %d: %d fills, %d refusals, %d errors, %d panics of %d loads", i, s.Fills, s.FillsRefused, s.LoadErrors, s.Panics, s.Loads)
	}
}

// worldLabel marks the goroutines of a world: those of its test, and all that these
// have started.
const worldLabel = "world"

// watchGoroutines wants every goroutine of the world to have ended when the test has.
// Labels tell them from those of tests that run at the same time.
func (w *world) watchGoroutines() {
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(worldLabel, w.name)))
	w.t.Cleanup(func() {
		poll(w.t, "all goroutines of the caches, stores and proxies have ended", func() bool { return len(w.goroutines()) == 0 })
		for _, stack := range w.goroutines() {
			w.t.Errorf("a goroutine is left:\n%s", stack)
		}
	})
}

// goroutines are the stacks of the world's goroutines but for those of tests, one
// entry for each kind of stack.
func (w *world) goroutines() (left []string) {
	var all bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&all, 1)
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(stack, fmt.Sprintf("%q:%q", worldLabel, w.name)) && !strings.Contains(stack, "testing.tRunner") {
			left = append(left, stack)
		}
	}
	return left
}

// get is one Get, by a caller of endless patience.
func (m *member) get(key string) result { return m.getBy(context.Background(), key) }

func (m *member) getBy(ctx context.Context, key string) result {
	start := time.Now()
	got, err := m.cache.Fetch(ctx, key)
	r := result{Key: key, Row: got.Value, Class: classOf(err), Source: got.Source, Stale: got.Stale, Coalesced: got.Coalesced, Start: start, Took: time.Since(start)}
	if err != nil {
		r.Err = err.Error()
	}
	return r
}

// herd lets n callers of each member Get at once; the i-th gets the i-th key,
// beginning again when there are fewer keys.
func herd(members []*member, n int, keys ...string) [][]result {
	return storming(members, n, keys...)()
}

// storming is herd without waiting: the returned function waits.
func storming(members []*member, n int, keys ...string) func() [][]result {
	all := make([][]result, len(members))
	start := make(chan struct{})
	var done sync.WaitGroup
	for i, m := range members {
		all[i] = make([]result, n)
		for j := range n {
			done.Go(func() {
				<-start
				all[i][j] = m.get(keys[j%len(keys)])
			})
		}
	}
	close(start)
	return func() [][]result {
		done.Wait()
		return all
	}
}

// recovered waits until each member's store answers, and it is not taken for down.
func (w *world) recovered(t *testing.T) {
	t.Helper()
	for i, m := range w.members {
		var last error
		ok := pollFor(patience, func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), w.opts.StoreTimeout)
			defer cancel()
			last = m.cache.Set(ctx, "probe", row{Value: "probe", Version: 1})
			return last == nil && !m.cache.Stats().StoreDown
		})
		if !ok {
			t.Fatalf("cache %d does not recover: %v, down: %v", i, last, m.cache.Stats().StoreDown)
		}
	}
}

// idle waits until no load runs or waits in a member.
func (m *member) idle(t *testing.T) {
	t.Helper()
	poll(t, "no load runs", func() bool { s := m.cache.Stats(); return s.LoadsInFlight == 0 && s.LoadsWaiting == 0 })
}

// rows is the origin. It is in memory, since what is at fault here lies between the
// caches and the store, and since each load is to be held and let go one by one.
type rows struct {
	mu    sync.Mutex // guards what follows, and what they point to
	byKey map[string]*memRow
}

type memRow struct {
	version int64
	loads   int
	wait    time.Duration // that a load takes
	gate    chan struct{} // loads that begin now wait until it is closed, if it is not nil
	deaf    bool          // and do not heed their context meanwhile
	fails   bool
}

// add makes a row, version 1, and returns its key.
func (o *rows) add(wait time.Duration) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := fmt.Sprintf("row-%d", serial.Add(1))
	o.byKey[key] = &memRow{version: 1, wait: wait}
	return key
}

func (o *rows) addMany(n int, wait time.Duration) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = o.add(wait)
	}
	return keys
}

func (o *rows) change(key string, do func(*memRow)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	do(o.byKey[key])
}

// write makes the next version of a row.
func (o *rows) write(key string) (version int64) {
	o.change(key, func(r *memRow) { r.version++; version = r.version })
	return version
}

func (o *rows) loads(keys ...string) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, key := range keys {
		n += o.byKey[key].loads
	}
	return n
}

// hold makes loads of the row that begin from now on wait, after they have read it,
// until the returned function is called. Loads after that do not wait.
func (o *rows) hold(key string) (release func()) {
	gate := make(chan struct{})
	o.change(key, func(r *memRow) { r.gate = gate })
	return sync.OnceFunc(func() {
		o.change(key, func(r *memRow) {
			if r.gate == gate {
				r.gate = nil
			}
		})
		close(gate)
	})
}

// letPass makes loads that begin from now on wait nowhere; those that wait go on waiting.
func (o *rows) letPass(key string) { o.change(key, func(r *memRow) { r.gate = nil }) }

func (o *rows) load(ctx context.Context, key string) (row, error) {
	o.mu.Lock()
	r := o.byKey[key]
	if r == nil {
		o.mu.Unlock()
		return row{}, onefill.ErrNotFound
	}
	r.loads++
	now := *r
	o.mu.Unlock()
	left := ctx.Done()
	if now.deaf {
		left = nil
	}
	if now.wait > 0 {
		t := time.NewTimer(now.wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-left:
			return row{}, ctx.Err()
		}
	}
	if now.gate != nil {
		select {
		case <-now.gate:
		case <-left:
			return row{}, ctx.Err()
		}
	}
	if now.fails {
		return row{}, errOrigin
	}
	return row{Value: fmt.Sprintf("v%d", now.version), Version: now.version}, nil
}

// view is the test's own look into the store, past caches and proxies.
type view struct {
	w       *world
	session store.Session
}

func newView(w *world) *view {
	w.t.Helper()
	st, done, err := w.open(w.server.Addr(), 0)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { done() })
	session, err := st.Attach(w.t.Context(), store.Config{Name: w.name})
	if err != nil {
		w.t.Fatal(err)
	}
	return &view{w, session}
}

// stored is what the store holds of a key: its version, and whether it is fresh.
// Version 0: nothing.
func (v *view) stored(t *testing.T, key string) (version int64, fresh bool) {
	t.Helper()
	var item store.Item
	poll(t, "the server answers the test", func() (ok bool) {
		var err error
		item, err = v.session.Get(context.Background(), key)
		return err == nil
	})
	if !item.Found || len(item.Data) == 0 {
		return 0, false
	}
	env, err := store.Decode(item.Data)
	if err != nil || env.Kind != store.KindValue {
		return 0, false
	}
	var r row
	if err := json.Unmarshal(env.Payload, &r); err != nil {
		t.Fatal(err)
	}
	return r.Version, env.SoftExpiry.After(time.Now())
}
