package queue_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/memqueue"
)

// A lease of 3 s, a handler of 10 s: one delivery, although somebody else looks for
// jobs every 100 ms. Without a heartbeat there would be four.
func TestLongHandlerIsOneDelivery(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": calls.does(10*time.Second, nil)}, Lease: 3 * time.Second})
		enqueue(t, q, queue.Job{Kind: "k"})
		for range 110 {
			after(100 * time.Millisecond)
			wantClaim(t, q, 0, "the lease is extended")
		}
		if got := calls.all(); len(got) != 1 || w.Stats().Done != 1 {
			t.Errorf("%d calls, %+v", len(got), w.Stats())
		}
		if n := q.Counts()[memqueue.OpExtend]; n < 9 || n > 10 { // at 1, 2, ... 9 s, and perhaps at the moment of the end
			t.Errorf("%d extensions of a lease of 3 s in 10 s, want 9 or 10", n)
		}
		wantEmpty(t, q)
	})
}

// Jobs that wait in the worker for a place are extended like those that run.
func TestPrefetchedJobsAreExtended(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": calls.does(4*time.Second, nil)},
			Lease: 3 * time.Second, Concurrency: 1, Batch: 5})
		enqueue(t, q, jobs("k", 5)...)
		for range 205 {
			after(100 * time.Millisecond)
			wantClaim(t, q, 0, "the leases are extended")
		}
		if got := calls.all(); len(got) != 5 {
			t.Errorf("%d calls for 5 jobs", len(got))
		}
		wantEmpty(t, q)
	})
}

// A worker that has no use for prefetched jobs leaves them to others.
func TestNoPrefetchUnlessAskedFor(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": calls.does(time.Second, nil)}, Concurrency: 3})
		enqueue(t, q, queue.Job{Kind: "k"})
		after(0) // one runs, two places are free
		enqueue(t, q, jobs("k", 5)...)
		after(0)
		wantClaim(t, q, 3, "three are running")
	})
}

// Interleaving: ten jobs are received, two run, eight wait; Stop. The eight are there
// for others at the same moment, at their first attempt; the two are finished.
func TestStopInTheMiddleOfABatch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": calls.does(10*time.Second, nil)}, Concurrency: 2, Batch: 10})
		enqueue(t, q, jobs("k", 10)...)
		after(time.Second)
		stopped := make(chan error, 1)
		start := time.Now()
		go func() { stopped <- w.Stop(context.Background()) }()
		synctest.Wait()
		for _, d := range wantClaim(t, q, 8, "at the moment of the Stop") {
			if d.Attempt != 1 {
				t.Errorf("attempt %d of a job that was handed back", d.Attempt)
			}
		}
		if err := <-stopped; err != nil {
			t.Errorf("Stop: %v", err)
		}
		if spent := time.Since(start); spent != 9*time.Second {
			t.Errorf("Stop took %v, want the rest of the handlers, 9s", spent)
		}
		if s := w.Stats(); s.Done != 2 || s.HandedBack != 8 || len(calls.all()) != 2 {
			t.Errorf("%+v, %d calls", s, len(calls.all()))
		}
	})
}

// Interleaving: a Receive has claimed three jobs on the server, its reply is on the way;
// Stop; the reply arrives. Had Stop cancelled the call, the jobs would be nobody's until
// their lease ends (superlog #280). They are handed back at once.
func TestStopLetsAReceiveEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		enqueue(t, q, jobs("k", 3)...)
		reply := make(chan struct{})
		only(q, memqueue.OpReceive, memqueue.Fault{ReplyHold: reply})
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": calls.does(0, nil)}})
		synctest.Wait()
		stopped := make(chan error, 1)
		go func() { stopped <- w.Stop(context.Background()) }()
		synctest.Wait()
		if len(stopped) > 0 {
			t.Fatal("Stop has not waited for the Receive")
		}
		close(reply)
		if err := <-stopped; err != nil {
			t.Errorf("Stop: %v", err)
		}
		q.SetFault(nil)
		for _, d := range wantClaim(t, q, 3, "after the Stop") {
			if d.Attempt != 1 {
				t.Errorf("attempt %d", d.Attempt)
			}
		}
		if n := len(calls.all()); n != 0 {
			t.Errorf("%d jobs were begun after the Stop", n)
		}
	})
}

// A Receive that waits for jobs is called back: Stop takes no time.
func TestStopCallsBackAWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": (&record{}).does(0, nil)}, Wait: time.Hour})
		after(time.Second)
		start := time.Now()
		if err := w.Stop(t.Context()); err != nil || time.Since(start) != 0 {
			t.Errorf("Stop: %v after %v", err, time.Since(start))
		}
	})
}

// The context of Stop ends: handlers that heed theirs are cut short, and their jobs come
// back uncounted; one that does not is named in the error, and looked after still.
func TestStopContextEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		leave := make(chan struct{})
		deaf := queue.Handler{Job: func(context.Context, queue.Delivery) error { <-leave; return nil }}
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"heeds": calls.does(time.Hour, nil), "deaf": deaf}})
		enqueue(t, q, queue.Job{Kind: "heeds"}, queue.Job{Kind: "deaf"})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start := time.Now()
		err := w.Stop(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 calls") || time.Since(start) != 6*time.Second {
			t.Errorf("Stop: %v after %v", err, time.Since(start))
		}
		if ds := wantClaim(t, q, 1, "its handler was cut short"); ds[0].Attempt != 1 || ds[0].LastError != queue.ErrWorkerStopped.Error() {
			t.Errorf("back as %+v", ds[0])
		}
		close(leave)
		if err := w.Stop(t.Context()); err != nil {
			t.Errorf("second Stop: %v", err)
		}
		if s := w.Stats(); s.Done != 1 || s.HandedBack != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// A Receive that hangs for longer than Stop may take is cancelled in the end.
func TestStopEndsAReceiveThatHangs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		only(q, memqueue.OpReceive, memqueue.Fault{Hold: make(chan struct{})})
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": (&record{}).does(0, nil)}})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start := time.Now()
		if err := w.Stop(ctx); err != nil || time.Since(start) != 5*time.Second || w.Stats().ReceiveErrors != 0 {
			t.Errorf("Stop: %v after %v, %+v", err, time.Since(start), w.Stats())
		}
	})
}

// A poison job: tried MaxAttempts times, then dead with its last error; a replay has all
// its attempts again (bunnybus #95).
func TestPoisonJobDies(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		n := 0
		w := startWorker(t, q, queue.WorkerOptions{MaxAttempts: 3, Handlers: handlers{"k": {Job: func(_ context.Context, d queue.Delivery) error {
			calls.add(d)
			n++
			return fmt.Errorf("failure %d", n)
		}}}})
		enqueue(t, q, queue.Job{Kind: "k"})
		after(time.Minute)
		for round := 1; round <= 2; round++ {
			got := calls.all()
			if len(got) != 3*round || got[len(got)-1].Attempt != 3 {
				t.Fatalf("round %d: %d calls in all, the last at attempt %d", round, len(got), got[len(got)-1].Attempt)
			}
			if want := fmt.Sprint("failure ", 3*round-1); got[len(got)-1].LastError != want {
				t.Errorf("last error %q, want %q", got[len(got)-1].LastError, want)
			}
			ls := letters(t, q)
			if len(ls) != 1 || ls[0].LastError != fmt.Sprint("failure ", 3*round) || ls[0].Reason != "3 attempts failed" || ls[0].Attempts != 3 {
				t.Fatalf("dead letters %+v", ls)
			}
			if _, err := q.ReplayDead(t.Context(), ls[0].ID); err != nil {
				t.Fatal(err)
			}
			after(time.Minute)
		}
		if s := w.Stats(); s.Retried != 6 || s.Dead != 3 {
			t.Errorf("%+v", s)
		}
	})
}

// A handler that takes its process along never reports: its claims count all the same,
// and the one after MaxAttempts goes to the dead letters without another call (taskiq
// #35). The processes that die are claims whose holder says nothing.
func TestProcessKillerIsNotCalledAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		enqueue(t, q, queue.Job{Kind: "k"})
		ds := claim(t, q, 1)
		if err := q.Nack(t.Context(), queue.Return{Token: ds[0].Token, Err: "out of memory"}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if ds := claim(t, q, 1); len(ds) != 1 {
				t.Fatal("the lease of the dead process has not ended")
			}
			after(time.Hour)
		}
		w := startWorker(t, q, queue.WorkerOptions{MaxAttempts: 3, Handlers: handlers{"k": calls.does(0, nil)}})
		after(time.Second)
		if n := len(calls.all()); n != 0 || w.Stats().Dead != 1 {
			t.Errorf("%d calls, %+v", n, w.Stats())
		}
		if ls := letters(t, q); len(ls) != 1 || !strings.Contains(ls[0].LastError, "out of memory") || ls[0].Reason != "claimed 4 times, at most 3 attempts" {
			t.Errorf("dead letters %+v", ls)
		}
	})
}

// A handler that hangs: its heartbeat ends with MaxRunTime (asynq #1089, river #1258),
// somebody else gets the job when the lease has ended, and what the zombie says in the
// end is refused, counted and logged.
//
// Interleaving: claim, MaxRunTime over, lease over, other claim, the zombie returns nil.
func TestZombieLosesItsJob(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		var cause error
		leave := make(chan struct{})
		zombie := queue.Handler{MaxRunTime: 10 * time.Second, Job: func(ctx context.Context, _ queue.Delivery) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			<-leave
			return nil
		}}
		log := &lines{}
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": zombie}, Lease: 3 * time.Second, Concurrency: 1,
			Logger: slog.New(slog.NewTextHandler(log, nil))})
		enqueue(t, q, queue.Job{Kind: "k"})
		after(10 * time.Second)
		wantClaim(t, q, 0, "MaxRunTime is just over")
		if s := w.Stats(); s.Overruns != 1 {
			t.Errorf("%+v", s)
		}
		after(3 * time.Second)
		ds := wantClaim(t, q, 1, "MaxRunTime and a lease later")
		close(leave)
		synctest.Wait()
		if s := w.Stats(); s.LeaseLost != 1 || s.Done != 0 || cause != queue.ErrRunTime {
			t.Errorf("%+v; the cause was %v", s, cause)
		}
		if !log.hold("overrun") || !log.hold("lease lost") {
			t.Errorf("the log lacks it:\n%s", log)
		}
		if err := q.Ack(t.Context(), ds[0].Token); err != nil {
			t.Errorf("Ack of who has the job: %v", err)
		}
	})
}

// A handler that heeds the end of its run time fails like others: the job comes back
// after a back-off, and its error says why.
func TestRunTimeIsAFailure(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": calls.does(time.Hour, nil)}, MaxRunTime: 10 * time.Second,
			MaxAttempts: 2, RetryMin: time.Second, RetryMax: time.Second})
		enqueue(t, q, queue.Job{Kind: "k"})
		after(22 * time.Second)
		if ls := letters(t, q); len(ls) != 1 || !strings.Contains(ls[0].LastError, "MaxRunTime of 10s") || w.Stats().Retried != 1 {
			t.Errorf("dead letters %+v, %+v", ls, w.Stats())
		}
	})
}

// All places are taken by handlers that hang: jobs that wait behind them are not kept
// for ever.
func TestWaitingJobIsHandedBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		leave := make(chan struct{})
		deaf := queue.Handler{Job: func(context.Context, queue.Delivery) error { <-leave; return nil }}
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": deaf}, Lease: 3 * time.Second, MaxRunTime: 10 * time.Second, Concurrency: 1, Batch: 4})
		enqueue(t, q, jobs("k", 4)...)
		after(10*time.Second - 1)
		wantClaim(t, q, 0, "they wait for a place")
		after(1)
		for _, d := range wantClaim(t, q, 3, "they have waited for MaxRunTime") {
			if d.Attempt != 1 {
				t.Errorf("attempt %d of a job that was not begun", d.Attempt)
			}
		}
		close(leave)
		synctest.Wait()
		if s := w.Stats(); s.HandedBack != 3 || s.Received != 4 {
			t.Errorf("%+v", s)
		}
	})
}

// The same in a line: its jobs come back to this worker later, and the line is not
// blocked by those that were given back.
func TestLineIsFreeAfterAHandBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		leave := make(chan struct{})
		deaf := queue.Handler{Job: func(context.Context, queue.Delivery) error { <-leave; return nil }}
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"deaf": deaf, "k": calls.does(0, nil)}, OrderedKeys: true,
			MaxRunTime: 10 * time.Second, Concurrency: 1, Batch: 3})
		enqueue(t, q, queue.Job{Kind: "deaf"}, queue.Job{Kind: "k", Key: "a"}, queue.Job{Kind: "k", Key: "a"})
		after(15 * time.Second)
		close(leave)
		after(time.Second)
		if s := w.Stats(); s.HandedBack != 2 || len(calls.all()) != 2 || s.InHand != 0 {
			t.Errorf("%d calls, %+v", len(calls.all()), s)
		}
	})
}

// A handler that hangs is reported once, also while others are extended.
func TestOverrunIsCountedOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		leave := make(chan struct{})
		deaf := queue.Handler{MaxRunTime: 10 * time.Second, Job: func(context.Context, queue.Delivery) error { <-leave; return nil }}
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"deaf": deaf, "k": calls.does(20*time.Second, nil)},
			Lease: 3 * time.Second, Concurrency: 2})
		enqueue(t, q, queue.Job{Kind: "deaf"}, queue.Job{Kind: "k"})
		after(19 * time.Second)
		if s := w.Stats(); s.Overruns != 1 {
			t.Errorf("%+v", s)
		}
		close(leave)
	})
}

// What an earlier attempt has said is still there after a hand-back.
func TestHandBackKeepsTheLastError(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		enqueue(t, q, queue.Job{Kind: "k"}, queue.Job{Kind: "k"})
		for _, d := range wantClaim(t, q, 2, "they are new") {
			if err := q.Nack(t.Context(), queue.Return{Token: d.Token, Err: "first"}); err != nil {
				t.Fatal(err)
			}
		}
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": calls.does(time.Second, nil)}, Concurrency: 1, Batch: 2})
		synctest.Wait()
		if err := w.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if ds := wantClaim(t, q, 1, "one was handed back"); ds[0].LastError != "first" || ds[0].Attempt != 2 {
			t.Errorf("%+v", ds[0])
		}
	})
}

// The Acks of a batch are told together; one entry's failure is its own: it is tried
// again, and those that were done are not (sqs-consumer #193, shoryuken #370).
func TestAckOfOneEntryFails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		refusals := 2
		q.SetFault(func(op memqueue.Op) memqueue.Fault {
			if op.Kind != memqueue.OpAck || refusals == 0 {
				return memqueue.Fault{}
			}
			refusals--
			return memqueue.Fault{Entry: func(i int) error {
				if i == op.Entries-1 {
					return errTest
				}
				return nil
			}}
		})
		all := queue.Handler{Batch: func(context.Context, []queue.Delivery) []error { return nil }}
		enqueue(t, q, jobs("k", 5)...)
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": all}})
		synctest.Wait()
		if s := w.Stats(); s.Done != 4 || s.SettleErrors != 1 || s.InHand != 1 {
			t.Errorf("after the first call: %+v", s)
		}
		after(time.Second)
		if s := w.Stats(); s.Done != 5 || s.SettleErrors != 2 || q.Counts()[memqueue.OpAck] != 3 {
			t.Errorf("a second later: %+v, %d calls", s, q.Counts()[memqueue.OpAck])
		}
		wantEmpty(t, q)
	})
}

// The reply to an Ack is lost though it was applied: the second one says that the lease
// is lost, and no harm is done.
func TestAckReplyLost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		only(q, memqueue.OpAck, memqueue.Fault{LoseReply: true})
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": calls.does(0, nil)}})
		enqueue(t, q, queue.Job{Kind: "k"})
		synctest.Wait()
		q.SetFault(nil)
		after(time.Second)
		if s := w.Stats(); s.SettleErrors != 1 || s.LeaseLost != 1 || len(calls.all()) != 1 {
			t.Errorf("%+v, %d calls", s, len(calls.all()))
		}
		wantEmpty(t, q)
	})
}

// One lease of a batch is lost while its handler runs. Interleaving: two jobs are
// claimed; the queue answers no Extend for longer than the lease; somebody else claims
// the first; the queue extends the second. The handler goes on, its second job is done,
// and for the first one the other's claim stands.
func TestOneLeaseOfABatchIsLost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		ended := make(chan error, 1)
		all := queue.Handler{Batch: func(ctx context.Context, ds []queue.Delivery) []error {
			select {
			case <-time.After(10 * time.Second):
			case <-ctx.Done():
			}
			ended <- context.Cause(ctx)
			return nil
		}}
		enqueue(t, q, jobs("k", 2)...)
		only(q, memqueue.OpExtend, memqueue.Fault{Err: errTest})
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": all}, Lease: 3 * time.Second, Concurrency: 1})
		after(3 * time.Second)
		ds := claim(t, q, 1)
		q.SetFault(nil)
		after(8 * time.Second)
		if s := w.Stats(); s.Done != 1 || s.LeaseLost != 1 || s.ExtendErrors == 0 {
			t.Errorf("%+v", s)
		}
		if cause := <-ended; cause != nil {
			t.Errorf("the handler's context has ended: %v", cause)
		}
		if err := q.Ack(t.Context(), ds[0].Token); err != nil {
			t.Errorf("Ack of who has the job: %v", err)
		}
		wantEmpty(t, q)
	})
}

// The same with one job: somebody else does it, so this handler's context ends.
func TestLostLeaseEndsTheHandler(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		enqueue(t, q, queue.Job{Kind: "k"})
		only(q, memqueue.OpExtend, memqueue.Fault{Err: errTest})
		start := time.Now()
		var ended time.Duration
		h := calls.does(time.Hour, nil)
		job := h.Job
		h.Job = func(ctx context.Context, d queue.Delivery) error {
			err := job(ctx, d)
			ended = time.Since(start)
			return err
		}
		events := &record{}
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": h}, Lease: 3 * time.Second, Concurrency: 1,
			Observer: queue.ObserverFunc(func(e queue.Event) {
				if e.Kind == queue.EventLeaseLost && e.Err == queue.ErrLeaseLost {
					events.add(queue.Delivery{ID: e.ID})
				}
			})})
		after(3 * time.Second)
		wantClaim(t, q, 1, "the lease has ended")
		q.SetFault(nil)
		after(3 * time.Second)
		if ended == 0 || ended > 4*time.Second || w.Stats().LeaseLost != 1 || len(events.all()) != 1 {
			t.Errorf("the handler ended after %v, %+v, events %+v", ended, w.Stats(), events.all())
		}
		if q.Counts()[memqueue.OpNack] != 0 {
			t.Error("a lost job was given back")
		}
	})
}

// A job that was lost while it waited for a place is not begun; one whose lease has ended
// and that nobody has taken is. Interleaving: two jobs are received, one runs for 4 s; the
// queue answers no Extend, the leases of 3 s end, somebody else claims the jobs or nobody
// does; the place is free, and the queue is asked again before the second job is begun,
// while the heartbeat still waits for its answer.
func TestLeaseEndedWhileWaiting(t *testing.T) {
	for _, stolen := range []bool{true, false} {
		t.Run(fmt.Sprint("stolen ", stolen), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				q, calls := memqueue.New(), &record{}
				enqueue(t, q, jobs("k", 2)...)
				only(q, memqueue.OpExtend, memqueue.Fault{Hold: make(chan struct{})})
				w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": calls.does(4*time.Second, nil)},
					Lease: 3 * time.Second, Concurrency: 1, Batch: 2})
				after(3 * time.Second)
				if stolen {
					wantClaim(t, q, 2, "the leases have ended")
				}
				after(900 * time.Millisecond)
				q.SetFault(nil)
				after(10 * time.Second)
				want := queue.WorkerStats{Done: 2}
				if stolen {
					want = queue.WorkerStats{LeaseLost: 2}
				}
				if s := w.Stats(); s.LeaseLost != want.LeaseLost || s.Done != want.Done || int64(len(calls.all())) != 1+want.Done/2 {
					t.Errorf("%d calls, %+v", len(calls.all()), s)
				}
			})
		})
	}
}

// The same, found by the heartbeat.
func TestStolenWhileWaiting(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		deaf := queue.Handler{Job: func(_ context.Context, d queue.Delivery) error {
			calls.add(d)
			time.Sleep(4 * time.Second)
			return nil
		}}
		enqueue(t, q, jobs("k", 2)...)
		only(q, memqueue.OpExtend, memqueue.Fault{Err: errTest})
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": deaf},
			Lease: 3 * time.Second, Concurrency: 1, Batch: 2})
		after(3 * time.Second)
		wantClaim(t, q, 2, "the leases have ended")
		q.SetFault(nil)
		after(500 * time.Millisecond)
		if s := w.Stats(); s.LeaseLost != 1 || s.InHand != 1 {
			t.Errorf("%+v, want the waiting job gone", s)
		}
		after(3 * time.Second)
		if n := len(calls.all()); n != 1 || w.Stats().LeaseLost != 2 {
			t.Errorf("%d calls, %+v, want the second job not begun", n, w.Stats())
		}
	})
}

// Interleaving: an Extend is on its way; the handler fails and the job is to come back
// at once; the Extend is applied. Were the Nack not kept back until the Extend has ended,
// the Extend would be the later one on some queues, and hide the job for a lease.
func TestNackWaitsForExtend(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		extend := make(chan struct{})
		only(q, memqueue.OpExtend, memqueue.Fault{Hold: extend})
		startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": calls.does(1500*time.Millisecond, queue.RetryAfter(0, errTest))},
			Lease: 3 * time.Second, Concurrency: 1})
		enqueue(t, q, queue.Job{Kind: "k"})
		after(1600 * time.Millisecond)
		if n := q.Counts()[memqueue.OpNack]; n != 0 {
			t.Fatalf("%d Nacks while the Extend is under way", n)
		}
		close(extend)
		synctest.Wait()
		if got := calls.all(); len(got) != 2 || got[1].Attempt != 2 {
			t.Errorf("%d calls after the Extend has ended, want the second attempt", len(got))
		}
	})
}

// The queue is away while handlers end: their ends are told when it is back, if that is
// within a lease; otherwise they are abandoned, and the jobs come back. Nothing is lost.
func TestQueueAwayAtTheEnd(t *testing.T) {
	for _, tt := range []struct {
		away  time.Duration
		calls int
		want  queue.WorkerStats
	}{
		{20 * time.Second, 1, queue.WorkerStats{Received: 1, Done: 1}},
		{time.Minute, 2, queue.WorkerStats{Received: 2, Done: 1, Abandoned: 1}},
	} {
		t.Run(tt.away.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				q, calls := memqueue.New(), &record{}
				w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": calls.does(time.Second, nil)}})
				enqueue(t, q, queue.Job{Kind: "k"})
				synctest.Wait()
				q.Down()
				after(tt.away)
				q.Up()
				after(2 * time.Minute)
				s := w.Stats()
				if s.Received != tt.want.Received || s.Done != tt.want.Done || s.Abandoned != tt.want.Abandoned || len(calls.all()) != tt.calls {
					t.Errorf("%+v, %d calls", s, len(calls.all()))
				}
				wantEmpty(t, q)
			})
		})
	}
}

// A Receive that fails is tried again with growing pauses, up to 30 s, and once the
// queue is back the pauses are short again.
func TestFailingReceive(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": calls.does(0, nil)}})
		after(time.Second)
		q.Down()
		after(10 * time.Second)
		first := q.Counts()[memqueue.OpReceive]
		after(10 * time.Minute)
		if n := q.Counts()[memqueue.OpReceive]; first < 4 || first > 12 || n < 20 || n > 55 {
			t.Errorf("%d calls in 10 s, %d in 10 min more", first, n-first)
		}
		enqueueWhenUp(t, q)
		after(30 * time.Second)
		if len(calls.all()) != 1 || w.Stats().ReceiveErrors == 0 {
			t.Errorf("%d calls, %+v", len(calls.all()), w.Stats())
		}
		q.Down()
		before := q.Counts()[memqueue.OpReceive]
		after(time.Second)
		if n := q.Counts()[memqueue.OpReceive] - before; n < 2 {
			t.Errorf("%d calls in the first second of the next outage: the pauses have not started over", n)
		}
		q.Up()
	})
}

func enqueueWhenUp(t *testing.T, q *memqueue.Queue) {
	t.Helper()
	q.Up()
	enqueue(t, q, queue.Job{Kind: "k"})
}

// impatient is a queue that cannot wait.
type impatient struct {
	*memqueue.Queue
	asked int
}

func (q *impatient) Caps() queue.Caps {
	c := q.Queue.Caps()
	c.MaxWait = 0
	return c
}

func (q *impatient) Receive(ctx context.Context, r queue.Request) ([]queue.Delivery, error) {
	q.asked++
	r.Wait = 0
	return q.Queue.Receive(ctx, r)
}

func TestEmptyAnswersAreNoHotLoop(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := &impatient{Queue: memqueue.New()}
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": (&record{}).does(0, nil)}})
		after(time.Minute)
		if err := w.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if q.asked < 60 || q.asked > 121 {
			t.Errorf("asked %d times in a minute", q.asked)
		}
	})
}

// A job of a kind that nobody handles is kept, counted and tried again; it dies after
// MaxAttempts, and a worker that knows it does it before.
func TestUnknownKind(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		old := startWorker(t, q, queue.WorkerOptions{MaxAttempts: 4, Handlers: handlers{"old": calls.does(0, nil)}})
		enqueue(t, q, queue.Job{Kind: "new"})
		synctest.Wait()
		if s := old.Stats(); s.Unknown != 1 || s.Retried != 1 || len(q.Jobs()) != 1 {
			t.Errorf("%+v, %d jobs", s, len(q.Jobs()))
		}
		if err := old.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		knows := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"new": calls.does(0, nil)}})
		after(time.Minute)
		if knows.Stats().Done != 1 {
			t.Errorf("%+v", knows.Stats())
		}
		enqueue(t, q, queue.Job{Kind: "never"})
		after(30 * time.Minute)
		if ls := letters(t, q); len(ls) != 0 { // 20 attempts take longer
			t.Errorf("dead letters %+v", ls)
		}
		after(10 * time.Hour)
		if ls := letters(t, q); len(ls) != 1 || ls[0].Reason != "unknown kind, 20 attempts" || ls[0].Kind != "never" {
			t.Errorf("dead letters %+v", ls)
		}
	})
}

// Batch handlers get all jobs of their kind that one Receive has brought, each job has
// its own result, and a wrong number of results fails them all.
func TestBatchHandler(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		var sizes []int
		js := append(jobs("k", 5), jobs("wrong", 2)...)
		js = append(js, jobs("single", 1)...)
		enqueue(t, q, js...)
		single := &record{}
		w := startWorker(t, q, queue.WorkerOptions{MaxAttempts: 1, Concurrency: 1, Handlers: handlers{
			"k": {Batch: func(_ context.Context, ds []queue.Delivery) []error {
				sizes = append(sizes, len(ds))
				errs := make([]error, len(ds))
				for i, d := range ds {
					if d.Key == "k1" || d.Key == "k3" {
						errs[i] = fmt.Errorf("bad %s", d.Key)
					}
				}
				return errs
			}},
			"wrong":  {Batch: func(context.Context, []queue.Delivery) []error { return []error{nil} }},
			"single": single.does(0, nil),
		}})
		after(time.Second)
		if !slices.Equal(sizes, []int{5}) || len(single.all()) != 1 {
			t.Errorf("batches of %v, %d single jobs", sizes, len(single.all()))
		}
		dead := map[string]string{}
		for _, l := range letters(t, q) {
			dead[l.Key] = l.LastError
		}
		wrong := "the batch handler has returned 1 results for 2 jobs"
		if want := map[string]string{"k1": "bad k1", "k3": "bad k3", "wrong0": wrong, "wrong1": wrong}; fmt.Sprint(dead) != fmt.Sprint(want) {
			t.Errorf("dead %v, want %v", dead, want)
		}
		if s := w.Stats(); s.Done != 4 || s.Dead != 4 {
			t.Errorf("%+v", s)
		}
	})
}

// A handler of single jobs may return the error of a call with entries, of which some
// were done: the job is not.
func TestErrorsOfAHandlerAreOneFailure(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, calls := memqueue.New(), &record{}
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": calls.does(0, queue.Errors{nil, errTest})}, MaxAttempts: 1})
		enqueue(t, q, queue.Job{Kind: "k"})
		after(time.Second)
		if s := w.Stats(); s.Dead != 1 || s.Done != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Jobs of one key run one after the other in the order of their receipt, those of other
// keys meanwhile. When one fails, those behind it are given back with it, uncounted.
func TestOrderedKeys(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		var mu sync.Mutex
		var order []string
		running := map[string]int{}
		fail := true
		h := queue.Handler{Job: func(_ context.Context, d queue.Delivery) error {
			mu.Lock()
			order = append(order, d.DedupeKey)
			if running[d.Key]++; running[d.Key] > 1 && d.Key != "" {
				t.Errorf("%d jobs of key %q at once", running[d.Key], d.Key)
			}
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			running[d.Key]--
			if d.DedupeKey == "a2" && fail {
				fail = false
				return queue.RetryAfter(10*time.Second, errTest)
			}
			return nil
		}}
		for _, name := range []string{"a1", "a2", "b1", "a3", "a4", "-1", "-2"} {
			enqueue(t, q, queue.Job{Kind: "k", Key: strings.TrimPrefix(name[:1], "-"), DedupeKey: name})
			after(1)
		}
		start := time.Now()
		w := startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": h}, OrderedKeys: true, Concurrency: 4, Batch: 10})
		after(100 * time.Millisecond)
		mu.Lock()
		slices.Sort(order) // those that started together
		if want := []string{"-1", "-2", "a1", "b1"}; !slices.Equal(order, want) {
			t.Errorf("started at once: %q, want %q", order, want)
		}
		order = nil
		mu.Unlock()
		after(time.Minute)
		if want := []string{"a2", "a2", "a3", "a4"}; !slices.Equal(order, want) {
			t.Errorf("then: %q, want %q", order, want)
		}
		if s := w.Stats(); s.Done != 7 || s.Retried != 1 || s.HandedBack != 2 {
			t.Errorf("after %v: %+v", time.Since(start), s)
		}
	})
}

// Batches of one kind run one at a time where keys are in order; what failed of a key is
// not overtaken by the next batch.
func TestOrderedBatches(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		var got []string
		running := 0
		h := queue.Handler{Batch: func(_ context.Context, ds []queue.Delivery) []error {
			if running++; running > 1 {
				t.Errorf("%d batches at once", running)
			}
			time.Sleep(time.Second)
			running--
			errs := make([]error, len(ds))
			for i, d := range ds {
				got = append(got, fmt.Sprint(d.DedupeKey, "/", d.Attempt))
				if d.DedupeKey == "a1" && d.Attempt == 1 {
					errs[i] = queue.RetryAfter(10*time.Second, errTest)
				}
			}
			return errs
		}}
		startWorker(t, q, queue.WorkerOptions{Handlers: handlers{"k": h}, OrderedKeys: true})
		enqueue(t, q, queue.Job{Kind: "k", Key: "a", DedupeKey: "a1"})
		synctest.Wait() // the first batch runs
		enqueue(t, q, queue.Job{Kind: "k", Key: "a", DedupeKey: "a2"}, queue.Job{Kind: "k", Key: "b", DedupeKey: "b1"})
		after(time.Minute)
		if want := []string{"a1/1", "b1/1", "a1/2", "a2/1"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// A key that is never done with bounds what the worker holds of it.
func TestSlowKeyIsBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		leave := make(chan struct{})
		h := queue.Handler{Job: func(context.Context, queue.Delivery) error { <-leave; return nil }}
		o := queue.WorkerOptions{Handlers: handlers{"k": h}, OrderedKeys: true, Concurrency: 2, Batch: 10}
		first, w := startWorker(t, q, o), newWorker(t, q, o)
		for range 20 {
			enqueue(t, q, slices.Repeat([]queue.Job{{Kind: "k", Key: "hot"}}, 10)...)
		}
		after(time.Minute)
		if s := first.Stats(); s.InHand > 30 || s.InHand < 10 || s.Running != 1 {
			t.Errorf("%+v", s)
		}
		// Stop: what stands in line is handed back.
		go first.Stop(context.Background())
		synctest.Wait()
		if s := first.Stats(); s.InHand != 1 || s.HandedBack < 9 {
			t.Errorf("after Stop: %+v", s)
		}
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		close(leave)
		after(time.Minute)
		if n := first.Stats().Done + w.Stats().Done; n != 200 {
			t.Errorf("%d jobs are done, want 200", n)
		}
	})
}
