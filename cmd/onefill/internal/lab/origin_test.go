package lab

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

const testTimeout = 20 * time.Second

// forEachOrigin runs test on a real PostgreSQL and on the embedded SQLite. Two
// origins are opened on the same data: the parent's and a reader process'.
func forEachOrigin(t *testing.T, test func(t *testing.T, parent, reader origin)) {
	t.Run("postgres", func(t *testing.T) {
		spec := originSpec{Kind: originPostgres, Schema: "onefill_lab_test",
			URL: servertest.Postgres(t, servers.PostgresOptions{}).URL()}
		parent, err := openPostgres(t.Context(), spec, parentConnections)
		if err != nil {
			t.Fatal(err)
		}
		defer parent.Close()
		if err := parent.createSchema(t.Context()); err != nil {
			t.Fatal(err)
		}
		test(t, parent, openedOrigin(t, spec))
	})
	t.Run("sqlite", func(t *testing.T) {
		spec := originSpec{Kind: originSQLite, Path: filepath.Join(t.TempDir(), "origin.db")}
		parent, err := openSQLite(spec)
		if err != nil {
			t.Fatal(err)
		}
		defer parent.Close()
		if err := parent.createSchema(t.Context()); err != nil {
			t.Fatal(err)
		}
		test(t, parent, openedOrigin(t, spec))
	})
}

func openedOrigin(t *testing.T, spec originSpec) origin {
	t.Helper()
	o, err := openOrigin(t.Context(), spec, 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.Close)
	return o
}

func TestOrigin(t *testing.T) {
	forEachOrigin(t, func(t *testing.T, parent, reader origin) {
		t.Run("value", func(t *testing.T) { originValue(t, parent, reader) })
		t.Run("missing", func(t *testing.T) { originMissing(t, parent, reader) })
		t.Run("failure", func(t *testing.T) { originFailure(t, parent, reader) })
		t.Run("cancelled", func(t *testing.T) { originCancelled(t, parent, reader) })
		t.Run("snapshot", func(t *testing.T) { originSnapshot(t, parent, reader) })
		t.Run("together", func(t *testing.T) { originTogether(t, parent, reader) })
		t.Run("queue", func(t *testing.T) { originQueue(t, parent, reader) })
		t.Run("deadline", func(t *testing.T) { originDeadlines(t, parent, reader) })
		t.Run("clock", func(t *testing.T) { originClock(t, parent) })
	})
}

func originValue(t *testing.T, parent, reader origin) {
	const wait = 30 * time.Millisecond
	mustPlan(t, parent, "value", plan{Row: "it's \"quoted\" ü", Wait: wait})
	before := time.Now()
	got, err := reader.Read(t.Context(), "value", 2)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(before); took < wait {
		t.Errorf("read in %v, the plan says to wait %v", took, wait)
	}
	l, err := decodeLoaded(got)
	if err != nil || l.Row != "it's \"quoted\" ü" || l.Operation != 1 {
		t.Errorf("got %q, %v", got, err)
	}
	ops := expectCount(t, parent, "value", 1)
	if o := ops[0]; o.Process != 2 || o.Outcome != "row" || o.StartUS != l.ReadUS || micros(o.EndUS-o.StartUS) < wait {
		t.Errorf("logged as %+v", o)
	}
}

func originMissing(t *testing.T, parent, reader origin) {
	mustPlan(t, parent, "missing", plan{Row: "there for a moment"})
	mustPlan(t, parent, "missing", plan{})
	if got, err := reader.Read(t.Context(), "missing", 0); !errors.Is(err, errNoRow) {
		t.Errorf("a row that was taken away gave %q, %v", got, err)
	}
	if ops := expectCount(t, parent, "missing", 1); ops[0].Outcome != "no row" {
		t.Errorf("logged as %+v", ops[0])
	}
}

func originFailure(t *testing.T, parent, reader origin) {
	mustPlan(t, parent, "failure", plan{Row: "x", Failed: true})
	if got, err := reader.Read(t.Context(), "failure", 0); err == nil || !strings.Contains(err.Error(), failureText) {
		t.Errorf("a failing origin gave %q, %v", got, err)
	}
	if ops := expectCount(t, parent, "failure", 1); ops[0].Outcome != "error" {
		t.Errorf("logged as %+v: the count must survive the failure", ops[0])
	}
}

// originCancelled forces: an operation has begun and waits | its context ends.
func originCancelled(t *testing.T, parent, reader origin) {
	mustPlan(t, parent, "cancelled", plan{Row: "x", Wait: testTimeout})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := reader.Read(ctx, "cancelled", 0)
		done <- err
	}()
	awaitWaiting(t, parent, "cancelled")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled in mid-operation: %v", err)
	}
	if ops := expectCount(t, parent, "cancelled", 1); ops[0].Outcome != "cancelled" {
		t.Errorf("logged as %+v", ops[0])
	}
}

// originSnapshot forces: an operation has read the row and waits | the row is
// changed | the operation returns. It must return the old row: S5 rests on it.
func originSnapshot(t *testing.T, parent, reader origin) {
	mustPlan(t, parent, "snapshot", plan{Row: rowOld, Wait: 300 * time.Millisecond})
	done := make(chan string, 1)
	go func() {
		got, err := reader.Read(context.WithoutCancel(t.Context()), "snapshot", 0)
		if err != nil {
			got = err.Error()
		}
		done <- got
	}()
	awaitWaiting(t, parent, "snapshot")
	mustPlan(t, parent, "snapshot", plan{Row: rowNew})
	again, err := reader.Read(t.Context(), "snapshot", 0)
	if l, _ := decodeLoaded(again); err != nil || l.Row != rowNew || l.Operation != 2 {
		t.Errorf("after the change: %q, %v", again, err)
	}
	if l, err := decodeLoaded(<-done); err != nil || l.Row != rowOld || l.Operation != 1 {
		t.Errorf("the operation from before the change returned %+v, %v", l, err)
	}
}

// originTogether: operations that run at once wait side by side and are all counted.
func originTogether(t *testing.T, parent, reader origin) {
	const n, wait = 6, 200 * time.Millisecond
	mustPlan(t, parent, "together", plan{Row: "x", Wait: wait})
	if err := reader.Warm(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if _, err := reader.Read(t.Context(), "together", 1); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(before); took > n*wait/2 {
		t.Errorf("%d operations of %v took %v: they queue", n, wait, took)
	}
	expectCount(t, parent, "together", n)
}

// originQueue: of five operations that come at once two are worked on at a time, of
// whatever keys, and the others wait for their turn.
func originQueue(t *testing.T, parent, reader origin) {
	const n, workers, wait = 5, 2, 100 * time.Millisecond
	keys := []string{"queue-a", "queue-b"}
	for _, key := range keys {
		mustPlan(t, parent, key, plan{Row: "x", Wait: wait, Workers: workers, Deadline: testTimeout})
	}
	if err := reader.Warm(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if _, err := reader.Read(t.Context(), keys[i%2], 1); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(before); took < 3*wait {
		t.Errorf("%d operations of %v took %v; %d at a time should take %v", n, wait, took, workers, 3*wait)
	}
	var ops []Operation
	for _, key := range keys {
		more, err := parent.Operations(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, more...)
	}
	if len(ops) != n {
		t.Fatalf("the log has %d operations", len(ops))
	}
	if most := mostAtOnce(ops); most <= workers {
		t.Errorf("at most %d at once: those that wait should be in the log, too", most)
	}
}

// originDeadlines: of two operations for one worker one is done in time, and the other
// fails at its deadline, in its turn. The worker is then free for a third.
func originDeadlines(t *testing.T, parent, reader origin) {
	const wait, deadline = 200 * time.Millisecond, 300 * time.Millisecond
	mustPlan(t, parent, "deadline", plan{Row: "x", Wait: wait, Workers: 1, Deadline: deadline})
	if err := reader.Warm(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := reader.Read(t.Context(), "deadline", 1)
			errs <- err
		}()
	}
	first, second := <-errs, <-errs
	if first != nil || second == nil || !strings.Contains(second.Error(), overdueText) {
		t.Errorf("got %v, then %v", first, second)
	}
	if _, err := reader.Read(t.Context(), "deadline", 1); err != nil {
		t.Errorf("after one that was too late: %v", err)
	}
	ops := expectCount(t, parent, "deadline", 3)
	outcomes := map[string]int{}
	for _, o := range ops {
		outcomes[o.Outcome]++
		if o.Outcome == "error" && micros(o.EndUS-o.StartUS) < deadline {
			t.Errorf("failed before its deadline: %+v", o)
		}
	}
	if outcomes["row"] != 2 || outcomes["error"] != 1 {
		t.Errorf("logged as %v", outcomes)
	}
	mustPlan(t, parent, "deadline-queue", plan{Row: "x", Wait: 400 * time.Millisecond, Workers: 1, Deadline: testTimeout})
	mustPlan(t, parent, "deadline-short", plan{Row: "x", Wait: time.Millisecond, Workers: 1, Deadline: 50 * time.Millisecond})
	go func() {
		_, err := reader.Read(t.Context(), "deadline-queue", 1)
		errs <- err
	}()
	awaitWaiting(t, parent, "deadline-queue")
	if _, err := reader.Read(t.Context(), "deadline-short", 1); err == nil || !strings.Contains(err.Error(), overdueText) {
		t.Errorf("an operation whose turn does not come before its deadline: %v", err)
	}
	if err := <-errs; err != nil {
		t.Errorf("the one that was worked on meanwhile: %v", err)
	}
}

func originClock(t *testing.T, parent origin) {
	offset, err := parent.ClockOffset(t.Context())
	if err != nil || offset.Abs() > time.Second {
		t.Errorf("on one machine the clocks differ by %v, %v", offset, err)
	}
}

func mustPlan(t *testing.T, o origin, key string, p plan) {
	t.Helper()
	if err := o.Plan(t.Context(), key, p); err != nil {
		t.Fatal(err)
	}
}

func expectCount(t *testing.T, o origin, key string, want int) []Operation {
	t.Helper()
	n, err := o.Count(t.Context(), key)
	if err != nil || n != want {
		t.Fatalf("the origin counted %d operations, %v; expected %d", n, err, want)
	}
	ops, err := o.Operations(t.Context(), key)
	if err != nil || len(ops) != want {
		t.Fatalf("the log has %d operations, %v; expected %d", len(ops), err, want)
	}
	return ops
}

// awaitWaiting waits until an operation has read key's row.
func awaitWaiting(t *testing.T, o origin, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	c := &cell{run: &run{origin: o}, key: key}
	if err := c.awaitReading(ctx); err != nil {
		t.Fatal(err)
	}
}
