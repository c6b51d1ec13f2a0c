package queuetest

import (
	"time"

	"github.com/onefill/onefill/queue"
)

var leasing = []test{
	{"LeaseHidesUntilItsEnd", func(c *check) {
		// The worker dies: the job comes to another one when the lease has ended, and
		// each claim has counted.
		id := c.a.enqueue(job("k"))[0]
		seen := map[queue.Token]bool{}
		for attempt := 1; attempt <= 3; attempt++ {
			before := time.Now()
			d := c.a.one(c.h.Lease)
			if d.ID != id || c.caps.AttemptsExact && d.Attempt != attempt || seen[d.Token] {
				c.Fatalf("delivered %+v, want job %s at attempt %d with a new token", d, id, attempt)
			}
			seen[d.Token] = true
			next := c.b.one(c.h.Lease)
			if spent := time.Since(before); spent < c.h.Lease {
				c.Fatalf("delivered again %v after a claim for %v", spent, c.h.Lease)
			}
			if attempt++; next.ID != id || c.caps.AttemptsExact && next.Attempt != attempt || seen[next.Token] {
				c.Fatalf("delivered %+v, want job %s at attempt %d with a new token", next, id, attempt)
			}
			seen[next.Token] = true
		}
	}},
	{"ExtendedLeaseIsOneDelivery", func(c *check) {
		// A handler takes more than three leases, and extends in time: nobody else gets
		// the job.
		c.longer(func(lease time.Duration) bool {
			c.a.enqueue(job("k"))
			d := c.a.one(lease)
			from := time.Now()
			for start := from; time.Since(start) < 3*lease+lease/2; {
				if late := c.extendInTime(d, lease, &from); late {
					c.a.Ack(c.ctx(), d.Token)
					c.clear()
					return false
				}
				c.b.empty("its lease is extended")
				c.moment()
			}
			c.a.ack(d)
			c.b.drained()
			return true
		})
	}},
	{"ExtendShortens", func(c *check) {
		c.a.enqueue(job("k"))
		d := c.a.one(c.long())
		c.ok("Extend", c.a.Extend(c.ctx(), c.h.Lease, d.Token))
		c.b.one(c.long())
	}},
	{"ExtendTwiceInOneCall", func(c *check) { // an extension ends no claim
		c.a.enqueue(job("k"))
		d := c.a.one(c.long())
		c.ok("Extend", c.a.Extend(c.ctx(), c.long(), d.Token, d.Token))
		c.a.ack(d)
	}},
	{"AckRemoves", func(c *check) {
		c.a.enqueue(job("1"), job("2"))
		for range 2 {
			c.a.ack(c.a.one(c.h.Lease))
		}
		c.a.drained()
		// Nor does it come back at the end of what was its lease.
		c.a.enqueue(queue.Job{Kind: "canary", Delay: c.h.Lease})
		if d := c.b.one(c.long()); d.Kind != "canary" {
			c.Errorf("job %q was delivered after its Ack", d.Kind)
		}
	}},
	{"EndedLeaseOfNobodyElse", func(c *check) {
		// The lease has ended, nobody has claimed the job since: an Ack may work still. If
		// it does, the job is gone; if not, it comes back.
		c.a.enqueue(job("k"))
		d := c.a.one(c.h.Lease)
		<-time.After(c.h.Lease + 2*c.caps.Granularity + 10*time.Millisecond)
		switch err := queue.ErrorOf(c.a.Ack(c.ctx(), d.Token), 0); err {
		case nil:
			c.b.drained()
		case queue.ErrLeaseLost:
			c.b.ack(c.b.one(c.long()))
		default:
			c.Errorf("Ack after the lease's end: %v, want nil or ErrLeaseLost", err)
		}
	}},
	{"LagIsSinceDue", func(c *check) {
		// An hour of delay is no lag, and the time of an earlier lease is none.
		c.a.enqueue(queue.Job{Kind: "k", Delay: c.h.Lease})
		before := time.Now()
		d := c.a.one(c.h.Lease)
		if spent := time.Since(before) + time.Second; d.Lag > spent {
			c.Errorf("a lag of %v, %v after it was due", d.Lag, spent)
		}
		<-time.After(c.h.Lease + c.h.Lease/2)
		again := c.b.one(c.long())
		if again.Age < c.h.Lease {
			c.Errorf("an age of %v, it was enqueued more than %v ago", again.Age, c.h.Lease)
		}
		if again.Lag >= again.Age {
			c.Errorf("a lag of %v at an age of %v: the lease is no lag", again.Lag, again.Age)
		}
	}},
}

// extendInTime extends a lease that was last extended from *from on, if a third of it is
// over. It says whether the machine was too slow.
func (c *check) extendInTime(d queue.Delivery, lease time.Duration, from *time.Time) (late bool) {
	c.Helper()
	if time.Since(*from) < lease/3 {
		return false
	}
	start := time.Now()
	err := c.a.Extend(c.ctx(), lease, d.Token)
	if time.Since(*from) > lease*3/4 {
		return true
	}
	c.ok("Extend", err)
	*from = start
	return false
}

// clear acknowledges whatever is left.
func (c *check) clear() {
	c.Helper()
	c.eventually("the queue is cleared", func() bool {
		for _, d := range c.a.look(10, c.long()) {
			c.a.ack(d)
		}
		s := c.a.stats()
		return s.Ready <= 0 && s.NotReady <= 0
	})
}
