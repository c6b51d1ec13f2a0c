package pgqueue

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/onefill/onefill/queue"
)

func TestOnce(t *testing.T) {
	t.Parallel()
	q := opened(t)
	begin := func() pgxTx { return beginPgx(t, q).(pgxTx) }
	once := func(tx Tx, key string) bool {
		t.Helper()
		first, err := q.Once(t.Context(), tx, key)
		ok(t, err)
		return first
	}

	// What was rolled back was not done.
	tx := begin()
	if !once(tx.tx, "order 17") || once(tx.tx, "order 17") {
		t.Error("in one transaction: want true, then false")
	}
	ok(t, tx.Rollback())
	tx = begin()
	if !once(tx.tx, "order 17") {
		t.Error("after a rollback the key is still there")
	}

	// The job comes twice at the same time: the second handler waits for the end of the
	// first one's transaction, and does nothing.
	db, err := sql.Open("pgx", shared.Get(t).URL())
	ok(t, err)
	defer db.Close()
	second, err := db.BeginTx(t.Context(), nil)
	ok(t, err)
	got := make(chan bool, 1)
	go func() {
		first, err := q.Once(t.Context(), second, "order 17")
		if err != nil {
			t.Errorf("Once: %v", err)
		}
		got <- first
	}()
	eventually(t, "the second one waits", func() bool {
		return q.count(t, "SELECT count(*) FROM pg_locks WHERE NOT granted AND transactionid = (SELECT backend_xid FROM pg_stat_activity WHERE pid = $1)", tx.tx.Conn().PgConn().PID()) == 1
	})
	ok(t, tx.Commit())
	if <-got {
		t.Error("both are the first")
	}
	ok(t, second.Commit())

	third, err := db.BeginTx(t.Context(), nil)
	ok(t, err)
	if !once(third, "order 18") || once(third, "order 18") {
		t.Error("with database/sql: want true, then false")
	}
	ok(t, third.Commit())

	tx = begin()
	for _, key := range []string{"", "\x00", "\xff"} {
		if _, err := q.Once(t.Context(), tx.tx, key); !errors.Is(err, queue.ErrInvalid) {
			t.Errorf("Once(%q): %v", key, err)
		}
	}
	ok(t, tx.Commit()) // it was not broken by that
}

func TestForget(t *testing.T) {
	t.Parallel()
	q := opened(t)
	q.run(t, "INSERT INTO {schema}.jobs_once SELECT 'old ' || g, now() - interval '31 days' FROM generate_series(1, $1::int) AS g", forgetBatch+5)
	tx := beginPgx(t, q).(pgxTx)
	_, err := q.Once(t.Context(), tx.tx, "new")
	ok(t, err)
	ok(t, tx.Commit())
	for range 2 { // two dead letters, one of which was replayed long ago
		q.enqueued(t, queue.Job{Kind: "k"})
		ok(t, q.Dead(t.Context(), queue.Death{Token: q.one(t).Token}))
	}
	letters, err := q.ListDead(t.Context(), queue.DeadQuery{})
	ok(t, err)
	_, err = q.ReplayDead(t.Context(), letters[0].ID)
	ok(t, err)
	q.run(t, "UPDATE {schema}.jobs_dead SET replayed_at = replayed_at - interval '31 days', died_at = died_at - interval '99 days'")
	removed, err := q.Forget(t.Context(), 30*24*time.Hour)
	ok(t, err)
	if removed != forgetBatch+6 {
		t.Errorf("%d removed, want %d", removed, forgetBatch+6)
	}
	if keys, left := q.count(t, "SELECT count(*) FROM {schema}.jobs_once"), q.count(t, "SELECT count(*) FROM {schema}.jobs_dead"); keys != 1 || left != 1 {
		t.Errorf("%d keys and %d letters left, want 1 and 1", keys, left)
	}
}

// What is no transaction is refused at once, above all a pool, which would enqueue
// whether or not the caller commits.
func TestWhatIsNoTransaction(t *testing.T) {
	t.Parallel()
	q := opened(t)
	db, err := sql.Open("pgx", shared.Get(t).URL())
	ok(t, err)
	defer db.Close()
	one, err := db.Conn(t.Context())
	ok(t, err)
	defer one.Close()
	for _, tx := range []Tx{nil, "tx", q.pool, db, one, conn(t, shared.Get(t).URL())} {
		_, err := q.EnqueueTx(t.Context(), tx, queue.Job{Kind: "k"})
		contains(t, err, "enqueue: ", "a pgx.Tx or a *sql.Tx is needed")
		_, err = q.Once(t.Context(), tx, "key")
		contains(t, err, "once: ", "a pgx.Tx or a *sql.Tx is needed")
	}
	// Types that embed one are as good, and so is a transaction within one.
	type wrapped struct{ *sql.Tx }
	tx, err := db.BeginTx(t.Context(), nil)
	ok(t, err)
	_, err = q.EnqueueTx(t.Context(), wrapped{tx}, queue.Job{Kind: "k"})
	ok(t, err)
	ok(t, tx.Commit())
	outer := beginPgx(t, q).(pgxTx)
	inner, err := outer.tx.Begin(t.Context())
	ok(t, err)
	_, err = q.EnqueueTx(t.Context(), inner, queue.Job{Kind: "k"})
	ok(t, err)
	ok(t, inner.Rollback(context.Background()))
	_, err = q.EnqueueTx(t.Context(), outer.tx, queue.Job{Kind: "k"})
	ok(t, err)
	ok(t, outer.Commit())
	if n := q.count(t, "SELECT count(*) FROM {schema}.jobs"); n != 2 {
		t.Errorf("%d jobs, want 2", n)
	}
}
