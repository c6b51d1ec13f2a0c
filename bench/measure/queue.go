package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/onefill/onefill/pgqueue"
	"github.com/onefill/onefill/queue"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// Queues measures how fast a backlog of jobs that do nothing is drained.
func Queues(s Sizes) *Measure {
	return &Measure{
		Name: "queue", Title: "A queue in Postgres, drained", RowHead: "queue",
		About:   fmt.Sprintf("%d jobs that do nothing, inserted beforehand; the same server, whose fsync is off, with custom plans (QueryExecModeExec), without which all of them collapse. pgqueue's worker takes 100 a time, one handler call a job. River runs as in its own benchmark: 2,000 workers, a fetch each 2 ms. Bare SQL is a claim of 100 by SKIP LOCKED, which counts the attempt, and a DELETE of the 100 by their ids, from 4 connections, each of which does one after the other; no worker, no fence, and nothing of the job is read. Fenced is the same on pgqueue's table, with a fence that grows with the claim and that the DELETE names, and all of the job read: what these cost without a worker.", s.Jobs),
		Columns: []Column{{"jobs", "jobs/s", 0}},
		Anchor:  "bare SQL", Compared: []string{"jobs"},
		Targets: []Target{
			{Row: "pgqueue", Column: "jobs", Anchor: "bare SQL", Limit: 0.9, AtLeast: true},
			{Row: "pgqueue", Column: "jobs", Anchor: "River", Limit: 1, AtLeast: true},
		},
		Plots: []Plot{{File: "bench-queue", Title: "Jobs drained from Postgres", Columns: []string{"jobs"}, Y: "jobs/s"}},
		Open:  openQueues,
	}
}

func openQueues(ctx context.Context, e *Env) ([]Row, error) {
	server, err := e.Postgres(ctx)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, q := range []struct {
		name, how string
		drain     func(context.Context, *pgxpool.Pool, int) (time.Duration, error)
	}{
		{"pgqueue", "16 handlers at once", drainPgqueue},
		{"River", "2,000 workers", drainRiver},
		{"bare SQL", "4 connections", drainBare},
		{"bare SQL, fenced", "4 connections", drainFenced},
	} {
		if !e.wants(q.name) {
			continue
		}
		rows = append(rows, Row{Name: q.name, How: q.how, Round: func(ctx context.Context) (Values, error) {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
			defer cancel()
			pool, err := openPool(ctx, server.URL())
			if err != nil {
				return nil, err
			}
			defer pool.Close()
			took, err := q.drain(ctx, pool, e.Size.Jobs)
			return Values{"jobs": float64(e.Size.Jobs) / took.Seconds()}, err
		}})
	}
	return rows, nil
}

func openPool(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 16
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	return pgxpool.NewWithConfig(ctx, config)
}

// run executes statements, one after the other.
func run(ctx context.Context, p *pgxpool.Pool, statements ...string) error {
	for _, s := range statements {
		if _, err := p.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// countdown is closed when n jobs were done.
func countdown(n int) (done func(), all <-chan struct{}) {
	var left atomic.Int64
	left.Store(int64(n))
	c := make(chan struct{})
	return func() {
		if left.Add(-1) == 0 {
			close(c)
		}
	}, c
}

func wait(ctx context.Context, all <-chan struct{}) error {
	select {
	case <-all:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// openFilled is pgqueue's queue with jobs in it.
func openFilled(ctx context.Context, p *pgxpool.Pool, jobs int) (*pgqueue.Queue, error) {
	q, err := pgqueue.New(p)
	if err != nil {
		return nil, err
	}
	if _, err := q.MigrateUp(ctx); err != nil {
		return nil, err
	}
	return q, refill(ctx, p, "onefill.jobs", jobs)
}

func refill(ctx context.Context, p *pgxpool.Pool, table string, jobs int) error {
	return run(ctx, p, `TRUNCATE `+table,
		fmt.Sprintf(`INSERT INTO %s (kind, payload) SELECT 'noop', '{}' FROM generate_series(1, %d)`, table, jobs), `VACUUM ANALYZE `+table)
}

func drainPgqueue(ctx context.Context, p *pgxpool.Pool, jobs int) (time.Duration, error) {
	q, err := openFilled(ctx, p, jobs)
	if err != nil {
		return 0, err
	}
	done, all := countdown(jobs)
	w, err := queue.NewWorker(queue.WorkerOptions{Queue: q, Concurrency: 16, Batch: 100, Logger: quiet(), Handlers: map[string]queue.Handler{
		"noop": {Job: func(context.Context, queue.Delivery) error {
			done()
			return nil
		}}}})
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := w.Start(ctx); err != nil {
		return 0, err
	}
	err = errors.Join(wait(ctx, all), w.Stop(ctx)) // Stop acknowledges the last ones
	took := time.Since(start)
	return took, errors.Join(err, nothingLeft(ctx, p, "onefill.jobs"))
}

func nothingLeft(ctx context.Context, p *pgxpool.Pool, table string) error {
	var left int
	if err := p.QueryRow(ctx, `SELECT count(*) FROM `+table).Scan(&left); err != nil {
		return err
	}
	if left != 0 {
		return fmt.Errorf("%d jobs are left in %s", left, table)
	}
	return nil
}

type noop struct{}

func (noop) Kind() string { return "noop" }

type noopWorker struct {
	river.WorkerDefaults[noop]
	done func()
}

func (w *noopWorker) Work(context.Context, *river.Job[noop]) error {
	w.done()
	return nil
}

func drainRiver(ctx context.Context, p *pgxpool.Pool, jobs int) (time.Duration, error) {
	driver := riverpgxv5.New(p)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet()})
	if err != nil {
		return 0, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return 0, err
	}
	if err := run(ctx, p, `TRUNCATE river_job`); err != nil {
		return 0, err
	}
	done, all := countdown(jobs)
	workers := river.NewWorkers()
	river.AddWorker(workers, &noopWorker{done: done})
	client, err := river.NewClient(driver, &river.Config{Workers: workers, Logger: quiet(),
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}}})
	if err != nil {
		return 0, err
	}
	for left := jobs; left > 0; left -= 1000 {
		params := make([]river.InsertManyParams, min(left, 1000))
		for i := range params {
			params[i].Args = noop{}
		}
		if _, err := client.InsertManyFast(ctx, params); err != nil {
			return 0, err
		}
	}
	if err := run(ctx, p, `VACUUM ANALYZE river_job`); err != nil {
		return 0, err
	}
	start := time.Now()
	if err := client.Start(ctx); err != nil {
		return 0, err
	}
	err = errors.Join(wait(ctx, all), client.Stop(ctx)) // Stop completes the last ones
	return time.Since(start), err
}

// bareClaim makes jobs invisible for a while and returns them, as pgqueue's does.
const (
	bareClaim = `WITH j AS (SELECT id FROM bare_jobs WHERE run_at <= now() ORDER BY run_at LIMIT $1 FOR UPDATE SKIP LOCKED)
UPDATE bare_jobs SET attempts = attempts + 1, run_at = now() + interval '1 minute' FROM j WHERE bare_jobs.id = j.id RETURNING bare_jobs.id`
	bareDelete = `DELETE FROM bare_jobs WHERE id = ANY($1)`
)

func drainBare(ctx context.Context, p *pgxpool.Pool, jobs int) (time.Duration, error) {
	if err := run(ctx, p, `CREATE TABLE IF NOT EXISTS bare_jobs (id bigserial PRIMARY KEY, kind text NOT NULL, payload jsonb NOT NULL, run_at timestamptz NOT NULL DEFAULT now(), attempts int NOT NULL DEFAULT 0)`,
		`CREATE INDEX IF NOT EXISTS bare_jobs_run_at ON bare_jobs (run_at)`); err != nil {
		return 0, err
	}
	if err := refill(ctx, p, "bare_jobs", jobs); err != nil {
		return 0, err
	}
	return drainTable(ctx, p, "bare_jobs", func() (int, error) {
		rows, err := p.Query(ctx, bareClaim, 100)
		if err != nil {
			return 0, err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil || len(ids) == 0 {
			return 0, err
		}
		_, err = p.Exec(ctx, bareDelete, ids)
		return len(ids), err
	})
}

const (
	fencedClaim = `WITH j AS (SELECT id FROM onefill.jobs WHERE run_at <= now() ORDER BY run_at LIMIT $1 FOR UPDATE SKIP LOCKED)
UPDATE onefill.jobs SET fence = fence + 1, attempts = attempts + 1, run_at = now() + interval '1 minute' FROM j WHERE jobs.id = j.id
RETURNING jobs.id, fence, attempts, kind, key, payload, version::text, dedupe, last_error, enqueued_at`
	fencedDelete = `DELETE FROM onefill.jobs USING unnest($1::bigint[], $2::int[]) AS t(id, fence) WHERE jobs.id = t.id AND jobs.fence = t.fence`
)

// fencedJob is what a worker wants to know of a job.
type fencedJob struct {
	ID              int64
	Fence, Attempts int32
	Kind, Key       string
	Payload         []byte
	Version, Dedupe string
	LastError       *string
	Enqueued        time.Time
}

func drainFenced(ctx context.Context, p *pgxpool.Pool, jobs int) (time.Duration, error) {
	if _, err := openFilled(ctx, p, jobs); err != nil {
		return 0, err
	}
	return drainTable(ctx, p, "onefill.jobs", func() (int, error) {
		rows, err := p.Query(ctx, fencedClaim, 100)
		if err != nil {
			return 0, err
		}
		claimed, err := pgx.CollectRows(rows, pgx.RowToStructByPos[fencedJob])
		if err != nil || len(claimed) == 0 {
			return 0, err
		}
		ids, fences := make([]int64, len(claimed)), make([]int32, len(claimed))
		for i, j := range claimed {
			ids[i], fences[i] = j.ID, j.Fence
		}
		_, err = p.Exec(ctx, fencedDelete, ids, fences)
		return len(ids), err
	})
}

// drainTable takes batches from 4 connections at once until there are none.
func drainTable(ctx context.Context, p *pgxpool.Pool, table string, batch func() (int, error)) (time.Duration, error) {
	const clients = 4
	errs := make(chan error, clients)
	start := time.Now()
	for range clients {
		go func() {
			for {
				if n, err := batch(); n == 0 || err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	var err error
	for range clients {
		err = errors.Join(err, <-errs)
	}
	took := time.Since(start)
	return took, errors.Join(err, nothingLeft(ctx, p, table))
}
