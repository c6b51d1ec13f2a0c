package invalidation_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/invalidation"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/memqueue"
	"github.com/onefill/onefill/store/memstore"
)

var (
	bg    = context.Background()
	quiet = slog.New(slog.NewTextHandler(io.Discard, nil))
)

type row struct {
	Name    string
	Version uint64
}

func versionOf(r row) uint64 { return r.Version }

// database is an origin whose rows are changed by transactions: a row and the jobs about
// it, in one step.
type database struct {
	q *memqueue.Queue

	mu    sync.Mutex
	rows  map[string]row
	loads map[string]int
	// reads, if set, answers instead of the rows.
	reads func(key string) (row, error)
}

func newDatabase(q *memqueue.Queue) *database {
	return &database{q: q, rows: map[string]row{}, loads: map[string]int{}}
}

type options = onefill.Options[string, row]

func (db *database) load(_ context.Context, key string) (row, error) {
	db.mu.Lock()
	db.loads[key]++
	r, ok := db.rows[key]
	reads := db.reads
	db.mu.Unlock()
	switch {
	case reads != nil:
		return reads(key)
	case !ok:
		return row{}, onefill.ErrNotFound
	}
	return r, nil
}

func (db *database) setReads(reads func(string) (row, error)) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.reads = reads
}

type maker func(cache string, keys ...string) ([]queue.Job, error)

// commit changes a row and enqueues a job about it, without its delivery.
func (db *database) commit(t *testing.T, makes maker, key, name string) {
	t.Helper()
	db.mu.Lock()
	defer db.mu.Unlock()
	version := db.rows[key].Version + 1
	db.rows[key] = row{name, version}
	js := must(makes("users", key))
	js[0].Version = version
	enqueue(t, db.q, js...)
}

func (db *database) loadsOf(key string) int {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.loads[key]
}

// wantTrue wants every cache to have what the rows say.
func (db *database) wantTrue(t *testing.T, caches ...*onefill.Cache[string, row]) {
	t.Helper()
	db.mu.Lock()
	rows := maps.Clone(db.rows)
	db.mu.Unlock()
	for i, c := range caches {
		for key, want := range rows {
			if got, err := c.Get(bg, key); err != nil || got != want {
				t.Errorf("process %d has %v, %v of %q; the row is %v", i, got, err, key, want)
			}
		}
	}
}

func newCache(t *testing.T, st *memstore.Store, o options) *onefill.Cache[string, row] {
	t.Helper()
	o.Logger, o.Store = quiet, st
	if o.Name == "" {
		o.Name = "users"
	}
	if o.TTL == 0 {
		o.TTL = 24 * time.Hour // what is not invalidated stays
	}
	c := must(onefill.New(o))
	t.Cleanup(func() { c.Close() })
	return c
}

// startWorker starts a worker that is stopped when the test ends. Every job that it has
// received must have come to one end by then.
func startWorker(t *testing.T, q queue.Queue, targets ...invalidation.Target) *queue.Worker {
	t.Helper()
	w := must(queue.NewWorker(queue.WorkerOptions{Queue: q, Handlers: must(invalidation.Handlers(targets...)), Logger: quiet, Lease: 10 * time.Second}))
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Stop(bg); err != nil {
			t.Error(err)
		}
		s := w.Stats()
		if ends := s.Done + s.Retried + s.Postponed + s.Dead + s.HandedBack + s.LeaseLost + s.Abandoned; ends != s.Received || s.InHand != 0 {
			t.Errorf("%d jobs received, %d ends: %+v", s.Received, ends, s)
		}
	})
	return w
}

func enqueue(t *testing.T, q queue.Queue, js ...queue.Job) {
	t.Helper()
	if _, err := q.Enqueue(bg, js...); err != nil {
		t.Fatal(err)
	}
}

// after lets time pass, and everybody come to a rest.
var after = bubble.After

// wantDone wants no job left alive or dead.
func wantDone(t *testing.T, q *memqueue.Queue) {
	t.Helper()
	if left := q.Jobs(); len(left) > 0 {
		t.Errorf("%d jobs are left, the first: %+v", len(left), left[0])
	}
	for _, l := range letters(t, q) {
		t.Errorf("dead: %+v", l)
	}
}

func letters(t *testing.T, q queue.Queue) []queue.DeadLetter {
	t.Helper()
	return must(q.ListDead(bg, queue.DeadQuery{}))
}

// writes is how many keys the store was asked to invalidate or expire.
func writes(st *memstore.Store) int {
	n := st.Counts()
	return n[memstore.OpInvalidate] + n[memstore.OpExpire]
}

// get wants a value from the cache.
func get(t *testing.T, c *onefill.Cache[string, row], key, want string) {
	t.Helper()
	if r, err := c.Get(bg, key); err != nil || r.Name != want {
		t.Errorf("Get(%q) = %v, %v; want %q", key, r, err, want)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("%v", err))
	}
	return v
}
