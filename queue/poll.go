package queue

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// idlePause is how long an empty Receive takes at least, pause included: a queue that
	// cannot wait, or that answers empty before its time, is not asked in a hot loop.
	idlePause = time.Second
	// The pause after a Receive that failed grows from the first to the second.
	receivePauseMin = 200 * time.Millisecond
	receivePauseMax = 30 * time.Second
)

// poll receives jobs until the worker stops.
func (w *Worker) poll(ctx context.Context) {
	w.receiveAll(ctx)
	// Not deferred: a panic under mu would wait for mu instead of being seen.
	w.mu.Lock()
	defer w.mu.Unlock()
	w.polled = true
	w.drained()
}

func (w *Worker) receiveAll(ctx context.Context) {
	failures := 0
	for {
		n := w.awaitRoom()
		if n == 0 {
			return
		}
		start := time.Now()
		ds, err := w.receive(ctx, n)
		w.take(ds)
		var pause time.Duration
		switch {
		case ctx.Err() != nil: // Stop's context has ended
			return
		case err != nil:
			failures++
			pause = receivePause(failures)
			w.note(Event{Kind: EventReceiveError, Took: time.Since(start), Delay: pause, Err: err})
		case len(ds) == 0:
			failures = 0
			pause = jitter(idlePause) - time.Since(start)
		default:
			failures = 0
		}
		if !w.pause(pause) {
			return
		}
	}
}

func (w *Worker) receive(ctx context.Context, n int) ([]Delivery, error) {
	ctx, cancel := context.WithTimeout(ctx, w.opts.Wait+callTimeout)
	defer cancel()
	return w.opts.Queue.Receive(ctx, Request{Max: n, Wait: w.opts.Wait, Lease: w.opts.Lease, Stop: w.quit})
}

// receivePause is random between half and all of a bound that doubles.
func receivePause(failures int) time.Duration {
	return jitter(min(receivePauseMin<<min(failures-1, 10), receivePauseMax))
}

func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2) }

// pause returns false if the worker stops.
func (w *Worker) pause(d time.Duration) bool {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.quit:
		return false
	}
}

// awaitRoom waits until jobs can be taken in and says how many; 0 if the worker stops.
func (w *Worker) awaitRoom() int {
	for {
		if n := w.wanted(); n > 0 {
			select {
			case <-w.quit:
				return 0
			default:
				return n
			}
		}
		select {
		case <-w.room:
		case <-w.quit:
			return 0
		}
	}
}

// wanted is how many jobs to receive now. Nothing is received while no place is free:
// others could do it.
func (w *Worker) wanted() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	free := w.opts.Concurrency - w.running
	if free <= 0 {
		return 0
	}
	n := w.opts.Batch
	if !w.batches && n <= w.opts.Concurrency {
		n = min(n, free) // prefetch was not asked for
	}
	if len(w.held)+n > (w.opts.Concurrency+1)*w.opts.Batch {
		return 0 // jobs in line behind others of their keys, or whose end the queue does not hear
	}
	return n
}

// hold takes one job in hand. mu is held.
func (w *Worker) hold(d Delivery, now time.Time) *held {
	h := &held{d: d, received: now, leased: now.Add(w.opts.Lease)}
	if !d.Deadline.IsZero() && d.Deadline.Before(h.leased) {
		h.leased = d.Deadline
	}
	h.beat = h.leased.Add(w.opts.Lease/3 - w.opts.Lease)
	w.held[h] = struct{}{}
	return h
}

// take takes jobs in hand.
func (w *Worker) take(ds []Delivery) {
	if len(ds) == 0 {
		return
	}
	now := time.Now()
	var events []Event
	w.mu.Lock()
	batches := make(map[string]*call)
	for i := range ds {
		h := w.hold(ds[i], now)
		events = append(events, w.count(event(EventReceived, &h.d)))
		handler, known := w.opts.Handlers[h.d.Kind]
		switch {
		case w.stopping:
			w.handBack(h, 0, result{})
		case !known:
			events = append(events, w.count(event(EventUnknown, &h.d)))
			w.failed(h, w.opts.MaxAttempts, judge(errUnknownKind), 0)
		case h.d.Attempt > handler.MaxAttempts:
			w.claimedTooOften(h, handler.MaxAttempts)
		case handler.Batch == nil:
			w.enqueue(&call{handler: handler, jobs: []*held{h}}, h.d.Key)
		case batches[h.d.Kind] == nil:
			batches[h.d.Kind] = &call{handler: handler, jobs: []*held{h}}
		default:
			c := batches[h.d.Kind]
			c.jobs = append(c.jobs, h)
		}
	}
	for kind, c := range batches {
		w.enqueue(c, "\x00"+kind) // no key holds a NUL
	}
	w.schedule()
	w.mu.Unlock()
	w.tell(events...)
}
