package memqueue_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/memqueue"
)

var errTest = errors.New("no route to host")

func enqueue(t *testing.T, q *memqueue.Queue, jobs ...queue.Job) []string {
	t.Helper()
	ids, err := q.Enqueue(t.Context(), jobs...)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func receive(t *testing.T, q *memqueue.Queue, r queue.Request) []queue.Delivery {
	t.Helper()
	ds, err := q.Receive(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

// wantErr checks the error's type, cause and kind.
func wantErr(t *testing.T, err, cause error, isUnavailable bool) {
	t.Helper()
	var e *queue.Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v is a %T, want a *queue.Error", err, err)
	}
	if !errors.Is(err, cause) || errors.Is(err, queue.ErrUnavailable) != isUnavailable {
		t.Errorf("error %v (unavailable: %v), want one that wraps %v (unavailable: %v)", err, e.Unavailable, cause, isUnavailable)
	}
}

// Delays, leases and waits end at their time, to the nanosecond.
func TestTimeIsExact(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, start := memqueue.New(), time.Now()
		enqueue(t, q, queue.Job{Kind: "k", Delay: 3 * time.Second})
		once := queue.Request{Max: 1, Wait: time.Second, Lease: time.Second}
		if ds := receive(t, q, once); len(ds) != 0 || time.Since(start) != time.Second {
			t.Errorf("%d jobs after %v, want none after 1s", len(ds), time.Since(start))
		}
		once.Wait, once.Lease = time.Minute, 5*time.Second
		ds := receive(t, q, once)
		if len(ds) != 1 || time.Since(start) != 3*time.Second || ds[0].Lag != 0 || ds[0].Age != 3*time.Second || !ds[0].Deadline.Equal(start.Add(8*time.Second)) {
			t.Fatalf("after %v: %+v", time.Since(start), ds)
		}
		time.Sleep(4 * time.Second)
		if err := q.Extend(t.Context(), 2*time.Second, ds[0].Token); err != nil {
			t.Fatal(err)
		}
		ds = receive(t, q, once)
		if len(ds) != 1 || time.Since(start) != 9*time.Second || ds[0].Lag != 0 {
			t.Errorf("after %v: %+v", time.Since(start), ds)
		}
		time.Sleep(7 * time.Second)
		if ds = receive(t, q, once); len(ds) != 1 || ds[0].Lag != 2*time.Second || ds[0].Attempt != 3 {
			t.Errorf("2s after the end of its lease: %+v", ds)
		}
	})
}

// A Receive that waits hears at once of a job that comes, that is given back, that is
// replayed, or of Stop, in no time.
func TestWaitEndsAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		stop := make(chan struct{})
		got := make(chan []queue.Delivery, 1)
		wait := func() {
			go func() {
				ds, err := q.Receive(context.Background(), queue.Request{Max: 1, Wait: time.Hour, Lease: time.Hour, Stop: stop})
				if err != nil {
					t.Errorf("Receive: %v", err)
				}
				got <- ds
			}()
			synctest.Wait()
			if len(got) > 0 {
				t.Fatal("Receive has not waited")
			}
		}
		start := time.Now()
		next := func(what string, jobs int) queue.Delivery {
			ds := <-got
			if len(ds) != jobs || time.Since(start) != 0 {
				t.Fatalf("%s: %d jobs after %v", what, len(ds), time.Since(start))
			}
			return append(ds, queue.Delivery{})[0]
		}
		wait()
		enqueue(t, q, queue.Job{Kind: "k"})
		d := next("enqueued", 1)
		wait()
		if err := q.Nack(t.Context(), queue.Return{Token: d.Token}); err != nil {
			t.Fatal(err)
		}
		d = next("given back", 1)
		wait()
		if err := q.Dead(t.Context(), queue.Death{Token: d.Token}); err != nil {
			t.Fatal(err)
		}
		if _, err := q.ReplayDead(t.Context(), d.ID); err != nil {
			t.Fatal(err)
		}
		next("replayed", 1)
		wait()
		close(stop)
		next("stopped", 0)
	})
}

// The server goes away while a Receive waits.
func TestDown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		enqueue(t, q, queue.Job{Kind: "k", Delay: time.Minute})
		ended := make(chan error, 1)
		go func() {
			_, err := q.Receive(context.Background(), queue.Request{Max: 1, Wait: time.Hour, Lease: time.Second})
			ended <- err
		}()
		synctest.Wait()
		q.Down()
		wantErr(t, <-ended, memqueue.ErrDown, true)
		_, err := q.Enqueue(t.Context(), queue.Job{Kind: "k"})
		wantErr(t, err, memqueue.ErrDown, true)
		wantErr(t, q.Check(t.Context()), memqueue.ErrDown, true)
		q.Up()
		if jobs := q.Jobs(); len(jobs) != 1 || jobs[0].Held || jobs[0].Attempts != 0 {
			t.Errorf("after the outage: %+v", jobs)
		}
	})
}

// What a Fault says happens, before and after.
func TestFaults(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		var ops []memqueue.Op
		set := func(f memqueue.Fault) {
			q.SetFault(func(op memqueue.Op) memqueue.Fault { ops = append(ops, op); return f })
		}
		try := func(ctx context.Context) error {
			_, err := q.Enqueue(ctx, queue.Job{Kind: "a"}, queue.Job{Kind: "b"})
			return err
		}

		set(memqueue.Fault{Err: errTest})
		wantErr(t, try(t.Context()), errTest, true)
		set(memqueue.Fault{Err: errTest, Refused: true})
		wantErr(t, try(t.Context()), errTest, false)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		set(memqueue.Fault{Hold: make(chan struct{})})
		wantErr(t, try(ctx), context.DeadlineExceeded, true)
		if n := len(q.Jobs()); n != 0 {
			t.Errorf("%d jobs, though nothing was applied", n)
		}

		set(memqueue.Fault{Delay: time.Second, LoseReply: true})
		start := time.Now()
		wantErr(t, try(t.Context()), memqueue.ErrLostReply, true)
		if n := len(q.Jobs()); n != 2 || time.Since(start) != time.Second {
			t.Errorf("%d jobs after %v, want 2 after 1s", n, time.Since(start))
		}
		set(memqueue.Fault{Entry: func(i int) error {
			if i == 1 {
				return errTest
			}
			return nil
		}})
		err := try(t.Context())
		if queue.ErrorOf(err, 0) != nil || !errors.Is(queue.ErrorOf(err, 1), errTest) || len(q.Jobs()) != 3 {
			t.Errorf("%v, %d jobs", err, len(q.Jobs()))
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		set(memqueue.Fault{ReplyHold: make(chan struct{})})
		_, err = q.Receive(ctx, queue.Request{Max: 2, Lease: time.Hour})
		wantErr(t, err, context.Canceled, false)
		if held := q.Jobs(); !held[0].Held || !held[1].Held || held[2].Held {
			t.Errorf("after a Receive that was cancelled with its reply on the way: %+v", held)
		}
		if len(ops) != 6 || ops[0] != (memqueue.Op{Kind: memqueue.OpEnqueue, Entries: 2}) || ops[5] != (memqueue.Op{Kind: memqueue.OpReceive, Entries: 2}) {
			t.Errorf("operations %+v", ops)
		}
		if c := q.Counts(); c[memqueue.OpEnqueue] != 5 || c[memqueue.OpReceive] != 1 {
			t.Errorf("counts %v", c)
		}
	})
}

// The number of jobs is bounded, dead ones included.
func TestMaxJobs(t *testing.T) {
	q := memqueue.New(memqueue.Options{MaxJobs: 2})
	ids, err := q.Enqueue(t.Context(), queue.Job{Kind: "a"}, queue.Job{Kind: "b"}, queue.Job{Kind: "c"})
	wantErr(t, queue.ErrorOf(err, 2), memqueue.ErrFull, false)
	if queue.ErrorOf(err, 1) != nil || ids[1] == "" || ids[2] != "" {
		t.Errorf("%q, %v", ids, err)
	}
	ds := receive(t, q, queue.Request{Max: 1, Lease: time.Hour})
	if err := q.Dead(t.Context(), queue.Death{Token: ds[0].Token}); err != nil {
		t.Fatal(err)
	}
	_, err = q.ReplayDead(t.Context(), ds[0].ID)
	wantErr(t, queue.ErrorOf(err, 0), memqueue.ErrFull, false)
	if err := q.DropDead(t.Context(), ds[0].ID); err != nil {
		t.Fatal(err)
	}
	enqueue(t, q, queue.Job{Kind: "c"})
}

// What acts as a queue without a fence does what that is about: the late Ack of one
// worker removes a job that another one has claimed.
func TestUnfenced(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New(memqueue.Options{Unfenced: true})
		enqueue(t, q, queue.Job{Kind: "k"}, queue.Job{Kind: "k"})
		once := queue.Request{Max: 1, Wait: time.Hour, Lease: time.Second}
		old := receive(t, q, once)[0]
		receive(t, q, once)
		receive(t, q, once) // the old one's job again
		for range 2 {
			if err := q.Ack(t.Context(), old.Token, "1.0", "2.7", "9.1"); err != nil {
				t.Errorf("Ack: %v", err)
			}
		}
		if jobs := q.Jobs(); len(jobs) != 1 {
			t.Errorf("left: %+v", jobs)
		}
	})
}

// The cost of a claim does not grow with what waits.
func BenchmarkReceiveAck(b *testing.B) {
	for _, waiting := range []int{0, 100_000} {
		b.Run(fmt.Sprint("waiting=", waiting), func(b *testing.B) {
			q, ctx := memqueue.New(), context.Background()
			jobs := make([]queue.Job, 100)
			for i := range jobs {
				jobs[i] = queue.Job{Kind: "k"}
			}
			for range waiting / 100 {
				q.Enqueue(ctx, jobs...)
			}
			tokens := make([]queue.Token, 0, 100)
			for b.Loop() {
				q.Enqueue(ctx, jobs...)
				ds, err := q.Receive(ctx, queue.Request{Max: 100, Lease: time.Minute})
				tokens = tokens[:0]
				for i := range ds {
					tokens = append(tokens, ds[i].Token)
				}
				if err != nil || len(ds) != 100 || q.Ack(ctx, tokens...) != nil {
					b.Fatal(len(ds), err)
				}
			}
		})
	}
}
