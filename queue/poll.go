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

	longReceive = 50 * time.Millisecond
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
		ds, err := w.receive(ctx, Request{Max: n, Wait: w.opts.Wait})
		w.take(ds, n, start)
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

// receive asks for jobs, which the caller has added to coming; take notes that they came.
func (w *Worker) receive(ctx context.Context, r Request) ([]Delivery, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Wait+callTimeout)
	defer cancel()
	r.Lease, r.Stop = w.opts.Lease, w.quit
	return w.opts.Queue.Receive(ctx, r)
}

// askMore begins a second Receive where handlers are quicker than the queue, so that they
// need not wait for one Receive after the other: half of the places or more are free, the
// Receive that ended last has brought all it has asked for, and that not longer ago than
// it took itself, twice. Slow handlers never get here, so nothing is kept from other workers
// that this one does not do in the time of a few Receives. A third one was measured to
// bring nothing, and costs the server more, since claims pass over each other's rows.
// Without prefetch the Receive that is under way has asked for all free places; and
// OrderedKeys is the order of receipt, of which there is one only if Receives do not
// overlap. mu is held.
func (w *Worker) askMore() {
	if w.stopping || w.beside || w.quick.IsZero() || w.opts.OrderedKeys || !w.prefetches() {
		return
	}
	if 2*w.running <= w.opts.Concurrency && w.fits(w.opts.Batch) && time.Now().Before(w.quick) {
		w.beside = true
		w.coming += w.opts.Batch
		go w.receiveMore()
	}
}

// receiveBeside is one Receive beside poll's. It does not wait: what an end of the backlog
// means, or a queue that is away, poll finds out by itself.
func (w *Worker) receiveBeside(ctx context.Context) {
	n := w.opts.Batch
	start := time.Now()
	ds, err := w.receive(ctx, Request{Max: n, AtHand: true})
	w.take(ds, n, start)
	ring(w.room) // as many as were asked for may have been too many to ask for more
	if err != nil && ctx.Err() == nil {
		w.note(Event{Kind: EventReceiveError, Took: time.Since(start), Err: err})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.beside = false
	w.askMore()
	w.drained()
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
			return n
		}
		select {
		case <-w.room:
		case <-w.quit:
			return 0
		}
	}
}

// wanted is how many jobs to receive now, already added to coming. Nothing is received
// while no place is free: others could do it.
func (w *Worker) wanted() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	free := w.opts.Concurrency - w.running
	if free <= 0 || w.stopping {
		return 0
	}
	n := w.opts.Batch
	if !w.prefetches() {
		n = min(n, free)
	}
	if !w.fits(n) {
		return 0
	}
	w.coming += n
	w.askMore()
	return n
}

// prefetches says whether more jobs may be received than there are free places.
func (w *Worker) prefetches() bool { return w.batches || w.opts.Batch > w.opts.Concurrency }

// fits says whether n more jobs can be held. They cannot where there are jobs in line
// behind others of their keys, or whose end the queue does not hear. mu is held.
func (w *Worker) fits(n int) bool {
	return len(w.held)+w.coming+n <= (w.opts.Concurrency+1)*w.opts.Batch
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

// take takes jobs in hand that a Receive of n has brought, which was begun at asked.
func (w *Worker) take(ds []Delivery, n int, asked time.Time) {
	now := time.Now()
	var events []Event
	w.mu.Lock()
	w.coming -= n
	w.quick = time.Time{}
	if len(ds) >= n {
		// Much of a long Receive was its wait.
		w.quick = now.Add(2 * min(now.Sub(asked), longReceive))
	}
	batches := make(map[string]*call)
	for i := range ds {
		h := w.hold(ds[i], now)
		events = w.heard(events, w.count(event(EventReceived, &h.d)))
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
	w.schedule(now)
	w.mu.Unlock()
	w.tell(events...)
}
