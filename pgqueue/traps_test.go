package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/queue"
)

// What is known to go wrong with a queue in PostgreSQL, with a test for each, numbered
// as in docs/queue.md. Where there is a naive way, the test shows that it fails.

func jobs(n int) []queue.Job {
	js := make([]queue.Job, n)
	for i := range js {
		js[i] = queue.Job{Kind: "invalidate", Key: fmt.Sprintf("users:%d", i), Payload: []byte(`{"cache":"users","key":"42"}`)}
	}
	return js
}

// fill adds n jobs from within the server.
func (q *Queue) fill(t testing.TB, n int) {
	t.Helper()
	q.run(t, `INSERT INTO {schema}.jobs (kind, key, payload) SELECT 'invalidate', 'users:' || g, '{"cache":"users","key":"42"}' FROM generate_series(1, $1::int) AS g`, n)
}

// TestTrap1PlansFollowTheTable: after an idle night the table is empty, vacuumed and
// analyzed, and idle workers have polled it so often that a driver which caches its
// statements has settled on a plan for an empty table. Then comes the morning. Every
// claim must be quick, on connections of a pool that caches.
func TestTrap1PlansFollowTheTable(t *testing.T) {
	n := 30_000
	if long() {
		n = 300_000
	}
	q := openedOn(t, shared.Get(t).URL()+"&pool_max_conns=1", fresh())
	backend := q.count(t, "SELECT pg_backend_pid()")
	naive := pool(t, shared.Get(t).URL(), func(c *pgxpool.Config) { c.MaxConns = 1 })
	naiveClaim := func() time.Duration {
		sql := strings.NewReplacer("{floor}", "", "{limit}", "$2::bigint").Replace(q.sql.claim)
		start := time.Now()
		rows, err := naive.Query(t.Context(), sql, int64(60_000_000), 100)
		ok(t, err)
		rows.Close()
		ok(t, rows.Err())
		return time.Since(start)
	}
	const limit = 20 * time.Millisecond
	for round := 1; ; round++ {
		q.fill(t, 1000)
		q.run(t, "DELETE FROM {schema}.jobs")
		q.run(t, "VACUUM ANALYZE {schema}.jobs")
		for range 50 {
			naiveClaim()
			if ds := q.received(t, 100, time.Minute); len(ds) > 0 {
				t.Fatal("there are jobs left")
			}
		}
		q.fill(t, n)
		var naives, walls, costs []time.Duration
		for range 2 {
			naives = append(naives, naiveClaim())
		}
		for range n/100 - 2 {
			start, before := time.Now(), cpu(backend)
			ds := q.received(t, 100, time.Hour)
			wall := time.Since(start)
			walls, costs = append(walls, wall), append(costs, min(cpu(backend)-before, wall))
			if len(ds) != 100 {
				t.Fatalf("%d jobs, want 100", len(ds))
			}
			ok(t, q.Ack(t.Context(), tokens(ds)...))
		}
		slices.Sort(walls)
		slices.Sort(costs)
		last := len(walls) - 1
		t.Logf("%d jobs after an idle night: %d claims of 100: median %v, worst %v, of which the server has worked for %v at most; with a cached plan: %v",
			n, len(walls), walls[last/2], walls[last], costs[last], naives)
		if costs[last] < limit {
			return
		}
		if round == 3 { // a plan that is wrong is wrong each time
			t.Fatalf("the worst claim has cost %v in round %d, want less than %v", costs[last], round, limit)
		}
		q.run(t, "TRUNCATE {schema}.jobs")
	}
}

// cpu is how long a process has worked, or how late it is where that is not known. On a
// machine that is busy with other things a claim may wait; what counts is what it costs.
func cpu(pid int64) time.Duration {
	var ns int64
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err == nil {
		_, err = fmt.Sscan(string(data), &ns)
	}
	if err != nil {
		return time.Since(testsBegan)
	}
	return time.Duration(ns)
}

var testsBegan = time.Now()

// TestTrap2LateWorker: a claims for a moment and is paused; b claims the same job; a
// wakes up and acknowledges. By the job's id alone, that would remove b's claim.
func TestTrap2LateWorker(t *testing.T) {
	t.Parallel()
	q := opened(t)
	q.enqueued(t, queue.Job{Kind: "k"})
	a := q.received(t, 1, time.Millisecond)[0]
	var b queue.Delivery
	eventually(t, "b has it", func() bool {
		ds := q.received(t, 1, time.Minute)
		if len(ds) == 1 {
			b = ds[0]
		}
		return len(ds) == 1
	})
	if n := q.count(t, "SELECT count(*) FROM {schema}.jobs WHERE id = $1::text::bigint", a.ID); n != 1 {
		t.Fatalf("%d rows have the id: an acknowledgement by it would have nothing to remove", n)
	}
	if err := q.Ack(t.Context(), a.Token); !errors.Is(err, queue.ErrLeaseLost) {
		t.Errorf("a's late Ack: %v", err)
	}
	// The worker that has lost it and got it again settles both claims in one call.
	err := q.Ack(t.Context(), a.Token, b.Token, b.Token)
	if queue.ErrorOf(err, 0) != queue.ErrLeaseLost || queue.ErrorOf(err, 1) != nil || queue.ErrorOf(err, 2) != queue.ErrLeaseLost {
		t.Errorf("Ack of both claims: %v", err)
	}
}

// TestAckOfSeveralFences: acknowledgements of claims with one fence and with several are
// other statements. In both, a claim that is not the newest removes nothing, though another
// entry of the same call has the fence that it would need. Interleaving: a, b and c are
// claimed, a and b given back and claimed again, and a's first worker is late.
func TestAckOfSeveralFences(t *testing.T) {
	t.Parallel()
	q := opened(t)
	q.enqueued(t, jobs(3)...)
	first := q.received(t, 3, time.Hour)
	ok(t, q.Nack(t.Context(), queue.Return{Token: first[0].Token}, queue.Return{Token: first[1].Token}))
	again := make(map[string]queue.Token)
	for _, d := range q.received(t, 3, time.Hour) {
		again[d.ID] = d.Token
	}
	late, b, c := first[0], first[1], first[2]
	err := q.Ack(t.Context(), late.Token, again[b.ID], c.Token)
	if queue.ErrorOf(err, 0) != queue.ErrLeaseLost || queue.ErrorOf(err, 1) != nil || queue.ErrorOf(err, 2) != nil {
		t.Errorf("claims 1, 2 of 2 and 1 of 1: %v", err)
	}
	if left := q.count(t, "SELECT count(*) FROM {schema}.jobs"); left != 1 {
		t.Errorf("%d jobs are left, want the one that somebody else has", left)
	}
	if err := queue.ErrorOf(q.Ack(t.Context(), late.Token), 0); err != queue.ErrLeaseLost {
		t.Errorf("the late one once more, alone: %v", err)
	}
	ok(t, q.Ack(t.Context(), again[late.ID]))
	if left := q.count(t, "SELECT count(*) FROM {schema}.jobs"); left != 0 {
		t.Errorf("%d jobs are left", left)
	}
}

// TestTrap3MergeMeetsAClaim: a second change of a key is merged into the job of the
// first one, in a transaction that is open while a worker comes for that job.
func TestTrap3MergeMeetsAClaim(t *testing.T) {
	t.Parallel()
	merge := func(n int) queue.Job {
		return queue.Job{Kind: "k", Key: "key", Merge: true, Payload: fmt.Appendf(nil, "%d", n)}
	}

	t.Run("naive", func(t *testing.T) {
		// The writer finds the job and does nothing; the worker claims it, reads the old
		// row and is done; the writer commits the new row. Nobody ever hears of it.
		q := opened(t)
		q.enqueued(t, merge(1))
		writer, err := q.pool.Begin(t.Context())
		ok(t, err)
		tag, err := writer.Exec(t.Context(), inSchema("INSERT INTO {schema}.jobs (kind, key, merge) VALUES ('k', 'key', true) ON CONFLICT DO NOTHING", q.opts.schema))
		ok(t, err)
		d := q.one(t)
		ok(t, q.Ack(t.Context(), d.Token))
		ok(t, writer.Commit(t.Context()))
		if n := q.count(t, "SELECT count(*) FROM {schema}.jobs"); n != 0 || tag.RowsAffected() != 0 {
			t.Errorf("%d rows inserted, %d jobs left: DO NOTHING has lost nothing", tag.RowsAffected(), n)
		}
	})
	t.Run("writer first", func(t *testing.T) {
		// The writer has merged and is not committed: the worker gets nothing, not the old
		// job. After the commit it gets the new one.
		q := opened(t)
		q.enqueued(t, merge(1))
		writer := beginPgx(t, q)
		ok(t, writer.Enqueue(merge(2)))
		if ds := q.received(t, 1, time.Minute); len(ds) > 0 {
			t.Fatalf("delivered %+v while it is being merged", ds[0])
		}
		ok(t, writer.Commit())
		if d := q.one(t); string(d.Payload) != "2" || d.Attempt != 1 {
			t.Errorf("delivered %s at attempt %d", d.Payload, d.Attempt)
		}
	})
	t.Run("worker first", func(t *testing.T) {
		// The claim is under way and not committed: the writer waits for it, finds nothing
		// to merge with, and adds a job.
		q := opened(t)
		q.enqueued(t, merge(1))
		worker, err := q.pool.Begin(t.Context())
		ok(t, err)
		s := q.claiming(queue.Request{Max: 1, Lease: time.Minute}, look{sweep: true})
		claimed, err := askPgxText(t, worker, s)
		ok(t, err)
		done := make(chan error, 1)
		go func() {
			_, err := q.Enqueue(t.Context(), merge(2))
			done <- err
		}()
		eventually(t, "the writer waits", func() bool {
			return q.count(t, "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid' AND transactionid = (SELECT backend_xid FROM pg_stat_activity WHERE pid = $1)", worker.Conn().PgConn().PID()) == 1
		})
		ok(t, worker.Commit(t.Context()))
		ok(t, <-done)
		if d := q.one(t); string(d.Payload) != "2" || claimed != 1 {
			t.Errorf("delivered %s, %d claimed before", d.Payload, claimed)
		}
	})
	t.Run("crosswise", func(t *testing.T) {
		// Two writers merge the same two keys, named in opposite orders: one waits for the
		// other, not each for the other.
		q := opened(t)
		a, b := merge(1), merge(1)
		a.Key, b.Key = "a", "b"
		crosswise(t, func(forth bool) error {
			js := []queue.Job{a, b}
			if !forth {
				slices.Reverse(js)
			}
			_, err := q.execOnce(t.Context(), q.adding(q.parts(js, 0, 2, make(queue.Errors, 2))[0]))
			return err
		})
		if n := q.count(t, "SELECT count(*) FROM {schema}.jobs"); n != 2 {
			t.Errorf("%d jobs, want 2", n)
		}
	})
}

// crosswise does something from two sides at once, forth and back, without the repetition
// that would hide a deadlock.
func crosswise(t *testing.T, do func(forth bool) error) {
	t.Helper()
	var wg sync.WaitGroup
	for _, forth := range []bool{true, false} {
		wg.Go(func() {
			for range 50 {
				if err := do(forth); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestOverlappingSettlements: a worker extends the leases of jobs in one order while it
// ends them in another.
func TestOverlappingSettlements(t *testing.T) {
	t.Parallel()
	q := opened(t)
	q.enqueued(t, jobs(200)...)
	ds := q.received(t, 200, time.Minute)
	cs := make([]claim, len(ds))
	for i, d := range ds {
		cs[i], _ = parseToken(d.Token)
	}
	crosswise(t, func(forth bool) error {
		cs := slices.Clone(cs)
		if !forth {
			slices.Reverse(cs)
		}
		_, err := q.execOnce(t.Context(), []stmt{{sql: q.sql.extend, args: append(arrays(cs), "60000000")}})
		return err
	})
}

// askPgxText runs statements in a transaction of the test and counts their rows.
func askPgxText(t testing.TB, tx pgx.Tx, stmts []stmt) (rows int, err error) {
	for _, s := range stmts {
		r := tx.Conn().PgConn().ExecParams(t.Context(), s.sql, s.values(), nil, nil, nil)
		for r.NextRow() {
			rows++
		}
		if _, err := r.Close(); err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// TestTrap5NoNotifyUnlessAsked: the first thing that a listener hears after jobs were
// enqueued and committed is what the test sends then. And what notifications would cost.
func TestTrap5NoNotifyUnlessAsked(t *testing.T) {
	q := opened(t)
	listener := conn(t, shared.Get(t).URL())
	_, err := listener.Exec(t.Context(), "LISTEN "+q.wakeups.channel)
	ok(t, err)
	q.enqueued(t, queue.Job{Kind: "k"}, queue.Job{Kind: "k", Key: "key", Merge: true})
	q.run(t, "SELECT pg_notify($1, 'from the test')", q.wakeups.channel)
	n, err := listener.WaitForNotification(t.Context())
	ok(t, err)
	if n.Payload != "from the test" {
		t.Errorf("notified: %q", n.Payload)
	}
	if q.received(t, 1, time.Minute); q.Listening() {
		t.Error("it listens")
	}
	rate := func(opts ...Option) float64 {
		q := opened(t, opts...)
		const writers, each = 4, 300
		var wg sync.WaitGroup
		start := time.Now()
		for range writers {
			wg.Go(func() {
				for range each {
					if _, err := q.Enqueue(t.Context(), queue.Job{Kind: "k"}); err != nil {
						t.Errorf("Enqueue: %v", err)
					}
				}
			})
		}
		wg.Wait()
		return writers * each / time.Since(start).Seconds()
	}
	without, with := rate(), rate(Notify())
	t.Logf("jobs enqueued by 4 writers, each in a transaction of its own: %.0f/s without notifications, %.0f/s with them", without, with)
}

// TestTrap6Isolation: the pool's default is REPEATABLE READ, and read-only besides.
func TestTrap6Isolation(t *testing.T) {
	t.Parallel()
	q := opened(t)
	strict := pool(t, shared.Get(t).URL(), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
		c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
		c.MaxConns = 8
	})
	const n = 2000
	q.enqueued(t, jobs(n)...)

	// The naive claim has its snapshot; another one claims the same jobs and commits; the
	// naive one meets its rows and fails.
	naive, err := strict.BeginTx(t.Context(), pgx.TxOptions{AccessMode: pgx.ReadWrite})
	ok(t, err)
	_, err = naive.Exec(t.Context(), "SELECT 1 FROM pg_class LIMIT 1")
	ok(t, err)
	ds := q.received(t, 10, time.Hour)
	_, err = askPgxText(t, naive, q.claiming(queue.Request{Max: 10, Lease: time.Minute}, look{sweep: true}))
	var refusal *pgconn.PgError
	if !errors.As(err, &refusal) || refusal.Code != "40001" {
		t.Errorf("a claim under REPEATABLE READ: %v, want a serialization failure", err)
	}
	ok(t, naive.Rollback(t.Context()))
	ok(t, q.Ack(t.Context(), tokens(ds)...))

	// Ours, from eight clients at once: each job once, and no error.
	own, err := New(strict, Schema(q.opts.schema))
	ok(t, err)
	results, err := own.exec(t.Context(), stmt{sql: "SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only')"})
	ok(t, err)
	if r := results[0][0]; r.text(0) != "read committed" || r.text(1) != "off" {
		t.Errorf("our transactions are %s, read-only %s", r[0], r[1])
	}
	takenOnce(t, own, n-10)
}

// takenOnce lets eight clients claim n jobs, and checks that each is claimed once.
func takenOnce(t *testing.T, q *Queue, n int) {
	t.Helper()
	var mu sync.Mutex
	seen := map[string]int{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				ds, err := q.Receive(t.Context(), queue.Request{Max: 7, Lease: time.Hour})
				if err == nil && len(ds) > 0 {
					err = q.Ack(t.Context(), tokens(ds)...)
				}
				if err != nil {
					t.Errorf("a client: %v", err)
				}
				mu.Lock()
				for _, d := range ds {
					seen[d.ID]++
				}
				over := len(seen) >= n
				mu.Unlock()
				if over || err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if len(seen) != n {
		t.Errorf("%d jobs were claimed, want %d", len(seen), n)
	}
	for id, times := range seen {
		if times != 1 {
			t.Errorf("job %s was claimed %d times", id, times)
		}
	}
}

// TestEightClients is the same with the server's own defaults.
func TestEightClients(t *testing.T) {
	t.Parallel()
	q := open(t, shared.Get(t).URL()+"&pool_max_conns=8", fresh())
	_, err := q.MigrateUp(t.Context())
	ok(t, err)
	q.enqueued(t, jobs(3000)...)
	takenOnce(t, q, 3000)
}

// TestTrap7ClientsClock: this client lives in the year 2000, where the time of a bubble
// begins; the server does not. Its delays, leases and numbers are right all the same,
// because nothing but durations goes to the server. Ten minutes would be no different.
func TestTrap7ClientsClock(t *testing.T) {
	server := shared.Get(t)
	real := opened(t)
	bubble.Test(t, func(t *testing.T) {
		if year := time.Now().Year(); year != 2000 {
			t.Fatalf("the client's clock says %d", year)
		}
		q, err := Open(server.URL(), Schema(real.opts.schema))
		ok(t, err)
		defer q.Close()
		ok(t, q.Check(t.Context()))
		q.enqueued(t, queue.Job{Kind: "now"}, queue.Job{Kind: "later", Delay: time.Hour})
		d := q.one(t)
		if d.Kind != "now" || d.Lag > time.Minute || d.Age > time.Minute {
			t.Errorf("delivered %q with a lag of %v, aged %v", d.Kind, d.Lag, d.Age)
		}
		if left := time.Until(d.Deadline); left > time.Minute || left < time.Minute-patience {
			t.Errorf("the deadline is in %v, by the client's clock, want a minute", left)
		}
		ok(t, q.Extend(t.Context(), 2*time.Hour, d.Token))
		s, err := q.Stats(t.Context())
		ok(t, err)
		if s.Ready != 0 || s.NotReady != 2 || s.Lag != 0 {
			t.Errorf("stats %+v", s)
		}
	})
	minutes := "SELECT round(extract(epoch FROM run_at - now()) / 60)::bigint FROM {schema}.jobs WHERE kind = $1"
	if now, later := real.count(t, minutes, "now"), real.count(t, minutes, "later"); now != 120 || later != 60 {
		t.Errorf("due in %d and %d minutes by the server's clock, want 120 and 60", now, later)
	}
}

// TestTrap8LateCommit: a transaction enqueues and stays open while thousands of later
// jobs are done and the claims have moved on; then it commits, with an older id and an
// older run_at than all that was claimed.
func TestTrap8LateCommit(t *testing.T) {
	t.Parallel()
	q := opened(t)
	late := beginPgx(t, q)
	ok(t, late.Enqueue(queue.Job{Kind: "late"}))
	for start := time.Now(); time.Since(start) < 2*floorMargin; {
		q.enqueued(t, jobs(50)...)
		ds := q.received(t, 50, time.Minute)
		if len(ds) != 50 {
			t.Fatalf("%d jobs, want 50", len(ds))
		}
		ok(t, q.Ack(t.Context(), tokens(ds)...))
	}
	ok(t, late.Commit())
	start := time.Now()
	ds, err := q.Receive(t.Context(), queue.Request{Max: 10, Wait: patience, Lease: time.Minute})
	ok(t, err)
	if waited := time.Since(start); waited > patience/2 {
		t.Errorf("it came %v after the commit, when the wait was over", waited)
	}
	if len(ds) != 1 || ds[0].Kind != "late" {
		t.Fatalf("received %+v, want the late job", ds)
	}
	t.Logf("committed %v after it was enqueued", ds[0].Lag.Round(time.Millisecond))
}

// TestWritersDoNotWait: a claim is under way, and another writer's transaction has
// enqueued for the same key and stays open. Nobody waits for either, unless asked to
// merge.
func TestWritersDoNotWait(t *testing.T) {
	t.Parallel()
	q := opened(t)
	job := queue.Job{Kind: "k", Key: "key"}
	q.enqueued(t, job)
	worker, err := q.pool.Begin(t.Context())
	ok(t, err)
	claimed, err := askPgxText(t, worker, q.claiming(queue.Request{Max: 10, Lease: time.Minute}, look{sweep: true}))
	ok(t, err)
	writer := beginPgx(t, q)
	ok(t, writer.Enqueue(job))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 10 {
		_, err := q.Enqueue(ctx, job)
		ok(t, err)
	}
	if ds := q.received(t, 100, time.Minute); len(ds) != 10 || claimed != 1 {
		t.Errorf("%d claimed under way, %d claimed beside it", claimed, len(ds))
	}
	ok(t, worker.Commit(t.Context()))
	ok(t, writer.Commit())
}

// TestTrap9Autovacuum: the table is vacuumed and analyzed after a few thousand jobs, not
// after a share of its rows.
func TestTrap9Autovacuum(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, servers.PostgresOptions{Settings: []string{"autovacuum_naptime=1s"}})
	q := openedOn(t, server.URL(), fresh())
	q.fill(t, 100_000) // a fifth of them would be 20,000
	q.run(t, "VACUUM ANALYZE {schema}.jobs")
	for range 3 {
		ds := q.received(t, maxBatch, time.Minute)
		ok(t, q.Ack(t.Context(), tokens(ds)...))
	}
	var vacuums, analyzes int64
	eventually(t, "autovacuum has come", func() bool {
		vacuums = q.count(t, "SELECT autovacuum_count FROM pg_stat_user_tables WHERE relid = '{schema}.jobs'::regclass")
		analyzes = q.count(t, "SELECT autoanalyze_count FROM pg_stat_user_tables WHERE relid = '{schema}.jobs'::regclass")
		return vacuums > 0 && analyzes > 0
	})
	t.Logf("after 3,000 of 100,000 jobs: %d vacuums, %d analyzes", vacuums, analyzes)
}
