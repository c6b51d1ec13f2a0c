package cli

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/queue"
)

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	db, err := pgx.Connect(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { db.Close(context.Background()) })
	return db
}

func execute(t *testing.T, db *pgx.Conn, sql ...string) {
	t.Helper()
	for _, each := range sql {
		if _, err := db.Exec(context.WithoutCancel(t.Context()), each); err != nil {
			t.Fatalf("%s: %v", each, err)
		}
	}
}

func TestDoctorPostgres(t *testing.T) {
	q := emptyDatabase(t)
	missing := examine(t)
	missing.finds(t, "queue", levelFail, "onefill migrate up")
	missing.finds(t, "lag", levelUnknown, "")
	missing.finds(t, "dead-letters", levelUnknown, "cannot be counted")
	if _, err := q.MigrateUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	healthy := examine(t, "--strict")
	healthy.allFine(t)
	if len(healthy.all) != len(postgresChecks) || !strings.HasPrefix(healthy.all[0].Server, "postgres at 127.0.0.1:") {
		t.Errorf("%+v", healthy.all)
	}

	_, err := q.Enqueue(t.Context(), queue.Job{Kind: "a"}, queue.Job{Kind: "a"})
	must(t, err)
	e := examine(t)
	e.finds(t, "lag", levelOK, "2 jobs due")
	e = examine(t, "--max-lag", "1us")
	e.finds(t, "lag", levelFail, "Is a worker running")
	bury(t, q, 1)
	e = examine(t)
	e.finds(t, "dead-letters", levelWarn, "1 letter")

	// Somebody holds a snapshot.
	url, schema := sharedPostgres.Get(t).URL(), strings.ToLower(t.Name())
	db := connect(t, url)
	tx, err := db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	must(t, err)
	_, err = tx.Exec(t.Context(), "SELECT 1")
	must(t, err)
	e = examine(t, "--max-snapshot", "1us")
	e.finds(t, "snapshots", levelWarn, "idle in transaction")
	e = examine(t)
	e.finds(t, "snapshots", levelOK, "the oldest is")
	must(t, tx.Rollback(t.Context()))

	execute(t, db, fmt.Sprintf("ALTER TABLE %s.jobs SET (autovacuum_enabled = false)", schema))
	e = examine(t)
	e.finds(t, "autovacuum", levelFail, "off for jobs")
	execute(t, db, fmt.Sprintf("ALTER TABLE %s.jobs RESET (autovacuum_enabled)", schema))
	e = examine(t)
	e.finds(t, "autovacuum", levelOK, "on")
}

// A role that may do little: what it may not see is unknown, what it lacks is a failure.
func TestDoctorPostgresRights(t *testing.T) {
	testQueue(t)
	server, schema := sharedPostgres.Get(t), strings.ToLower(t.Name())
	db := connect(t, server.URL())
	execute(t, db, "DROP ROLE IF EXISTS doctor_test", "CREATE ROLE doctor_test LOGIN", fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO doctor_test", schema))
	t.Cleanup(func() { execute(t, db, "DROP OWNED BY doctor_test", "DROP ROLE doctor_test") })
	t.Setenv("ONEFILL_POSTGRES", strings.Replace(server.URL(), "postgres@", "doctor_test@", 1))
	e := examine(t)
	e.finds(t, "queue", levelFail, "lacks rights")
	e.finds(t, "snapshots", levelUnknown, "pg_read_all_stats")
	execute(t, db, fmt.Sprintf("GRANT ALL ON ALL TABLES IN SCHEMA %s TO doctor_test", schema), fmt.Sprintf("GRANT ALL ON ALL SEQUENCES IN SCHEMA %s TO doctor_test", schema), "GRANT pg_read_all_stats TO doctor_test")
	e = examine(t)
	e.allFine(t)
	execute(t, db, "ALTER ROLE doctor_test SET default_transaction_read_only = on")
	e = examine(t)
	e.finds(t, "writes", levelFail, "read only")
}

// Nothing is written, and nothing is left on the server: no row, no session.
func TestDoctorPostgresReadsOnly(t *testing.T) {
	q := testQueue(t)
	_, err := q.Enqueue(t.Context(), queue.Job{Kind: "a"})
	must(t, err)
	db := connect(t, sharedPostgres.Get(t).URL())
	// Whoever writes gets a transaction's number.
	number := func() (n int64) {
		must(t, db.QueryRow(t.Context(), "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").Scan(&n))
		return n
	}
	before := number()
	examine(t)
	if after := number(); after != before {
		t.Errorf("%d transactions have written", after-before)
	}
	poll(t, "the sessions end", func() bool {
		var n int
		must(t, db.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'onefill doctor'").Scan(&n))
		return n == 0
	})
}

func TestDoctorPostgresWithoutAutovacuum(t *testing.T) {
	server := servertest.Postgres(t, servers.PostgresOptions{Settings: []string{"autovacuum=off", "max_prepared_transactions=2"}})
	t.Setenv("ONEFILL_POSTGRES", server.URL())
	ok(t, "migrate", "up")
	e := examine(t)
	e.finds(t, "autovacuum", levelFail, "off")
	db := connect(t, server.URL())
	execute(t, db, "BEGIN", "CREATE TABLE t (n int)", "PREPARE TRANSACTION 'left behind'")
	e = examine(t, "--max-snapshot", "1us")
	e.finds(t, "snapshots", levelWarn, "the prepared transaction left behind of postgres")
	execute(t, db, "ROLLBACK PREPARED 'left behind'")

	// More rows are dead than alive by far: jobs that were done, and no vacuum.
	execute(t, db, "INSERT INTO onefill.jobs (kind, payload) SELECT 'a', '{}' FROM generate_series(1, 120000)", "DELETE FROM onefill.jobs")
	must(t, db.Close(t.Context())) // then its counts are handed in
	poll(t, "the server has counted", func() bool {
		e = examine(t)
		return e.by["dead-rows"].Level == levelWarn
	})
	e.finds(t, "dead-rows", levelWarn, "about 120000")
}

func TestWithoutPool(t *testing.T) {
	for url, want := range map[string]string{
		"postgres://h/d": "postgres://h/d",
		"postgres://h/d?sslmode=disable&pool_max_conns=10":      "postgres://h/d?sslmode=disable",
		"postgres://h/d?pool_max_conns=10&application_name=app": "postgres://h/d?application_name=app",
	} {
		if got := withoutPool(url); got != want {
			t.Errorf("%s: %s", url, got)
		}
	}
}
