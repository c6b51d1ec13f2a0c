package queuetest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill/queue"
)

// The worker on this queue: what package queue's own tests show in fake time on memory.
var working = []test{
	{"WorkerDoesAll", func(c *check) {
		const n = 60
		var done sync.Map
		handler := func(_ context.Context, d queue.Delivery) error {
			done.Store(d.ID, true)
			return nil
		}
		batch := func(_ context.Context, ds []queue.Delivery) []error {
			for _, d := range ds {
				done.Store(d.ID, true)
			}
			return nil
		}
		for range n / 2 {
			c.a.enqueue(job("one"), job("batch"))
		}
		w := c.worker(queue.WorkerOptions{Handlers: map[string]queue.Handler{"one": {Job: handler}, "batch": {Batch: batch}}})
		c.eventually("all are done", func() bool { return w.Stats().Done >= n })
		c.stop(w)
		count := 0
		done.Range(func(any, any) bool { count++; return true })
		if count != n {
			c.Errorf("%d jobs were handled, want %d", count, n)
		}
		c.a.drained()
	}},
	{"WorkerKeepsALongJob", func(c *check) {
		// A handler that takes more than three leases, and jobs that wait in the worker
		// meanwhile: one delivery of each, though a second worker looks for them.
		//
		// A worker extends a lease when a third of it is over. If the machine keeps everybody
		// waiting for as long again, leases may end: then longer ones are tried.
		c.longer(func(lease time.Duration) bool {
			lease = max(lease, 300*time.Millisecond)
			var calls atomic.Int64
			handler := func(context.Context, queue.Delivery) error {
				calls.Add(1)
				<-time.After(3*lease + lease/2)
				return nil
			}
			o := queue.WorkerOptions{Handlers: map[string]queue.Handler{"k": {Job: handler}}, Lease: lease, Concurrency: 2, Batch: 4}
			if c.caps.MaxBatch > 0 {
				o.Batch = min(o.Batch, c.caps.MaxBatch)
			}
			stalled := c.stalls()
			c.a.enqueue(job("k"), job("k"), job("k"), job("k"))
			w, other := c.worker(o), c.worker(o)
			c.within(c.h.Patience+8*lease, "all are done", func() bool { return w.Stats().Done+other.Stats().Done >= 4 })
			c.stop(w, other)
			worst := stalled()
			c.a.drained()
			if calls.Load() == 4 {
				return true
			}
			if worst < lease/3 {
				c.Errorf("%d calls for 4 jobs, with leases of %v; the machine kept nobody waiting for longer than %v", calls.Load(), lease, worst)
				return true
			}
			return false
		})
	}},
	{"WorkerBuriesPoison", func(c *check) {
		var calls atomic.Int64
		handler := func(context.Context, queue.Delivery) error {
			calls.Add(1)
			return errors.New("poison")
		}
		c.a.enqueue(job("bad"), job("unknown"))
		w := c.worker(queue.WorkerOptions{Handlers: map[string]queue.Handler{"bad": {Job: handler}}, MaxAttempts: 3,
			RetryMin: time.Millisecond, RetryMax: time.Millisecond})
		c.eventually("both are dead", func() bool { return w.Stats().Dead >= 2 })
		c.stop(w)
		if n := calls.Load(); n > 3 || c.caps.AttemptsExact && n != 3 {
			c.Errorf("%d calls, want 3", n)
		}
		c.a.drained()
		if c.caps.Replay {
			if l := c.onlyLetter(queue.DeadQuery{Kind: "bad"}); l.LastError != "poison" {
				c.Errorf("dead letter %+v, want the error of the handler", l)
			}
			c.onlyLetter(queue.DeadQuery{Kind: "unknown"})
		}
	}},
	{"WorkerStopHandsBack", func(c *check) {
		// One job runs, others wait in the worker for its place. Stop: the one is
		// finished, the others are there for somebody else long before their lease ends.
		entered, leave := make(chan struct{}, 10), make(chan struct{})
		handler := func(context.Context, queue.Delivery) error {
			entered <- struct{}{}
			<-leave
			return nil
		}
		batch := 4
		if c.caps.MaxBatch > 0 {
			batch = min(batch, c.caps.MaxBatch)
		}
		for range batch {
			c.a.enqueue(job("k"))
		}
		c.eventually("all are there", func() bool { n := c.a.stats().Ready; return n == int64(batch) || n == -1 })
		w := c.worker(queue.WorkerOptions{Handlers: map[string]queue.Handler{"k": {Job: handler}},
			Concurrency: 1, Batch: batch, Lease: c.long()})
		<-entered
		stopped := make(chan struct{})
		go func() { defer close(stopped); c.stop(w) }()
		ds := c.b.receive(batch-1, c.long())
		close(leave)
		<-stopped
		for _, d := range ds {
			if c.caps.AttemptsExact && d.Attempt != 1 {
				c.Errorf("attempt %d of a job that was handed back, want 1", d.Attempt)
			}
		}
		c.b.ack(ds...)
		c.a.drained()
	}},
}

// worker starts a worker that is stopped when the test ends.
func (c *check) worker(o queue.WorkerOptions) *queue.Worker {
	c.Helper()
	o.Queue, o.Wait = c.a.Queue, max(c.wait, time.Millisecond)
	o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	if c.caps.MaxLease > 0 {
		o.MaxRunTime = min(time.Minute, c.caps.MaxLease/2)
	}
	w, err := queue.NewWorker(o)
	c.ok("NewWorker", err)
	c.ok("Start", w.Start(c.ctx()))
	c.Cleanup(func() { w.Stop(c.ctx()) })
	return w
}

func (c *check) stop(ws ...*queue.Worker) {
	c.Helper()
	for _, w := range ws {
		if err := w.Stop(c.ctx()); err != nil {
			c.Errorf("Stop: %v", err)
		}
	}
}
