package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"strings"

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
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code {
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
	var e *pgconn.PgError
	if errors.As(err, &e) {
		if e.Code == invalidCatalogName || strings.HasPrefix(e.Code, invalidAuthorization) {
			return false
		}
		switch e.Code {
		case queryCanceled, lockNotAvailable, readOnly:
			return true
		}
		switch e.Code[:min(2, len(e.Code))] {
		case connectionException, operatorIntervention, insufficientResources:
			return true
		}
		return false
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, queue.ErrInvalid), errors.Is(err, errAnswer):
		return false
	}
	return true // everything else is the connection's
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
