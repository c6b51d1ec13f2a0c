package queue_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/memqueue"
)

// far is a queue whose replies to Receive take 10 ms, 15 if it was asked not to wait: those
// beside poll's end later. It counts how many are under way.
type far struct {
	*memqueue.Queue
	pause       func(time.Duration) // the bubble's: elsewhere a sleep would be a race
	mu          sync.Mutex
	calls       int
	under, most int
}

func (f *far) Receive(ctx context.Context, r queue.Request) ([]queue.Delivery, error) {
	f.mu.Lock()
	f.calls++
	f.under++
	f.most = max(f.most, f.under)
	f.mu.Unlock()
	ds, err := f.Queue.Receive(ctx, r)
	takes := 10 * time.Millisecond
	if r.AtHand {
		takes += 5 * time.Millisecond
	}
	f.pause(takes)
	f.mu.Lock()
	f.under--
	f.mu.Unlock()
	return ds, err
}

// counted is how many Receives there were, are under way, and were at once.
func (f *far) counted() (calls, under, most int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls, f.under, f.most
}

// Receives overlap where handlers wait for jobs, and nowhere else.
func TestReceivesOverlap(t *testing.T) {
	does := func(takes time.Duration) queue.Handler { return (&record{}).does(takes, nil) }
	batch := queue.Handler{Batch: func(context.Context, []queue.Delivery) []error { return nil }}
	for name, tt := range map[string]struct {
		jobs int
		o    queue.WorkerOptions
		h    queue.Handler
		most int
	}{
		"quick handlers":       {200, queue.WorkerOptions{Concurrency: 4, Batch: 10}, does(0), 2},
		"quick batches":        {200, queue.WorkerOptions{Concurrency: 4, Batch: 10}, batch, 2},
		"less than was wanted": {9, queue.WorkerOptions{Concurrency: 4, Batch: 10}, does(0), 1},
		// All places become free at the same moment, and yet this worker has enough.
		"slow handlers in step": {40, queue.WorkerOptions{Concurrency: 10, Batch: 20}, does(50 * time.Millisecond), 1},
		"one slow handler":      {20, queue.WorkerOptions{Concurrency: 1, Batch: 5}, does(time.Second), 1},
		"no prefetch":           {200, queue.WorkerOptions{Concurrency: 10, Batch: 10}, does(0), 1},
		"ordered keys":          {200, queue.WorkerOptions{Concurrency: 4, Batch: 10, OrderedKeys: true}, does(0), 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				q := &far{Queue: memqueue.New(), pause: func(d time.Duration) { time.Sleep(d) }}
				enqueue(t, q, jobs("k", tt.jobs)...)
				tt.o.Handlers = handlers{"k": tt.h}
				w := startWorker(t, q, tt.o)
				after(5 * time.Second)
				if _, under, _ := q.counted(); under > 1 {
					t.Errorf("%d Receives wait for jobs", under)
				}
				after(time.Minute)
				if n := w.Stats().Done; n != int64(tt.jobs) {
					t.Errorf("%d of %d jobs are done", n, tt.jobs)
				}
				calls, _, most := q.counted()
				if most != tt.most {
					t.Errorf("%d Receives were under way at once, want %d", most, tt.most)
				}
				// The end of the backlog is seen by those under way; poll looks thrice a minute.
				if enough := tt.jobs/tt.o.Batch + 2 + 4; tt.o.Concurrency < tt.o.Batch && calls > enough {
					t.Errorf("%d Receives for %d jobs, want %d at most", calls, tt.jobs, enough)
				}
			})
		})
	}
}

// A Receive that has waited for its jobs says little about how quick handlers have to be.
// Interleaving: as "slow handlers in step", but that the first Receive waits for 15 s.
func TestReceiveAfterAWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := &far{Queue: memqueue.New(), pause: func(d time.Duration) { time.Sleep(d) }}
		js := jobs("k", 40)
		for i := range js {
			js[i].Delay = 15 * time.Second
		}
		enqueue(t, q, js...)
		startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": (&record{}).does(time.Second, nil)}, Concurrency: 10, Batch: 20})
		after(time.Minute)
		if _, _, most := q.counted(); most != 1 {
			t.Errorf("%d Receives were under way at once", most)
		}
	})
}

// While most places are taken nothing is received, though the handlers are nearly as quick as
// a Receive. Interleaving: twenty jobs come at 10 ms and ten run; at 18 ms those are done and the
// others begin.
func TestNoReceiveWhileBusy(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := &far{Queue: memqueue.New(), pause: func(d time.Duration) { time.Sleep(d) }}
		enqueue(t, q, jobs("k", 100)...)
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": (&record{}).does(8*time.Millisecond, nil)}, Concurrency: 10, Batch: 20})
		after(20 * time.Millisecond)
		_, under, _ := q.counted()
		if s := w.Stats(); s.Running != 10 || s.Done != 10 || under != 0 {
			t.Errorf("%d Receives are under way, %+v", under, s)
		}
	})
}

// Interleaving: two Receives have claimed ten jobs each, their replies are on the way;
// Stop; the replies come. All are handed back, uncounted, before Stop returns.
func TestStopLetsAllReceivesEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := &far{Queue: memqueue.New(), pause: func(d time.Duration) { time.Sleep(d) }}
		enqueue(t, q, jobs("k", 100)...)
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": (&record{}).does(0, nil)}, Concurrency: 4, Batch: 10})
		after(15 * time.Millisecond) // the first one's jobs are done
		_, under, _ := q.counted()
		if s := w.Stats(); under != 2 || s.Done != 10 {
			t.Fatalf("%d Receives are under way, %+v", under, s)
		}
		if err := w.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		_, under, _ = q.counted()
		if s := w.Stats(); under != 0 || s.HandedBack != 20 {
			t.Errorf("after Stop %d Receives are under way, %+v", under, s)
		}
		for _, d := range wantClaim(t, q, 90, "after Stop") {
			if d.Attempt != 1 {
				t.Errorf("attempt %d of a job that was handed back", d.Attempt)
			}
		}
	})
}

// Interleaving: the queue is empty, the reply that says so is on its way when Stop comes, and
// comes after poll's. Nothing else happens after it that could end the worker.
func TestStopWaitsForAnEmptyReceive(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := &far{Queue: memqueue.New(), pause: func(d time.Duration) { time.Sleep(d) }}
		enqueue(t, q, jobs("k", 10)...)
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": (&record{}).does(0, nil)}, Concurrency: 4, Batch: 10})
		after(12 * time.Millisecond)
		if _, under, _ := q.counted(); under != 2 {
			t.Fatalf("%d Receives are under way", under)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := w.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
}

// refuses is a far queue that fails where it is asked not to wait.
type refuses struct{ far }

func (r *refuses) Receive(ctx context.Context, req queue.Request) ([]queue.Delivery, error) {
	if req.Wait == 0 {
		return nil, errTest
	}
	return r.far.Receive(ctx, req)
}

// A Receive beside poll's that fails is told, is not tried in a hot loop, and leaves poll's
// alone, which brings all jobs.
func TestReceiveBesideFails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := &refuses{far{Queue: memqueue.New(), pause: func(d time.Duration) { time.Sleep(d) }}}
		enqueue(t, q, jobs("k", 100)...)
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": (&record{}).does(0, nil)}, Concurrency: 4, Batch: 10})
		after(time.Second)
		if s := w.Stats(); s.Done != 100 || s.ReceiveErrors < 5 || s.ReceiveErrors > 10 {
			t.Errorf("%+v, want 100 done by ten Receives, and after most of these a failed one", s)
		}
	})
}

// Jobs that are on their way count: a worker whose queue hears of no end holds as many as
// its documentation says, though two Receives are under way at once. Interleaving: the
// acknowledgements get no answer, the handlers are quick.
func TestReceivesUnderWayAreBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := &far{Queue: memqueue.New(), pause: func(d time.Duration) { time.Sleep(d) }}
		enqueue(t, q, jobs("k", 100)...)
		answer := make(chan struct{})
		only(q.Queue, memqueue.OpAck, memqueue.Fault{Hold: answer})
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": (&record{}).does(0, nil)}, Concurrency: 4, Batch: 6})
		after(time.Second)
		_, _, most := q.counted()
		if s := w.Stats(); most != 2 || s.InHand != 30 {
			t.Errorf("%d Receives at once, %+v, want (4+1)*6 in hand", most, s)
		}
		close(answer)
		synctest.Wait()
	})
}

// A call is run with a context of its own, whatever became of the one before it in the same
// place. Interleaving: two jobs are received, the first runs and is lost, its handler
// returns; the second begins.
func TestContextAfterALostLease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		enqueue(t, q, queue.Job{Kind: "lost"}, queue.Job{Kind: "next"})
		var lost, before, next error
		w := startWorker(t, q, queue.WorkerOptions{Concurrency: 1, Batch: 2, Handlers: handlers{
			"lost": {Job: func(ctx context.Context, d queue.Delivery) error {
				if err := q.Ack(ctx, d.Token); err != nil { // somebody else has it, to the worker
					return err
				}
				<-ctx.Done()
				lost = context.Cause(ctx)
				return lost
			}},
			"next": {Job: func(ctx context.Context, _ queue.Delivery) error {
				before = context.Cause(ctx)
				select {
				case <-ctx.Done():
				case <-time.After(time.Hour):
				}
				next = context.Cause(ctx)
				return next
			}, MaxRunTime: time.Minute, MaxAttempts: 1},
		}})
		after(5 * time.Minute)
		if lost != queue.ErrLeaseLost || before != nil || next != queue.ErrRunTime {
			t.Errorf("contexts ended with %v, %v and %v; %+v", lost, before, next, w.Stats())
		}
	})
}

// A context that a handler keeps has ended when it returns, though others run in its place.
func TestContextEndsWithItsCall(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		enqueue(t, q, jobs("k", 3)...)
		var kept []context.Context
		startWorker(t, q, queue.WorkerOptions{Concurrency: 1, Batch: 3, Handlers: handlers{
			"k": {Job: func(ctx context.Context, _ queue.Delivery) error {
				for i, before := range kept {
					if err := context.Cause(before); err != context.Canceled {
						t.Errorf("the context of call %d of %d: %v", i+1, len(kept)+1, err)
					}
				}
				kept = append(kept, ctx)
				return ctx.Err()
			}},
		}})
		after(time.Second)
		if len(kept) != 3 {
			t.Errorf("%d calls", len(kept))
		}
	})
}

// lateError is read after its handler has returned, which takes as long as it does.
type lateError func()

func (e lateError) Error() string {
	e()
	return "late"
}

// Interleaving: a handler returns; its lease is found to be lost while its error is read; the
// next call takes its place. The next one's context is not ended by what was lost.
func TestLeaseLostWhileAHandlerReturns(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		enqueue(t, q, queue.Job{Kind: "lost"}, queue.Job{Kind: "next"})
		var next error
		w := startWorker(t, q, queue.WorkerOptions{Concurrency: 1, Batch: 2, Handlers: handlers{
			"lost": {Job: func(ctx context.Context, d queue.Delivery) error {
				if err := q.Ack(ctx, d.Token); err != nil { // somebody else has it, to the worker
					return err
				}
				return lateError(func() { time.Sleep(time.Minute) })
			}},
			"next": {Job: func(ctx context.Context, _ queue.Delivery) error {
				next = context.Cause(ctx)
				return nil
			}},
		}})
		after(5 * time.Minute)
		if s := w.Stats(); next != nil || s.LeaseLost != 1 || s.Done != 1 {
			t.Errorf("the next call's context has ended with %v; %+v", next, s)
		}
	})
}

// A Receive that brings less than it has asked for makes room. Interleaving: the queue hears
// of no end; 24 jobs are in hand and six asked for, so that there is no room for six more;
// those are not there. Six that are added then are received.
func TestEmptyReceiveMakesRoom(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := &far{Queue: memqueue.New(), pause: func(d time.Duration) { time.Sleep(d) }}
		enqueue(t, q, jobs("k", 24)...)
		answer := make(chan struct{})
		only(q.Queue, memqueue.OpAck, memqueue.Fault{Hold: answer})
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": (&record{}).does(0, nil)}, Concurrency: 4, Batch: 6})
		after(time.Second)
		enqueue(t, q, jobs("k", 6)...)
		after(2 * time.Second)
		if s := w.Stats(); s.InHand != 30 {
			t.Errorf("%+v, want (4+1)*6 in hand", s)
		}
		close(answer)
		synctest.Wait()
	})
}
