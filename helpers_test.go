package onefill_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { finish(t, c) })
	return c
}

// finish closes the cache and validates what is left of it.
func finish(t testing.TB, c *cache) {
	t.Helper()
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
			synctest.Test(t, func(t *testing.T) { test(t, l.st()) })
		})
	}
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
}

func newOrigin(row string, takes time.Duration) *originDB {
	o := &originDB{takes: takes}
	o.row.Store(&row)
	return o
}

func (o *originDB) write(row string) { o.row.Store(&row) }
func (o *originDB) fail(err error)   { o.err.Store(&err) }

// load reads the row, then takes its time: what it returns may be old by then.
func (o *originDB) load(ctx context.Context, key string) (string, error) {
	o.loads.Add(1)
	n := o.running.Add(1)
	defer o.running.Add(-1)
	for m := o.most.Load(); n > m && !o.most.CompareAndSwap(m, n); m = o.most.Load() {
	}
	row, err := o.row.Load(), o.err.Load()
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

type answer struct {
	onefill.Result[string]
	err  error
	took time.Duration
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

var bg = context.Background()

var _ = fmt.Sprint
