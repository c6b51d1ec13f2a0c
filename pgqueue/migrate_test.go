package pgqueue

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/queue"
)

func TestMigrateUpAndDown(t *testing.T) {
	t.Parallel()
	q := open(t, shared.Get(t).URL(), fresh())
	tables := func() int64 {
		return q.count(t, "SELECT count(*) FROM pg_tables WHERE schemaname = $1", q.opts.schema)
	}
	if reverted, err := q.MigrateDown(t.Context(), false); err != nil || len(reverted) > 0 {
		t.Errorf("down of nothing: %q, %v", reverted, err)
	}
	for range 2 { // up works again after down
		applied, err := q.MigrateUp(t.Context())
		ok(t, err)
		if len(applied) != latest() || applied[0] != "1 jobs" {
			t.Errorf("applied %q", applied)
		}
		ok(t, q.Check(t.Context()))
		applied, err = q.MigrateUp(t.Context())
		ok(t, err)
		if len(applied) != 0 {
			t.Errorf("applied again: %q", applied)
		}

		q.enqueued(t, queue.Job{Kind: "k"}, queue.Job{Kind: "k", Delay: time.Hour})
		ok(t, q.Dead(t.Context(), queue.Death{Token: q.one(t).Token, Reason: "why"}))
		_, err = q.MigrateDown(t.Context(), false)
		if !errors.Is(err, ErrJobsLeft) {
			t.Errorf("down with jobs: %v", err)
		}
		answered(t, err)
		contains(t, err, "1 jobs and 1 dead letters", "onefill migrate down --schema "+q.opts.schema+" --force")
		ok(t, q.Check(t.Context()))
		reverted, err := q.MigrateDown(t.Context(), true)
		ok(t, err)
		if len(reverted) != 1 || tables() != 0 {
			t.Errorf("reverted %q, %d tables left", reverted, tables())
		}
	}
}

// Several processes are started at once and each migrates first: one does it.
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	schema := fresh()
	var wg sync.WaitGroup
	var mu sync.Mutex
	done := 0
	for range 4 {
		q := open(t, shared.Get(t).URL(), schema)
		wg.Go(func() {
			applied, err := q.MigrateUp(t.Context())
			if err != nil {
				t.Errorf("MigrateUp: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			done += len(applied)
		})
	}
	wg.Wait()
	if done != latest() {
		t.Errorf("%d migrations were applied, want %d", done, latest())
	}
}

// The printed scripts do what MigrateUp and MigrateDown do.
func TestScripts(t *testing.T) {
	t.Parallel()
	q := open(t, shared.Get(t).URL(), Schema(`printed "script"`))
	for _, up := range []bool{true, false, true} {
		script, err := Script(up, Schema(q.opts.schema))
		ok(t, err)
		if strings.Contains(script, "{") || !strings.Contains(script, `"printed ""script"""`) {
			t.Errorf("script:\n%s", script)
		}
		c := conn(t, shared.Get(t).URL())
		if _, err := c.PgConn().Exec(t.Context(), script).ReadAll(); err != nil {
			t.Fatalf("%v in\n%s", err, script)
		}
		if err := q.Check(t.Context()); (err == nil) != up {
			t.Errorf("Check after up %t: %v", up, err)
		}
	}
	if applied, err := q.MigrateUp(t.Context()); err != nil || len(applied) > 0 {
		t.Errorf("MigrateUp after the script: %q, %v", applied, err)
	}
}
