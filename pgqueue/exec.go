package pgqueue

import (
	"context"
	"encoding/binary"
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
	// formats of the results' columns; nil if all are text.
	formats []int16
}

const (
	asText   = 0
	asBinary = 1 // big-endian integers; a timestamptz is one, in microseconds
)

// row is one row of a result, nil for NULL.
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
		batch.ExecParams(s.sql, s.values(), nil, nil, s.formats)
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
	var c copies
	for i := -1; answer.NextResult(); i++ {
		r := answer.ResultReader()
		for r.NextRow() {
			if 0 <= i && i < stmts {
				results[i] = append(results[i], c.row(r.Values()))
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

// copies are copies of rows that lie in the connection's buffer, many in one piece of
// memory, which lives as long as one of them.
type copies struct {
	bytes []byte
	cells [][]byte
}

const copyBytes, copyCells = 4 << 10, 256

func (c *copies) row(values [][]byte) row {
	size := 0
	for _, v := range values {
		size += len(v)
	}
	if c.bytes == nil || cap(c.bytes)-len(c.bytes) < size {
		c.bytes = make([]byte, 0, max(size, copyBytes))
	}
	if cap(c.cells)-len(c.cells) < len(values) {
		c.cells = make([][]byte, 0, max(len(values), copyCells))
	}
	first := len(c.cells)
	for _, v := range values {
		var cell []byte // nil for NULL
		if v != nil {
			from := len(c.bytes)
			c.bytes = append(c.bytes, v...)
			cell = c.bytes[from:len(c.bytes):len(c.bytes)]
		}
		c.cells = append(c.cells, cell)
	}
	return c.cells[first:len(c.cells):len(c.cells)]
}

// rolledBack says that the server has undone the transaction because of what others did.
func rolledBack(err error) bool {
	const serializationFailure, deadlock = "40001", "40P01"
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == deadlock || e.Code == serializationFailure)
}

func (r row) text(i int) string { return string(r[i]) }

func (r row) int64(i int) (int64, error) { return strconv.ParseInt(string(r[i]), 10, 64) }

// binary reads integers that came in the binary format from the columns that begin with
// the first.
func (r row) binary(first int, into ...*int64) error {
	for i, p := range into {
		switch v := r[first+i]; len(v) {
		case 8:
			*p = int64(binary.BigEndian.Uint64(v))
		case 4:
			*p = int64(int32(binary.BigEndian.Uint32(v)))
		default:
			return fmt.Errorf("column %d has %d bytes, it is no number", first+i, len(v))
		}
	}
	return nil
}

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
