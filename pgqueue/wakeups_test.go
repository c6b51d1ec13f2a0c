package pgqueue

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/faultproxy"
	"github.com/onefill/onefill/queue"
)

// logs receives what is logged, as long as somebody takes it.
type logs chan string

func (l logs) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l logs) Write(p []byte) (int, error) {
	select {
	case l <- string(p):
	default:
	}
	return len(p), nil
}

// waiting starts a Receive, and returns what it brings.
func waiting(t testing.TB, q *Queue) <-chan queue.Delivery {
	got := make(chan queue.Delivery, 1)
	go func() {
		defer close(got)
		ds, err := q.Receive(t.Context(), queue.Request{Max: 1, Wait: time.Hour, Lease: time.Minute})
		if err != nil {
			t.Errorf("Receive: %v", err)
		} else if len(ds) > 0 {
			got <- ds[0]
		}
	}()
	return got
}

// A Receive that polls once an hour gets the job at once: the notification has woken it.
// Its second look is over, and it waits, when the queue has heard itself; then the job
// comes in the writer's own transaction.
func TestNotifyWakes(t *testing.T) {
	t.Parallel()
	q := opened(t, Notify(), PollInterval(time.Hour))
	got := waiting(t, q)
	eventually(t, "the queue hears itself", q.Listening)
	tx := beginPgx(t, q)
	ok(t, tx.Enqueue(queue.Job{Kind: "k"}))
	ok(t, tx.Commit())
	select {
	case d := <-got:
		if d.Kind != "k" {
			t.Errorf("received %+v", d)
		}
	case <-time.After(patience):
		t.Fatal("the notification has not woken the Receive")
	}
}

// The connection that listens is half-open: it takes nothing and says nothing, and
// nobody is told (pg-boss #850). The queue hears itself; then the network swallows
// everything on that connection; a job is enqueued. It comes within the poll interval,
// the probe finds out what has happened, and when the network is well again the next
// connection hears.
func TestHalfOpenListener(t *testing.T) {
	t.Parallel()
	server := shared.Get(t)
	proxy, err := faultproxy.Start(server.Addr())
	ok(t, err)
	t.Cleanup(proxy.Stop)
	const poll = 300 * time.Millisecond
	logged := make(logs, 10)
	q := opened(t, Notify(), PollInterval(poll), Logger(logged.logger()))
	w := &q.wakeups
	w.pool = pool(t, strings.Replace(server.URL(), server.Addr(), proxy.Addr(), 1), nil)
	w.probeEvery, w.probeLimit, w.retryMin, w.retryMax = 100*time.Millisecond, 500*time.Millisecond, 10*time.Millisecond, 50*time.Millisecond

	got := waiting(t, q)
	eventually(t, "the queue hears itself", q.Listening)
	proxy.SetBoth(faultproxy.Faults{BlackHole: true})
	q.enqueued(t, queue.Job{Kind: "k"})
	select {
	case d := <-got:
		// The lag is the server's, from the commit to the claim, so a slow test does not
		// count; a poll may take a moment itself.
		if d.Lag > poll+200*time.Millisecond {
			t.Errorf("the job came after %v, it is polled for every %v", d.Lag, poll)
		}
	case <-time.After(patience):
		t.Fatal("no job")
	}
	eventually(t, "the queue knows that it hears nothing", func() bool { return !q.Listening() })
	select {
	case line := <-logged:
		contains(t, errors.New(line), "notifications do not arrive")
	case <-time.After(patience):
		t.Fatal("nothing was logged")
	}
	proxy.Heal()
	eventually(t, "the queue hears itself again", q.Listening)
}

// Close ends the listener, also before it was begun, and twice.
func TestCloseEndsTheListener(t *testing.T) {
	t.Parallel()
	for _, begun := range []bool{false, true} {
		q := opened(t, Notify())
		if begun {
			_, err := q.Receive(t.Context(), queue.Request{Max: 1, Wait: time.Millisecond, Lease: time.Minute})
			ok(t, err)
			eventually(t, "the queue hears itself", q.Listening)
		}
		q.Close()
		q.Close()
		if begun {
			<-q.wakeups.ended
		}
		q.wakeups.listen() // a Receive that comes late
		if q.Listening() || q.wakeups.started != begun {
			t.Error("it listens after Close")
		}
		_, err := q.Receive(t.Context(), queue.Request{Max: 1, Wait: time.Second, Lease: time.Minute})
		if !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("Receive after Close: %v", err)
		}
	}
}
