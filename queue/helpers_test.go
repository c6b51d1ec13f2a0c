package queue_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/memqueue"
)

var errTest = errors.New("no route to host")

type handlers = map[string]queue.Handler

// newWorker returns a worker that is stopped and validated when the test ends.
func newWorker(t *testing.T, q queue.Queue, o queue.WorkerOptions) *queue.Worker {
	t.Helper()
	o.Queue = q
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	w, err := queue.NewWorker(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { finish(t, w) })
	return w
}

func startWorker(t *testing.T, q queue.Queue, o queue.WorkerOptions) *queue.Worker {
	t.Helper()
	w := newWorker(t, q, o)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// finish stops the worker and validates what is left of it: nothing in hand, and each
// job that was received has come to one end.
func finish(t *testing.T, w *queue.Worker) {
	t.Helper()
	if err := w.Stop(context.Background()); err != nil {
		t.Errorf("Stop: %v", err)
	}
	for _, wrong := range validate(w.Stats()) {
		t.Errorf("invariant: %s", wrong)
	}
}

func validate(s queue.WorkerStats) (wrong []string) {
	if s.InHand != 0 || s.Running != 0 {
		wrong = append(wrong, fmt.Sprintf("%d jobs in hand, %d handlers running after Stop", s.InHand, s.Running))
	}
	if ends := s.Done + s.Retried + s.Postponed + s.Dead + s.HandedBack + s.LeaseLost + s.Abandoned; ends != s.Received {
		wrong = append(wrong, fmt.Sprintf("%d jobs received, %d ends: %+v", s.Received, ends, s))
	}
	return wrong
}

func TestValidatorFindsWrongNumbers(t *testing.T) {
	if got := validate(queue.WorkerStats{Received: 7, Done: 1, Retried: 1, Postponed: 1, Dead: 1, HandedBack: 1, LeaseLost: 1, Abandoned: 1}); len(got) != 0 {
		t.Errorf("sound numbers: %q", got)
	}
	for _, s := range []queue.WorkerStats{{InHand: 1}, {Running: 1}, {Received: 1}, {Done: 1}} {
		if len(validate(s)) == 0 {
			t.Errorf("%+v is taken for sound", s)
		}
	}
}

func enqueue(t *testing.T, q queue.Queue, jobs ...queue.Job) []string {
	t.Helper()
	ids, err := q.Enqueue(context.Background(), jobs...)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// jobs are n jobs of one kind.
func jobs(kind string, n int) []queue.Job {
	js := make([]queue.Job, n)
	for i := range js {
		js[i] = queue.Job{Kind: kind, Key: fmt.Sprint(kind, i)}
	}
	return js
}

// claim is a Receive without a wait, as somebody else.
func claim(t *testing.T, q queue.Queue, n int) []queue.Delivery {
	t.Helper()
	ds, err := q.Receive(context.Background(), queue.Request{Max: n, Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

func wantClaim(t *testing.T, q queue.Queue, n int, why string) []queue.Delivery {
	t.Helper()
	ds := claim(t, q, 100)
	if len(ds) != n {
		t.Fatalf("%s: somebody else claims %d jobs, want %d", why, len(ds), n)
	}
	return ds
}

func wantEmpty(t *testing.T, q *memqueue.Queue) {
	t.Helper()
	if left := q.Jobs(); len(left) > 0 {
		t.Errorf("%d jobs are left, the first is %+v", len(left), left[0])
	}
}

func letters(t *testing.T, q queue.Queue) []queue.DeadLetter {
	t.Helper()
	ls, err := q.ListDead(context.Background(), queue.DeadQuery{})
	if err != nil {
		t.Fatal(err)
	}
	return ls
}

// after lets time pass, and everybody come to a rest.
var after = bubble.After

// record counts what handlers were called with.
type record struct {
	mu  sync.Mutex
	got []queue.Delivery
}

func (r *record) add(ds ...queue.Delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, ds...)
}

func (r *record) all() []queue.Delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]queue.Delivery(nil), r.got...)
}

// does is a handler that records its jobs, takes its time and returns err. It heeds its
// context.
func (r *record) does(takes time.Duration, err error) queue.Handler {
	return queue.Handler{Job: func(ctx context.Context, d queue.Delivery) error {
		r.add(d)
		select {
		case <-time.After(takes):
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}}
}

// only is a fault for operations of one kind.
func only(q *memqueue.Queue, kind memqueue.Kind, f memqueue.Fault) {
	q.SetFault(func(op memqueue.Op) memqueue.Fault {
		if op.Kind == kind {
			return f
		}
		return memqueue.Fault{}
	})
}
