package pgqueue

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/queuetest"
)

// TestConformance runs the suite with transactions of pgx, on a server of its own, since
// the suite restarts, freezes and cuts it.
func TestConformance(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, servers.PostgresOptions{})
	h := harness(server.URL(), beginPgx)
	h.Restart = func(t testing.TB) { ok(t, server.Restart(context.Background())) }
	h.Break = func(t testing.TB) {
		_, err := conn(t, server.URL()).Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
		ok(t, err)
	}
	h.Block = func(t testing.TB) func() {
		ok(t, server.Pause())
		return func() { ok(t, server.Continue()) }
	}
	queuetest.Run(t, h)
}

// TestConformanceNotify is the suite with notifications, and transactions of
// database/sql.
func TestConformanceNotify(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, harness(shared.Get(t).URL(), beginSQL, Notify()))
}

func harness(url string, begin func(testing.TB, *Queue) queuetest.Tx, opts ...Option) queuetest.Harness {
	return queuetest.Harness{
		New: func(t testing.TB) (a, b queue.Queue) {
			opts := append([]Option{fresh(), PollInterval(50 * time.Millisecond)}, opts...)
			return openedOn(t, url, opts...), open(t, url, opts...)
		},
		Lease: 300 * time.Millisecond,
		Begin: func(t testing.TB, q queue.Queue) queuetest.Tx { return begin(t, q.(*Queue)) },
	}
}

type pgxTx struct {
	ctx context.Context
	q   *Queue
	tx  pgx.Tx
}

func beginPgx(t testing.TB, q *Queue) queuetest.Tx {
	tx, err := q.pool.Begin(t.Context())
	ok(t, err)
	t.Cleanup(func() { tx.Rollback(context.Background()) })
	return pgxTx{t.Context(), q, tx}
}

func (x pgxTx) Enqueue(j queue.Job) error { _, err := x.q.EnqueueTx(x.ctx, x.tx, j); return err }
func (x pgxTx) Commit() error             { return x.tx.Commit(x.ctx) }
func (x pgxTx) Rollback() error           { return x.tx.Rollback(x.ctx) }

type sqlTx struct {
	ctx context.Context
	q   *Queue
	tx  *sql.Tx
}

func beginSQL(t testing.TB, q *Queue) queuetest.Tx {
	db, err := sql.Open("pgx", q.pool.Config().ConnString())
	ok(t, err)
	tx, err := db.BeginTx(t.Context(), nil)
	ok(t, err)
	t.Cleanup(func() { tx.Rollback(); db.Close() })
	return sqlTx{t.Context(), q, tx}
}

func (x sqlTx) Enqueue(j queue.Job) error { _, err := x.q.EnqueueTx(x.ctx, x.tx, j); return err }
func (x sqlTx) Commit() error             { return x.tx.Commit() }
func (x sqlTx) Rollback() error           { return x.tx.Rollback() }
