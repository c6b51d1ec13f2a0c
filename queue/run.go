package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"
)

// held is a job in hand, from its receipt until the queue has heard of its end.
type held struct {
	d        Delivery
	call     *call
	stage    stage
	received time.Time
	leased   time.Time // the lease lasts until then at least, as far as is known
	beat     time.Time // when to extend it
	started  time.Time // running and later
	end      settlement

	extending int  // calls of Extend that are to come or under way
	returning bool // to be given back or buried: extending it would keep it away from others
	lost      bool // somebody else may have it
	overrun   bool // its handler has run for its MaxRunTime
}

type stage uint8

const (
	waiting stage = iota
	running
	ended
)

// call is one call of a handler. Its jobs may become fewer while it waits.
type call struct {
	handler Handler
	jobs    []*held
	line    *line
	// While it runs:
	started time.Time
	late    bool                    // a lease has ended before that
	cancel  context.CancelCauseFunc // ends the handler's context
}

// line is where calls wait for the one in front of them, which is in ready or runs.
type line struct {
	key     string
	waiting []*call
}

var (
	errUnknownKind   = errors.New("this worker has no handler for jobs of this kind")
	errNeverReported = errors.New("its last attempts were never reported: the process died, or the handler outlived its lease")
)

// enqueue puts a call where it waits for a place, or behind those of the same key. mu is
// held.
func (w *Worker) enqueue(c *call, key string) {
	for _, h := range c.jobs {
		h.call = c
		w.watch(h)
	}
	if !w.opts.OrderedKeys || key == "" {
		w.ready = append(w.ready, c)
		return
	}
	if l := w.lines[key]; l != nil {
		c.line = l
		l.waiting = append(l.waiting, c)
		return
	}
	c.line = &line{key: key}
	w.lines[key] = c.line
	w.ready = append(w.ready, c)
}

// schedule runs what waits while there are places. mu is held.
func (w *Worker) schedule(now time.Time) {
	for w.running < w.opts.Concurrency {
		c := w.next()
		if c == nil {
			return
		}
		ctx, cancel := w.callContext()
		w.occupy(c, cancel, now)
		go w.runAll(ctx, cancel, c)
	}
}

// next is the call to be run next, nil if there is none. mu is held.
func (w *Worker) next() *call {
	for len(w.ready) > 0 {
		c := w.ready[0]
		w.ready[0] = nil
		w.ready = w.ready[1:]
		if len(c.jobs) > 0 {
			return c
		}
		w.advance(c, nil) // all were given back while they waited
	}
	return nil
}

// occupy takes a place for a call. mu is held.
func (w *Worker) occupy(c *call, cancel context.CancelCauseFunc, now time.Time) {
	w.running++
	c.cancel, c.started = cancel, now
	for _, h := range c.jobs {
		h.stage, h.started = running, now
		c.late = c.late || h.leased.Before(now)
		w.watch(h)
	}
}

// runAll runs a call, and then others as long as there are any: a goroutine and a context
// of its own would cost a short call more than all the rest. ctx is the parent of the
// calls' contexts.
func (w *Worker) runAll(ctx context.Context, cancel context.CancelCauseFunc, c *call) {
	defer cancel(nil)
	for c != nil {
		c = w.run(ctx, c)
	}
}

// run runs a call and returns the one to be run next. What comes after it is deferred,
// since the handler may end the goroutine.
func (w *Worker) run(parent context.Context, c *call) (next *call) {
	ctx, stop := context.WithTimeoutCause(parent, c.handler.MaxRunTime, ErrRunTime)
	var each []error
	err := ErrExited
	defer func() {
		cause := context.Cause(ctx)
		stop()
		next = w.finish(parent, c, err, each, cause)
	}()
	each, err = w.attempt(ctx, c)
	return
}

// attempt calls the handler; its panic is an error. If the goroutine is to end nothing is
// returned, also where the handler panics on its way out.
func (w *Worker) attempt(ctx context.Context, c *call) (each []error, err error) {
	defer func() {
		if r := recover(); r != nil {
			each, err = nil, &PanicError{r, debug.Stack()}
		}
	}()
	if c.late {
		w.renewEnded(ctx, c)
	}
	if len(c.jobs) == 0 {
		return nil, nil
	}
	if c.handler.Job != nil {
		return nil, c.handler.Job(ctx, c.jobs[0].d)
	}
	ds := make([]Delivery, len(c.jobs))
	for i, h := range c.jobs {
		ds[i] = h.d
	}
	each = c.handler.Batch(ctx, ds)
	if each != nil && len(each) != len(ds) {
		return nil, fmt.Errorf("the batch handler has returned %d results for %d jobs", len(each), len(ds))
	}
	return each, nil
}

// renewEnded extends the leases of a call of which some have ended before it was begun: the
// process was paused, or the machine is slow. What somebody else has by now is not begun.
func (w *Worker) renewEnded(ctx context.Context, c *call) {
	w.mu.Lock()
	for _, h := range c.jobs {
		h.extending++
	}
	w.mu.Unlock()
	w.extend(ctx, c.jobs)
	w.mu.Lock()
	var events []Event
	c.jobs = slices.DeleteFunc(c.jobs, func(h *held) bool {
		if h.lost {
			events = append(events, w.drop(h, event(EventLeaseLost, &h.d)))
		}
		return h.lost
	})
	w.mu.Unlock()
	w.tell(events...)
}

// finish decides what becomes of the jobs of a call that has ended: err is everybody's
// result unless each has one of its own. It returns the call to be run next in this
// goroutine, under the same parent context.
func (w *Worker) finish(parent context.Context, c *call, err error, each []error, cause error) (next *call) {
	exited := err == ErrExited
	results := make([]result, len(c.jobs))
	for i := range results {
		if each != nil {
			err = each[i]
		}
		if err != nil && cause == ErrRunTime {
			err = fmt.Errorf("%w (%w of %v)", err, ErrRunTime, c.handler.MaxRunTime)
		}
		results[i] = judge(err)
	}
	now := time.Now()
	w.mu.Lock()
	w.running--
	var events []Event
	var back map[string]time.Duration
	for i, h := range c.jobs {
		delay, isBack, lost := w.decide(h, results[i], cause, now.Sub(c.started))
		if isBack && c.line != nil {
			if back == nil {
				back = make(map[string]time.Duration)
			}
			back[h.d.Key] = delay
		}
		events = append(events, lost...)
	}
	w.advance(c, back)
	// A goroutine that ends is no place for others, nor is the context of those whose leases
	// were lost a parent: lost ends it under mu, until here.
	if !exited && parent.Err() == nil {
		if next = w.next(); next != nil {
			w.occupy(next, c.cancel, now)
		}
	}
	w.schedule(now)
	w.askMore()
	w.drained()
	w.mu.Unlock()
	ring(w.room)
	w.tell(events...)
	return next
}

// decide sends a job to its end. It says whether the job comes back, and when. mu is held.
func (w *Worker) decide(h *held, r result, cause error, took time.Duration) (delay time.Duration, isBack bool, lost []Event) {
	switch {
	case r.err == nil: // also where the lease seems to be lost: the queue knows better
		w.settleLater(h, settlement{op: opAck, event: EventDone, took: took})
		return 0, false, nil
	case h.lost:
		e := event(EventLeaseLost, &h.d)
		e.Took, e.Err = took, r.err
		return 0, true, []Event{w.drop(h, e)}
	case cause == ErrWorkerStopped:
		w.handBack(h, 0, r)
		return 0, true, nil
	}
	delay, isBack = w.failed(h, h.call.handler.MaxAttempts, r, took)
	return delay, isBack, nil
}

// failed sends a job whose attempt has failed back or to the dead letters. mu is held.
func (w *Worker) failed(h *held, maxAttempts int, r result, took time.Duration) (delay time.Duration, isBack bool) {
	kind := EventRetry
	switch {
	case r.verdict == permanent:
		w.bury(h, "permanent error", r, took)
		return 0, false
	case r.verdict == postpone:
		kind = EventPostponed
	case h.d.Attempt >= maxAttempts && r.err == errUnknownKind:
		w.bury(h, fmt.Sprintf("unknown kind, %d attempts", h.d.Attempt), r, took)
		return 0, false
	case h.d.Attempt >= maxAttempts:
		w.bury(h, fmt.Sprintf("%d attempts failed", h.d.Attempt), r, took)
		return 0, false
	}
	delay = r.delay
	if r.verdict == 0 {
		delay = backoff(h.d.Attempt, w.opts.RetryMin, w.opts.RetryMax)
	}
	w.settleLater(h, settlement{op: opNack, event: kind, err: r.err, text: r.text, delay: delay, uncounted: kind == EventPostponed, took: took})
	return delay, true
}

func (w *Worker) bury(h *held, reason string, r result, took time.Duration) {
	w.settleLater(h, settlement{op: opDead, event: EventDead, err: &deadError{reason, r.err}, text: r.text, reason: reason, took: took})
}

// claimedTooOften sends a job to the dead letters that nobody has given back after its
// last attempt: its handler has taken the process along, or hung. It is not called again.
func (w *Worker) claimedTooOften(h *held, maxAttempts int) {
	err := errNeverReported
	if h.d.LastError != "" {
		err = fmt.Errorf("%w; before that: %s", err, h.d.LastError)
	}
	w.bury(h, fmt.Sprintf("claimed %d times, at most %d attempts", h.d.Attempt, maxAttempts), judge(err), 0)
}

// handBack gives a job back without counting the attempt; r is why, if it was begun. mu
// is held.
func (w *Worker) handBack(h *held, delay time.Duration, r result) {
	w.settleLater(h, settlement{op: opNack, event: EventHandedBack, err: r.err, text: cmp.Or(r.text, h.d.LastError), delay: delay, uncounted: true})
}

// handBackWaiting gives back everything that was not begun. mu is held.
func (w *Worker) handBackWaiting() {
	calls := w.ready
	w.ready = nil
	for _, l := range w.lines {
		calls = append(calls, l.waiting...)
		l.waiting = nil
	}
	for _, c := range calls {
		for _, h := range c.jobs {
			w.handBack(h, 0, result{})
		}
	}
}

// advance lets the next call in line go when one has ended. Jobs of keys that come back
// do so in front of those behind them, which are given back for as long. mu is held.
func (w *Worker) advance(c *call, back map[string]time.Duration) {
	l := c.line
	if l == nil {
		return
	}
	for _, next := range l.waiting {
		next.jobs = slices.DeleteFunc(next.jobs, func(h *held) bool {
			delay, behind := back[h.d.Key]
			behind = behind && h.d.Key != ""
			if behind {
				w.handBack(h, delay, result{})
			}
			return behind
		})
	}
	for len(l.waiting) > 0 {
		next := l.waiting[0]
		l.waiting = l.waiting[1:]
		if len(next.jobs) > 0 {
			w.ready = append(w.ready, next)
			return
		}
	}
	delete(w.lines, l.key)
}

// drop takes a job out of hand and counts how it ended. mu is held.
func (w *Worker) drop(h *held, e Event) Event {
	h.stage = ended
	delete(w.held, h)
	return w.count(e)
}

// count counts an event that is told later, without the lock. mu is held.
func (w *Worker) count(e Event) Event {
	w.counts[e.Kind]++
	return e
}

// note counts and tells an event.
func (w *Worker) note(e Event) {
	w.mu.Lock()
	w.count(e)
	w.mu.Unlock()
	w.tell(e)
}

func stackOf(err error) string {
	var p *PanicError
	if errors.As(err, &p) {
		return string(p.Stack)
	}
	return ""
}
