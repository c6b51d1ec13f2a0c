package otelonefill

import (
	"context"
	"errors"
	"fmt"

	"github.com/onefill/onefill/metrics"
	"github.com/onefill/onefill/queue"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

const (
	queueName  = attribute.Key("onefill.queue")
	kindName   = attribute.Key("onefill.kind")
	jobAttempt = attribute.Key("onefill.job.attempt")
)

// Worker is what a [Telemetry] reads: a *queue.Worker.
type Worker interface {
	Stats() queue.WorkerStats
}

// Queue is what a [Telemetry] asks: a queue.Queue of any sort.
type Queue interface {
	Stats(ctx context.Context) (queue.Stats, error)
}

// AddWorker shows the numbers of a worker from now on, as onefill.queue=name. It is an error if
// a worker of that name is shown already.
func (t *Telemetry) AddWorker(name string, w Worker) error {
	if w == nil {
		return fmt.Errorf("otelonefill: the worker to add as %q is nil", name)
	}
	return add(t, t.working, "worker", name, newSource(t.workers, func(context.Context) workerStats { return w.Stats() }, queueName.String(name)))
}

// AddQueue shows the numbers that a queue's backend tells (jobs, lag, dead letters), as
// onefill.queue=name. The backend is asked once in Options.Every at the most, and no collection
// waits longer than Options.Timeout. One process of a fleet is enough to ask.
// It is an error if a queue of that name is shown already.
func (t *Telemetry) AddQueue(name string, q Queue) error {
	if q == nil {
		return fmt.Errorf("otelonefill: the queue to add as %q is nil", name)
	}
	poll := metrics.NewPoll(q, t.opts.Every, t.opts.Timeout)
	return add(t, t.queues, "queue", name, newSource(t.backends, poll.Get, queueName.String(name)))
}

// RemoveQueue ends the showing of the numbers of the worker and of the queue of that name. It
// says whether there was one.
func (t *Telemetry) RemoveQueue(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	w, q := t.working[name] != nil, t.queues[name] != nil
	delete(t.working, name)
	delete(t.queues, name)
	delete(t.observers, name)
	return w || q
}

// QueueObserver returns what to set as WorkerOptions.Observer, for the histograms. Jobs are told
// apart by those kinds that are given; the others count as onefill.kind=other, so that what lies in
// a queue does not make series without end. Asked again for the same name, it returns the same
// one, and the kinds are added.
func (t *Telemetry) QueueObserver(name string, kinds ...string) queue.Observer {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.observers[name]
	if o == nil {
		o = metrics.NewKinds(func(kind string) *recorder {
			return newRecorder(t.queueHist, queueName.String(name), kindName.String(kind))
		})
		t.observers[name] = o
	}
	o.Know(kinds...)
	return o
}

type kinds = metrics.Kinds[*recorder]

// Handler returns h with a consumer's span around each call: "process KIND", a child of what the
// context of Worker.Start holds, usually nothing. The handler's context carries it.
func (t *Telemetry) Handler(name string, h queue.Handler) queue.Handler {
	if job := h.Job; job != nil {
		h.Job = func(ctx context.Context, d queue.Delivery) (err error) {
			ctx, span := t.process(ctx, name, d.Kind, messageID.String(d.ID), jobAttempt.Int(d.Attempt))
			err = errUnfinished // until job has returned
			defer func() { t.finish(span, err) }()
			return job(ctx, d)
		}
	}
	if batch := h.Batch; batch != nil {
		h.Batch = func(ctx context.Context, ds []queue.Delivery) (errs []error) {
			ctx, span := t.process(ctx, name, ds[0].Kind, batchCount.Int(len(ds)))
			errs = []error{errUnfinished}
			defer func() { t.finish(span, queue.Errors(errs).Err()) }()
			return batch(ctx, ds)
		}
	}
	return h
}

// errUnfinished is the result of a handler that panics or exits.
var errUnfinished = errors.New("the handler panicked or exited")

// Attributes of OpenTelemetry's conventions for messaging.
const (
	messageID  = attribute.Key("messaging.message.id")
	batchCount = attribute.Key("messaging.batch.message_count")
)

func messaging(name, op, kind string, more []attribute.KeyValue) trace.SpanStartOption {
	return trace.WithAttributes(append(more,
		attribute.String("messaging.system", "onefill"),
		attribute.String("messaging.operation.name", op),
		attribute.String("messaging.operation.type", op),
		attribute.String("messaging.destination.name", name),
		kindName.String(kind))...)
}

func (t *Telemetry) process(ctx context.Context, name, kind string, more ...attribute.KeyValue) (context.Context, trace.Span) {
	return t.tracer.Start(ctx, "process "+kind, trace.WithSpanKind(trace.SpanKindConsumer), messaging(name, "process", kind, more))
}

// finish ends the span of a job's way.
func (t *Telemetry) finish(span trace.Span, err error) {
	switch {
	case errors.Is(err, errUnfinished):
		t.failed(span, "panic", err)
	case err != nil:
		t.failed(span, "_OTHER", err)
	}
	span.End()
}

// Send puts a producer's span, "send KIND", around what enqueues jobs of one kind and returns
// their IDs:
//
//	ids, err := tel.Send(ctx, "jobs", "mail", func(ctx context.Context) ([]string, error) {
//		return q.EnqueueTx(ctx, tx, job)
//	})
func (t *Telemetry) Send(ctx context.Context, name, kind string, enqueue func(context.Context) ([]string, error)) ([]string, error) {
	ctx, span := t.tracer.Start(ctx, "send "+kind, trace.WithSpanKind(trace.SpanKindProducer), messaging(name, "send", kind, nil))
	ids, err := enqueue(ctx)
	if len(ids) == 1 {
		span.SetAttributes(messageID.String(ids[0]))
	} else {
		span.SetAttributes(batchCount.Int(len(ids)))
	}
	t.finish(span, err)
	return ids, err
}
