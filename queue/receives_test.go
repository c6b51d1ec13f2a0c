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
	if r.Wait == 0 {
		takes += 5 * time.Millisecond
	}
	<-time.After(takes) // in a bubble
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
		"slow handlers in step": {40, queue.WorkerOptions{Concurrency: 10, Batch: 20}, does(time.Second), 1},
		"one slow handler":      {20, queue.WorkerOptions{Concurrency: 1, Batch: 5}, does(time.Second), 1},
		"no prefetch":           {200, queue.WorkerOptions{Concurrency: 10, Batch: 10}, does(0), 1},
		"ordered keys":          {200, queue.WorkerOptions{Concurrency: 4, Batch: 10, OrderedKeys: true}, does(0), 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				q := &far{Queue: memqueue.New()}
				enqueue(t, q, jobs("k", tt.jobs)...)
				tt.o.Handlers = handlers{"k": tt.h}
				w := startWorker(t, q, tt.o)
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

// While most places are taken nothing is received, though the handlers are nearly as quick as
// a Receive. Interleaving: twenty jobs come at 10 ms and ten run; at 18 ms those are done and the
// others begin.
func TestNoReceiveWhileBusy(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := &far{Queue: memqueue.New()}
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
		q := &far{Queue: memqueue.New()}
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

// Jobs that are on their way count: a worker whose queue hears of no end holds as many as
// its documentation says, though two Receives are under way at once. Interleaving: the
// acknowledgements get no answer, the handlers are quick.
func TestReceivesUnderWayAreBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := &far{Queue: memqueue.New()}
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
