package queue

import (
	"context"
	"errors"
	"time"
)

// settlement is the end of a job that the queue is to be told of.
type settlement struct {
	op        settleOp
	uncounted bool
	event     EventKind // what has happened when the queue has heard of it
	err       error     // the event's
	text      string    // err for the queue
	reason    string    // of a death
	delay     time.Duration
	took      time.Duration
	since     time.Time
}

type settleOp uint8

const (
	opAck settleOp = iota
	opNack
	opDead
	settleOps
)

// The pause before a settlement is tried again grows from the first to the second, and
// is no longer than a sixth of the lease.
const (
	settlePauseMin = 100 * time.Millisecond
	settlePauseMax = 5 * time.Second
)

// settleLater hands the end of a job to the goroutine that talks to the queue, so that
// ends which come while it talks are told together. mu is held.
func (w *Worker) settleLater(h *held, s settlement) {
	s.since = time.Now()
	h.end = s
	h.stage = ended
	h.returning = s.op != opAck
	w.unsettled = append(w.unsettled, h)
	ring(w.settling)
}

// ending is an event about the end of a job.
func (h *held) ending(kind EventKind, err error) Event {
	e := event(kind, &h.d)
	e.Took, e.Err = h.end.took, err
	return e
}

// settle tells the queue of ends until the worker is done.
func (w *Worker) settle(ctx context.Context) {
	var again []*held
	failures := 0
	retry := time.NewTimer(0)
	<-retry.C
	armed := false
	for {
		var todo []*held
		select {
		case <-w.done:
			return
		case <-w.settling:
			todo = w.takeUnsettled()
		case <-retry.C:
			armed = false
			todo, again = again, nil
		}
		failed := w.tellQueue(ctx, todo)
		again = append(again, failed...)
		if len(failed) > 0 {
			failures++
		} else if len(todo) > 0 {
			failures = 0
		}
		if len(again) > 0 && !armed {
			armed = true
			retry.Reset(w.settlePause(failures))
		}
	}
}

func (w *Worker) settlePause(failures int) time.Duration {
	most := max(min(settlePauseMax, w.opts.Lease/6), 2)
	return jitter(min(settlePauseMin<<min(max(failures-1, 0), 10), most))
}

// takeUnsettled takes what can be told now. A job is not given back while an Extend of
// its lease is under way: it might be applied after the return, and keep the job away.
func (w *Worker) takeUnsettled() []*held {
	w.mu.Lock()
	defer w.mu.Unlock()
	var now, later []*held
	for _, h := range w.unsettled {
		if h.extending > 0 && h.returning {
			later = append(later, h)
		} else {
			now = append(now, h)
		}
	}
	w.unsettled = later
	return now
}

// tellQueue returns what is to be tried again.
func (w *Worker) tellQueue(ctx context.Context, todo []*held) (again []*held) {
	var byOp [settleOps][]*held
	for _, h := range todo {
		byOp[h.end.op] = append(byOp[h.end.op], h)
	}
	for op, hs := range byOp {
		if len(hs) == 0 {
			continue
		}
		start := time.Now()
		err := w.callQueue(ctx, settleOp(op), hs)
		again = append(again, w.settled(hs, err, time.Since(start))...)
	}
	return again
}

func (w *Worker) callQueue(ctx context.Context, op settleOp, hs []*held) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch op {
	case opAck:
		tokens := make([]Token, len(hs))
		for i, h := range hs {
			tokens[i] = h.d.Token
		}
		return w.opts.Queue.Ack(ctx, tokens...)
	case opNack:
		returns := make([]Return, len(hs))
		for i, h := range hs {
			returns[i] = Return{Token: h.d.Token, Delay: h.end.delay, Err: h.end.text, Uncounted: h.end.uncounted}
		}
		return w.opts.Queue.Nack(ctx, returns...)
	default:
		deaths := make([]Death, len(hs))
		for i, h := range hs {
			deaths[i] = Death{Token: h.d.Token, Reason: h.end.reason, Err: h.end.text}
		}
		return w.opts.Queue.Dead(ctx, deaths...)
	}
}

// settled notes what a call of the queue has come to.
func (w *Worker) settled(hs []*held, err error, took time.Duration) (again []*held) {
	var events []Event
	var failure error
	w.mu.Lock()
	for i, h := range hs {
		switch result := ErrorOf(err, i); {
		case result == nil:
			e := h.ending(h.end.event, h.end.err)
			e.Delay = h.end.delay
			events = w.heard(events, w.drop(h, e))
		case errors.Is(result, ErrLeaseLost), errors.Is(result, ErrUnknown):
			events = append(events, w.drop(h, h.ending(EventLeaseLost, h.end.err)))
		case time.Since(h.end.since) >= w.opts.Lease:
			events = append(events, w.drop(h, h.ending(EventAbandoned, result)))
		default:
			failure = result
			again = append(again, h)
		}
	}
	if failure != nil {
		events = append(events, w.count(Event{Kind: EventSettleError, Took: took, Err: failure}))
	}
	w.drained()
	w.mu.Unlock()
	ring(w.room)
	w.tell(events...)
	return again
}
