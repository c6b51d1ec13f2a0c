package sqsqueue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/sqsqueue/internal/sqsfake"
)

// A poll waits at the server; its caller's context ends; a job is enqueued, which the
// poll claims; nobody is there any more (superlog #280: such messages stay hidden for
// their lease, time after time, until they die in the dead-letter queue). Here it is given
// back at once.
func TestCancelledPollGivesBack(t *testing.T) {
	for _, name := range []string{"q", "q.fifo"} {
		inBubble(t, name, Options{}, func(w *world) {
			ctx, cancel := context.WithCancel(w.Context())
			ended := make(chan error)
			go func() {
				_, err := w.q.Receive(ctx, queue.Request{Max: 10, Wait: 20 * time.Second, Lease: time.Hour})
				ended <- err
			}()
			time.Sleep(time.Second) // it waits
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) || isUnavailable(err) {
				w.Fatalf("Receive: %v, want context.Canceled", err)
			}
			w.enqueue(keyed("k", "key"))
			time.Sleep(time.Second)
			if d := w.one(time.Hour); d.Attempt != 2 {
				w.Errorf("attempt %d, want 2: the poll's receive has counted", d.Attempt)
			}
			if m := w.q.Metrics(); m.PollsLeft != 1 || m.GivenBack != 1 {
				w.Errorf("%d polls were left, %d messages given back, want 1, 1", m.PollsLeft, m.GivenBack)
			}
		})
	}
}

// Close waits for such a poll, and cuts it when its context ends.
func TestClose(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		leave := func() {
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			defer cancel()
			if _, err := w.q.Receive(ctx, queue.Request{Max: 1, Wait: 20 * time.Second, Lease: time.Hour}); !isUnavailable(err) {
				w.Errorf("Receive: %v, want ErrUnavailable", err)
			}
		}
		leave()
		start := time.Now()
		must(w, w.q.Close(w.Context()))
		if took := time.Since(start); took != 19*time.Second {
			w.Errorf("Close took %v, want the rest of the poll", took)
		}
		leave()
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if err := w.q.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			w.Errorf("Close: %v after %v", err, time.Since(start))
		}
		time.Sleep(time.Minute) // the other end of the poll
	})
}

// Stop while a poll waits: the poll is not cut; the job that it brings a second before its
// end is given back, to be had by another worker at once.
func TestStopDrainsThePoll(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		called := 0
		worker := w.worker(queue.WorkerOptions{Lease: time.Hour, Handlers: map[string]queue.Handler{"k": {Job: func(context.Context, queue.Delivery) error { called++; return nil }}}})
		time.Sleep(time.Second)
		stopped := make(chan error)
		go func() { stopped <- worker.Stop(w.Context()) }()
		time.Sleep(18 * time.Second)
		select {
		case <-stopped:
			w.Fatal("Stop has not waited for the poll")
		default:
		}
		w.enqueue(job("k"))
		must(w, <-stopped)
		w.one(time.Hour)
		if s := worker.Stats(); called != 0 || s.HandedBack != 1 || s.InHand != 0 {
			w.Errorf("%d calls, %+v", called, s)
		}
	})
}

// A worker prefetches ten jobs with a lease of 2 s and works on one at a time, 3 s each;
// another worker looks for work all the time (dramatiq_sqs #59: what was prefetched
// expires, and is done twice): one delivery of each.
func TestPrefetchedJobsAreExtended(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		for range 10 {
			w.enqueue(job("k"))
		}
		var calls, running atomic.Int64
		o := queue.WorkerOptions{Lease: 2 * time.Second, Concurrency: 1, Batch: 10, Handlers: map[string]queue.Handler{"k": {Job: func(context.Context, queue.Delivery) error {
			calls.Add(1)
			running.Add(1)
			time.Sleep(3 * time.Second)
			running.Add(-1)
			return nil
		}}}}
		one := w.worker(o)
		w.until("the first worker holds all", func() bool { return one.Stats().InHand == 10 })
		other := w.worker(o)
		w.until("all are done", func() bool { return one.Stats().Done == 10 })
		if calls.Load() != 10 || other.Stats().Received != 0 || len(w.fake.Messages("q")) != 0 {
			w.Errorf("%d calls, the other worker has received %d", calls.Load(), other.Stats().Received)
		}
		must(w, one.Stop(w.Context()))
		must(w, other.Stop(w.Context()))
	})
}

// A handler takes 10 s with a lease of 3 s, though every second Extend fails for its
// entry: one delivery.
func TestExtendIsTriedAgain(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		var n atomic.Int64
		w.fake.SetFault(func(c sqsfake.Call) sqsfake.Fault {
			if c.Op != "ChangeMessageVisibilityBatch" || n.Add(1)%2 == 0 {
				return sqsfake.Fault{}
			}
			return sqsfake.Fault{Entry: func(int) *sqsfake.Error { return internal }}
		})
		w.enqueue(job("k"))
		worker := w.worker(queue.WorkerOptions{Lease: 3 * time.Second, Handlers: map[string]queue.Handler{"k": {Job: func(context.Context, queue.Delivery) error {
			time.Sleep(10 * time.Second)
			return nil
		}}}})
		w.until("it is done", func() bool { return worker.Stats().Done == 1 })
		must(w, worker.Stop(w.Context()))
		if s, m := worker.Stats(), w.q.Metrics(); s.Received != 1 || m.EntryRetries == 0 || m.Extended == 0 || m.Deleted != 1 {
			w.Errorf("%+v, %+v; want one delivery, extended, with entries that were sent again, and one message deleted", s, m)
		}
	})
}

// The lease ends and the same Queue receives the message again, while the first handler
// is at work still. That one's Ack deletes with the newest handle: an old one deletes
// nothing and says that it had. Its other calls are refused.
func TestNewestHandleWins(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		w.enqueue(job("k"))
		old := w.one(time.Second)
		time.Sleep(2 * time.Second)
		d := w.one(time.Hour)
		for name, err := range map[string]error{
			"Extend": w.q.Extend(w.Context(), time.Minute, old.Token),
			"Nack":   w.q.Nack(w.Context(), queue.Return{Token: old.Token}),
			"Dead":   w.q.Dead(w.Context(), queue.Death{Token: old.Token}),
		} {
			if err := queue.ErrorOf(err, 0); err != queue.ErrLeaseLost {
				w.Errorf("%s under the old handle: %v, want ErrLeaseLost", name, err)
			}
		}
		must(w, w.q.Ack(w.Context(), old.Token))
		if n := len(w.fake.Messages("q")); n != 0 {
			w.Errorf("%d messages are left", n)
		}
		must(w, w.q.Ack(w.Context(), d.Token)) // twice is fine
		if n := w.q.Metrics().Held; n != 0 {
			w.Errorf("%d messages are held", n)
		}
	})
}

// SQS lets nobody hold a message for longer than 12 h: what would go beyond is cut.
func TestTwelveHours(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		w.enqueue(job("k"))
		d := w.one(6 * time.Hour)
		time.Sleep(5 * time.Hour)
		must(w, w.q.Extend(w.Context(), 12*time.Hour, d.Token))
		if left := w.fake.Messages("q")[0].Left; left > 7*time.Hour || left < 7*time.Hour-time.Minute {
			w.Errorf("hidden for %v, want the rest of 12 h", left)
		}
		time.Sleep(7*time.Hour - 5*time.Second)
		if err := queue.ErrorOf(w.q.Extend(w.Context(), time.Hour, d.Token), 0); err == nil || !strings.Contains(err.Error(), "12 h") {
			w.Errorf("Extend at the end: %v", err)
		}
	})
}

// One message was received by somebody else for every place in flight: SQS answers
// empty, as if there was nothing. That is told, once a minute.
func TestFloodIsTold(t *testing.T) {
	log := &logged{}
	inBubble(t, "q", Options{Logger: log.logger()}, func(w *world) {
		w.enqueue(job("k"))
		w.fake.PretendInFlight("q", maxInFlight)
		for range 5 {
			if ds, err := w.q.Receive(w.Context(), queue.Request{Max: 1, Wait: 20 * time.Second, Lease: time.Hour}); len(ds) > 0 || err != nil {
				w.Fatalf("Receive: %v, %v", ds, err)
			}
		}
		if n := w.q.Metrics().Floods; n != 2 || strings.Count(log.String(), "too many messages are in flight") != 2 {
			w.Errorf("%d warnings in 100 s, want 2:\n%s", n, log)
		}
		_, err := w.q.Receive(w.Context(), queue.Request{Max: 1, Lease: time.Hour})
		mentions(w, err, "in flight", "OverLimit")
		w.fake.PretendInFlight("q", 0)
		w.one(time.Hour)
	})
}

// Messages of others are kept like jobs of an unknown kind, and a replay sends them as
// they were.
func TestForeignMessages(t *testing.T) {
	for _, body := range []string{"hello", `{"kind":"k"}`, `{"onefill":2,"kind":"k","dedupe":"d","payload":1}`, `{"onefill":1,"kind":"two words","dedupe":"d","payload":1}`,
		`{"onefill":1,"kind":"k","payload":1}`, `{"onefill":1,"kind":"k","dedupe":"d","version":"x","payload":1}`, "\"\\ é 😀"} {
		inBubble(t, "q", Options{}, func(w *world) {
			_, err := w.client.SendMessage(w.Context(), &sqs.SendMessageInput{QueueUrl: &w.q.url, MessageBody: &body})
			must(w, err)
			worker := w.worker(queue.WorkerOptions{MaxAttempts: 2, RetryMin: time.Second, RetryMax: time.Second,
				Handlers: map[string]queue.Handler{"k": {Job: func(context.Context, queue.Delivery) error { w.Error("called"); return nil }}}})
			w.until("it is dead", func() bool { return worker.Stats().Dead == 1 })
			must(w, worker.Stop(w.Context()))
			ls, err := w.q.ListDead(w.Context(), queue.DeadQuery{})
			must(w, err)
			if len(ls) != 1 || ls[0].Kind != RawKind {
				w.Fatalf("letters: %+v", ls)
			}
			if m := w.q.Metrics(); m.Foreign != 2 || m.Received != 2 || m.Returned != 1 || m.Buried != 1 {
				w.Errorf("%+v, want two deliveries, both foreign, one given back and one buried", m)
			}
			_, err = w.q.ReplayDead(w.Context(), ls[0].ID)
			must(w, err)
			if ms := w.fake.Messages("q"); len(ms) != 1 || ms[0].Body != body {
				w.Errorf("after the replay: %+v, want %q", ms, body)
			}
		})
	}
}

// The numbers that a delivery tells, by the queue's clock.
func TestAgeAndLag(t *testing.T) {
	for _, name := range []string{"q", "q.fifo"} {
		inBubble(t, name, Options{}, func(w *world) {
			j := keyed("k", "key")
			j.Delay = 10 * time.Second
			w.enqueue(j)
			if ds := w.receive(1, time.Minute); len(ds) > 0 {
				w.Fatal("delivered before it is due")
			}
			time.Sleep(15 * time.Second)
			d := w.one(time.Minute)
			if d.Attempt != 1 || d.Lag.Round(time.Second) != 5*time.Second || d.Age.Round(time.Second) != 15*time.Second {
				w.Errorf("attempt %d, lag %v, age %v, want 1, 5s, 15s", d.Attempt, d.Lag, d.Age)
			}
			if left := time.Until(d.Deadline); left > time.Minute || left < 58*time.Second {
				w.Errorf("the deadline is in %v, want a minute, rather less", left)
			}
			time.Sleep(time.Minute + time.Second)
			if d = w.one(time.Minute); d.Attempt != 2 || d.Lag != 0 || d.Age.Round(time.Second) != 76*time.Second {
				w.Errorf("attempt %d, lag %v, age %v, want 2, 0, 76s", d.Attempt, d.Lag, d.Age)
			}
		})
	}
}

// What nobody settles is forgotten some time after its lease.
func TestClaimsAreBounded(t *testing.T) {
	var cs claims
	now := time.Now()
	for i := range 100_000 {
		cs.add(&claim{id: fmt.Sprint(i), handle: "h", deadline: now.Add(-2 * forgetAfter)})
	}
	if n := cs.count(); n > leastSweep {
		t.Errorf("%d claims are kept, want at most %d", n, leastSweep)
	}
}
