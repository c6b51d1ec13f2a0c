package pgqueue

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/onefill/onefill/queue"
)

// killable is a queue whose table counts by job what its end was: each must end once.
func killable(t testing.TB) *Queue {
	q := opened(t)
	for _, sql := range []string{
		"CREATE TABLE {schema}.work (job text NOT NULL)",
		"CREATE TABLE {schema}.ended (job text NOT NULL)",
		`CREATE FUNCTION {schema}.ended() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN INSERT INTO {schema}.ended VALUES (OLD.id::text); RETURN NULL; END $$`,
		"CREATE TRIGGER ended AFTER DELETE ON {schema}.jobs FOR EACH ROW EXECUTE FUNCTION {schema}.ended()",
	} {
		q.run(t, sql)
	}
	return q
}

// TestKilledInEveryState kills a worker process with SIGKILL at each point between the
// claim of a job and its end. Whatever the point, the job is neither lost nor ended
// twice: it comes back when its lease ends, if it had not ended, and counts its claims.
func TestKilledInEveryState(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		point, kind string
		comes       int // the attempt with which the job comes back, 0 if it does not
	}{ // after the nack it is ready again, and the child may claim it before it is killed
		{"after the claim", "done", 2},
		{"in the handler", "done", 2},
		{"after the work", "done", 2},
		{"after an extension", "long", 2},
		{"before the ack", "done", 2},
		{"after the ack", "done", 0},
		{"before the nack", "failed", 2},
		{"after the nack", "failed", 2},
		{"before the death", "dead", 2},
		{"after the death", "dead", 0},
	} {
		t.Run(tt.point, func(t *testing.T) {
			t.Parallel()
			q := killable(t)
			q.enqueued(t, queue.Job{Kind: tt.kind})
			c := startChild(t, q, tt.point)
			if line := c.line(t); line != "at "+tt.point+"\n" {
				t.Fatalf("the child says %q", line)
			}
			c.kill()
			q.ends(t, tt.comes, tt.point == "after the nack")
			dead := q.count(t, "SELECT count(*) FROM {schema}.jobs_dead")
			if want := map[bool]int64{true: 1}[tt.point == "after the death"]; dead != want {
				t.Errorf("%d dead letters, want %d", dead, want)
			}
		})
	}
}

// endsAs takes the job over, if it comes back, and checks that it has ended once.
func (q *Queue) endsAs(t testing.TB, attempt int) {
	t.Helper()
	q.ends(t, attempt, false)
}

// ends is endsAs for a job that may have been claimed more often than that.
func (q *Queue) ends(t testing.TB, attempt int, orMore bool) {
	t.Helper()
	if attempt > 0 {
		ds, err := q.Receive(t.Context(), queue.Request{Max: 10, Wait: patience, Lease: time.Minute})
		ok(t, err)
		if len(ds) != 1 || ds[0].Attempt < attempt || ds[0].Attempt > attempt && !orMore {
			t.Fatalf("received %+v, want one job at attempt %d (or more: %t)", ds, attempt, orMore)
		}
		if ds[0].Lag > patience {
			t.Errorf("a lag of %v", ds[0].Lag)
		}
		ok(t, q.Ack(t.Context(), ds[0].Token))
	}
	if n := q.count(t, "SELECT count(*) FROM {schema}.jobs"); n != 0 {
		t.Errorf("%d jobs left", n)
	}
	if n := q.count(t, "SELECT count(*) FROM {schema}.ended"); n != 1 {
		t.Errorf("the job has ended %d times", n)
	}
}

// TestKilledInAStatement kills the worker while the server executes its claim, or its
// acknowledgement: a lock holds the statement up, the process dies, the lock goes, and
// the server finishes for a client that is not there.
func TestKilledInAStatement(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		point string
		comes int // as above
		left  int64
	}{{"in the claim", 2, 1}, {"in the ack", 0, 0}} {
		t.Run(tt.point, func(t *testing.T) {
			t.Parallel()
			q := killable(t)
			q.enqueued(t, queue.Job{Kind: "done"})
			lock, err := q.pool.Begin(t.Context())
			ok(t, err)
			defer lock.Rollback(context.Background())
			hold := func() {
				_, err := lock.Exec(t.Context(), inSchema("LOCK TABLE {schema}.jobs IN EXCLUSIVE MODE", q.opts.schema))
				ok(t, err)
			}
			if tt.point == "in the claim" {
				hold()
			}
			c := startChild(t, q, tt.point)
			c.line(t)
			if tt.point == "in the ack" {
				// The child has said that it is about to acknowledge: it may have done so
				// before the lock is there. Then the job is gone already, as it should be.
				hold()
			}
			waits := func() bool {
				return q.count(t, "SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) WHERE NOT l.granted AND a.application_name = 'child' AND l.relation = '{schema}.jobs'::regclass") > 0
			}
			if tt.point == "in the claim" {
				eventually(t, "the claim waits", waits)
			} else {
				eventually(t, "the acknowledgement waits, or is done", func() bool {
					return waits() || q.count(t, "SELECT count(*) FROM {schema}.ended") > 0
				})
			}
			c.kill()
			ok(t, lock.Rollback(t.Context()))
			eventually(t, "the server finishes", func() bool {
				return q.count(t, "SELECT count(*) FROM {schema}.jobs") == tt.left && q.count(t, "SELECT count(*) FROM {schema}.jobs WHERE fence = 0") == 0
			})
			q.endsAs(t, tt.comes)
		})
	}
}

// TestKilledAtRandom: workers are killed again and again while they work. Each job's
// work is done at least once, and each job ends once.
func TestKilledAtRandom(t *testing.T) {
	t.Parallel()
	q := killable(t)
	n, kills := 600, 5
	if long() {
		n, kills = 20_000, 100
	}
	js := jobs(n)
	for i := range js {
		js[i].Kind = "done"
	}
	q.enqueued(t, js...)
	worked := func() int64 { return q.count(t, "SELECT count(DISTINCT job) FROM {schema}.work") }
	for range kills {
		c := startChild(t, q, "")
		until := worked() + 1 + rand.Int64N(int64(n/kills))
		eventually(t, "some more are done", func() bool { return worked() >= min(until, int64(n)) })
		c.kill()
	}
	startChild(t, q, "")
	eventually(t, "all have ended", func() bool { return q.count(t, "SELECT count(*) FROM {schema}.jobs") == 0 })
	if w := worked(); w != int64(n) {
		t.Errorf("the work of %d jobs was done, want %d", w, n)
	}
	if e, d := q.count(t, "SELECT count(*) FROM {schema}.ended"), q.count(t, "SELECT count(DISTINCT job) FROM {schema}.ended"); e != int64(n) || d != int64(n) {
		t.Errorf("%d ends of %d jobs, want %d", e, d, n)
	}
	t.Logf("%d jobs, %d workers killed: %d calls of the handler were committed", n, kills, q.count(t, "SELECT count(*) FROM {schema}.work"))
}
