package otelonefill_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/otelonefill"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/memqueue"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// A worker on a real queue, with spans around its handlers: one job done, one of a kind that is
// done in batches, one that panics.
func TestQueue(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		p := newProgram(t, otelonefill.Options{Every: time.Nanosecond})
		w, err := queue.NewWorker(queue.WorkerOptions{
			Queue: q,
			Handlers: map[string]queue.Handler{
				"mail": p.Handler("jobs", queue.Handler{Job: func(ctx context.Context, d queue.Delivery) error {
					if !trace.SpanFromContext(ctx).IsRecording() {
						t.Error("the handler's context carries no span")
					}
					if d.Key == "bob" {
						panic("bob has moved")
					}
					return nil
				}, MaxAttempts: 1}),
				"bulk": p.Handler("jobs", queue.Handler{Batch: func(_ context.Context, ds []queue.Delivery) []error {
					errs := make([]error, len(ds))
					errs[0] = errors.New("refused")
					return errs
				}, MaxAttempts: 1}),
			},
			Observer: p.QueueObserver("jobs", "mail"),
			Logger:   quiet(),
		})
		check(t, err)
		check(t, errors.Join(p.AddWorker("jobs", w), p.AddQueue("jobs", q)))

		ids, err := p.Send(t.Context(), "jobs", "mail", func(ctx context.Context) ([]string, error) {
			return q.Enqueue(ctx, queue.Job{Kind: "mail", Key: "ann"})
		})
		check(t, err)
		_, err = q.Enqueue(t.Context(), queue.Job{Kind: "mail", Key: "bob"}, queue.Job{Kind: "bulk"}, queue.Job{Kind: "bulk"})
		check(t, err)
		time.Sleep(time.Second)
		expect(t, p.collect(t), map[string]sample{
			"onefill.queue.lag{onefill.queue=jobs}":                      {value: 1},
			"onefill.queue.jobs{onefill.queue=jobs,onefill.state=ready}": {value: 4},
			"onefill.queue.received{onefill.queue=jobs}":                 {},
		})
		check(t, w.Start(t.Context()))
		time.Sleep(time.Minute)
		synctest.Wait()
		check(t, w.Stop(t.Context()))

		expect(t, p.collect(t), map[string]sample{
			"onefill.queue.finished{onefill.outcome=done,onefill.queue=jobs}":                  {value: 2},
			"onefill.queue.finished{onefill.outcome=dead,onefill.queue=jobs}":                  {value: 2},
			"onefill.queue.dead{onefill.queue=jobs}":                                           {value: 2},
			"onefill.queue.up{onefill.queue=jobs}":                                             {value: 1},
			"onefill.job.lag{onefill.kind=mail,onefill.queue=jobs}":                            {2, 2},
			"onefill.job.attempts{onefill.kind=mail,onefill.outcome=done,onefill.queue=jobs}":  {1, 1},
			"onefill.job.attempts{onefill.kind=other,onefill.outcome=dead,onefill.queue=jobs}": {1, 1},
		})
		p.checkJobSpans(t, ids[0])
		if !p.RemoveQueue("jobs") || p.RemoveQueue("jobs") {
			t.Error("RemoveQueue does not tell")
		}
	})
}

func (p *program) checkJobSpans(t *testing.T, id string) {
	t.Helper()
	send := p.one(t, "send mail")
	if send.SpanKind() != trace.SpanKindProducer || attr(send, "messaging.message.id") != id {
		t.Errorf("the producer's span: %v %v", send.SpanKind(), send.Attributes())
	}
	var done, panicked sdktrace.ReadOnlySpan
	for _, s := range p.named("process mail") {
		if attr(s, "messaging.message.id") == id {
			done = s
		} else {
			panicked = s
		}
	}
	if done == nil || done.SpanKind() != trace.SpanKindConsumer || done.Status().Code != codes.Unset || attr(done, "onefill.job.attempt") != "1" {
		t.Errorf("the span of the job that was done: %v", done)
	}
	if panicked == nil || attr(panicked, "error.type") != "panic" || panicked.Status().Code != codes.Error || panicked.Status().Description != "" {
		t.Errorf("the span of the job that panicked: %v", panicked)
	}
	if bulk := p.one(t, "process bulk"); attr(bulk, "messaging.batch.message_count") != "2" || attr(bulk, "error.type") != "_OTHER" {
		t.Errorf("the span of the batch: %v", bulk.Attributes())
	}
}

type backend func(ctx context.Context) (queue.Stats, error)

func (b backend) Stats(ctx context.Context) (queue.Stats, error) { return b(ctx) }

// A collection with queues that do not answer comes back after Timeout, with everything else.
func TestCollectionOfAQueueThatHangs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		never := make(chan struct{})
		defer close(never)
		p := newProgram(t, otelonefill.Options{Timeout: time.Second})
		for i := range 3 {
			check(t, p.AddQueue(fmt.Sprint("hangs", i), backend(func(context.Context) (queue.Stats, error) {
				<-never
				return queue.Stats{}, nil
			})))
		}
		check(t, p.Add("users", &fixed{Loads: 4}))
		start := time.Now()
		got := p.collect(t)
		if took := time.Since(start); took != time.Second {
			t.Errorf("it took %v, want 1s", took)
		}
		expect(t, got, map[string]sample{
			"onefill.loads{onefill.cache=users}":     {value: 4},
			"onefill.queue.up{onefill.queue=hangs0}": {value: 0},
			"onefill.queue.up{onefill.queue=hangs2}": {value: 0},
		})
		if _, ok := got["onefill.queue.lag{onefill.queue=hangs0}"]; ok {
			t.Error("a lag is told of a queue that has not told it")
		}
	})
}
