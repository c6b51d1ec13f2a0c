package onefill_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	inbubble "github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

type (
	options = onefill.Options[string, string]
	cache   = onefill.Cache[string, string]
)

// newCache returns a cache that is closed and validated when the test ends.
func newCache(t testing.TB, o options) *cache {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if o.Store != nil && o.Name == "" {
		o.Name = "test"
	}
	c, err := onefill.New(o)
	// Without a store, what a collision of stripes drops is gone.
	for err == nil && o.Store == nil && (o.Tags || o.TagsOf != nil) && !c.TagsApart(taggedKeys, usedTags) {
		must(t, c.Close())
		c, err = onefill.New(o)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { finish(t, c) })
	return c
}

// The keys and tags of tests that say what an invalidation of a tag leaves in local.
var (
	commonTags = func() (tags []string) {
		for i := range 17 {
			tags = append(tags, fmt.Sprintf("common:%02d", i))
		}
		return tags
	}()
	taggedKeys = []string{"a", "b", "c", "d", "k", "s", "outer", "inner"}
	usedTags   = append([]string{"row:a", "row:b", "row:c", "row:d", "row:k", "row:s", "team", "other", "x", "all", "red", "blue",
		"late", "tag:inner", "tag:outer"}, commonTags...)
)

// finish closes the cache and validates what is left of it.
func finish(t testing.TB, c *cache) {
	t.Helper()
	if most := c.MaxEntries(); most > 0 {
		n := c.Stats().LocalEntries
		for tries := 0; n > most && tries < 100_000; tries++ { // the policy runs behind, in a goroutine of its own
			runtime.Gosched()
			n = c.Stats().LocalEntries
		}
		if n > most {
			t.Errorf("%d local entries, at most %d are allowed", n, most)
		}
	}
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	for _, wrong := range c.Validate() {
		t.Errorf("invariant: %s", wrong)
	}
}

// layouts runs a test in one process without a store, and on memory as the store,
// in a bubble with its own time; the stores are of the kinds that exist: one that
// pushes, one that is polled, one that reads and leases in one step.
func layouts(t *testing.T, test func(t *testing.T, st *memstore.Store)) {
	t.Helper()
	for _, l := range []struct {
		name string
		st   func() *memstore.Store
	}{
		{"local", func() *memstore.Store { return nil }},
		{"push", func() *memstore.Store { return memstore.New() }},
		{"poll", func() *memstore.Store { return memstore.New(memstore.Options{NoPush: true}) }},
		{"memcached-like", func() *memstore.Store {
			return memstore.New(memstore.Options{NoPush: true, AcquireReads: true, ForgetsToken: true,
				Granularity: time.Second, MinLease: 2 * time.Second})
		}},
	} {
		t.Run(l.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) { test(t, l.st()) })
		})
	}
}

// bubble runs a test in a bubble with its own time. In it synctest.Wait means that
// everybody has come to where only the test, or time, can move them on.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	inbubble.Test(t, test)
}

// stores is layouts without the first one: there is always a store.
func stores(t *testing.T, test func(t *testing.T, st *memstore.Store)) {
	t.Helper()
	layouts(t, func(t *testing.T, st *memstore.Store) {
		if st != nil {
			test(t, st)
		}
	})
}

// with puts a store into the options, if there is one: a nil *memstore.Store in
// the interface would not be nil.
func with(o options, st *memstore.Store) options {
	if st != nil {
		o.Store = st
	}
	return o
}

// origin is a database that counts.
type originDB struct {
	loads   atomic.Int64
	running atomic.Int64
	most    atomic.Int64 // loads at once
	row     atomic.Pointer[string]
	err     atomic.Pointer[error]
	takes   time.Duration
	paused  atomic.Pointer[chan struct{}]
}

func newOrigin(row string, takes time.Duration) *originDB {
	o := &originDB{takes: takes}
	o.row.Store(&row)
	return o
}

func (o *originDB) write(row string) { o.row.Store(&row) }
func (o *originDB) fail(err error)   { o.err.Store(&err) }

// pause makes every load that begins from now on stop after it has read the row,
// until resume is called.
func (o *originDB) pause() (resume func()) {
	c := make(chan struct{})
	o.paused.Store(&c)
	return func() {
		o.paused.CompareAndSwap(&c, nil)
		close(c)
	}
}

// load reads the row, then takes its time: what it returns may be old by then.
func (o *originDB) load(ctx context.Context, key string) (string, error) {
	o.loads.Add(1)
	n := o.running.Add(1)
	defer o.running.Add(-1)
	for m := o.most.Load(); n > m && !o.most.CompareAndSwap(m, n); m = o.most.Load() {
	}
	row, err := o.row.Load(), o.err.Load()
	if c := o.paused.Load(); c != nil {
		select {
		case <-*c:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	select {
	case <-time.After(o.takes):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if err != nil && *err != nil {
		return "", *err
	}
	return *row, nil
}

func (o *originDB) wantLoads(t testing.TB, want int64) {
	t.Helper()
	if got := o.loads.Load(); got != want {
		t.Errorf("%d loads, want %d", got, want)
	}
}

// attempts makes calls, one each every, and returns the seconds after which one of them has
// made the origin be asked.
func (o *originDB) attempts(calls int, every time.Duration, call func(i int)) (at []float64) {
	start := time.Now()
	for i := range calls {
		before := o.loads.Load()
		call(i)
		synctest.Wait() // also those in the background
		if o.loads.Load() > before {
			at = append(at, time.Since(start).Seconds())
		}
		inbubble.After(every)
	}
	return at
}

type answer struct {
	onefill.Result[string]
	err  error
	took time.Duration
}

// ask makes one caller and returns where its answer will come.
func ask(ctx context.Context, c *cache, key string) <-chan answer {
	answers := make(chan answer, 1)
	go func() {
		start := time.Now()
		r, err := c.Fetch(ctx, key)
		answers <- answer{r, err, time.Since(start)}
	}()
	return answers
}

// pending says that no answer has come, as far as anybody can get by itself.
func pending(t testing.TB, answers <-chan answer) {
	t.Helper()
	synctest.Wait()
	if len(answers) > 0 {
		t.Fatalf("an answer came too early: %+v", <-answers)
	}
}

// herd makes n callers of each cache ask for key at the same moment and returns
// all answers.
func herd(ctx context.Context, n int, key string, caches ...*cache) []answer {
	answers := make(chan answer, n*len(caches))
	barrier := make(chan struct{})
	for _, c := range caches {
		for range n {
			go func() {
				<-barrier
				start := time.Now()
				r, err := c.Fetch(ctx, key)
				answers <- answer{r, err, time.Since(start)}
			}()
		}
	}
	close(barrier)
	all := make([]answer, cap(answers))
	for i := range all {
		all[i] = <-answers
	}
	return all
}

func wantAll(t testing.TB, answers []answer, value string) {
	t.Helper()
	for _, a := range answers {
		if a.err != nil || a.Value != value {
			t.Fatalf("got %q, %v; want %q", a.Value, a.err, value)
		}
	}
}

func wantErrs(t testing.TB, answers []answer, want error) {
	t.Helper()
	for _, a := range answers {
		if !errors.Is(a.err, want) {
			t.Fatalf("got %q, %v; want the error %v", a.Value, a.err, want)
		}
	}
}

func get(t testing.TB, c *cache, key, want string) {
	t.Helper()
	if v, err := c.Get(context.Background(), key); err != nil || v != want {
		t.Fatalf("Get(%q) = %q, %v; want %q", key, v, err, want)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls a condition outside of a bubble, where real goroutines need
// real time.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// peek wants a value to be cached, or nothing if want is empty.
func peek(t testing.TB, c *cache, key, want string) {
	t.Helper()
	r, ok, err := c.Peek(context.Background(), key)
	if err != nil || ok != (want != "") || r.Value != want {
		t.Errorf("Peek(%q) = %q, %t, %v; want %q", key, r.Value, ok, err, want)
	}
}

// stored is what the store holds under key of the cache named test.
func stored(t testing.TB, st *memstore.Store, key string) (store.Envelope, bool) {
	t.Helper()
	data, ok := st.Raw("test", key)
	if !ok {
		return store.Envelope{}, false
	}
	env, err := store.Decode(data)
	if err != nil {
		t.Fatalf("the store holds %q under %q: %v", data, key, err)
	}
	return env, true
}

func wantStored(t testing.TB, st *memstore.Store, key, want string) {
	t.Helper()
	env, ok := stored(t, st, key)
	if ok != (want != "") || string(env.Payload) != want {
		t.Errorf("the store holds %q (%t) under %q, want %q", env.Payload, ok, key, want)
	}
}

// nothingHeld wants no lease, no failure and no waiter to be left in the store.
func nothingHeld(t testing.TB, st *memstore.Store) {
	t.Helper()
	if st == nil {
		return
	}
	if u := st.Usage(); u.Leases != 0 || u.Failures != 0 || u.Watches != 0 {
		t.Errorf("left in the store: %+v", u)
	}
}

func commands(st *memstore.Store) (n int) {
	for _, c := range st.Counts() {
		n += c
	}
	return n
}

// holdNext makes the next operation of a kind stop before it is applied (or,
// with reply, after it was) until resume is called. stopped returns when it has
// got there. Others of that kind are not disturbed.
func holdNext(st *memstore.Store, kind memstore.Kind, reply bool) (stopped, resume func()) {
	there, hold := make(chan struct{}), make(chan struct{})
	var taken atomic.Bool
	st.SetFault(func(op memstore.Op) memstore.Fault {
		if op.Kind != kind || !taken.CompareAndSwap(false, true) {
			return memstore.Fault{}
		}
		close(there)
		if reply {
			return memstore.Fault{ReplyHold: hold}
		}
		return memstore.Fault{Hold: hold}
	})
	stopped = func() {
		<-there
		synctest.Wait() // the operation has been decided on; now it has also been applied
	}
	return stopped, func() { close(hold) }
}

// faultNext makes the next n operations of a kind have a fault.
func faultNext(st *memstore.Store, kind memstore.Kind, n int, fault memstore.Fault) {
	var left atomic.Int64
	left.Store(int64(n))
	st.SetFault(func(op memstore.Op) memstore.Fault {
		if op.Kind == kind && left.Add(-1) >= 0 {
			return fault
		}
		return memstore.Fault{}
	})
}

// stranger holds the lease of a key as a process that is killed does: it never
// renews and never comes back, unless the test makes it.
func stranger(t testing.TB, st *memstore.Store, key string, ttl time.Duration) store.Lease {
	t.Helper()
	s, err := st.Attach(context.Background(), store.Config{Name: "test"})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	a, err := s.Acquire(context.Background(), key, store.Request{Token: store.NewToken(), TTL: ttl})
	must(t, err)
	if a.State != store.Won {
		t.Fatalf("the stranger's acquire was answered %v", a.State)
	}
	return a.Lease
}

var bg = context.Background()
