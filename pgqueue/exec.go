package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// stmt is a statement with its parameters as text; the statement casts them.
type stmt struct {
	sql  string
	args []string
}

// row is one row of a result as text, nil for NULL.
type row [][]byte

const (
	// begin makes the transaction what the statements need, whatever the defaults of the
	// server, the database or the role are. Under REPEATABLE READ a claim that meets
	// another one fails instead of passing over its rows.
	begin  = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
	commit = "COMMIT"

	// attempts is how often a transaction that was rolled back for no fault of its own is
	// tried: a deadlock with somebody else's locks.
	attempts = 3
)

// exec runs statements in one transaction and one round trip, and returns the rows of
// each. Nothing is prepared under a name, so each statement is planned with the table's
// size of the moment, whatever the pool's QueryExecMode, and nothing stays on the
// connection: it may be another one each time, behind PgBouncer.
func (q *Queue) exec(ctx context.Context, stmts ...stmt) (results [][]row, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for range attempts {
		if results, err = q.execOnce(ctx, stmts); !rolledBack(err) {
			break
		}
	}
	return results, err
}

func (q *Queue) execOnce(ctx context.Context, stmts []stmt) ([][]row, error) {
	conn, err := q.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	var batch pgconn.Batch
	batch.ExecParams(begin, nil, nil, nil, nil)
	for _, s := range stmts {
		batch.ExecParams(s.sql, s.values(), nil, nil, nil)
	}
	batch.ExecParams(commit, nil, nil, nil, nil)
	answer := conn.Conn().PgConn().ExecBatch(ctx, &batch)
	results, end, err := readAll(answer, len(stmts))
	if closeErr := answer.Close(); err == nil {
		err = closeErr
	}
	if err == nil && end != commit {
		err = fmt.Errorf("the transaction was ended with %q", end)
	}
	return results, err
}

func (s stmt) values() [][]byte {
	values := make([][]byte, len(s.args))
	for i, a := range s.args {
		values[i] = []byte(a)
	}
	return values
}

// readAll reads the results of begin, the statements, and commit.
func readAll(answer *pgconn.MultiResultReader, stmts int) (results [][]row, end string, err error) {
	results = make([][]row, stmts)
	for i := -1; answer.NextResult(); i++ {
		r := answer.ResultReader()
		for r.NextRow() {
			if 0 <= i && i < stmts {
				results[i] = append(results[i], copyRow(r.Values()))
			}
		}
		tag, err := r.Close()
		if err != nil {
			return nil, "", err
		}
		end = tag.String()
	}
	return results, end, nil
}

// copyRow copies what lies in the connection's buffer.
func copyRow(values [][]byte) row {
	size := 0
	for _, v := range values {
		size += len(v)
	}
	buf, r := make([]byte, 0, size), make(row, len(values))
	for i, v := range values {
		if v == nil {
			continue
		}
		from := len(buf)
		buf = append(buf, v...)
		r[i] = buf[from:len(buf):len(buf)]
	}
	return r
}

// rolledBack says that the server has undone the transaction because of what others did.
func rolledBack(err error) bool {
	const serializationFailure, deadlock = "40001", "40P01"
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == deadlock || e.Code == serializationFailure)
}

func (r row) text(i int) string { return string(r[i]) }

func (r row) int64(i int) (int64, error) { return strconv.ParseInt(string(r[i]), 10, 64) }

func (r row) bool(i int) bool { return string(r[i]) == "t" }

// ints reads columns from a row.
func (r row) ints(columns map[int]*int64) error {
	for i, p := range columns {
		n, err := r.int64(i)
		if err != nil {
			return fmt.Errorf("column %d is %q, not a number", i, r[i])
		}
		*p = n
	}
	return nil
}

// micros is a duration as statements take it, rounded up.
func micros(d time.Duration) int64 {
	d = max(d, 0)
	n := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}

func text(n int64) string { return strconv.FormatInt(n, 10) }

// limited puts a number into a text.
func limited(sql string, n int) string {
	return strings.ReplaceAll(sql, "{limit}", strconv.Itoa(n))
}
