package queuetest

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/onefill/onefill/queue"
)

var crowds = []test{
	{"EveryJobOnce", func(c *check) {
		// Writers enqueue while workers claim, and each worker now and then gives a job
		// back, extends it, or forgets it as if it had died. Properties: every job is
		// acknowledged; with a fence, nobody is told twice that it was; nothing is left.
		const writers, each = 4, 40
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				for j := range each {
					q := []*client{c.a, c.b}[j%2]
					if _, err := q.Enqueue(c.ctx(), keyed("k", fmt.Sprintf("%d-%d", i, j))); err != nil {
						c.Errorf("Enqueue: %v", err)
					}
				}
			})
		}
		acks := &tally{want: writers * each, seen: map[string]int{}}
		for i := range 4 {
			wg.Go(func() { c.work([]*client{c.a, c.b}[i%2], acks) })
		}
		wg.Wait()
		if c.Failed() {
			return
		}
		for id, n := range acks.seen {
			if n != 1 && c.caps.FencedAck {
				c.Errorf("job %s was acknowledged %d times", id, n)
			}
		}
		c.a.drained()
	}},
}

// tally counts by job.
type tally struct {
	mu   sync.Mutex
	want int
	seen map[string]int
}

func (t *tally) add(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen[id]++
}

func (t *tally) complete() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.seen) >= t.want
}

// work claims and acknowledges until all are acknowledged.
func (c *check) work(q *client, acks *tally) {
	done := c.until(func() bool {
		ds, err := q.Receive(c.ctx(), queue.Request{Max: 5, Lease: c.h.Lease})
		if err != nil {
			c.Errorf("Receive: %v", err)
			return true
		}
		for _, d := range ds {
			var err error
			switch rand.IntN(8) {
			case 0:
				err = q.Nack(c.ctx(), queue.Return{Token: d.Token, Err: "again", Uncounted: rand.IntN(2) == 0})
			case 1:
				continue // dies
			case 2:
				err = q.Extend(c.ctx(), c.h.Lease, d.Token)
				fallthrough
			default:
				if err = queue.ErrorOf(err, 0); err == nil {
					if err = q.Ack(c.ctx(), d.Token); err == nil {
						acks.add(d.ID)
					}
				}
			}
			if err = queue.ErrorOf(err, 0); err != nil && err != queue.ErrLeaseLost {
				c.Errorf("job %s: %v", d.ID, err)
			}
		}
		return acks.complete()
	})
	if !done {
		c.Errorf("not within %v: every job is acknowledged", c.h.Patience)
	}
}

// everyoneTakes lets four goroutines on both clients claim at most most jobs at a time
// until n were claimed, and acknowledges them; it returns how often each was delivered.
func (c *check) everyoneTakes(n, most int) map[string]int {
	c.Helper()
	t := &tally{want: n, seen: map[string]int{}}
	var wg sync.WaitGroup
	for i := range 4 {
		q := []*client{c.a, c.b}[i%2]
		wg.Go(func() {
			done := c.until(func() bool {
				ds, err := q.Receive(c.ctx(), queue.Request{Max: most, Lease: c.long()})
				if err != nil || len(ds) > most {
					c.Errorf("Receive(Max %d): %d jobs, %v", most, len(ds), err)
					return true
				}
				for _, d := range ds {
					t.add(d.ID)
				}
				if err := q.Ack(c.ctx(), tokens(ds)...); err != nil {
					c.Errorf("Ack: %v", err)
				}
				return t.complete()
			})
			if !done {
				c.Errorf("not within %v: all are claimed", c.h.Patience)
			}
		})
	}
	wg.Wait()
	return t.seen
}
