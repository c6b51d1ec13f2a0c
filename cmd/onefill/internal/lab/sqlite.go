package lab

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"net/url"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

//go:embed sql/sqlite.sql
var sqliteSchema string

// sqliteOrigin is the embedded origin: one file, shared by the processes. The
// count and the log are the database's; the wait is the loader's, since SQLite
// has no server to wait in.
type sqliteOrigin struct{ db *sql.DB }

func openSQLite(spec originSpec) (*sqliteOrigin, error) {
	// Immediate transactions and a generous busy timeout: writers of several
	// processes queue up instead of failing.
	dsn := (&url.URL{Scheme: "file", Path: spec.Path, RawQuery: url.Values{
		"_txlock": {"immediate"},
		"_pragma": {"busy_timeout(20000)", "journal_mode(WAL)", "synchronous(OFF)"},
	}.Encode()}).String()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, err
	}
	// Nothing waits inside a transaction, so one connection a process is enough.
	db.SetMaxOpenConns(1)
	return &sqliteOrigin{db: db}, nil
}

func (s *sqliteOrigin) createSchema(ctx context.Context) error {
	_, err := s.db.ExecContext(ctx, sqliteSchema)
	return err
}

func (s *sqliteOrigin) Read(ctx context.Context, key string, process int) (string, error) {
	l, p, overdue, err := s.begin(ctx, key, process)
	if err != nil {
		return "", err
	}
	timer := time.NewTimer(p.Wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	switch {
	case err != nil:
	case overdue:
		err = errors.New(overdueText)
	case p.Failed:
		err = errors.New(failureText)
	case p.Row == "":
		err = errNoRow
	}
	endCtx, cancel := cleanupContext(ctx)
	defer cancel()
	_, logErr := s.db.ExecContext(endCtx, `UPDATE operation SET ended = ?, outcome = ? WHERE key = ? AND number = ?`,
		time.Now().UnixMicro(), outcomeOf(err), key, l.Operation)
	if err = errors.Join(err, logErr); err != nil {
		return "", err
	}
	l.Row = p.Row
	return l.encode()
}

// begin counts the operation, logs its start, reads the row and gives it a worker, in
// one committed transaction. The plan's Wait is then how long the operation takes in
// all; overdue: that is its deadline.
func (s *sqliteOrigin) begin(ctx context.Context, key string, process int) (l loaded, p plan, overdue bool, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return l, p, false, err
	}
	defer tx.Rollback() // after a commit it does nothing
	err = tx.QueryRowContext(ctx, `UPDATE counter SET operations = operations + 1 WHERE key = ? RETURNING operations`, key).Scan(&l.Operation)
	if err != nil {
		return l, p, false, err
	}
	l.ReadUS = time.Now().UnixMicro()
	if _, err = tx.ExecContext(ctx, `INSERT INTO operation (key, number, process, started) VALUES (?, ?, ?, ?)`,
		key, l.Operation, process, l.ReadUS); err != nil {
		return l, p, false, err
	}
	var waitUS, deadlineUS int64
	var row sql.NullString
	err = tx.QueryRowContext(ctx, `SELECT wait_us, failed, workers, deadline_us, (SELECT body FROM item WHERE key = plan.key) FROM plan WHERE key = ?`, key).
		Scan(&waitUS, &p.Failed, &p.Workers, &deadlineUS, &row)
	if err != nil {
		return l, p, false, err
	}
	p.Wait, p.Deadline, p.Row = micros(waitUS), micros(deadlineUS), row.String
	if p.Workers > 0 {
		if p.Wait, overdue, err = queueUp(ctx, tx, l.ReadUS, p); err != nil {
			return l, p, false, err
		}
	}
	return l, p, overdue, tx.Commit()
}

// queueUp gives the operation to the worker that is free first, after what that one has
// to do already, and says how long it takes from now. What cannot be done by its
// deadline occupies the worker until then, if it comes to it at all.
func queueUp(ctx context.Context, tx *sql.Tx, nowUS int64, p plan) (takes time.Duration, overdue bool, err error) {
	var number int
	var freeUS int64
	err = tx.QueryRowContext(ctx, `SELECT number, free_us FROM worker WHERE number < ? ORDER BY free_us LIMIT 1`, p.Workers).Scan(&number, &freeUS)
	if err != nil {
		return 0, false, err
	}
	begin := max(freeUS, nowUS)
	end, deadline := begin+p.Wait.Microseconds(), nowUS+p.Deadline.Microseconds()
	if overdue = end > deadline; overdue {
		end = deadline
	}
	if end > begin {
		_, err = tx.ExecContext(ctx, `UPDATE worker SET free_us = ? WHERE number = ?`, end, number)
	}
	return micros(end - nowUS), overdue, err
}

// Waiting counts what has begun and not ended: begin reads the row as well.
func (s *sqliteOrigin) Waiting(ctx context.Context, key string) (int, error) {
	var n int
	err := s.db.QueryRowContext(ctx, `SELECT count(*) FROM operation WHERE key = ? AND ended IS NULL`, key).Scan(&n)
	return n, err
}

func (s *sqliteOrigin) Plan(ctx context.Context, key string, p plan) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err = tx.ExecContext(ctx, `INSERT OR REPLACE INTO plan VALUES (?, ?, ?, ?, ?)`,
		key, p.Wait.Microseconds(), p.Failed, p.Workers, p.Deadline.Microseconds()); err != nil {
		return err
	}
	for number := range p.Workers {
		if _, err = tx.ExecContext(ctx, `INSERT OR IGNORE INTO worker VALUES (?, 0)`, number); err != nil {
			return err
		}
	}
	if _, err = tx.ExecContext(ctx, `INSERT OR IGNORE INTO counter VALUES (?, 0)`, key); err != nil {
		return err
	}
	if p.Row != "" {
		_, err = tx.ExecContext(ctx, `INSERT OR REPLACE INTO item VALUES (?, ?)`, key, p.Row)
	} else {
		_, err = tx.ExecContext(ctx, `DELETE FROM item WHERE key = ?`, key)
	}
	if err != nil {
		return err
	}
	return tx.Commit()
}

func (s *sqliteOrigin) Count(ctx context.Context, key string) (int, error) {
	var n int
	err := s.db.QueryRowContext(ctx, `SELECT operations FROM counter WHERE key = ?`, key).Scan(&n)
	return n, err
}

func (s *sqliteOrigin) Operations(ctx context.Context, key string) ([]Operation, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT number, process, started, coalesce(ended, 0), coalesce(outcome, '')
		FROM operation WHERE key = ? ORDER BY number`, key)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var ops []Operation
	for rows.Next() {
		var o Operation
		if err := rows.Scan(&o.Number, &o.Process, &o.StartUS, &o.EndUS, &o.Outcome); err != nil {
			return nil, err
		}
		ops = append(ops, o)
	}
	return ops, rows.Err()
}

func (s *sqliteOrigin) Warm(ctx context.Context, _ int) error { return s.db.PingContext(ctx) }

func (s *sqliteOrigin) ClockOffset(context.Context) (time.Duration, error) { return 0, nil }

func (s *sqliteOrigin) version(ctx context.Context) (string, error) {
	var v string
	err := s.db.QueryRowContext(ctx, `SELECT sqlite_version()`).Scan(&v)
	return v, err
}

// Drop has nothing to do: the file lies in the run's own directory.
func (s *sqliteOrigin) Drop(context.Context) error { return nil }

func (s *sqliteOrigin) Close() { s.db.Close() }
