package queue

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Observer hears of what a worker does. It is called from the goroutines that do it,
// with no lock held; it must be quick and safe for concurrent use. Its panics are
// caught and logged.
type Observer interface {
	Observe(Event)
}

// ObserverFunc is a function as an Observer.
type ObserverFunc func(Event)

// Observe calls the function.
func (f ObserverFunc) Observe(e Event) { f(e) }

// Event is one thing that happened. The fields about the job are empty where no single
// job is meant.
type Event struct {
	Kind    EventKind
	JobKind string
	Key     string
	ID      string
	Attempt int
	Lag     time.Duration // for how long the job had been due when it was claimed
	Took    time.Duration // the call of the handler, or of the queue
	Delay   time.Duration // until the job comes back
	Err     error         // the cause, where there is one
}

// EventKind is the kind of an Event.
type EventKind uint8

// The kinds of events. Each job that was received comes to one of the ends from
// EventDone to EventAbandoned.
const (
	EventReceived EventKind = iota + 1 // a job was claimed; Lag

	EventDone       // a job was done and acknowledged; Lag, Took
	EventRetry      // an attempt failed and the job was given back; Delay, Took, Err
	EventPostponed  // a job was given back uncounted, as its handler wished; Delay, Took, Err
	EventDead       // a job went to the dead letters; Took, Err
	EventHandedBack // a job was given back that was not begun, or that Stop has cut short
	EventLeaseLost  // somebody else has the job, or it is gone; Err is the handler's, if there is one
	EventAbandoned  // the queue could not be told of the end; the job comes back at its lease's end; Err

	EventUnknown      // a job of a kind without a handler was claimed
	EventOverrun      // a handler has run for its MaxRunTime, its lease is not extended any more; Took
	EventReceiveError // Receive failed; Err
	EventExtendError  // leases could not be extended in time; tried again; Err
	EventSettleError  // the end of a job could not be told to the queue; tried again; Err

	eventKinds
)

var eventNames = [eventKinds]string{
	EventReceived: "received", EventDone: "done", EventRetry: "retry", EventPostponed: "postponed", EventDead: "dead",
	EventHandedBack: "handed back", EventLeaseLost: "lease lost", EventAbandoned: "abandoned", EventUnknown: "unknown kind",
	EventOverrun: "overrun", EventReceiveError: "receive error", EventExtendError: "extend error", EventSettleError: "settle error",
}

func (k EventKind) String() string {
	if k > 0 && k < eventKinds {
		return eventNames[k]
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// unlogged is the level of what nobody needs to read.
const unlogged = slog.LevelDebug - 1

// levels are those of the log.
var levels = [eventKinds]slog.Level{
	EventReceived: unlogged, EventDone: unlogged, EventHandedBack: unlogged,
	EventRetry: slog.LevelWarn, EventPostponed: slog.LevelWarn, EventDead: slog.LevelError, EventLeaseLost: slog.LevelWarn,
	EventAbandoned: slog.LevelError, EventUnknown: slog.LevelWarn, EventOverrun: slog.LevelError,
	EventReceiveError: slog.LevelError, EventExtendError: slog.LevelWarn, EventSettleError: slog.LevelWarn,
}

// WorkerStats are counters since NewWorker. Each job that was received is counted in
// one of Done, Retried, Postponed, Dead, HandedBack, LeaseLost and Abandoned when it has
// come to that end, and in InHand until then.
type WorkerStats struct {
	Received   int64
	Done       int64 // acknowledged
	Retried    int64 // attempts that failed, the job was given back
	Postponed  int64 // given back uncounted, as the handler wished
	Dead       int64 // moved to the dead letters
	HandedBack int64 // given back before they were begun, or cut short by Stop
	LeaseLost  int64
	Abandoned  int64 // the queue could not be told

	Unknown       int64 // of the received, those of a kind without a handler
	Overruns      int64 // handlers that ran for their MaxRunTime
	ReceiveErrors int64
	ExtendErrors  int64
	SettleErrors  int64

	InHand  int // received and not at their end
	Running int // calls of handlers
}

// Stats returns the counters.
func (w *Worker) Stats() WorkerStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := &w.counts
	return WorkerStats{
		Received: n[EventReceived], Done: n[EventDone], Retried: n[EventRetry], Postponed: n[EventPostponed], Dead: n[EventDead],
		HandedBack: n[EventHandedBack], LeaseLost: n[EventLeaseLost], Abandoned: n[EventAbandoned],
		Unknown: n[EventUnknown], Overruns: n[EventOverrun],
		ReceiveErrors: n[EventReceiveError], ExtendErrors: n[EventExtendError], SettleErrors: n[EventSettleError],
		InHand: len(w.held), Running: w.running,
	}
}

// event is one about a job.
func event(kind EventKind, d *Delivery) Event {
	return Event{Kind: kind, JobKind: d.Kind, Key: d.Key, ID: d.ID, Attempt: d.Attempt, Lag: d.Lag}
}

// heard adds an event to events if somebody is there to hear it. Most are about jobs that
// came and were done, many at a time, and those only the observer hears.
func (w *Worker) heard(events []Event, e Event) []Event {
	if w.opts.Observer == nil && levels[e.Kind] == unlogged {
		return events
	}
	return append(events, e)
}

// tell logs an event that was counted and calls the observer. No lock is held.
func (w *Worker) tell(events ...Event) {
	for _, e := range events {
		w.logEvent(e)
		if w.opts.Observer != nil {
			w.observe(e)
		}
	}
}

func (w *Worker) observe(e Event) {
	defer func() {
		if r := recover(); r != nil {
			w.log.Error("queue: the observer panicked", "event", e.Kind.String(), "panic", r)
		}
	}()
	w.opts.Observer.Observe(e)
}

func (w *Worker) logEvent(e Event) {
	level := levels[e.Kind]
	if level == unlogged {
		return
	}
	var attrs []slog.Attr
	if e.ID != "" {
		attrs = append(attrs, slog.String("kind", e.JobKind), slog.String("id", e.ID), slog.String("key", e.Key), slog.Int("attempt", e.Attempt))
	}
	if e.Delay > 0 {
		attrs = append(attrs, slog.Duration("delay", e.Delay))
	}
	if e.Took > 0 {
		attrs = append(attrs, slog.Duration("took", e.Took))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.Any("error", e.Err))
	}
	if stack := stackOf(e.Err); stack != "" {
		attrs = append(attrs, slog.String("stack", stack))
	}
	w.log.LogAttrs(context.Background(), level, "queue: "+e.Kind.String(), attrs...)
}
