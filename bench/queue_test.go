package bench

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/pgqueue"
	"github.com/onefill/onefill/queue"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	jobs   = 60_000
	rounds = 3
)

// TestQueue has pgqueue's worker and River's drain the same number of prefilled jobs that
// do nothing, on the same server, one after the other. River runs with what its own
// benchmark uses (2,000 workers, a fetch each 2 ms) and with custom plans, without which
// it is slower; pgqueue's worker with 100 jobs a batch, one handler call a job, at the
// same concurrency as it has connections. Medians of the rounds.
func TestQueue(t *testing.T) {
	server := servertest.Postgres(t, servers.PostgresOptions{Settings: []string{"checkpoint_timeout=1h", "max_wal_size=8GB"}})
	var ours, rivers []float64
	for range rounds {
		ours = append(ours, drainOurs(t, server.URL()))
		rivers = append(rivers, drainRiver(t, server.URL()))
	}
	slices.Sort(ours)
	slices.Sort(rivers)
	a, b := ours[rounds/2], rivers[rounds/2]
	t.Logf("%d jobs drained, medians of %d rounds: pgqueue %.0f jobs/s %.0f, River v0.51.2 %.0f jobs/s %.0f: %.2f", jobs, rounds, a, ours, b, rivers, a/b)
	if a <= b {
		t.Errorf("River is ahead: %.0f against %.0f jobs/s", b, a)
	}
}

func pool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 16
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// drained is closed when n jobs were done.
func drained(n int64) (done func(), all <-chan struct{}) {
	var left atomic.Int64
	left.Store(n)
	c := make(chan struct{})
	return func() {
		if left.Add(-1) == 0 {
			close(c)
		}
	}, c
}

func drainOurs(t *testing.T, url string) float64 {
	p := pool(t, url)
	q, err := pgqueue.New(p)
	must(t, err)
	_, err = q.MigrateUp(t.Context())
	must(t, err)
	_, err = p.Exec(t.Context(), `TRUNCATE onefill.jobs`)
	must(t, err)
	_, err = p.Exec(t.Context(), fmt.Sprintf(`INSERT INTO onefill.jobs (kind, payload) SELECT 'noop', '{}' FROM generate_series(1, %d)`, jobs))
	must(t, err)
	_, err = p.Exec(t.Context(), `VACUUM ANALYZE onefill.jobs`)
	must(t, err)
	done, all := drained(jobs)
	w, err := queue.NewWorker(queue.WorkerOptions{Queue: q, Concurrency: 16, Batch: 100, Logger: quiet, Handlers: map[string]queue.Handler{
		"noop": {Job: func(context.Context, queue.Delivery) error { done(); return nil }}}})
	must(t, err)
	start := time.Now()
	must(t, w.Start(t.Context()))
	<-all
	must(t, w.Stop(t.Context())) // acknowledges the last ones
	took := time.Since(start)
	var left int
	must(t, p.QueryRow(t.Context(), `SELECT count(*) FROM onefill.jobs`).Scan(&left))
	if left != 0 {
		t.Errorf("%d jobs are left", left)
	}
	return jobs / took.Seconds()
}

type noop struct{}

func (noop) Kind() string { return "noop" }

type noopWorker struct {
	river.WorkerDefaults[noop]
	done func()
}

func (w *noopWorker) Work(context.Context, *river.Job[noop]) error { w.done(); return nil }

func drainRiver(t *testing.T, url string) float64 {
	p := pool(t, url)
	driver := riverpgxv5.New(p)
	migrator, err := rivermigrate.New(driver, nil)
	must(t, err)
	_, err = migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil)
	must(t, err)
	_, err = p.Exec(t.Context(), `TRUNCATE river_job`)
	must(t, err)
	done, all := drained(jobs)
	workers := river.NewWorkers()
	river.AddWorker(workers, &noopWorker{done: done})
	client, err := river.NewClient(driver, &river.Config{Workers: workers, Logger: quiet,
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}}})
	must(t, err)
	params := make([]river.InsertManyParams, 1000)
	for i := range params {
		params[i].Args = noop{}
	}
	for range jobs / len(params) {
		_, err := client.InsertManyFast(t.Context(), params)
		must(t, err)
	}
	_, err = p.Exec(t.Context(), `VACUUM ANALYZE river_job`)
	must(t, err)
	start := time.Now()
	must(t, client.Start(t.Context()))
	<-all
	must(t, client.Stop(t.Context())) // completes the last ones
	return jobs / time.Since(start).Seconds()
}
