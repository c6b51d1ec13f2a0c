package queuetest

import (
	"time"

	"github.com/onefill/onefill/queue"
)

// ops are the four things that one can do with a token.
var ops = []struct {
	name string
	do   func(q *client, ts ...queue.Token) error
}{
	{"Ack", func(q *client, ts ...queue.Token) error { return q.Ack(q.c.ctx(), ts...) }},
	{"Extend", func(q *client, ts ...queue.Token) error { return q.Extend(q.c.ctx(), q.c.long(), ts...) }},
	{"Nack", func(q *client, ts ...queue.Token) error {
		var rs []queue.Return
		for _, t := range ts {
			rs = append(rs, queue.Return{Token: t, Err: "late", Uncounted: true})
		}
		return q.Nack(q.c.ctx(), rs...)
	}},
	{"Dead", func(q *client, ts ...queue.Token) error {
		var ds []queue.Death
		for _, t := range ts {
			ds = append(ds, queue.Death{Token: t, Reason: "late"})
		}
		return q.Dead(q.c.ctx(), ds...)
	}},
}

var fencing = []test{
	{"LateWorkerTouchesNothing", func(c *check) {
		// a claims for a short time and is paused; b claims the same job; a wakes up and
		// acknowledges, extends, gives back, buries: refused, and b's claim stands.
		c.needs(c.caps.FencedAck, "the queue declares no FencedAck")
		c.a.enqueue(job("k"))
		old := c.a.one(c.h.Lease)
		d := c.b.one(c.long())
		for _, op := range ops {
			c.is(op.name+" under an old claim", op.do(c.a, old.Token), queue.ErrLeaseLost)
			c.a.empty(op.name + " was refused")
		}
		if s := c.a.stats(); s.Dead > 0 {
			c.Errorf("%d dead letters", s.Dead)
		}
		c.b.ack(d)
		c.a.drained()
	}},
	{"FenceHoldsOverHandBacks", func(c *check) {
		// a gives its claim back uncounted; b's claim has the same attempt number. A late
		// repetition of a's calls must not be taken for b's.
		c.needs(c.caps.FencedAck, "the queue declares no FencedAck")
		c.a.enqueue(job("k"))
		old := c.a.one(c.long())
		c.ok("Nack", c.a.Nack(c.ctx(), queue.Return{Token: old.Token, Uncounted: true}))
		for _, op := range ops {
			c.is(op.name+" of a job that was given back", op.do(c.a, old.Token), queue.ErrLeaseLost)
		}
		d := c.b.one(c.long())
		if c.caps.AttemptsExact && d.Attempt != 1 {
			c.Errorf("attempt %d after an uncounted return, want 1", d.Attempt)
		}
		for _, op := range ops {
			c.is(op.name+" under an old claim", op.do(c.a, old.Token), queue.ErrLeaseLost)
		}
		c.b.ack(d)
		c.a.drained()
	}},
	{"NothingLeftToDo", func(c *check) {
		// After Ack and after Dead the token is good for nothing.
		c.a.enqueue(job("1"), job("2"))
		acked := c.a.one(c.long())
		c.a.ack(acked)
		buried := c.a.bury("why", "")
		for _, op := range ops {
			for _, d := range []queue.Delivery{acked, buried} {
				err := op.do(c.a, d.Token)
				if c.caps.FencedAck {
					c.is(op.name+" of a job that is gone", err, queue.ErrLeaseLost)
				} else if err = queue.ErrorOf(err, 0); err != nil && err != queue.ErrLeaseLost {
					c.Errorf("%s of a job that is gone: %v, want nil or ErrLeaseLost", op.name, err)
				}
			}
		}
		c.a.drained()
	}},
	{"EachEntryHasAResult", func(c *check) {
		// A token that is none, between two that are good: the good ones are done.
		for _, op := range ops {
			c.a.enqueue(job("1"), job("2"))
			ds := c.a.receive(2, c.long())
			c.is(op.name, op.do(c.a, ds[0].Token, "no token", ds[1].Token, ""), nil, queue.ErrUnknown, nil, queue.ErrUnknown)
			switch op.name {
			case "Extend":
				c.a.ack(ds...)
			case "Nack":
				c.a.ack(c.a.receive(2, c.long())...)
			}
			c.a.drained()
		}
		if s := c.a.stats(); s.Dead != 2 && s.Dead != -1 {
			c.Errorf("%d dead letters, want 2", s.Dead)
		}
	}},
	{"AcknowledgedOnce", func(c *check) {
		// Two clients acknowledge the same claim at the same time: one of them is told
		// that it has done so.
		c.needs(c.caps.FencedAck, "the queue declares no FencedAck")
		for range 10 {
			c.a.enqueue(job("k"))
			d := c.a.one(c.long())
			results := make(chan error, 2)
			for _, q := range []*client{c.a, c.b} {
				go func() { results <- queue.ErrorOf(q.Ack(c.ctx(), d.Token), 0) }()
			}
			if one, two := <-results, <-results; (one == nil) == (two == nil) {
				c.Fatalf("two Acks: %v, %v, want one nil", one, two)
			}
		}
	}},
}

var returning = []test{
	{"NackReturnsAtOnce", func(c *check) {
		c.a.enqueue(job("k"))
		for attempt := 1; attempt <= 3; attempt++ {
			d := c.b.one(c.long())
			if c.caps.AttemptsExact && d.Attempt != attempt {
				c.Errorf("attempt %d, want %d", d.Attempt, attempt)
			}
			if want := map[int]string{2: "first", 3: "again"}[attempt]; c.caps.LastError && d.LastError != want {
				c.Errorf("last error %q at attempt %d, want %q", d.LastError, attempt, want)
			}
			text := "first"
			if attempt == 2 {
				text = "again"
			}
			c.ok("Nack", c.b.Nack(c.ctx(), queue.Return{Token: d.Token, Err: text}))
		}
	}},
	{"NackDelays", func(c *check) {
		c.a.enqueue(job("k"))
		d := c.b.one(c.long())
		before := time.Now()
		c.ok("Nack", c.b.Nack(c.ctx(), queue.Return{Token: d.Token, Delay: c.h.Lease}))
		c.a.one(c.long())
		if spent := time.Since(before); spent < c.h.Lease {
			c.Errorf("back after %v, want %v", spent, c.h.Lease)
		}
	}},
	{"NackUncounted", func(c *check) {
		c.needs(c.caps.AttemptsExact, "the queue declares no AttemptsExact")
		c.a.enqueue(job("k"))
		for range 3 {
			d := c.b.one(c.long())
			if d.Attempt != 1 {
				c.Fatalf("attempt %d, want 1", d.Attempt)
			}
			c.ok("Nack", c.b.Nack(c.ctx(), queue.Return{Token: d.Token, Uncounted: true}))
		}
		d := c.b.one(c.long())
		c.ok("Nack", c.b.Nack(c.ctx(), queue.Return{Token: d.Token}))
		if d = c.b.one(c.long()); d.Attempt != 2 {
			c.Errorf("attempt %d after one that counts, want 2", d.Attempt)
		}
	}},
	{"ErrorTexts", func(c *check) {
		// Whatever bytes an error holds: the job goes on.
		long := make([]byte, 3*queue.MaxErrorBytes)
		for i := range long {
			long[i] = 'e'
		}
		for _, text := range []string{"", "NUL \x00 and \xff, é", string(long)} {
			c.a.enqueue(job("k"))
			d := c.a.one(c.long())
			c.ok("Nack", c.a.Nack(c.ctx(), queue.Return{Token: d.Token, Err: text}))
			d = c.a.one(c.long())
			if want := queue.ErrorText(text); c.caps.LastError && d.LastError != want {
				c.Errorf("last error %.60q, want %.60q", d.LastError, want)
			}
			c.ok("Dead", c.a.Dead(c.ctx(), queue.Death{Token: d.Token, Reason: text, Err: text}))
		}
		c.a.drained()
	}},
}
