package pgqueue

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// A Migration is one step from a version of the tables to the next, and back.
type Migration struct {
	Version int    // from 1
	Name    string // "jobs"
	// Up and Down are scripts with the schema's name put in. They run in a transaction, and
	// do not note the version: MigrateUp and Script do that.
	Up, Down string
}

// Migrations are all there are, the oldest first.
func Migrations(opts ...Option) ([]Migration, error) {
	o, err := apply(opts)
	if err != nil {
		return nil, fmt.Errorf("pgqueue.Migrations: %w", err)
	}
	return migrations(o.schema), nil
}

func migrations(schema string) (ms []Migration) {
	files, err := migrationFiles.ReadDir("migrations")
	if err != nil {
		panic(err) // they are embedded
	}
	read := func(name string) string {
		data, err := migrationFiles.ReadFile("migrations/" + name)
		if err != nil {
			panic(err)
		}
		return inSchema(string(data), schema)
	}
	for _, f := range files {
		base, up := strings.CutSuffix(f.Name(), ".up.sql")
		if !up {
			continue
		}
		number, name, _ := strings.Cut(base, "_")
		version, err := strconv.Atoi(number)
		if err != nil {
			panic(err)
		}
		ms = append(ms, Migration{version, name, read(f.Name()), read(base + ".down.sql")})
	}
	return ms
}

// latest is the version that this code works with.
func latest() int {
	ms := migrations(DefaultSchema)
	return ms[len(ms)-1].Version
}

// The table of versions is made by the first migration that runs, and goes with the last.
const (
	createVersions = `CREATE TABLE IF NOT EXISTS {schema}.jobs_migrations (
  version    int PRIMARY KEY,
  name       text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT now()
);
`
	dropVersions = "DROP TABLE {schema}.jobs_migrations;\n"
)

// Script is the SQL that MigrateUp, or MigrateDown for all versions, runs on an empty, or
// complete, database: for those who have their own way to apply it.
func Script(up bool, opts ...Option) (string, error) {
	o, err := apply(opts)
	if err != nil {
		return "", fmt.Errorf("pgqueue.Script: %w", err)
	}
	ms := migrations(o.schema)
	var b strings.Builder
	b.WriteString("BEGIN;\n\n")
	if up {
		b.WriteString(inSchema("CREATE SCHEMA IF NOT EXISTS {schema};\n\n"+createVersions, o.schema))
	} else {
		slices.Reverse(ms)
	}
	for _, m := range ms {
		fmt.Fprintf(&b, "\n-- %d %s\n", m.Version, m.Name)
		if up {
			b.WriteString(m.Up + inSchema(note(m), o.schema))
		} else {
			b.WriteString(m.Down)
		}
	}
	if !up {
		b.WriteString(inSchema(dropVersions, o.schema))
	}
	b.WriteString("\nCOMMIT;\n")
	return b.String(), nil
}

func note(m Migration) string {
	return fmt.Sprintf("INSERT INTO {schema}.jobs_migrations (version, name) VALUES (%d, '%s');\n", m.Version, m.Name)
}

// MigrateUp brings the tables to the version that this code needs, and makes the schema
// if it is not there. It returns what was done, "1 jobs", nothing if nothing was to be
// done. All is done in one transaction; of several that run at once, one does it.
func (q *Queue) MigrateUp(ctx context.Context) (applied []string, err error) {
	err = q.migrating(ctx, func(tx migration) error {
		have, err := tx.version(ctx)
		if err != nil {
			return err
		}
		if have > latest() {
			return q.tooNew(have)
		}
		if have == 0 {
			if err := tx.prepare(ctx); err != nil {
				return err
			}
		}
		for _, m := range migrations(q.opts.schema) {
			if m.Version <= have {
				continue
			}
			if err := tx.run(ctx, m.Up+inSchema(note(m), q.opts.schema)); err != nil {
				return fmt.Errorf("migration %d %s: %w", m.Version, m.Name, err)
			}
			applied = append(applied, fmt.Sprintf("%d %s", m.Version, m.Name))
		}
		return nil
	})
	if err != nil {
		return nil, q.failed(ctx, "migrate", err)
	}
	return applied, nil
}

// ErrJobsLeft is wrapped by the error of a MigrateDown that would throw work away.
var ErrJobsLeft = errors.New("there is work left")

// MigrateDown takes back the newest migration; taking back the first one removes the
// tables, and leaves the schema. It refuses to do so, with an error that wraps
// [ErrJobsLeft], while there are jobs, or dead letters that were not replayed, unless
// force is set. It returns what was taken back, nothing if there is nothing.
func (q *Queue) MigrateDown(ctx context.Context, force bool) (reverted []string, err error) {
	err = q.migrating(ctx, func(tx migration) error {
		have, err := tx.version(ctx)
		if err != nil || have == 0 {
			return err
		}
		ms := migrations(q.opts.schema)
		at := slices.IndexFunc(ms, func(m Migration) bool { return m.Version == have })
		if at < 0 {
			return fmt.Errorf("%w: the tables in schema %s have version %d, this program knows version %d: take it back with the program that has made it", errUnfit, q.opts.schema, have, latest())
		}
		if at == 0 && !force {
			if err := tx.nothingLeft(ctx, q.command("down")); err != nil {
				return err
			}
		}
		script := ms[at].Down + fmt.Sprintf("DELETE FROM {schema}.jobs_migrations WHERE version = %d;\n", have)
		if at == 0 {
			script = ms[at].Down + dropVersions
		}
		if err := tx.run(ctx, script); err != nil {
			return fmt.Errorf("taking back migration %d %s: %w", have, ms[at].Name, err)
		}
		reverted = []string{fmt.Sprintf("%d %s", have, ms[at].Name)}
		return nil
	})
	if err != nil {
		return nil, q.failed(ctx, "migrate", err)
	}
	return reverted, nil
}

// migration is a transaction that changes the tables.
type migration struct {
	tx     pgx.Tx
	schema string
}

// migrating runs do in a transaction, one at a time.
func (q *Queue) migrating(ctx context.Context, do func(migration) error) error {
	conn, err := q.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after Commit it does nothing
	m := migration{tx, q.opts.schema}
	h := fnv.New64a()
	h.Write([]byte("onefill migrate " + q.opts.schema))
	if err := m.run(ctx, fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", int64(h.Sum64()))); err != nil {
		return err
	}
	if err := do(m); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// run runs a script of any number of statements.
func (m migration) run(ctx context.Context, script string) error {
	_, err := m.tx.Conn().PgConn().Exec(ctx, inSchema(script, m.schema)).ReadAll()
	return err
}

// numbers runs a query whose answer is one row of numbers.
func (m migration) numbers(ctx context.Context, query string) ([]int64, error) {
	results, err := m.tx.Conn().PgConn().Exec(ctx, inSchema(query, m.schema)).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return nil, fmt.Errorf("%w to %s", errAnswer, query)
	}
	numbers := make([]int64, len(results[0].Rows[0]))
	for i, v := range results[0].Rows[0] {
		if numbers[i], err = strconv.ParseInt(string(v), 10, 64); err != nil {
			return nil, fmt.Errorf("%w to %s: %w", errAnswer, query, err)
		}
	}
	return numbers, nil
}

// version is that of the tables, 0 if there are none.
func (m migration) version(ctx context.Context) (int, error) {
	there, err := m.count(ctx, "pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relname = 'jobs_migrations' AND n.nspname = %s")
	if err != nil || there == 0 {
		return 0, err
	}
	n, err := m.numbers(ctx, sqlText("version"))
	if err != nil {
		return 0, err
	}
	return int(n[0]), nil
}

// prepare makes the table of versions, and the schema. What is there is left alone: who
// may not create it need not.
func (m migration) prepare(ctx context.Context) error {
	there, err := m.count(ctx, "pg_namespace WHERE nspname = %s")
	if err != nil {
		return err
	}
	script := createVersions
	if there == 0 {
		script = "CREATE SCHEMA {schema};\n" + createVersions
	}
	return m.run(ctx, script)
}

// count counts rows of the catalog; %s stands for the schema's name.
func (m migration) count(ctx context.Context, from string) (int64, error) {
	literal := "'" + strings.ReplaceAll(m.schema, "'", "''") + "'"
	n, err := m.numbers(ctx, "SELECT count(*) FROM pg_catalog."+fmt.Sprintf(from, literal))
	if err != nil {
		return 0, err
	}
	return n[0], nil
}

// nothingLeft locks the tables and looks.
func (m migration) nothingLeft(ctx context.Context, command string) error {
	if err := m.run(ctx, "LOCK TABLE {schema}.jobs, {schema}.jobs_dead IN ACCESS EXCLUSIVE MODE"); err != nil {
		return err
	}
	n, err := m.numbers(ctx, "SELECT (SELECT count(*) FROM {schema}.jobs), (SELECT count(*) FROM {schema}.jobs_dead WHERE replayed_as IS NULL)")
	if err != nil {
		return err
	}
	if n[0]+n[1] == 0 {
		return nil
	}
	return fmt.Errorf("%w in schema %s: %d jobs and %d dead letters; drain the queue first, or throw them away: %s --force",
		ErrJobsLeft, m.schema, n[0], n[1], command)
}
