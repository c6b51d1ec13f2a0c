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
	l, p, err := s.begin(ctx, key, process)
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

// begin counts the operation, logs its start and reads the row, in one committed
// transaction.
func (s *sqliteOrigin) begin(ctx context.Context, key string, process int) (l loaded, p plan, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return l, p, err
	}
	defer tx.Rollback() // after a commit it does nothing
	err = tx.QueryRowContext(ctx, `UPDATE counter SET operations = operations + 1 WHERE key = ? RETURNING operations`, key).Scan(&l.Operation)
	if err != nil {
		return l, p, err
	}
	l.ReadUS = time.Now().UnixMicro()
	if _, err = tx.ExecContext(ctx, `INSERT INTO operation (key, number, process, started) VALUES (?, ?, ?, ?)`,
		key, l.Operation, process, l.ReadUS); err != nil {
		return l, p, err
	}
	var waitUS int64
	var row sql.NullString
	err = tx.QueryRowContext(ctx, `SELECT wait_us, failed, (SELECT body FROM item WHERE key = plan.key) FROM plan WHERE key = ?`, key).
		Scan(&waitUS, &p.Failed, &row)
	if err != nil {
		return l, p, err
	}
	p.Wait, p.Row = time.Duration(waitUS)*time.Microsecond, row.String
	return l, p, tx.Commit()
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
	if _, err = tx.ExecContext(ctx, `INSERT OR REPLACE INTO plan VALUES (?, ?, ?)`, key, p.Wait.Microseconds(), p.Failed); err != nil {
		return err
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
