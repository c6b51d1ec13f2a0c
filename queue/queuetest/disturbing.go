package queuetest

import (
	"context"
	"errors"
	"time"

	"github.com/onefill/onefill/queue"
)

// disturbing tests run alone.
var disturbing = []test{
	{"RestartKeepsJobs", func(c *check) {
		c.needs(c.h.Restart != nil, "the harness has no Restart")
		c.a.enqueue(job("waiting"))
		c.a.enqueue(queue.Job{Kind: "delayed", Delay: c.h.Lease})
		d := c.a.one(c.long())
		c.h.Restart(c)
		c.answersAgain(c.a)
		c.answersAgain(c.b)
		other := c.b.one(c.long())
		if other.ID == d.ID {
			c.Error("the lease was forgotten")
		}
		c.a.ack(d)
		c.b.ack(other)
		c.a.drained()
	}},
	{"BrokenConnections", func(c *check) {
		c.needs(c.h.Break != nil, "the harness has no Break")
		c.a.enqueue(job("k"))
		d := c.a.one(c.long())
		c.h.Break(c)
		c.answersAgain(c.a)
		c.answersAgain(c.b)
		c.a.ack(d)
		c.b.drained()
	}},
	{"BlockedServer", func(c *check) {
		// The server hangs: every call comes back soon after its deadline and says that
		// the queue is unavailable; afterwards all is well.
		c.needs(c.h.Block != nil, "the harness has no Block")
		ops := c.operations(c.b)
		unblock := c.h.Block(c)
		for _, op := range ops {
			ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
			ended := make(chan error, 1)
			go func() { ended <- op.do(ctx) }()
			select {
			case err := <-ended:
				if !errors.Is(err, queue.ErrUnavailable) {
					c.Errorf("%s of a server that hangs: %v, want ErrUnavailable", op.name, err)
				}
			case <-time.After(c.h.Patience):
				c.Errorf("%s has not returned %v after its deadline", op.name, c.h.Patience)
			}
			cancel()
		}
		unblock()
		c.answersAgain(c.a)
		c.answersAgain(c.b)
		// What was asked meanwhile may have been done, or not.
		c.a.enqueue(job("after"))
		for kind := ""; kind != "after"; {
			d := c.b.one(c.long())
			c.b.ack(d)
			kind = d.Kind
		}
	}},
}

// answersAgain waits until a client works, whose connections may be broken.
func (c *check) answersAgain(q *client) {
	c.Helper()
	c.eventually("the client works again", func() bool { return q.Check(c.ctx()) == nil })
}
