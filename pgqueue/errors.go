package pgqueue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onefill/onefill/queue"
)

// fail is err as an operation of the queue returns it.
func (q *Queue) fail(op string, err error) *queue.Error {
	var e *queue.Error
	if errors.As(err, &e) {
		return e
	}
	return &queue.Error{Service: "postgres", Addr: q.addr, Op: op, Err: q.advise(err), Unavailable: unavailable(err)}
}

// failed is fail for an operation whose context may have ended meanwhile.
func (q *Queue) failed(ctx context.Context, op string, err error) *queue.Error {
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		err = fmt.Errorf("%w: %w", ended, err)
	}
	return q.fail(op, err)
}

// SQLSTATEs.
const (
	invalidSchemaName     = "3F000"
	undefinedTable        = "42P01"
	undefinedColumn       = "42703"
	insufficientPrivilege = "42501"
	invalidCatalogName    = "3D000"
	readOnly              = "25006"
	transactionAborted    = "25P02"
	queryCanceled         = "57014"
	lockNotAvailable      = "55P03"
	invalidAuthorization  = "28"
	connectionException   = "08"
	operatorIntervention  = "57"
	insufficientResources = "53"
	dataException         = "22"
	limitExceeded         = "54"
)

// advise adds what to do where the server says only what is wrong.
func (q *Queue) advise(err error) error {
	if errors.Is(err, queue.ErrInvalid) {
		return err
	}
	switch sqlState(err) {
	case undefinedTable, invalidSchemaName:
		return fmt.Errorf("%w; the tables are made by: %s", err, q.command("up"))
	case undefinedColumn:
		return fmt.Errorf("%w; the tables may have another version than this program, see: %s", err, q.command("up"))
	case insufficientPrivilege:
		return fmt.Errorf("%w; Check lists the rights that are needed on the tables of schema %s", err, q.opts.schema)
	case readOnly:
		return fmt.Errorf("%w; the queue needs the primary server", err)
	}
	return err
}

// command is what to type.
func (q *Queue) command(direction string) string {
	if q.opts.schema == DefaultSchema {
		return "onefill migrate " + direction
	}
	return fmt.Sprintf("onefill migrate %s --schema %s", direction, q.opts.schema)
}

// unavailable says whether an error means that the server could not be asked or has not
// answered in time, as opposed to an answer that is an error.
func unavailable(err error) bool {
	if errors.Is(err, errStandby) {
		return true // as for the calls that a standby refuses: the primary is not there
	}
	for _, answer := range []error{queue.ErrInvalid, queue.ErrUnknown, errAnswer, errUnfit, ErrJobsLeft} {
		if errors.Is(err, answer) {
			return false
		}
	}
	if code := sqlState(err); code != "" {
		if code == invalidCatalogName || strings.HasPrefix(code, invalidAuthorization) {
			return false
		}
		switch code {
		case queryCanceled, lockNotAvailable, readOnly:
			return true
		}
		switch code[:min(2, len(code))] {
		case connectionException, operatorIntervention, insufficientResources:
			return true
		}
		return false
	}
	return !errors.Is(err, context.Canceled) // everything else is the connection's
}

// sqlState is the SQLSTATE of what the server has answered, by whatever driver, since
// EnqueueTx takes transactions of all; empty if it has not answered.
func sqlState(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

// ofTx tells what is wrong with a transaction of the caller's from what is wrong with
// the server.
func ofTx(err error) error {
	what := ""
	switch code := sqlState(err); {
	case errors.Is(err, pgx.ErrTxClosed), errors.Is(err, sql.ErrTxDone):
		what = "it is over already"
	case code == readOnly:
		what = "it is read-only; begin it read-write, on the primary server"
	case code == transactionAborted:
		what = "a statement before has failed in it; roll it back"
	default:
		return err
	}
	return fmt.Errorf("%w transaction: %s: %w", queue.ErrInvalid, what, err)
}

// errAnswer is wrapped by errors about an answer that was understood, and is wrong.
var errAnswer = errors.New("unexpected answer")

// refused says that the server has refused the data of a statement, which need not be
// all of its entries.
func refused(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (strings.HasPrefix(e.Code, dataException) || strings.HasPrefix(e.Code, limitExceeded))
}

// redacted is an error about a URL without the URL, and without the details, which may
// quote it: there is a password in it.
func redacted(err error) error {
	const want = "want postgres://user:password@host:port/database"
	var e *pgconn.ParseConfigError
	if !errors.As(err, &e) {
		return err
	}
	_, reason, found := strings.Cut(e.Error(), "`: ")
	if !found || strings.Contains(e.ConnString, "`") {
		return errors.New(want)
	}
	reason, _, _ = strings.Cut(reason, " (")
	return fmt.Errorf("%s; %s", reason, want)
}
