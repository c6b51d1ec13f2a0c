package queue

import (
	"context"
	"errors"
	"slices"
	"time"
)

// beat extends the leases of the jobs in hand until the worker is done.
func (w *Worker) beat(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, next := w.dueBeats()
		if len(due) > 0 {
			w.extend(ctx, due)
			continue
		}
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-w.beating:
		case <-w.done:
			return
		}
	}
}

// dueBeats returns the jobs whose lease is to be extended now, or how long there is
// until something is to be done. It gives back jobs that have waited for too long, and
// leaves those alone whose handler has run for too long.
func (w *Worker) dueBeats() (due []*held, next time.Duration) {
	now := time.Now()
	soon := now.Add(w.opts.Lease / 12) // they go along with those that are due
	first := now.Add(time.Hour)
	var events []Event
	w.mu.Lock()
	for h := range w.held {
		at := h.beat
		switch end, ends := h.runsOut(); {
		case h.returning || h.lost || h.overrun:
			continue
		case ends && !now.Before(end):
			events = append(events, w.ranOut(h, now)...)
			continue
		case ends && end.Before(at):
			at = end
		case !soon.Before(h.beat):
			due = append(due, h)
		}
		if at.Before(first) {
			first = at
		}
	}
	if len(due) > 0 && first.After(now) {
		// Those that go along are no reason to go.
		due = nil
	}
	for _, h := range due {
		h.extending++
	}
	w.nextBeat = first
	w.mu.Unlock()
	w.tell(events...)
	return due, first.Sub(now)
}

// watch makes the heartbeat look at a job in time. mu is held.
func (w *Worker) watch(h *held) {
	at := h.beat
	if end, ends := h.runsOut(); ends && end.Before(at) {
		at = end
	}
	if at.Before(w.nextBeat) {
		w.nextBeat = at
		ring(w.beating)
	}
}

// runsOut is when a job's lease is not extended any more.
func (h *held) runsOut() (time.Time, bool) {
	switch h.stage {
	case waiting:
		return h.received.Add(h.call.handler.MaxRunTime), true
	case running:
		return h.started.Add(h.call.handler.MaxRunTime), true
	}
	return time.Time{}, false
}

// ranOut ends the care for a job. mu is held.
func (w *Worker) ranOut(h *held, now time.Time) []Event {
	if h.stage == waiting {
		h.call.jobs = slices.DeleteFunc(h.call.jobs, func(other *held) bool { return other == h })
		w.handBack(h, 0, result{})
		return nil
	}
	h.overrun = true
	e := event(EventOverrun, &h.d)
	e.Took = now.Sub(h.started)
	return []Event{w.count(e)}
}

// extend extends leases and notes what came of it. The caller has counted it in
// extending.
func (w *Worker) extend(ctx context.Context, jobs []*held) {
	// The next try comes in time before the lease's end, whatever this one does.
	ctx, cancel := context.WithTimeout(ctx, w.opts.Lease/3)
	defer cancel()
	tokens := make([]Token, len(jobs))
	for i, h := range jobs {
		tokens[i] = h.d.Token
	}
	start := time.Now()
	err := w.opts.Queue.Extend(ctx, w.opts.Lease, tokens...)
	var failure error
	var events []Event
	w.mu.Lock()
	for i, h := range jobs {
		h.extending--
		switch result := ErrorOf(err, i); {
		case result == nil:
			h.leased, h.beat = start.Add(w.opts.Lease), start.Add(w.opts.Lease/3)
		case errors.Is(result, ErrLeaseLost), errors.Is(result, ErrUnknown):
			events = append(events, w.lost(h)...)
		default:
			failure = result
			h.beat = time.Now().Add(w.opts.Lease / 12)
		}
	}
	if failure != nil {
		events = append(events, w.count(Event{Kind: EventExtendError, Took: time.Since(start), Err: failure}))
	}
	w.drained()
	w.mu.Unlock()
	ring(w.settling) // what was not to be given back meanwhile
	w.tell(events...)
}

// lost notes that somebody else may have a job. mu is held.
func (w *Worker) lost(h *held) []Event {
	switch h.stage {
	case ended: // of course: the queue has heard of its end meanwhile
		return nil
	case waiting:
		h.call.jobs = slices.DeleteFunc(h.call.jobs, func(other *held) bool { return other == h })
		return []Event{w.drop(h, event(EventLeaseLost, &h.d))}
	}
	h.lost = true
	if !slices.ContainsFunc(h.call.jobs, func(h *held) bool { return !h.lost }) {
		h.call.cancel(ErrLeaseLost)
	}
	return nil
}
