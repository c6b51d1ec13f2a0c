package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// minServer is the oldest server: gen_random_uuid came with it.
const minServer = 130000

// Check implements queue.Queue: the server answers, it is a primary and not too old, the
// tables are there in the version that this code needs, and the role has the rights on
// them that a worker needs.
func (q *Queue) Check(ctx context.Context) error {
	err := q.checkServer(ctx)
	if err == nil {
		err = q.checkVersion(ctx)
	}
	if err != nil {
		return q.failed(ctx, "check", err)
	}
	return nil
}

func (q *Queue) checkServer(ctx context.Context) error {
	results, err := q.exec(ctx, stmt{sql: q.sql.check, args: []string{q.opts.schema}})
	if err != nil {
		return err
	}
	if len(results[0]) != 1 {
		return fmt.Errorf("%w: %d rows about the server", errAnswer, len(results[0]))
	}
	r := results[0][0]
	server, err := r.int64(0)
	if err != nil {
		return fmt.Errorf("%w: server version %q", errAnswer, r[0])
	}
	role, tables := r.text(3), strings.Split(r.text(6), ",")
	switch {
	case server < minServer:
		return fmt.Errorf("%w: PostgreSQL %d is too old, version %d is needed at least", errUnfit, server/10000, minServer/10000)
	case r.text(1) != "UTF8":
		return fmt.Errorf("%w: the database's encoding is %s, UTF8 is needed", errUnfit, r[1])
	case r.bool(2):
		return errStandby
	case r.bool(4) && !r.bool(5):
		return fmt.Errorf(`%w: role %s may not use schema %s: GRANT USAGE ON SCHEMA "%s" TO "%s"`, errUnfit, role, q.opts.schema, q.opts.schema, role)
	case !slices.Contains(tables, "jobs_migrations") && !slices.Contains(tables, "jobs"):
		return fmt.Errorf("%w: there are no tables in schema %s; make them with: %s", errUnfit, q.opts.schema, q.command("up"))
	case !slices.Contains(tables, "jobs_migrations"):
		return fmt.Errorf("%w: schema %s has a table jobs that is not onefill's, jobs_migrations is missing; choose another schema", errUnfit, q.opts.schema)
	case r.text(7) != "":
		return fmt.Errorf("%w: role %s lacks rights in schema %s: %s", errUnfit, role, q.opts.schema, r[7])
	}
	return nil
}

func (q *Queue) checkVersion(ctx context.Context) error {
	have, err := q.version(ctx)
	switch {
	case err != nil:
		return err
	case have < latest():
		return fmt.Errorf("%w: the tables in schema %s have version %d, this program needs version %d: %s", errUnfit, q.opts.schema, have, latest(), q.command("up"))
	case have > latest():
		return q.tooNew(have)
	}
	return nil
}

// tooNew says that a newer program has migrated the tables.
func (q *Queue) tooNew(have int) error {
	return fmt.Errorf("%w: the tables in schema %s have version %d, this program knows version %d: update the program", errUnfit, q.opts.schema, have, latest())
}

// version is that of the tables.
func (q *Queue) version(ctx context.Context) (int, error) {
	results, err := q.exec(ctx, stmt{sql: q.sql.version})
	if err != nil {
		return 0, err
	}
	n, err := results[0][0].int64(0)
	return int(n), err
}

// errUnfit is wrapped by what Check finds: an answer. A standby alone may become fit by itself.
var (
	errUnfit   = errors.New("the queue is not fit for use")
	errStandby = fmt.Errorf("%w: the server is a standby, the queue needs the primary", errUnfit)
)
