package queuetest

import (
	"context"
	"errors"
	"time"

	"github.com/onefill/onefill/queue"
)

type operation struct {
	name string
	do   func(ctx context.Context) error
}

// operations are all calls of a queue, on a job that is claimed.
func (c *check) operations(q *client) []operation {
	c.Helper()
	c.a.enqueue(job("k"))
	t := c.a.one(c.long()).Token
	list := []operation{
		{"Check", q.Check},
		{"Enqueue", func(ctx context.Context) error { _, err := q.Enqueue(ctx, job("more")); return err }},
		{"Receive", func(ctx context.Context) error {
			_, err := q.Receive(ctx, queue.Request{Max: 1, Lease: c.h.Lease})
			return err
		}},
		{"Extend", func(ctx context.Context) error { return q.Extend(ctx, c.long(), t) }},
		{"Nack", func(ctx context.Context) error { return q.Nack(ctx, queue.Return{Token: t}) }},
		{"Dead", func(ctx context.Context) error { return q.Dead(ctx, queue.Death{Token: t, Reason: "why"}) }},
		{"Ack", func(ctx context.Context) error { return q.Ack(ctx, t) }},
		{"Stats", func(ctx context.Context) error { _, err := q.Stats(ctx); return err }},
	}
	if c.caps.Replay {
		list = append(list,
			operation{"ListDead", func(ctx context.Context) error { _, err := q.ListDead(ctx, queue.DeadQuery{}); return err }},
			operation{"ReplayDead", func(ctx context.Context) error { _, err := q.ReplayDead(ctx, "1"); return err }},
			operation{"DropDead", func(ctx context.Context) error { return q.DropDead(ctx, "1") }})
	}
	return list
}

var contexts = []test{
	{"DeadContext", func(c *check) {
		cancelled, cancel := context.WithCancel(context.Background())
		cancel()
		late, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
		defer cancel()
		for _, op := range c.operations(c.a) {
			for _, ctx := range []context.Context{cancelled, late} {
				err := op.do(ctx)
				c.fails(op.name+" with a context that has ended", err)
				if !errors.Is(err, ctx.Err()) {
					c.Errorf("%s: %v, want %v", op.name, err, ctx.Err())
				}
			}
		}
		// Nothing was done.
		if s := c.a.stats(); s.Ready > 0 || s.Dead > 0 || s.NotReady != 1 && s.NotReady != -1 {
			c.Errorf("afterwards: %+v, want the one claimed job", s)
		}
	}},
	{"CancelEndsAWait", func(c *check) {
		c.needs(c.wait > 0, "the queue cannot wait")
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			for {
				ds, err := c.a.Receive(ctx, queue.Request{Max: 1, Wait: c.caps.MaxWait, Lease: c.h.Lease})
				if err != nil || len(ds) > 0 {
					ended <- err
					return
				}
			}
		}()
		c.moment()
		cancel()
		select {
		case err := <-ended:
			c.fails("Receive", err)
			if !errors.Is(err, context.Canceled) {
				c.Errorf("Receive: %v, want context.Canceled", err)
			}
		case <-time.After(c.h.Patience):
			c.Fatalf("Receive did not return within %v of the end of its context", c.h.Patience)
		}
	}},
	{"StopLosesNothing", func(c *check) {
		// A Receive waits and is stopped; a job is enqueued at that very moment. Either
		// the Receive returns it, or it is there for the next one, at its first attempt.
		c.needs(c.wait > 0, "the queue cannot wait")
		for range 10 {
			stop := make(chan struct{})
			type answer struct {
				ds  []queue.Delivery
				err error
			}
			got := make(chan answer, 1)
			go func() {
				ds, err := c.a.Receive(c.ctx(), queue.Request{Max: 1, Wait: c.wait, Lease: c.long(), Stop: stop})
				got <- answer{ds, err}
			}()
			c.moment()
			go close(stop)
			c.b.enqueue(job("k"))
			a := <-got
			c.ok("Receive that was stopped", a.err)
			if len(a.ds) == 0 {
				a.ds = c.b.receive(1, c.long())
			}
			if d := a.ds[0]; d.Attempt != 1 {
				c.Fatalf("attempt %d: a claim was lost", d.Attempt)
			}
			c.b.ack(a.ds[0])
		}
	}},
	{"StoppedBefore", func(c *check) {
		stop := make(chan struct{})
		close(stop)
		if ds := c.a.ask(queue.Request{Max: 1, Wait: c.wait, Lease: c.long(), Stop: stop}); len(ds) > 0 {
			c.Errorf("delivered %+v from an empty queue", ds)
		}
	}},
}
