package promonefill_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/promonefill"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/memqueue"
)

// counted is a queue of which only the numbers exist.
type counted struct {
	queue.Stats
	err error
}

func (c counted) stats() (queue.Stats, error) { return c.Stats, c.err }

type backend func(ctx context.Context) (queue.Stats, error)

func (b backend) Stats(ctx context.Context) (queue.Stats, error) { return b(ctx) }

type worker queue.WorkerStats

func (w worker) Stats() queue.WorkerStats { return queue.WorkerStats(w) }

// showQueue shows a queue, its worker and their histograms as "jobs".
func showQueue(t testing.TB, q *promonefill.QueueCollector) queue.Observer {
	t.Helper()
	c := counted{Stats: queue.Stats{Lag: time.Second}}
	check(t, q.AddQueue("jobs", backend(func(context.Context) (queue.Stats, error) { return c.stats() })))
	check(t, q.AddWorker("jobs", worker{}))
	return q.Observer("jobs", "mail")
}

// A worker on a real queue: two jobs done, one that fails twice and is then done, one that
// dies, one of a kind that nobody has named.
func TestQueue(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		m := newQueues(t, promonefill.QueueOptions{Every: time.Nanosecond})
		failures := 2
		w, err := queue.NewWorker(queue.WorkerOptions{
			Queue: q,
			Handlers: map[string]queue.Handler{
				"mail": {Job: func(_ context.Context, d queue.Delivery) error {
					switch {
					case d.Key == "bob":
						return queue.PermanentError(errors.New("bob has moved"))
					case d.Key == "eve" && failures > 0:
						failures--
						return errors.New("no answer")
					}
					time.Sleep(20 * time.Millisecond)
					return nil
				}},
				"fax": {Job: func(context.Context, queue.Delivery) error { return nil }},
			},
			Concurrency: 1,
			RetryMin:    time.Second,
			Observer:    m.Observer("jobs", "mail"),
			Logger:      quiet(),
		})
		check(t, err)
		check(t, m.AddWorker("jobs", w))
		check(t, m.AddQueue("jobs", q))
		for _, key := range []string{"ann", "bob", "eve", "joe"} {
			_, err := q.Enqueue(t.Context(), queue.Job{Kind: "mail", Key: key})
			check(t, err)
		}
		_, err = q.Enqueue(t.Context(), queue.Job{Kind: "fax"}, queue.Job{Kind: "fax", Delay: time.Hour})
		check(t, err)

		time.Sleep(3 * time.Second)
		expect(t, scrape(t, m), map[string]sample{
			`onefill_queue_jobs{queue="jobs",state="ready"}`:     {value: 5},
			`onefill_queue_jobs{queue="jobs",state="not_ready"}`: {value: 1},
			`onefill_queue_lag_seconds{queue="jobs"}`:            {value: 3},
			`onefill_queue_up{queue="jobs"}`:                     {value: 1},
			`onefill_queue_received_total{queue="jobs"}`:         {},
		})
		check(t, w.Start(t.Context()))
		time.Sleep(time.Minute)
		synctest.Wait()

		s := w.Stats()
		got := scrape(t, m)
		expect(t, got, map[string]sample{
			`onefill_queue_received_total{queue="jobs"}`:                             {value: float64(s.Received)},
			`onefill_queue_finished_total{outcome="done",queue="jobs"}`:              {value: 4},
			`onefill_queue_finished_total{outcome="retried",queue="jobs"}`:           {value: 2},
			`onefill_queue_finished_total{outcome="dead",queue="jobs"}`:              {value: 1},
			`onefill_queue_finished_total{outcome="abandoned",queue="jobs"}`:         {},
			`onefill_queue_dead{queue="jobs"}`:                                       {value: 1},
			`onefill_queue_lag_seconds{queue="jobs"}`:                                {},
			`onefill_queue_jobs{queue="jobs",state="not_ready"}`:                     {value: 1},
			`onefill_job_attempts{kind="mail",outcome="done",queue="jobs"}`:          {value: 5, count: 3},
			`onefill_job_attempts{kind="mail",outcome="dead",queue="jobs"}`:          {value: 1, count: 1},
			`onefill_job_attempts{kind="other",outcome="done",queue="jobs"}`:         {value: 1, count: 1},
			`onefill_job_duration_seconds{kind="other",outcome="done",queue="jobs"}`: {count: 1},
		})
		if d := got[`onefill_job_duration_seconds{kind="mail",outcome="done",queue="jobs"}`]; d.count != 3 || d.value < .06 {
			t.Errorf("handlers took %+v, want 3 of 20 ms", d)
		}
		if lag := got[`onefill_job_lag_seconds{kind="mail",queue="jobs"}`]; lag.count != 6 || lag.value < 12 {
			t.Errorf("lags are %+v, want 6, four of them of 3 s", lag)
		}
		if s.Received != 7 {
			t.Errorf("%d received, want 7", s.Received)
		}
		check(t, w.Stop(t.Context()))
	})
}

// A scrape of a queue that does not answer comes back after Timeout, with everything else, and
// says so.
func TestScrapeOfAQueueThatHangs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		never := make(chan struct{})
		defer close(never)
		m := newQueues(t, promonefill.QueueOptions{Timeout: time.Second})
		for i := range 3 { // together they take no longer than one
			check(t, m.AddQueue(fmt.Sprint("hangs", i), backend(func(context.Context) (queue.Stats, error) {
				<-never
				return queue.Stats{}, nil
			})))
		}
		check(t, m.AddWorker("jobs", worker{Received: 9}))
		start := time.Now()
		got := scrape(t, m)
		if took := time.Since(start); took != time.Second {
			t.Errorf("the scrape took %v, want 1s", took)
		}
		expect(t, got, map[string]sample{
			`onefill_queue_up{queue="hangs0"}`:           {value: 0},
			`onefill_queue_up{queue="hangs2"}`:           {value: 0},
			`onefill_queue_received_total{queue="jobs"}`: {value: 9},
		})
		if _, ok := got[`onefill_queue_lag_seconds{queue="hangs0"}`]; ok {
			t.Error("a lag is told of a queue that has not told it")
		}
	})
}

// Numbers that a queue cannot tell are missing, and not -1.
func TestQueueThatCannotTell(t *testing.T) {
	m := newQueues(t, promonefill.QueueOptions{})
	check(t, m.AddQueue("sqs", backend(func(context.Context) (queue.Stats, error) {
		return queue.Stats{Ready: 4, NotReady: 5, Dead: -1, Lag: -1}, nil
	})))
	got := scrape(t, m)
	expect(t, got, map[string]sample{`onefill_queue_jobs{queue="sqs",state="ready"}`: {value: 4}, `onefill_queue_up{queue="sqs"}`: {value: 1}})
	if len(got) != 3 {
		t.Errorf("told: %v", got)
	}
}

func TestAddQueue(t *testing.T) {
	m := newQueues(t, promonefill.QueueOptions{})
	showQueue(t, m)
	for _, err := range []error{m.AddWorker("jobs", worker{}), m.AddQueue("jobs", memqueue.New())} {
		if err == nil || !strings.Contains(err.Error(), `"jobs" is shown already`) {
			t.Error(err)
		}
	}
	for _, err := range []error{m.AddWorker("other", nil), m.AddQueue("other", nil)} {
		if err == nil || !strings.Contains(err.Error(), `"other" is nil`) {
			t.Error(err)
		}
	}
	if m.Observer("jobs", "fax") != m.Observer("jobs") {
		t.Error("two observers for one queue")
	}
	if !m.Remove("jobs") || m.Remove("jobs") || len(scrape(t, m)) != 0 {
		t.Error("Remove does not remove all, or does not tell")
	}
	for _, o := range []promonefill.QueueOptions{{Every: -1}, {Timeout: -1}} {
		if _, err := promonefill.NewQueues(o); err == nil || !strings.Contains(err.Error(), "negative") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// A kind that was not named beforehand makes no series.
func TestKindsAreBounded(t *testing.T) {
	m := newQueues(t, promonefill.QueueOptions{})
	o := m.Observer("jobs", "mail")
	before := scrape(t, m)
	for i := range 100 {
		o.Observe(queue.Event{Kind: queue.EventReceived, JobKind: fmt.Sprint("kind", i), Lag: time.Second})
	}
	after := scrape(t, m)
	if len(before) == 0 || len(after) != len(before) {
		t.Errorf("%d series before, %d after", len(before), len(after))
	}
	expect(t, after, map[string]sample{`onefill_job_lag_seconds{kind="other",queue="jobs"}`: {value: 100, count: 100}})
}
