package integration

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/invalidation"
	"github.com/onefill/onefill/pgqueue"
	"github.com/onefill/onefill/queue"
)

// TestScalePostgres measures what docs/scale.md computes with: sizes and WAL by what the
// server says, CPU by what the system says of the processes that serve the connections.
// Autovacuum is off, so that nothing is removed between two looks.
func TestScalePostgres(t *testing.T) {
	const n, batch = 5000, 100
	ctx := context.Background()
	server := servertest.Postgres(t, servers.PostgresOptions{Settings: []string{"autovacuum=off", "full_page_writes=off"}})
	pool, err := openPool(ctx, server.URL(), 2)
	must(t, err)
	t.Cleanup(pool.Close)
	q, err := pgqueue.New(pool)
	must(t, err)
	_, err = q.MigrateUp(ctx)
	must(t, err)
	pg := postgresMeter{t, pool}

	before := pg.wal()
	cpu := pg.during(n, func() {
		for i := range n {
			enqueueOne(t, q, i)
		}
	})
	wantCost(t, "enqueueCPU", cpu)
	wantCost(t, "jobBytes", pg.number(`SELECT pg_total_relation_size('onefill.jobs')`)/n)

	cpu = pg.during(n, func() {
		for range n / batch {
			jobs, err := q.Receive(ctx, queue.Request{Max: batch, Lease: time.Minute})
			if err != nil || len(jobs) != batch {
				t.Fatalf("%d jobs, %v", len(jobs), err)
			}
			tokens := make([]queue.Token, len(jobs))
			for i, job := range jobs {
				tokens[i] = job.Token
			}
			must(t, q.Ack(ctx, tokens...))
		}
	})
	wantCost(t, "jobCPU", cpu)
	after := pg.wal()
	wantCost(t, "jobWAL", (after-before)/n)
	poll(t, "the server has counted", func() bool { return pg.number(`SELECT n_tup_del FROM `+jobsStat) == n })
	wantCost(t, "jobDead", pg.number(`SELECT n_tup_upd + n_tup_del FROM `+jobsStat)/n)
	if hot := pg.number(`SELECT n_tup_hot_upd FROM ` + jobsStat); hot != 0 {
		t.Errorf("%.0f claims were HOT updates, which docs/scale.md says none can be", hot)
	}
	pg.exec(`VACUUM ANALYZE onefill.jobs`)
	scalePolls(t, q, pg)
	scaleLoads(t, pg)
	scaleNotify(t, pg)
}

const jobsStat = `pg_stat_user_tables WHERE schemaname = 'onefill' AND relname = 'jobs'`

func enqueueOne(t *testing.T, q *pgqueue.Queue, i int) {
	jobs, err := invalidation.Invalidate("users", fmt.Sprintf("2%07d", i))
	must(t, err)
	_, err = q.Enqueue(context.Background(), jobs...)
	must(t, err)
}

// scalePolls: an empty queue is looked at, by somebody who does not wait and by one who does.
func scalePolls(t *testing.T, q *pgqueue.Queue, pg postgresMeter) {
	const looks, wait = 1000, 2 * time.Second
	ctx := context.Background()
	look := func(wait time.Duration) {
		jobs, err := q.Receive(ctx, queue.Request{Max: 100, Lease: time.Minute, Wait: wait})
		if err != nil || len(jobs) != 0 {
			t.Fatalf("%d jobs, %v", len(jobs), err)
		}
	}
	commits := func() float64 {
		pg.exec(`SELECT pg_stat_force_next_flush()`)
		return pg.number(`SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`)
	}
	// Who does not wait looks twice: where the last claim has ended, and from the beginning.
	before := commits()
	receives := pg.during(looks, func() {
		for range looks {
			look(0)
		}
	})
	wantCost(t, "pollCPU", receives*looks/(commits()-before))
	first := commits()
	before = commits()
	own := before - first // of asking
	begin := time.Now()
	look(wait)
	wantCost(t, "polls", (commits()-before-own)/time.Since(begin).Seconds())
}

// scaleLoads: what a load of one row costs the origin.
func scaleLoads(t *testing.T, pg postgresMeter) {
	const n = 3000
	pg.exec(`CREATE TABLE rows (id bigint PRIMARY KEY, data text NOT NULL)`)
	pg.exec(`INSERT INTO rows SELECT i, repeat('x', 1000) FROM generate_series(1, 10000) AS i`)
	pg.exec(`VACUUM ANALYZE rows`)
	wantCost(t, "selectCPU", pg.during(n, func() {
		for i := range n {
			var data string
			must(t, pg.pool.QueryRow(context.Background(), `SELECT data FROM rows WHERE id = $1`, 1+i%10000).Scan(&data))
		}
	}))
}

// scaleNotify: what the servers of connections that listen do when somebody notifies.
func scaleNotify(t *testing.T, pg postgresMeter) {
	const n, listeners = 300, 40
	ctx := context.Background()
	conns := make([]*pgx.Conn, listeners)
	for i := range conns {
		conn, err := pgx.ConnectConfig(ctx, pg.pool.Config().ConnConfig.Copy())
		must(t, err)
		t.Cleanup(func() { conn.Close(ctx) })
		_, err = conn.Exec(ctx, `LISTEN scale`)
		must(t, err)
		conns[i] = conn
	}
	wantCost(t, "notifyCPU", pg.during(n*listeners, func() {
		for range n {
			pg.exec(`SELECT pg_notify('scale', '')`)
			for _, conn := range conns {
				_, err := conn.WaitForNotification(ctx)
				must(t, err)
			}
		}
	}))
}

type postgresMeter struct {
	t    *testing.T
	pool *pgxpool.Pool
}

func (m postgresMeter) exec(sql string) {
	m.t.Helper()
	if _, err := m.pool.Exec(context.Background(), sql); err != nil {
		m.t.Fatalf("%s: %v", sql, err)
	}
}

func (m postgresMeter) number(sql string) (n float64) {
	m.t.Helper()
	if err := m.pool.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		m.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// wal is how many bytes have been written to it so far. Full pages are off in this server.
func (m postgresMeter) wal() float64 {
	m.exec(`SELECT pg_stat_force_next_flush()`)
	return m.number(`SELECT wal_bytes::float8 FROM pg_stat_wal`)
}

// during is the CPU time of the servers of all connections, in µs for each of n. The
// connections must be open before and stay so.
func (m postgresMeter) during(n int, do func()) float64 {
	m.t.Helper()
	before, there := m.cpu()
	do()
	after, _ := m.cpu()
	if !there {
		m.t.Fatal("there is no /proc here: the CPU time of PostgreSQL cannot be measured")
	}
	return (after - before) / float64(n)
}

func (m postgresMeter) cpu() (µs float64, there bool) {
	m.t.Helper()
	found, err := m.pool.Query(context.Background(), `SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'`)
	if err != nil {
		m.t.Fatal(err)
	}
	defer found.Close()
	for found.Next() {
		var pid int
		must(m.t, found.Scan(&pid))
		used, ok := cpuOf(pid)
		µs, there = µs+used, ok
	}
	must(m.t, found.Err())
	return µs, there
}

// cpuOf is the CPU time of a process, in µs, where the system tells.
func cpuOf(pid int) (µs float64, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, found := strings.Cut(string(text), ") ") // behind its name
	fields := strings.Fields(rest)
	if err != nil || !found || len(fields) < 13 {
		return 0, false
	}
	const tick = 10_000 // µs; USER_HZ is 100 on every Linux
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return tick * float64(user+system), true
}
