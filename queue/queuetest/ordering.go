package queuetest

import (
	"fmt"

	"github.com/onefill/onefill/queue"
)

var ordering = []test{
	{"KeysAreInOrder", func(c *check) {
		c.needsOrder()
		for i := range 5 {
			c.a.enqueue(keyed(fmt.Sprint(i), "key"), keyed(fmt.Sprint(i), "other"))
		}
		next := map[string]int{}
		for n := 0; n < 10; {
			for _, d := range c.b.ask(queue.Request{Max: 10, Wait: c.wait, Lease: c.long()}) {
				if want := fmt.Sprint(next[d.Key]); d.Kind != want {
					c.Fatalf("job %s of %s was delivered, want %s", d.Kind, d.Key, want)
				}
				next[d.Key]++
				n++
				c.b.ack(d)
			}
		}
	}},
	{"NobodyOvertakesWithinAKey", func(c *check) {
		// The first job is claimed, given back with a delay, claimed again: the second one
		// waits. Then the first one is dead: a poison job does not block its key for ever.
		c.needsOrder()
		c.a.enqueue(keyed("1", "key"))
		c.a.enqueue(keyed("2", "key"))
		c.a.enqueue(keyed("free", "other"))
		first := c.a.look(1, c.long())
		for len(first) == 0 || first[0].Kind != "1" {
			if len(first) > 0 && first[0].Kind == "2" {
				c.Fatal("job 2 was delivered first")
			}
			first = c.a.look(1, c.long())
		}
		c.noSecond("job 1 is claimed")
		c.ok("Nack", c.a.Nack(c.ctx(), queue.Return{Token: first[0].Token, Delay: c.h.Lease}))
		c.noSecond("job 1 is delayed")
		d := c.b.one(c.long())
		if d.Kind == "free" {
			d = c.b.one(c.long())
		}
		if d.Kind != "1" {
			c.Fatalf("job %s was delivered, want 1", d.Kind)
		}
		c.noSecond("job 1 is claimed again")
		c.ok("Dead", c.b.Dead(c.ctx(), queue.Death{Token: d.Token, Reason: "poison"}))
		if d = c.a.one(c.long()); d.Kind == "free" {
			d = c.a.one(c.long())
		}
		if d.Kind != "2" {
			c.Errorf("job %s was delivered, want 2", d.Kind)
		}
	}},
}

func (c *check) needsOrder() {
	c.Helper()
	c.needs(c.caps.OrderedKeys, "the queue declares no OrderedKeys")
}

// noSecond checks that job 2 is not to be had; the one of another key is.
func (c *check) noSecond(why string) {
	c.Helper()
	for _, d := range c.b.look(10, c.long()) {
		if d.Kind == "2" {
			c.Fatalf("%s: job 2 was delivered", why)
		}
	}
}
