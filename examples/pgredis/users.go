package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/onefill/onefill"
	"github.com/onefill/onefill/invalidation"
	"github.com/onefill/onefill/pgqueue"
)

type user struct {
	ID   int64  `json:"id"`
	Name string `json:"name"`
}

// users are the rows.
type users struct {
	pool *pgxpool.Pool
	jobs *pgqueue.Queue
	slow time.Duration
}

const schema = `
CREATE SCHEMA IF NOT EXISTS onefill_example;
CREATE TABLE IF NOT EXISTS onefill_example.users (id bigint PRIMARY KEY, name text NOT NULL);
INSERT INTO onefill_example.users SELECT n, 'user ' || n FROM generate_series(1, 100) n ON CONFLICT DO NOTHING;`

// prepare makes the tables, as a release would. Of several processes that start at once one does.
func (u *users) prepare(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, u.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext('onefill_example'))"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, schema)
		return err
	})
	if err != nil {
		return err
	}
	_, err = u.jobs.MigrateUp(ctx)
	return err
}

// load is the cache's loader. A row that does not exist is an answer, not a failure.
func (u *users) load(ctx context.Context, id int64) (user, error) {
	row := user{ID: id}
	err := u.pool.QueryRow(ctx, "SELECT name FROM onefill_example.users, pg_sleep($2) WHERE id = $1", id, u.slow.Seconds()).Scan(&row.Name)
	if errors.Is(err, pgx.ErrNoRows) {
		return user{}, onefill.ErrNotFound
	}
	return row, err
}

// rename changes a row, and enqueues the invalidation in the same transaction: there is one if and only if
// the change was committed, also if this process dies right after. Who wants to read the change at once
// invalidates directly, too, when rename has returned: before that, a reader would load the old name again.
func (u *users) rename(ctx context.Context, id int64, name string) error {
	jobs, err := invalidation.Invalidate("users", id)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, u.pool, func(tx pgx.Tx) error {
		done, err := tx.Exec(ctx, "UPDATE onefill_example.users SET name = $2 WHERE id = $1", id, name)
		if err != nil {
			return err
		}
		if done.RowsAffected() == 0 {
			return onefill.ErrNotFound
		}
		_, err = u.jobs.EnqueueTx(ctx, tx, jobs...)
		return err
	})
}
