package pgqueue

import (
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onefill/onefill/queue"
)

// A row that a trigger has inserted with a version that is no uint64 must not keep
// the jobs that are claimed with it from being delivered.
func TestRowThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, insert := range map[string]string{
		"version":      `INSERT INTO {schema}.jobs (kind, version) VALUES ('bad', -1)`,
		"run_at":       `INSERT INTO {schema}.jobs (kind, run_at) VALUES ('bad', '-infinity')`,
		"infinite age": `INSERT INTO {schema}.jobs (kind, enqueued_at) VALUES ('bad', '-infinity')`,
	} {
		t.Run(name, func(t *testing.T) {
			q := opened(t)
			_, refused := q.pool.Exec(t.Context(), inSchema(insert, q.opts.schema)) // refusing it is fine
			t.Logf("the INSERT: %v", refused)
			q.enqueued(t, queue.Job{Kind: "good"})
			eventually(t, "the good job is delivered", func() bool {
				ds, err := q.Receive(t.Context(), queue.Request{Max: 10, Lease: time.Millisecond})
				if err != nil {
					t.Logf("Receive: %v", err)
				}
				return slices.ContainsFunc(ds, func(d queue.Delivery) bool { return d.Kind == "good" })
			})
			if _, err := q.Stats(t.Context()); err != nil {
				t.Errorf("Stats: %v", err)
			}
		})
	}
}

// Mistakes of the caller with his transaction are no outage, and the advice fits.
func TestTransactionsThatCannot(t *testing.T) {
	t.Parallel()
	q := opened(t)
	db, err := sql.Open("pgx", q.pool.Config().ConnString())
	ok(t, err)
	t.Cleanup(func() { db.Close() })
	job := queue.Job{Kind: "k"}
	check := func(name string, tx Tx) {
		_, err := q.EnqueueTx(t.Context(), tx, job)
		t.Logf("%s: %v", name, err)
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		if errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("%s: taken for an outage", name)
		}
		if strings.Contains(err.Error(), "the queue needs the primary") || !errors.Is(err, queue.ErrInvalid) {
			t.Errorf("%s: the advice is wrong", name)
		}
	}
	check("sql, nil", (*sql.Tx)(nil))
	check("pgx, nil", (*pgxpool.Tx)(nil))
	p, err := q.pool.Begin(t.Context())
	ok(t, err)
	ok(t, p.Commit(t.Context()))
	check("pgx, committed", p)
	s, err := db.Begin()
	ok(t, err)
	ok(t, s.Rollback())
	check("sql, rolled back", s)
	p, err = q.pool.BeginTx(t.Context(), pgx.TxOptions{AccessMode: pgx.ReadOnly})
	ok(t, err)
	check("pgx, read-only", p)
	p.Rollback(t.Context())
	s, err = db.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
	ok(t, err)
	check("sql, read-only", s)
	s.Rollback()
	p, err = q.pool.Begin(t.Context())
	ok(t, err)
	p.Exec(t.Context(), "SELECT 1/0")
	check("pgx, aborted", p)
	p.Rollback(t.Context())
	s, err = db.Begin()
	ok(t, err)
	s.Exec("SELECT 1/0")
	check("sql, aborted", s)
	s.Rollback()
}

// What no job can be called has no dead letters, and a page after no letter is no outage.
func TestDeadLettersOfNobody(t *testing.T) {
	t.Parallel()
	q := opened(t)
	for _, query := range []queue.DeadQuery{{Kind: "\x00"}, {Key: "\xff"}} {
		letters, err := q.ListDead(t.Context(), query)
		ok(t, err)
		if len(letters) != 0 {
			t.Errorf("%+v: %+v", query, letters)
		}
	}
	_, err := q.ListDead(t.Context(), queue.DeadQuery{After: "nobody"})
	if !errors.Is(err, queue.ErrUnknown) {
		t.Errorf("%v, want ErrUnknown", err)
	}
	answered(t, err)
}

// Of jobs that were added before the call failed the caller hears that, and has no
// ID of one that was not.
func TestPartlyEnqueued(t *testing.T) {
	t.Parallel()
	q := opened(t)
	q.run(t, "CREATE FUNCTION {schema}.check_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.kind = 'bad' THEN RAISE EXCEPTION 'no'; END IF; RETURN NEW; END $$")
	q.run(t, "CREATE TRIGGER check_it BEFORE INSERT ON {schema}.jobs FOR EACH ROW EXECUTE FUNCTION {schema}.check_it()")
	payload := json.RawMessage(`"` + strings.Repeat("x", maxPayload-2) + `"`)
	js := make([]queue.Job, 5) // 4 MiB are one statement
	for i := range js {
		js[i] = queue.Job{Kind: "good", Payload: payload}
	}
	js[4].Kind = "bad"
	ids, err := q.Enqueue(t.Context(), js...)
	for i := range js {
		e := queue.ErrorOf(err, i)
		if (e != nil) != (ids[i] == "") {
			t.Errorf("job %d: ID %q, error %v", i, ids[i], e)
		}
		if n := q.count(t, "SELECT count(*) FROM {schema}.jobs WHERE id = nullif($1, '')::bigint", ids[i]); (n == 1) != (e == nil) {
			t.Errorf("job %d: %d rows, error %v", i, n, e)
		}
	}
}

// A schema's name is a name, whatever our own placeholders are.
func TestSchemaLikeAPlaceholder(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"{schema}", "a{limit}", "a{floor}", "a{sequence}"} {
		q, err := Open(shared.Get(t).URL(), Schema(name))
		if err != nil {
			continue // refused: fine
		}
		t.Cleanup(q.Close)
		if _, err := q.MigrateUp(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := q.Enqueue(t.Context(), queue.Job{Kind: "k"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := q.Receive(t.Context(), queue.Request{Max: 1, Lease: time.Minute}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Savepoints.
func TestSavepoint(t *testing.T) {
	t.Parallel()
	q := opened(t)
	tx, err := q.pool.Begin(t.Context())
	ok(t, err)
	for _, keep := range []bool{true, false} {
		sp, err := tx.Begin(t.Context())
		ok(t, err)
		_, err = q.EnqueueTx(t.Context(), sp, queue.Job{Kind: map[bool]string{true: "kept", false: "gone"}[keep]})
		ok(t, err)
		if keep {
			ok(t, sp.Commit(t.Context()))
		} else {
			ok(t, sp.Rollback(t.Context()))
		}
	}
	ok(t, tx.Commit(t.Context()))
	if ds := q.received(t, 10, time.Minute); len(ds) != 1 || ds[0].Kind != "kept" {
		t.Errorf("%+v", ds)
	}
}

// The rights that doc.go lists for a worker are enough for its start.
func TestWorkerRights(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).URL()
	own := opened(t, Schema("rights of a worker"))
	own.run(t, `CREATE ROLE works LOGIN`)
	own.run(t, `GRANT USAGE ON SCHEMA {schema} TO works; GRANT USAGE ON SEQUENCE {schema}.jobs_id_seq TO works; GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.jobs, {schema}.jobs_dead, {schema}.jobs_once TO works; GRANT SELECT ON {schema}.jobs_migrations TO works`)
	q := open(t, strings.Replace(url, "postgres@", "works@", 1), Schema("rights of a worker"))
	if err := q.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// The rights that Check asks for are enough for all that the queue does.
func TestRightsThatCheckWants(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).URL()
	own := opened(t, Schema("rights of all"))
	own.run(t, `CREATE ROLE forgets LOGIN`)
	own.run(t, `GRANT USAGE ON SCHEMA {schema} TO forgets; GRANT USAGE ON SEQUENCE {schema}.jobs_id_seq TO forgets;
		GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.jobs, {schema}.jobs_dead TO forgets;
		GRANT SELECT, INSERT, DELETE ON {schema}.jobs_once TO forgets; GRANT SELECT ON {schema}.jobs_migrations TO forgets`)
	q := open(t, strings.Replace(url, "postgres@", "forgets@", 1), Schema("rights of all"))
	if err := q.Check(t.Context()); err != nil { // what it misses it says, and then nothing is missing
		contains(t, err, "UPDATE on jobs_once")
		own.run(t, `GRANT UPDATE ON {schema}.jobs_once TO forgets`)
	}
	ok(t, q.Check(t.Context()))
	tx, err := q.pool.Begin(t.Context())
	ok(t, err)
	_, err = q.Once(t.Context(), tx, "a")
	ok(t, err)
	ok(t, tx.Commit(t.Context()))
	if _, err := q.Forget(t.Context(), 0); err != nil {
		t.Error(err)
	}
}

// The rights that docs/queue.md lists for those who are no workers are enough, each for its
// own. Roles are the server's, not the schema's, so their names are this test's.
func TestRightsOfOthers(t *testing.T) {
	t.Parallel()
	own := opened(t)
	for role, tt := range map[string]struct {
		grants string
		do     func(q *Queue) error
	}{
		"enqueues": {"GRANT INSERT ON {schema}.jobs TO enqueues; GRANT USAGE ON SEQUENCE {schema}.jobs_id_seq TO enqueues",
			func(q *Queue) error { _, err := q.Enqueue(t.Context(), queue.Job{Kind: "k"}); return err }},
		"merges": {"GRANT INSERT, SELECT, UPDATE ON {schema}.jobs TO merges; GRANT USAGE ON SEQUENCE {schema}.jobs_id_seq TO merges",
			func(q *Queue) error {
				for range 2 {
					if _, err := q.Enqueue(t.Context(), queue.Job{Kind: "k", Key: "key", Merge: true}); err != nil {
						return err
					}
				}
				return nil
			}},
		"remembers": {"GRANT INSERT, SELECT ON {schema}.jobs_once TO remembers",
			func(q *Queue) error {
				tx, err := q.pool.Begin(t.Context())
				ok(t, err)
				defer tx.Rollback(t.Context())
				_, err = q.Once(t.Context(), tx, "key")
				return err
			}},
		"cleans": {"GRANT SELECT, UPDATE, DELETE ON {schema}.jobs_once, {schema}.jobs_dead TO cleans",
			func(q *Queue) error { _, err := q.Forget(t.Context(), 0); return err }},
	} {
		own.run(t, "CREATE ROLE "+role+" LOGIN; GRANT USAGE ON SCHEMA {schema} TO "+role)
		q := open(t, strings.Replace(shared.Get(t).URL(), "postgres@", role+"@", 1), Schema(own.opts.schema))
		contains(t, tt.do(q), "permission denied")
		own.run(t, tt.grants)
		if err := tt.do(q); err != nil {
			t.Errorf("%s, with the rights that are listed: %v", role, err)
		}
	}
}

// What the server says is understood whatever driver has brought it.
func TestOtherDrivers(t *testing.T) {
	for code, down := range map[string]bool{"42P01": false, "42501": false, "57P01": true, "08006": true} {
		if got := unavailable(driverError(code)); got != down {
			t.Errorf("SQLSTATE %s by another driver: unavailable %t", code, got)
		}
	}
	q, err := Open("postgres://localhost/db")
	ok(t, err)
	contains(t, q.advise(driverError("42P01")), "onefill migrate up")
}

// driverError is an error as lib/pq's *pq.Error is one.
type driverError string

func (e driverError) Error() string    { return "pq: " + string(e) }
func (e driverError) SQLState() string { return string(e) }
