package memqueue

import (
	"context"
	"time"

	"github.com/onefill/onefill/queue"
)

// Receive implements queue.Queue. A Fault comes once for each call: Delay and Hold
// before the first look, the rest after the last.
func (q *Queue) Receive(ctx context.Context, r queue.Request) ([]queue.Delivery, error) {
	if err := q.Caps().CheckRequest(r); err != nil {
		return nil, fail(OpReceive, err)
	}
	if q.options.MaxBatch > 0 {
		r.Max = min(r.Max, q.options.MaxBatch)
	}
	var ds []queue.Delivery
	err := q.withFault(ctx, OpReceive, r.Max, func(Fault) (err error) {
		ds, err = q.receive(ctx, r)
		return err
	})
	if err != nil {
		return nil, err
	}
	return ds, nil
}

func (q *Queue) receive(ctx context.Context, r queue.Request) ([]queue.Delivery, error) {
	over := time.NewTimer(max(r.Wait, 0))
	defer over.Stop()
	for last := r.Wait <= 0; ; {
		ds, more, next, err := q.claim(r)
		if err != nil || len(ds) > 0 || last {
			return ds, err
		}
		due := time.NewTimer(next)
		select {
		case <-more:
		case <-due.C:
		case <-over.C:
			last = true
		case <-r.Stop:
			last = true
		case <-ctx.Done():
			due.Stop()
			return nil, contextError(OpReceive, ctx.Err())
		}
		due.Stop()
	}
}

// claim takes what is due. Otherwise it returns what says that there is more, and how
// long it takes until something is due.
func (q *Queue) claim(r queue.Request) (ds []queue.Delivery, more <-chan struct{}, next time.Duration, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.down {
		return nil, nil, 0, unavailable(OpReceive, ErrDown)
	}
	now := time.Now()
	for len(ds) < r.Max && len(q.due) > 0 && !q.due[0].due.After(now) {
		ds = append(ds, q.deliver(q.due[0], r.Lease, now))
	}
	next = time.Hour // look again now and then: nothing depends on it
	if len(q.due) > 0 {
		next = min(next, q.due[0].due.Sub(now))
	}
	return ds, q.more, next, nil
}

// deliver claims one job. Its lease, which is positive, takes it out of what is due.
func (q *Queue) deliver(it *item, lease time.Duration, now time.Time) queue.Delivery {
	q.unmerge(it)
	lag := now.Sub(it.due)
	it.claims++
	it.held = true
	q.reschedule(it, now.Add(q.round(lease)))
	d := queue.Delivery{
		Job: it.job, ID: id(it.id), Token: token(it), Attempt: it.claims - it.uncounted,
		Deadline: it.due, Lag: lag, Age: now.Sub(it.enqueued), LastError: it.lastError,
	}
	d.Payload = clonePayload(d.Payload)
	return d
}
