package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/pgqueue"
	"github.com/onefill/onefill/queue"
)

var sharedPostgres = servertest.SharedPostgres(servers.PostgresOptions{})

// testQueue makes the tables in a schema of the test's own, tells the command of it by the
// environment, and returns the queue.
func testQueue(t *testing.T) *pgqueue.Queue {
	t.Helper()
	q := emptyDatabase(t)
	if _, err := q.MigrateUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	return q
}

func emptyDatabase(t *testing.T) *pgqueue.Queue {
	t.Helper()
	server := sharedPostgres.Get(t)
	schema := strings.ToLower(t.Name())
	t.Setenv("ONEFILL_POSTGRES", server.URL())
	t.Setenv("ONEFILL_SCHEMA", schema)
	q, err := pgqueue.Open(server.URL(), pgqueue.Schema(schema))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	return q
}

// ok runs the command, which must succeed and say nothing on standard error.
func ok(t *testing.T, args ...string) (stdout string) {
	t.Helper()
	code, stdout, stderr := run(t, args...)
	if code != exitOK || stderr != "" {
		t.Fatalf("%q: exit code %d, %q", args, code, stderr)
	}
	return stdout
}

// fails runs the command, which must end with the code and say so.
func fails(t *testing.T, code int, says string, args ...string) (stdout string) {
	t.Helper()
	got, stdout, stderr := run(t, args...)
	if got != code || !strings.Contains(stderr, says) {
		t.Errorf("%q: exit code %d, %q; want %d and %q", args, got, stderr, code, says)
	}
	return stdout
}

// read reads one line of --json.
func read[T any](t *testing.T, stdout string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(stdout), &v); err != nil {
		t.Fatalf("%q: %v", stdout, err)
	}
	return v
}

func lines[T any](t *testing.T, stdout string) (all []T) {
	t.Helper()
	for line := range strings.Lines(stdout) {
		all = append(all, read[T](t, line))
	}
	return all
}

func TestMigrate(t *testing.T) {
	q := emptyDatabase(t)
	fails(t, exitFailed, "onefill migrate up --schema testmigrate", "queue", "status")
	if out := ok(t, "migrate", "up"); out != "applied 1 jobs\n" {
		t.Errorf("up: %q", out)
	}
	if out := ok(t, "migrate", "up"); out != "nothing to do in schema testmigrate\n" {
		t.Errorf("up again: %q", out)
	}
	if _, err := q.Enqueue(t.Context(), queue.Job{Kind: "mail"}); err != nil {
		t.Fatal(err)
	}
	fails(t, exitFailed, "1 jobs and 0 dead letters", "migrate", "down")
	ok(t, "queue", "status")
	got := read[struct {
		Reverted []string
		Schema   string
	}](t, ok(t, "migrate", "down", "--force", "--json"))
	if len(got.Reverted) != 1 || got.Schema != "testmigrate" {
		t.Errorf("down: %+v", got)
	}
	if out := ok(t, "migrate", "down", "--json"); out != `{"reverted":[],"schema":"testmigrate"}`+"\n" {
		t.Errorf("down again: %q", out)
	}
}

// What print prints makes tables that the queue is content with, and takes them back.
func TestMigratePrint(t *testing.T) {
	q := emptyDatabase(t)
	db, err := pgx.Connect(t.Context(), sharedPostgres.Get(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.WithoutCancel(t.Context()))
	apply := func(script string) {
		t.Helper()
		if _, err := db.PgConn().Exec(t.Context(), script).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("ONEFILL_POSTGRES", "") // no server is asked
	apply(ok(t, "migrate", "print"))
	if err := q.Check(t.Context()); err != nil {
		t.Error(err)
	}
	apply(read[struct{ SQL string }](t, ok(t, "migrate", "print", "--down", "--json")).SQL)
	if err := q.Check(t.Context()); err == nil {
		t.Error("the tables are still there")
	}
	fails(t, exitInput, "Schema", "migrate", "print", "--schema", "pg_x")
}

func TestQueueStatusAndLag(t *testing.T) {
	q := testQueue(t)
	if out := ok(t, "queue", "status"); !strings.Contains(out, "ready      0\n") || !strings.Contains(out, "lag        0s\n") {
		t.Errorf("status of an empty queue: %q", out)
	}
	if _, err := q.Enqueue(t.Context(), queue.Job{Kind: "a"}, queue.Job{Kind: "a"}, queue.Job{Kind: "a", Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	bury(t, q, 1)
	s := read[statusLine](t, ok(t, "queue", "status", "--json"))
	if s.Ready != 1 || s.NotReady != 1 || s.Dead != 1 || s.LagMS <= 0 {
		t.Errorf("%+v", s)
	}
	ok(t, "queue", "lag", "--max", "1h")
	out := fails(t, exitFailed, "--max is 1µs", "queue", "lag", "--max", "1us", "--json")
	if got := read[map[string]any](t, out); got["ok"] != false || got["lag_ms"].(float64) <= 0 {
		t.Errorf("lag: %q", out)
	}
	if d, err := time.ParseDuration(strings.TrimSpace(ok(t, "queue", "lag"))); err != nil || d <= 0 {
		t.Errorf("lag: %v, %v", d, err)
	}
}

// bury moves n jobs to the dead letters and returns their IDs.
func bury(t *testing.T, q queue.Queue, n int) (ids []string) {
	t.Helper()
	for len(ids) < n {
		ds, err := q.Receive(t.Context(), queue.Request{Max: n - len(ids), Lease: time.Minute})
		if err != nil || len(ds) == 0 {
			t.Fatalf("received %d jobs, %v", len(ds), err)
		}
		deaths := make([]queue.Death, len(ds))
		for i, d := range ds {
			deaths[i] = queue.Death{Token: d.Token, Reason: "20 attempts failed", Err: "connection refused\nby " + d.Key}
			ids = append(ids, d.ID)
		}
		if err := q.Dead(t.Context(), deaths...); err != nil {
			t.Fatal(err)
		}
	}
	return ids
}

func TestDeadLetters(t *testing.T) {
	q := testQueue(t)
	var js []queue.Job
	for i := range 5 {
		js = append(js, queue.Job{Kind: fmt.Sprint("kind", i%2), Key: fmt.Sprint("users:", i), Payload: []byte(`{"n": 1}`), Version: 7})
	}
	if _, err := q.Enqueue(t.Context(), js...); err != nil {
		t.Fatal(err)
	}
	if out := ok(t, "dead", "list"); out != "" {
		t.Errorf("an empty list: %q", out)
	}
	if out := ok(t, "dead", "replay", "--all"); out != "there is none\n" {
		t.Errorf("%q", out)
	}
	ids := bury(t, q, 5)

	table := ok(t, "dead", "list")
	if strings.Count(table, "\n") != 6 || !strings.Contains(table, "20 attempts failed") || !strings.Contains(table, "users:4") {
		t.Errorf("list:\n%s", table)
	}
	_, short, stderr := run(t, "dead", "list", "--max", "2")
	if strings.Count(short, "\n") != 3 || !strings.Contains(stderr, "more than 2") {
		t.Errorf("list --max 2:\n%s%s", short, stderr)
	}
	ls := lines[letterLine](t, ok(t, "dead", "list", "--json", "--kind", "kind1", "--max", "0"))
	if len(ls) != 2 || ls[0].Kind != "kind1" || ls[0].Attempts != 1 || ls[0].Version != 7 || ls[0].Payload != nil || ls[0].Died.IsZero() {
		t.Errorf("list --kind: %+v", ls)
	}

	shown := read[letterLine](t, ok(t, "dead", "show", ids[0], "--json"))
	if shown.ID != ids[0] || string(shown.Payload) != `{"n":1}` && string(shown.Payload) != `{"n": 1}` || !strings.Contains(shown.LastError, "\n") || shown.DedupeKey == "" {
		t.Errorf("show: %+v", shown)
	}
	if out := ok(t, "dead", "show", ids[0], ids[1]); strings.Count(out, "payload ") != 2 || !strings.Contains(out, `refused\nby`) {
		t.Errorf("show:\n%s", out)
	}
	if out := fails(t, exitFailed, `there is no dead letter "99999"`, "dead", "show", "99999", ids[0]); !strings.Contains(out, ids[0]) {
		t.Errorf("show of one that is not there and one that is:\n%s", out)
	}

	replayed := lines[outcomeLine](t, fails(t, exitFailed, "1 of 2 letters were not replayed: 99999: no such dead letter", "dead", "replay", "--json", ids[0], "99999"))
	if len(replayed) != 2 || replayed[0].NewID == "" || replayed[0].NewID == ids[0] || replayed[1].Error == "" {
		t.Errorf("replay: %+v", replayed)
	}
	fails(t, exitFailed, "replayed already", "dead", "replay", ids[0])
	ds, err := q.Receive(t.Context(), queue.Request{Max: 10, Lease: time.Minute})
	if err != nil || len(ds) != 1 || ds[0].ID != replayed[0].NewID || ds[0].Attempt != 1 {
		t.Errorf("the replay: %+v, %v", ds, err)
	}
	if ls := lines[letterLine](t, ok(t, "dead", "list", "--json", "--replayed")); len(ls) != 5 {
		t.Errorf("with the replayed one there are %d", len(ls))
	}

	if out := ok(t, "dead", "drop", ids[1]); out != ids[1]+" dropped\n" {
		t.Errorf("drop: %q", out)
	}
	if out := ok(t, "dead", "replay", "--all", "--kind", "kind1"); strings.Count(out, " replayed as ") != 1 {
		t.Errorf("replay --all --kind kind1: %q", out)
	}
	if out := ok(t, "dead", "drop", "--all", "--json"); len(lines[outcomeLine](t, out)) != 2 {
		t.Errorf("drop --all: %q", out)
	}
	if left := read[statusLine](t, ok(t, "queue", "status", "--json")); left.Dead != 0 || left.Ready+left.NotReady != 2 {
		t.Errorf("at the end: %+v", left)
	}
}

// What destroys is said where it is typed, not by the environment.
func TestNothingIsDestroyedByTheEnvironment(t *testing.T) {
	q := testQueue(t)
	if _, err := q.Enqueue(t.Context(), queue.Job{Kind: "a"}, queue.Job{Kind: "a"}); err != nil {
		t.Fatal(err)
	}
	bury(t, q, 1)
	for name, value := range map[string]string{"ONEFILL_ALL": "true", "ONEFILL_FORCE": "true", "ONEFILL_MAX": "1ms", "ONEFILL_KIND": "b", "ONEFILL_KEY": "b"} {
		t.Setenv(name, value)
	}
	fails(t, exitInput, "nor --all", "dead", "drop")
	fails(t, exitFailed, "1 jobs and 1 dead letters", "migrate", "down")
	if out := ok(t, "dead", "list", "--json"); len(lines[letterLine](t, out)) != 1 {
		t.Errorf("list: %q", out)
	}
}

// More letters than one page holds: all of them are listed, and replayed once.
func TestManyDeadLetters(t *testing.T) {
	q := testQueue(t)
	js := make([]queue.Job, 2*deadPage+1)
	for i := range js {
		js[i] = queue.Job{Kind: "a"}
	}
	if _, err := q.Enqueue(t.Context(), js...); err != nil {
		t.Fatal(err)
	}
	bury(t, q, len(js))
	if n := strings.Count(ok(t, "dead", "list", "--json", "--max", "0"), "\n"); n != len(js) {
		t.Errorf("%d are listed of %d", n, len(js))
	}
	if n := strings.Count(ok(t, "dead", "list", "--json", "--max", "1000"), "\n"); n != 1000 {
		t.Errorf("%d are listed with --max 1000", n)
	}
	if n := strings.Count(ok(t, "dead", "replay", "--all"), "\n"); n != len(js) {
		t.Errorf("%d are replayed of %d", n, len(js))
	}
	if s := read[statusLine](t, ok(t, "queue", "status", "--json")); s.Ready != int64(len(js)) || s.Dead != 0 {
		t.Errorf("%+v", s)
	}
}

// Failures: what is wrong and what to do, the right exit code, no password anywhere, nothing
// on standard output.
func TestQueueFailures(t *testing.T) {
	server := sharedPostgres.Get(t)
	nobody := strings.Replace(server.URL(), "postgres@", "nobody:secret@", 1)
	if nobody == server.URL() {
		t.Fatalf("the URL %s has no user", nobody)
	}
	for _, tt := range []struct {
		postgres, args string
		code           int
		says           string
	}{
		{"", "queue status", exitInput, "set ONEFILL_POSTGRES"},
		{"", "queue status --postgres postgres://u:secret@h/d", exitInput, "in ONEFILL_POSTGRES"},
		{"", "queue lag --postgres host=h,password=secret", exitInput, "ONEFILL_POSTGRES"},
		{"", "dead list --postgres postgres://u@h/d?password=secret", exitInput, "ONEFILL_POSTGRES"},
		{"postgres://u:secret@h:port/d", "queue status", exitInput, "postgres://user:password@host"},
		{"postgres://u:secret@127.0.0.1:1/d", "queue status", exitFailed, "127.0.0.1:1"},
		{"postgres://u:secret@127.0.0.1:1/d", "migrate up", exitFailed, "127.0.0.1:1"},
		{"postgres://u:secret@127.0.0.1:1/d", "dead replay 1", exitFailed, "127.0.0.1:1"},
		{"postgres://u:secret@127.0.0.1:1/d", "invalidate --cache users --through-queue 1", exitFailed, "127.0.0.1:1"},
		{nobody, "queue status", exitFailed, `role "nobody" does not exist`},
		{server.URL(), "queue status --schema none", exitFailed, "onefill migrate up --schema none"},
		{server.URL(), "dead list --schema none", exitFailed, "onefill migrate up --schema none"},
		{server.URL(), "queue status --schema pg_none", exitInput, "pg_"},
		{server.URL(), "queue status --timeout 0", exitInput, "--timeout"},
		{server.URL(), "queue lag --max -1s", exitInput, "--max"},
		{server.URL(), "queue state", exitInput, `unknown command "state"`},
		{server.URL(), "dead list --max -1", exitInput, "--max"},
		{server.URL(), "dead show", exitInput, "no ID"},
		{server.URL(), "dead drop", exitInput, "nor --all"},
		{server.URL(), "dead drop 1 --all", exitInput, "--all: excludes IDs"},
		{server.URL(), "dead replay --kind a", exitInput, "need --all"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			t.Setenv("ONEFILL_POSTGRES", tt.postgres)
			code, stdout, stderr := run(t, strings.Fields(tt.args)...)
			if code != tt.code || stdout != "" {
				t.Errorf("exit code %d, want %d; on standard output: %q", code, tt.code, stdout)
			}
			if !strings.Contains(stderr, tt.says) || strings.Contains(stderr, "secret") {
				t.Errorf("stderr %q; want %q and no password", stderr, tt.says)
			}
		})
	}
}

// Interrupted while the server does not answer: exit code 130, at once.
func TestQueueInterrupted(t *testing.T) {
	testQueue(t)
	tx := lockJobs(t)
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	var out, errs strings.Builder
	if code := Run(ctx, []string{"queue", "status"}, strings.NewReader(""), &out, &errs); code != exitInterrupted || out.String() != "" {
		t.Errorf("exit code %d, %q, %q", code, out.String(), errs.String())
	}
	fails(t, exitFailed, "postgres at "+sharedPostgres.Get(t).Addr(), "queue", "status", "--timeout", "100ms")
}

// lockJobs holds the table, so that everybody who asks for it waits.
func lockJobs(t *testing.T) pgx.Tx {
	t.Helper()
	db, err := pgx.Connect(t.Context(), sharedPostgres.Get(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close(context.Background()) })
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+strings.ToLower(t.Name())+".jobs IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	return tx
}
