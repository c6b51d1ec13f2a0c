package queue

import (
	"context"
	"errors"
	"time"
)

// settlement is the end of a job that the queue is to be told of.
type settlement struct {
	h     *held
	op    settleOp
	ret   Return
	death Death
	event Event // what has happened when the queue has heard of it
	since time.Time
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

// settleLater hands a settlement to the goroutine that talks to the queue, so that ends
// which come while it talks are told together. mu is held.
func (w *Worker) settleLater(s *settlement, took time.Duration) {
	s.since = time.Now()
	s.event.Took = took
	s.ret.Token, s.death.Token = s.h.d.Token, s.h.d.Token
	s.h.stage = ended
	s.h.returning = s.op != opAck
	w.unsettled = append(w.unsettled, s)
	ring(w.settling)
}

// settle tells the queue of ends until the worker is done.
func (w *Worker) settle(ctx context.Context) {
	var again []*settlement
	failures := 0
	retry := time.NewTimer(0)
	<-retry.C
	armed := false
	for {
		var todo []*settlement
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
func (w *Worker) takeUnsettled() []*settlement {
	w.mu.Lock()
	defer w.mu.Unlock()
	var now, later []*settlement
	for _, s := range w.unsettled {
		if s.h.extending > 0 && s.h.returning {
			later = append(later, s)
		} else {
			now = append(now, s)
		}
	}
	w.unsettled = later
	return now
}

// tellQueue returns what is to be tried again.
func (w *Worker) tellQueue(ctx context.Context, todo []*settlement) (again []*settlement) {
	var byOp [settleOps][]*settlement
	for _, s := range todo {
		byOp[s.op] = append(byOp[s.op], s)
	}
	for op, ss := range byOp {
		if len(ss) == 0 {
			continue
		}
		start := time.Now()
		err := w.callQueue(ctx, settleOp(op), ss)
		again = append(again, w.settled(ss, err, time.Since(start))...)
	}
	return again
}

func (w *Worker) callQueue(ctx context.Context, op settleOp, ss []*settlement) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch op {
	case opAck:
		tokens := make([]Token, len(ss))
		for i, s := range ss {
			tokens[i] = s.h.d.Token
		}
		return w.opts.Queue.Ack(ctx, tokens...)
	case opNack:
		returns := make([]Return, len(ss))
		for i, s := range ss {
			returns[i] = s.ret
		}
		return w.opts.Queue.Nack(ctx, returns...)
	default:
		deaths := make([]Death, len(ss))
		for i, s := range ss {
			deaths[i] = s.death
		}
		return w.opts.Queue.Dead(ctx, deaths...)
	}
}

// settled notes what a call of the queue has come to.
func (w *Worker) settled(ss []*settlement, err error, took time.Duration) (again []*settlement) {
	var events []Event
	var failure error
	w.mu.Lock()
	for i, s := range ss {
		switch result := ErrorOf(err, i); {
		case result == nil:
			events = append(events, w.drop(s.h, s.event))
		case errors.Is(result, ErrLeaseLost), errors.Is(result, ErrUnknown):
			e := event(EventLeaseLost, &s.h.d)
			e.Took, e.Err = s.event.Took, s.event.Err
			events = append(events, w.drop(s.h, e))
		case time.Since(s.since) >= w.opts.Lease:
			e := event(EventAbandoned, &s.h.d)
			e.Took, e.Err = s.event.Took, result
			events = append(events, w.drop(s.h, e))
		default:
			failure = result
			again = append(again, s)
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
