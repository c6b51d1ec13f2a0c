package pgqueue

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/queue"
)

// Errors of what is missing say what to do.
func TestCheckSaysWhatToDo(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).URL()
	admin := pool(t, url, nil)
	exec := func(sql string) {
		t.Helper()
		_, err := admin.Exec(t.Context(), sql)
		ok(t, err)
	}

	t.Run("no tables", func(t *testing.T) {
		q := open(t, url, Schema("no tables"))
		err := q.Check(t.Context())
		contains(t, err, "postgres at 127.0.0.1:", "/postgres: check: ", "onefill migrate up --schema no tables")
		answered(t, err)
		for _, op := range []func() error{
			func() error { _, err := q.Enqueue(t.Context(), queue.Job{Kind: "k"}); return err },
			func() error {
				_, err := q.Receive(t.Context(), queue.Request{Max: 1, Lease: time.Minute})
				return err
			},
			func() error { _, err := q.Stats(t.Context()); return err },
		} {
			err := op()
			contains(t, err, "onefill migrate up --schema no tables")
			answered(t, err)
		}
		// The queue is not down, so no worker starts on it and waits for ever.
		w, err := queue.NewWorker(queue.WorkerOptions{Queue: q, AllowQueueDown: true, Handlers: map[string]queue.Handler{"k": {Job: func(context.Context, queue.Delivery) error { return nil }}}})
		ok(t, err)
		contains(t, w.Start(t.Context()), "onefill migrate up --schema no tables")
	})
	t.Run("another version", func(t *testing.T) {
		q := opened(t)
		for _, version := range []string{"0", "7"} {
			q.run(t, "UPDATE {schema}.jobs_migrations SET version = $1::text::int", version)
			err := q.Check(t.Context())
			contains(t, err, "have version "+version, "version "+strconv.Itoa(latest()),
				map[string]string{"0": "onefill migrate up", "7": "update the program"}[version])
			answered(t, err)
		}
		_, err := q.MigrateUp(t.Context())
		contains(t, err, "have version 7", "knows version "+strconv.Itoa(latest()))
		_, err = q.MigrateDown(t.Context(), true)
		contains(t, err, "have version 7", "knows version "+strconv.Itoa(latest()))
	})
	t.Run("somebody else's table", func(t *testing.T) {
		exec(`CREATE SCHEMA others; CREATE TABLE others.jobs (id int)`)
		q := open(t, url, Schema("others"))
		contains(t, q.Check(t.Context()), "not onefill's", "choose another schema")
		_, err := q.MigrateUp(t.Context())
		contains(t, err, "migration 1 jobs", "already exists")
	})
	t.Run("rights", func(t *testing.T) {
		exec(`CREATE ROLE app LOGIN`)
		own := opened(t, Schema("rights"))
		own.enqueued(t, queue.Job{Kind: "k"})
		q := open(t, strings.Replace(url, "postgres@", "app@", 1), Schema("rights"))
		contains(t, q.Check(t.Context()), "role app may not use schema rights", "GRANT USAGE")
		exec(`GRANT USAGE ON SCHEMA rights TO app; GRANT SELECT ON rights.jobs, rights.jobs_migrations TO app`)
		err := q.Check(t.Context())
		contains(t, err, "DELETE on jobs", "INSERT on jobs, ", "SELECT on jobs_dead", "UPDATE on jobs", "USAGE on jobs_id_seq")
		answered(t, err)
		_, err = q.Receive(t.Context(), queue.Request{Max: 1, Lease: time.Minute})
		contains(t, err, "permission denied", "Check lists the rights")
		exec(`GRANT INSERT ON rights.jobs TO app; GRANT USAGE ON SEQUENCE rights.jobs_id_seq TO app`)
		q.enqueued(t, queue.Job{Kind: "k"}) // that is all that a writer needs
		exec(`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA rights TO app`)
		ok(t, q.Check(t.Context()))
		ok(t, q.Ack(t.Context(), q.one(t).Token))
		_, err = q.MigrateDown(t.Context(), true)
		contains(t, err, "must be owner")
	})
}

func answered(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("%v is unavailable, want an answer", err)
	}
}

// A standby is told from a queue that is not fit: the next failover may make it a primary.
func TestStandbyIsUnavailable(t *testing.T) {
	q := &Queue{}
	if err := q.fail("check", errStandby); !errors.Is(err, queue.ErrUnavailable) || !errors.Is(err, errUnfit) {
		t.Errorf("%v, want an unavailable one", err)
	}
}

// Servers that cannot be reached, and those that refuse.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, servers.PostgresOptions{Settings: []string{"synchronous_commit=on"}}) // it is killed
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	closed.Close()
	down := open(t, "postgres://user:secret@"+closed.Addr().String()+"/shop?sslmode=disable")
	err = down.Check(t.Context())
	if !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("nobody listens: %v, want ErrUnavailable", err)
	}
	contains(t, err, "postgres at "+closed.Addr().String()+"/shop: check: ")
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("error %q holds the password", err)
	}

	nowhere := open(t, strings.Replace(server.URL(), "/postgres?", "/nowhere?", 1))
	if err := nowhere.Check(t.Context()); err == nil || errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("no such database: %v, which is an answer", err)
	}
	q := openedOn(t, server.URL()+"&statement_timeout=100ms", fresh())
	if _, err := q.exec(t.Context(), stmt{sql: "SELECT pg_sleep(10)"}); !unavailable(err) {
		t.Errorf("statement_timeout: %v, which is no answer in time", err)
	}
	ok(t, q.Check(t.Context())) // the connection is as good as before
	ok(t, server.Kill())
	eventually(t, "a killed server is gone", func() bool { // its children go on for a moment
		_, err = q.Stats(t.Context())
		return errors.Is(err, queue.ErrUnavailable)
	})
	ok(t, server.Restart(t.Context()))
	eventually(t, "it works again", func() bool { return q.Check(t.Context()) == nil })
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for name, opt := range map[string]Option{
		"Schema is empty": Schema(""), "at most 63": Schema(strings.Repeat("x", 64)), "begin with pg_": Schema("pg_mine"),
		"control characters": Schema("a\nb"), "backslashes": Schema(`a\b`), "PollInterval is 0s": PollInterval(0),
	} {
		_, err := Open("postgres://localhost/db", opt)
		contains(t, err, "pgqueue.", name)
		_, err = Migrations(opt)
		contains(t, err, "pgqueue.Migrations: ", name)
		_, err = Script(true, opt)
		contains(t, err, "pgqueue.Script: ", name)
	}
	_, err := New(nil)
	contains(t, err, "pgqueue.New: the pool is nil")
	for _, url := range []string{
		"http://user:secret@host/db", "postgres://user:secret@host:port/db", "postgres://user:se/cret@host", "postgres://user:%zzsecret@host/db",
		"postgres://user:secret@host/db?pool_max_conns=none", "postgres://user:sec`: ret@host:x/db",
	} {
		_, err := Open(url)
		contains(t, err, "pgqueue.Open: ")
		for _, part := range []string{"secret", "cret@", "ret@", "sec`"} {
			if strings.Contains(err.Error(), part) {
				t.Errorf("Open(%q): %v", url, err)
			}
		}
	}
	// Whatever a schema is called, it is a name and nothing else.
	odd := opened(t, Schema(`we're "here"; DROP TABLE x --`), Notify())
	ids := odd.enqueued(t, queue.Job{Kind: "k"}, queue.Job{Kind: "k", Key: "key", Merge: true})
	ok(t, odd.Check(t.Context()))
	ds := odd.received(t, 2, time.Minute)
	if len(ds) != len(ids) {
		t.Errorf("%d jobs, want %d", len(ds), len(ids))
	}
	ok(t, odd.Dead(t.Context(), queue.Death{Token: ds[0].Token}))
	_, err = odd.ReplayDead(t.Context(), ds[0].ID)
	ok(t, err)
	if os.Getenv("PGHOST") == "" && odd.addr != shared.Get(t).Addr()+"/postgres" {
		t.Errorf("address %s", odd.addr)
	}
}
