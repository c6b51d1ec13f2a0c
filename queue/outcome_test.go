package queue_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/memqueue"
)

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) hold(s string) bool { return strings.Contains(l.String(), s) }

// unreadable is an error whose methods panic.
type unreadable struct{ text *string }

func (e unreadable) Error() string { return *e.text }

// Whatever a handler does to its goroutine, its job fails, and the worker goes on.
func TestHandlersThatDoNotReturn(t *testing.T) {
	for name, tt := range map[string]struct {
		do   func() error
		text string
	}{
		"panic":              {func() error { panic("boom") }, "the handler panicked: boom"},
		"panic with error":   {func() error { panic(errTest) }, "the handler panicked: no route to host"},
		"panic nil":          {func() error { panic(nil) }, "nil argument"},
		"goexit":             {func() error { runtime.Goexit(); return nil }, queue.ErrExited.Error()},
		"goexit, then panic": {func() error { defer panic("boom"); runtime.Goexit(); return nil }, queue.ErrExited.Error()},
		"unreadable error":   {func() error { return unreadable{} }, "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				q, calls := memqueue.New(), &record{}
				bad := func(context.Context, queue.Delivery) error { return tt.do() }
				w := startWorker(t, q, queue.WorkerOptions{MaxAttempts: 2, Concurrency: 1, Handlers: handlers{"bad": {Job: bad},
					"batch": {Batch: func(context.Context, []queue.Delivery) []error { return []error{tt.do()} }}, "good": calls.does(0, nil)}})
				enqueue(t, q, queue.Job{Kind: "bad"}, queue.Job{Kind: "batch"}, queue.Job{Kind: "good"})
				after(time.Minute)
				ls := letters(t, q)
				if len(ls) != 2 || !strings.Contains(ls[0].LastError, tt.text) || !strings.Contains(ls[1].LastError, tt.text) {
					t.Errorf("dead letters %+v, want errors with %q", ls, tt.text)
				}
				if s := w.Stats(); s.Done != 1 || s.Retried != 2 || s.Dead != 2 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// The log of a panic has its stack, once; the dead letter has not.
func TestPanicIsLoggedWithItsStack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, log := memqueue.New(), &lines{}
		startWorker(t, q, queue.WorkerOptions{MaxAttempts: 1, Logger: slog.New(slog.NewTextHandler(log, nil)),
			Handlers: handlers{"k": {Job: func(context.Context, queue.Delivery) error { panic("boom") }}}})
		enqueue(t, q, queue.Job{Kind: "k"})
		after(time.Second)
		if !log.hold("outcome_test.go") || !log.hold("level=ERROR") {
			t.Errorf("the log has no stack:\n%s", log)
		}
		if ls := letters(t, q); len(ls) != 1 || ls[0].LastError != "the handler panicked: boom" {
			t.Errorf("dead letters %+v", ls)
		}
	})
}

// What a handler's error decides, also when it is wrapped.
func TestVerdicts(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want queue.WorkerStats // within a minute and a half, of 3 attempts at most
	}{
		"permanent":        {queue.PermanentError(errTest), queue.WorkerStats{Dead: 1}},
		"wrapped":          {fmt.Errorf("mail: %w", queue.PermanentError(errTest)), queue.WorkerStats{Dead: 1}},
		"permanent nil":    {queue.PermanentError(nil), queue.WorkerStats{Done: 1}},
		"retry after":      {queue.RetryAfter(40*time.Second, errTest), queue.WorkerStats{Retried: 2, Dead: 1}},
		"retry after nil":  {queue.RetryAfter(time.Minute, nil), queue.WorkerStats{Retried: 2}},
		"postpone":         {queue.Postpone(10*time.Second, errTest), queue.WorkerStats{Postponed: 9}},
		"postpone for -1s": {queue.Postpone(-time.Second, context.Canceled), queue.WorkerStats{Postponed: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				q, calls := memqueue.New(), &record{}
				h := calls.does(0, tt.err)
				if tt.want.Postponed < 0 { // at once: it would never end
					n := 0
					h.Job = func(context.Context, queue.Delivery) error {
						if n++; n > 5 {
							return nil
						}
						return tt.err
					}
					tt.want = queue.WorkerStats{Postponed: 5, Done: 1}
				}
				w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": h}, MaxAttempts: 3})
				enqueue(t, q, queue.Job{Kind: "k"})
				after(85 * time.Second)
				s := w.Stats()
				if s.Done != tt.want.Done || s.Retried != tt.want.Retried || s.Dead != tt.want.Dead || s.Postponed != tt.want.Postponed {
					t.Errorf("%+v, want %+v", s, tt.want)
				}
				for _, d := range calls.all() {
					if d.Attempt != 1 && tt.want.Postponed > 0 {
						t.Errorf("attempt %d of a job that was postponed", d.Attempt)
					}
				}
			})
		})
	}
	if err := queue.PermanentError(errTest); !errors.Is(err, errTest) || err.Error() != errTest.Error() {
		t.Errorf("PermanentError hides its error: %v", err)
	}
}

// The pauses between attempts: full jitter under a bound that doubles.
func TestBackoff(t *testing.T) {
	for _, tt := range []struct {
		attempt     int
		least, most time.Duration
		bound       time.Duration
	}{
		{1, time.Second, time.Minute, time.Second}, {2, time.Second, time.Minute, 2 * time.Second},
		{6, time.Second, time.Minute, 32 * time.Second}, {7, time.Second, time.Minute, time.Minute},
		{1 << 40, time.Second, time.Minute, time.Minute}, {3, 1, 1, 1}, {0, time.Second, time.Minute, time.Second},
		{100, time.Hour, 1<<63 - 1, 1<<63 - 1},
	} {
		var least, most time.Duration = 1<<63 - 1, 0
		for range 1000 {
			d := queue.Backoff(tt.attempt, tt.least, tt.most)
			least, most = min(least, d), max(most, d)
		}
		if least < 0 || most > tt.bound || most < tt.bound*9/10 && tt.bound < 1<<62 || least > tt.bound/10 && tt.bound > 10 {
			t.Errorf("attempt %d: pauses from %v to %v, want all of 0 to %v", tt.attempt, least, most, tt.bound)
		}
	}
}

// An observer hears each thing once, and its panics do no harm.
func TestObserver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		var mu sync.Mutex
		heard := map[queue.EventKind]queue.Event{}
		log := &lines{}
		w := startWorker(t, q, queue.WorkerOptions{
			Logger:   slog.New(slog.NewTextHandler(log, nil)),
			Handlers: handlers{"good": calls.does(2*time.Second, nil), "bad": calls.does(time.Second, queue.PermanentError(errTest))},
			Observer: queue.ObserverFunc(func(e queue.Event) {
				mu.Lock()
				defer mu.Unlock()
				heard[e.Kind] = e
				if e.Kind == queue.EventDone {
					panic("observer")
				}
			})})
		id := enqueue(t, q, queue.Job{Kind: "good", Key: "key"}, queue.Job{Kind: "bad"}, queue.Job{Kind: "unknown"})[0]
		after(2 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if e := heard[queue.EventDone]; e.JobKind != "good" || e.Key != "key" || e.ID != id || e.Attempt != 1 || e.Took != 2*time.Second || e.Err != nil {
			t.Errorf("done: %+v", e)
		}
		if e := heard[queue.EventDead]; e.JobKind != "bad" || !errors.Is(e.Err, errTest) || e.Took != time.Second || e.Err.Error() != "permanent error: no route to host" {
			t.Errorf("dead: %+v", e)
		}
		for _, kind := range []queue.EventKind{queue.EventReceived, queue.EventUnknown, queue.EventRetry} {
			if heard[kind].JobKind == "" {
				t.Errorf("not heard: %v", kind)
			}
		}
		if log.hold("queue: received") || log.hold("queue: done") {
			t.Errorf("what nobody needs to read is logged:\n%s", log)
		}
		if !log.hold("the observer panicked") || w.Stats().Done != 1 {
			t.Errorf("%+v, log:\n%s", w.Stats(), log)
		}
	})
}

func TestEventNames(t *testing.T) {
	seen := map[string]bool{}
	for k := queue.EventReceived; k <= queue.EventSettleError; k++ {
		if name := k.String(); seen[name] || name == "" || strings.HasPrefix(name, "EventKind") {
			t.Errorf("event %d has the name %q", k, name)
		} else {
			seen[name] = true
		}
	}
	if got := queue.EventKind(200).String(); got != "EventKind(200)" {
		t.Errorf("event 200 is %q", got)
	}
}

// Start and stop, in whatever order and however often.
func TestStartStop(t *testing.T) {
	o := queue.WorkerOptions{Handlers: handlers{"k": (&record{}).does(0, nil)}, Wait: time.Hour}
	t.Run("stop before start", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			q := memqueue.New()
			w := newWorker(t, q, o)
			dead, cancel := context.WithCancel(t.Context())
			cancel()
			for range 20 { // also with a context that has ended: there is nothing to wait for
				if err := w.Stop(dead); err != nil {
					t.Fatalf("Stop: %v", err)
				}
			}
			if err := w.Start(t.Context()); err != queue.ErrWorkerStopped || q.Counts()[memqueue.OpReceive] != 0 {
				t.Errorf("Start after Stop: %v", err)
			}
		})
	})
	t.Run("many starts and stops", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			q := memqueue.New()
			w := newWorker(t, q, o)
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					if err := w.Start(t.Context()); err != nil {
						t.Errorf("Start: %v", err)
					}
				})
			}
			wg.Wait()
			synctest.Wait()
			if n := q.Counts()[memqueue.OpReceive]; n != 1 {
				t.Errorf("%d Receives wait, want 1", n)
			}
			for range 5 {
				wg.Go(func() {
					if err := w.Stop(t.Context()); err != nil {
						t.Errorf("Stop: %v", err)
					}
				})
			}
			wg.Wait()
		})
	})
	t.Run("stop while it starts", func(t *testing.T) {
		// Interleaving: Start asks the queue; Stop; the queue answers.
		bubble.Test(t, func(t *testing.T) {
			q, answer, started := memqueue.New(), make(chan struct{}), make(chan error, 1)
			only(q, memqueue.OpCheck, memqueue.Fault{Hold: answer})
			w := newWorker(t, q, o)
			go func() { started <- w.Start(context.Background()) }()
			synctest.Wait()
			if err := w.Stop(t.Context()); err != nil {
				t.Errorf("Stop: %v", err)
			}
			close(answer)
			if err := <-started; err != queue.ErrWorkerStopped {
				t.Errorf("Start: %v", err)
			}
			synctest.Wait()
			if n := q.Counts()[memqueue.OpReceive]; n != 0 {
				t.Errorf("%d Receives", n)
			}
		})
	})
	t.Run("queue is down", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			q := memqueue.New()
			q.Down()
			w := newWorker(t, q, o)
			if err := w.Start(t.Context()); !errors.Is(err, queue.ErrUnavailable) || err.Error() != "memory at in-process: check: the queue is down" {
				t.Errorf("Start: %v", err)
			}
			allowed := o
			allowed.AllowQueueDown = true
			startWorker(t, q, allowed)
			q.Up()
			if err := w.Start(t.Context()); err != nil { // a Start that has failed may be repeated
				t.Errorf("Start: %v", err)
			}
		})
	})
	t.Run("unfit queue", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			q := memqueue.New()
			only(q, memqueue.OpCheck, memqueue.Fault{Err: errTest, Refused: true})
			allowed := o
			allowed.AllowQueueDown = true // it is not down
			if err := newWorker(t, q, allowed).Start(t.Context()); !errors.Is(err, errTest) {
				t.Errorf("Start: %v", err)
			}
		})
	})
	t.Run("queue that hangs", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			q := memqueue.New()
			only(q, memqueue.OpCheck, memqueue.Fault{Hold: make(chan struct{})})
			start := time.Now()
			if err := newWorker(t, q, o).Start(t.Context()); !errors.Is(err, queue.ErrUnavailable) || time.Since(start) != 10*time.Second {
				t.Errorf("Start: %v after %v", err, time.Since(start))
			}
		})
	})
}

// The longest durations are durations.
func TestExtremeOptions(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		const ever = time.Duration(1<<63 - 1)
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": calls.does(time.Hour, nil)},
			Lease: ever, Wait: ever, MaxRunTime: ever, RetryMin: ever, RetryMax: ever, MaxAttempts: 1<<63 - 1})
		after(time.Second)
		enqueue(t, q, queue.Job{Kind: "k"}, queue.Job{Kind: "unknown"})
		after(time.Hour)
		if s := w.Stats(); s.Done != 1 || s.Retried != 1 || s.Received != 2 || s.ReceiveErrors != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// The end of Start's context ends nothing; its values are there.
func TestStartContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		type name struct{}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), name{}, "value"))
		q := memqueue.New()
		var got any
		w := newWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": {Job: func(ctx context.Context, _ queue.Delivery) error {
			got = ctx.Value(name{})
			return ctx.Err()
		}}}})
		if err := w.Start(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		enqueue(t, q, queue.Job{Kind: "k"})
		after(time.Second)
		if got != "value" || w.Stats().Done != 1 {
			t.Errorf("value %v, %+v", got, w.Stats())
		}
	})
}

func TestWorkerOptions(t *testing.T) {
	good := handlers{"k": {Job: func(context.Context, queue.Delivery) error { return nil }}}
	sqs := memqueue.New(memqueue.Options{MaxBatch: 10, MaxLease: 12 * time.Hour})
	for want, o := range map[string]queue.WorkerOptions{
		"Queue is nil":             {Handlers: good},
		"no Handlers":              {Queue: sqs},
		`Handlers: invalid kind`:   {Queue: sqs, Handlers: handlers{"two words": good["k"]}},
		`one of Job and Batch`:     {Queue: sqs, Handlers: handlers{"k": {}}},
		"Concurrency is negative":  {Queue: sqs, Handlers: good, Concurrency: -1},
		"MaxRunTime is negative":   {Queue: sqs, Handlers: good, MaxRunTime: -1},
		"Batch of 11, this queue":  {Queue: sqs, Handlers: good, Batch: 11},
		"too short to be extended": {Queue: sqs, Handlers: good, Lease: time.Millisecond},
		"leases for at most 12h0m": {Queue: sqs, Handlers: good, Lease: 13 * time.Hour},
		"MaxRunTime of 7h0m0s, but this queue leases a job for at most 12h0m0s in all": {Queue: sqs, Handlers: good, MaxRunTime: 7 * time.Hour},
		"RetryMin 2s is longer than RetryMax 1s":                                       {Queue: sqs, Handlers: good, RetryMin: 2 * time.Second, RetryMax: time.Second},
		"must not be negative":                                                         {Queue: sqs, Handlers: handlers{"k": {Job: good["k"].Job, MaxAttempts: -1}}},
	} {
		if _, err := queue.NewWorker(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	if _, err := queue.NewWorker(queue.WorkerOptions{Queue: sqs, Handlers: good, Concurrency: 50, RetryMin: time.Hour, Logger: log}); err != nil {
		t.Errorf("defaults that fit the queue: %v", err)
	}
}
