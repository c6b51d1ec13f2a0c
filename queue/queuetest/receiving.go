package queuetest

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/onefill/onefill/queue"
)

var receiving = []test{
	{"InvalidRequests", func(c *check) {
		c.a.enqueue(job("k"))
		bad := []queue.Request{{Max: 0, Lease: c.h.Lease}, {Max: -1, Lease: c.h.Lease}, {Max: 1}, {Max: 1, Lease: -1}}
		if c.caps.MaxLease > 0 {
			bad = append(bad, queue.Request{Max: 1, Lease: c.caps.MaxLease + 1})
		}
		for _, r := range bad {
			_, err := c.a.Receive(c.ctx(), r)
			if e := c.fails("Receive", err); !errors.Is(err, queue.ErrInvalid) || e.Unavailable {
				c.Errorf("Receive(%+v): %v, want ErrInvalid", r, err)
			}
		}
		d := c.a.one(c.long())
		if c.caps.AttemptsExact && d.Attempt != 1 {
			c.Errorf("attempt %d: a request that was refused has claimed the job", d.Attempt)
		}
		for _, lease := range []time.Duration{0, -1} {
			if err := c.a.Extend(c.ctx(), lease, d.Token); !errors.Is(err, queue.ErrInvalid) {
				c.Errorf("Extend(%v): %v, want ErrInvalid", lease, err)
			}
		}
		c.a.ack(d)
	}},
	{"NothingToReceive", func(c *check) {
		c.a.empty("nothing was enqueued")
		if ds := c.a.ask(queue.Request{Max: 1, Wait: c.wait, Lease: c.h.Lease}); len(ds) > 0 {
			c.Errorf("delivered %+v", ds)
		}
	}},
	{"ReceiveWakes", func(c *check) {
		// A Receive waits; a job is enqueued by another client; it is delivered.
		c.needs(c.wait > 0, "the queue cannot wait")
		got := make(chan []queue.Delivery, 1)
		go func() {
			var ds []queue.Delivery
			c.until(func() (over bool) {
				var err error
				if ds, err = c.a.Receive(c.ctx(), queue.Request{Max: 1, Wait: c.wait, Lease: c.long()}); err != nil {
					c.Errorf("Receive: %v", err)
				}
				return err != nil || len(ds) > 0
			})
			got <- ds
		}()
		c.moment()
		id := c.b.enqueue(job("k"))[0]
		if ds := <-got; len(ds) != 1 || ds[0].ID != id {
			c.Errorf("delivered %+v, want job %s", ds, id)
		}
	}},
	{"MaxIsRespected", func(c *check) {
		// More rows than the LIMIT were claimed by other queues: look at every call, with
		// several at once (ask does).
		jobs := slices.Repeat([]queue.Job{job("k")}, 120)
		c.a.enqueue(jobs...)
		seen := c.everyoneTakes(len(jobs), 7)
		for id, n := range seen {
			if n != 1 {
				c.Errorf("job %s was delivered %d times within its lease", id, n)
			}
		}
		c.a.drained()
	}},
	{"DelayedJob", func(c *check) {
		before := time.Now()
		j := job("later")
		j.Delay = c.h.Lease
		c.a.enqueue(j, job("now"))
		if d := c.b.one(c.long()); d.Kind != "now" && time.Since(before) < c.h.Lease {
			c.Errorf("job %q was delivered first", d.Kind)
		} else if d.Kind == "now" {
			if d = c.b.one(c.long()); d.Kind != "later" {
				c.Errorf("job %q was delivered, want the delayed one", d.Kind)
			}
		}
		if spent := time.Since(before); spent < c.h.Lease {
			c.Errorf("a delay of %v was over after %v", c.h.Lease, spent)
		}
	}},
	{"ExtremeDurations", func(c *check) {
		delay := time.Duration(math.MaxInt64)
		if c.caps.MaxDelay > 0 {
			delay = c.caps.MaxDelay
		}
		lease := time.Duration(math.MaxInt64)
		if c.caps.MaxLease > 0 {
			lease = c.caps.MaxLease
		}
		c.a.enqueue(queue.Job{Kind: "never", Delay: delay}, queue.Job{Kind: "now", Delay: math.MinInt64})
		d := c.b.receive(1, lease)[0]
		if d.Kind != "now" {
			c.Fatalf("job %q was delivered", d.Kind)
		}
		c.a.empty("one is delayed for ever, one leased for ever")
		c.ok("Extend", c.b.Extend(c.ctx(), lease, d.Token))
		c.a.empty("one is delayed for ever, one extended for ever")
		c.ok("Nack", c.b.Nack(c.ctx(), queue.Return{Token: d.Token, Delay: math.MaxInt64}))
		c.a.empty("one is delayed for ever, one given back for ever")
	}},
	{"Stats", func(c *check) {
		c.a.enqueue(job("1"), job("2"), queue.Job{Kind: "3", Delay: time.Minute}, job("4"))
		d := c.b.one(c.long())
		c.b.bury("why", "because")
		want := queue.Stats{Ready: 1, NotReady: 2, Dead: 1}
		c.eventually("the numbers are right", func() bool {
			s := c.a.stats()
			if s.Lag > c.h.Patience || s.Lag < -1 || s.Lag < 0 && s.Lag != -1 {
				c.Errorf("a lag of %v", s.Lag)
			}
			same := func(got, want int64) bool { return got == want || got == -1 }
			return same(s.Ready, want.Ready) && same(s.NotReady, want.NotReady) && same(s.Dead, want.Dead) && s.Lag != 0
		})
		c.b.ack(d)
		c.b.ack(c.b.one(c.long()))
		c.eventually("no lag without jobs that are due", func() bool { return c.a.stats().Lag <= 0 })
	}},
}
