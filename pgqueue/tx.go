package pgqueue

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"

	"github.com/onefill/onefill/queue"
)

// Tx is a transaction of the caller's: a [pgx.Tx], a [*sql.Tx], or a type that embeds
// one of them, of whatever driver for PostgreSQL. Go has no type for "the one or the
// other", their methods have nothing in common; anything else, a pool for example, is
// refused with an error that says so.
type Tx any

// EnqueueTx adds jobs in the caller's transaction: they are there if and when it is
// committed, and not if it is rolled back. A job that breaks the contract fails alone
// and leaves the transaction as it was; after any other error the transaction is broken
// and must be rolled back.
//
// It works in a transaction of any isolation level. With [queue.Job].Merge it waits for
// other transactions that have merged the same key and are not over; enqueue keys in one
// order, or in one call, where two writers might have them crosswise. And the job that it
// is merged with, though committed, is not delivered before this transaction is over: keep
// it short. Under REPEATABLE READ a Merge can fail with a serialization failure.
//
//	tx, err := pool.Begin(ctx) // or db.BeginTx(ctx, nil)
//	...
//	_, err = tx.Exec(ctx, "UPDATE users SET name = $1 WHERE id = $2", name, id)
//	...
//	_, err = q.EnqueueTx(ctx, tx, queue.Job{Kind: "mail", Payload: payload})
//	...
//	err = tx.Commit(ctx)
func (q *Queue) EnqueueTx(ctx context.Context, tx Tx, jobs ...queue.Job) ([]string, error) {
	ids := make([]string, len(jobs))
	ask, err := asker(tx)
	if err != nil {
		return ids, q.fail("enqueue", err)
	}
	err = q.split(ctx, "enqueue", len(jobs), func(from, to int, errs queue.Errors) error {
		for _, part := range q.parts(jobs, from, to, errs) {
			var rows []row
			for _, s := range q.adding(part) {
				more, err := ask(ctx, s)
				if err != nil {
					clear(ids) // nothing of the transaction can be committed
					return ofTx(err)
				}
				rows = append(rows, more...)
			}
			if err := take(rows, part, ids); err != nil {
				return err
			}
		}
		return nil
	})
	return ids, err
}

// ask runs a statement in the caller's transaction. Its rows are of numbers.
type ask func(ctx context.Context, s stmt) ([]row, error)

func asker(tx Tx) (ask, error) {
	if v := reflect.ValueOf(tx); v.Kind() == reflect.Pointer && v.IsNil() { // Begin has failed, and nobody has looked
		return nil, fmt.Errorf("%w transaction: a nil %T", queue.ErrInvalid, tx)
	}
	// Types that embed a *sql.Tx have its methods. Commit tells them from a pool.
	type sqlTx interface {
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
		Commit() error
	}
	switch tx := tx.(type) {
	case pgx.Tx:
		return func(ctx context.Context, s stmt) ([]row, error) { return askPgx(ctx, tx, s) }, nil
	case sqlTx:
		return func(ctx context.Context, s stmt) ([]row, error) {
			rows, err := tx.QueryContext(ctx, s.sql, s.anys()...)
			if err != nil {
				return nil, err
			}
			return readSQL(rows)
		}, nil
	}
	return nil, fmt.Errorf("%w transaction: a %T; a pgx.Tx or a *sql.Tx is needed", queue.ErrInvalid, tx)
}

func (s stmt) anys() []any {
	args := make([]any, len(s.args))
	for i, a := range s.args {
		args[i] = a
	}
	return args
}

// askPgx prepares nothing, like exec: a statement under a name might be another
// server's, behind PgBouncer.
func askPgx(ctx context.Context, tx pgx.Tx, s stmt) ([]row, error) {
	rows, err := tx.Query(ctx, s.sql, append([]any{pgx.QueryExecModeExec}, s.anys()...)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []row
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			return nil, err
		}
		found = append(found, textRow(values))
	}
	return found, rows.Err()
}

func readSQL(rows *sql.Rows) ([]row, error) {
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	var found []row
	for rows.Next() {
		values, into := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		found = append(found, textRow(values))
	}
	return found, rows.Err()
}

// textRow is a row as exec returns it, from what a driver makes of numbers.
func textRow(values []any) row {
	r := make(row, len(values))
	for i, v := range values {
		switch v := v.(type) {
		case nil:
		case []byte: // some drivers leave it at that
			r[i] = v
		default:
			r[i] = fmt.Append(nil, v)
		}
	}
	return r
}
