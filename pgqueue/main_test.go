package pgqueue

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/queue"
)

var shared = servertest.SharedPostgres(servers.PostgresOptions{})

func TestMain(m *testing.M) {
	if os.Getenv(childURL) != "" {
		child()
		return
	}
	code := m.Run()
	shared.Stop()
	os.Exit(code)
}

// patience bounds every wait of a test for something that should come at once.
const patience = 10 * time.Second

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

var schemas atomic.Int64

// fresh is the option for a schema that no other test uses.
func fresh() Option { return Schema(fmt.Sprintf("test %d", schemas.Add(1))) }

// opened is a queue on tables of its own, on the server that all tests share.
func opened(t testing.TB, opts ...Option) *Queue {
	t.Helper()
	return openedOn(t, shared.Get(t).URL(), append([]Option{fresh()}, opts...)...)
}

func openedOn(t testing.TB, url string, opts ...Option) *Queue {
	t.Helper()
	q := open(t, url, opts...)
	applied, err := q.MigrateUp(t.Context())
	ok(t, err)
	if len(applied) == 0 {
		t.Fatal("nothing was migrated")
	}
	return q
}

func open(t testing.TB, url string, opts ...Option) *Queue {
	t.Helper()
	q, err := Open(url, opts...)
	ok(t, err)
	t.Cleanup(q.Close)
	return q
}

// run runs a statement beside the queue, with the schema put in.
func (q *Queue) run(t testing.TB, sql string, args ...any) {
	t.Helper()
	_, err := q.pool.Exec(t.Context(), inSchema(sql, q.opts.schema), args...)
	ok(t, err)
}

// count is the answer to a query that is a number.
func (q *Queue) count(t testing.TB, sql string, args ...any) (n int64) {
	t.Helper()
	ok(t, q.pool.QueryRow(t.Context(), inSchema(sql, q.opts.schema), args...).Scan(&n))
	return n
}

// enqueued adds jobs that must be taken.
func (q *Queue) enqueued(t testing.TB, jobs ...queue.Job) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ids, err := q.Enqueue(ctx, jobs...)
	ok(t, err)
	return ids
}

// received is one look.
func (q *Queue) received(t testing.TB, most int, lease time.Duration) []queue.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ds, err := q.Receive(ctx, queue.Request{Max: most, Lease: lease})
	ok(t, err)
	return ds
}

// one claims one job, which must be there.
func (q *Queue) one(t testing.TB) queue.Delivery {
	t.Helper()
	ds := q.received(t, 1, time.Minute)
	if len(ds) != 1 {
		t.Fatalf("%d jobs, want 1", len(ds))
	}
	return ds[0]
}

func tokens(ds []queue.Delivery) []queue.Token {
	ts := make([]queue.Token, len(ds))
	for i := range ds {
		ts[i] = ds[i].Token
	}
	return ts
}

// conn is a connection beside the queue's.
func conn(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	ok(t, err)
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func pool(t testing.TB, url string, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	ok(t, err)
	if change != nil {
		change(config)
	}
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	ok(t, err)
	t.Cleanup(p.Close)
	return p
}

// long says whether the tests that take minutes are wanted in full.
func long() bool { return os.Getenv("ONEFILL_LONG") == "1" }

func contains(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not say %q", err, p)
		}
	}
}
