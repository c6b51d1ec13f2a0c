package queuetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onefill/onefill/queue"
)

var burying = []test{
	{"DeadLetterTellsAll", func(c *check) {
		c.needsReplay()
		j := queue.Job{Kind: "mail", Key: "users:42", Payload: json.RawMessage(`{"to":"a"}`), Version: 7}
		c.a.enqueue(j)
		d := c.a.one(c.long())
		c.ok("Nack", c.a.Nack(c.ctx(), queue.Return{Token: d.Token, Err: "first"}))
		before := time.Now().Add(-time.Minute) // clocks may differ a little
		d = c.a.bury("2 attempts failed", "no route to host")
		l := c.onlyLetter(queue.DeadQuery{})
		if l.Kind != j.Kind || l.Key != j.Key || l.Version != j.Version || l.DedupeKey != d.DedupeKey || l.ID == "" ||
			l.Reason != "2 attempts failed" || l.LastError != "no route to host" || l.ReplayedAs != "" {
			c.Errorf("dead letter %+v of job %+v", l, d)
		}
		if c.caps.AttemptsExact && l.Attempts != 2 {
			c.Errorf("%d attempts, want 2", l.Attempts)
		}
		if !l.Died.IsZero() && (l.Died.Before(before) || l.Died.After(time.Now().Add(time.Minute))) {
			c.Errorf("it died at %v, that is not now", l.Died)
		}
		c.same("of the letter", l.Payload, j.Payload)
		c.b.drained()
	}},
	{"DeadQueries", func(c *check) {
		c.needsReplay()
		for i := range 5 {
			c.a.enqueue(keyed([]string{"odd", "even"}[i%2], fmt.Sprint("key", i)))
			c.a.bury("why", "")
		}
		all := c.letters(queue.DeadQuery{})
		if len(all) != 5 {
			c.Fatalf("%d dead letters, want 5", len(all))
		}
		var paged []queue.DeadLetter
		for after := ""; ; after = paged[len(paged)-1].ID {
			page := c.letters(queue.DeadQuery{Max: 2, After: after})
			if paged = append(paged, page...); len(page) < 2 {
				break
			}
		}
		same := func(a, b queue.DeadLetter) bool { return a.ID == b.ID }
		if !slices.EqualFunc(all, paged, same) {
			c.Errorf("by pages of 2: %+v, at once: %+v", paged, all)
		}
		if n := len(c.letters(queue.DeadQuery{Kind: "odd"})); n != 3 {
			c.Errorf("%d letters of kind odd, want 3", n)
		}
		if l := c.onlyLetter(queue.DeadQuery{Key: "key3"}); l.Key != "key3" {
			c.Errorf("by its key: %+v", l)
		}
		if l := c.onlyLetter(queue.DeadQuery{ID: all[2].ID}); l.ID != all[2].ID {
			c.Errorf("by its ID: %+v", l)
		}
		if n := len(c.letters(queue.DeadQuery{Kind: "odd", Key: "key1"})); n != 0 {
			c.Errorf("%d letters meet one of two conditions", n)
		}
	}},
	{"ReplayIsANewJob", func(c *check) {
		// A replay that kept the old count would die again at once; do it twice.
		c.needsReplay()
		j := keyed("k", "key")
		j.Version = 3
		c.a.enqueue(j)
		first := c.a.one(c.h.Lease)
		d := c.a.bury("why", "because") // its second claim
		for range 2 {
			l := c.onlyLetter(queue.DeadQuery{})
			ids, err := c.b.ReplayDead(c.ctx(), l.ID)
			c.ok("ReplayDead", err)
			if len(ids) != 1 || ids[0] == "" || ids[0] == first.ID {
				c.Fatalf("ReplayDead = %q, want a new ID", ids)
			}
			if n := len(c.letters(queue.DeadQuery{})); n != 0 {
				c.Errorf("%d letters left", n)
			}
			for _, l := range c.letters(queue.DeadQuery{Replayed: true, ID: l.ID}) {
				if l.ReplayedAs != ids[0] {
					c.Errorf("replayed as %q, want %q", l.ReplayedAs, ids[0])
				}
			}
			_, err = c.a.ReplayDead(c.ctx(), l.ID)
			c.is("ReplayDead again", err, queue.ErrUnknown)
			if c.caps.FencedAck {
				c.is("Ack of the dead job", c.a.Ack(c.ctx(), d.Token), queue.ErrLeaseLost)
			}
			d = c.a.bury("why", "because")
			if d.ID != ids[0] || d.Attempt != 1 || d.LastError != "" || d.DedupeKey != first.DedupeKey || d.Key != j.Key || d.Version != j.Version {
				c.Errorf("the replay was delivered as %+v, the first time it was %+v", d, first)
			}
			c.same("of the replay", d.Payload, j.Payload)
		}
		c.a.drained()
	}},
	{"ReplayedOnce", func(c *check) {
		// Two operators replay the same letter at the same time: one new job.
		c.needsReplay()
		for range 5 {
			c.a.enqueue(job("k"))
			c.a.bury("why", "")
			l := c.onlyLetter(queue.DeadQuery{})
			results := make(chan error, 2)
			for _, q := range []*client{c.a, c.b} {
				go func() {
					_, err := q.ReplayDead(c.ctx(), l.ID)
					results <- queue.ErrorOf(err, 0)
				}()
			}
			one, two := <-results, <-results
			if (one == nil) == (two == nil) || one != nil && !errors.Is(one, queue.ErrUnknown) || two != nil && !errors.Is(two, queue.ErrUnknown) {
				c.Fatalf("two replays: %v, %v, want one nil and one ErrUnknown", one, two)
			}
			c.a.ack(c.a.one(c.long()))
			c.a.drained()
		}
	}},
	{"ReplayAndDropResults", func(c *check) {
		c.needsReplay()
		c.a.enqueue(job("1"))
		c.a.bury("why", "")
		c.a.enqueue(job("2"))
		c.a.bury("why", "")
		ls := c.letters(queue.DeadQuery{})
		ids, err := c.a.ReplayDead(c.ctx(), "no-such-letter", ls[0].ID)
		c.is("ReplayDead", err, queue.ErrUnknown, nil)
		if len(ids) != 2 || ids[0] != "" || ids[1] == "" {
			c.Errorf("ReplayDead = %q, want an empty ID and one", ids)
		}
		c.is("DropDead", c.a.DropDead(c.ctx(), ls[1].ID, "no-such-letter"), nil, queue.ErrUnknown)
		c.is("DropDead again", c.a.DropDead(c.ctx(), ls[1].ID), queue.ErrUnknown)
		if n := len(c.letters(queue.DeadQuery{})); n != 0 {
			c.Errorf("%d letters left", n)
		}
		c.a.ack(c.a.one(c.long()))
		c.a.drained()
	}},
	{"NoReplay", func(c *check) {
		c.needs(!c.caps.Replay, "the queue declares Replay")
		_, err := c.a.ListDead(c.ctx(), queue.DeadQuery{})
		c.unsupported("ListDead", err)
		_, err = c.a.ReplayDead(c.ctx(), "1")
		c.unsupported("ReplayDead", err)
		c.unsupported("DropDead", c.a.DropDead(c.ctx(), "1"))
	}},
}

func (c *check) needsReplay() {
	c.Helper()
	c.needs(c.caps.Replay, "the queue declares no Replay")
}

func (c *check) unsupported(what string, err error) {
	c.Helper()
	c.fails(what, err)
	if !errors.Is(err, errors.ErrUnsupported) {
		c.Errorf("%s: %v, want errors.ErrUnsupported", what, err)
	}
}

func (c *check) letters(q queue.DeadQuery) []queue.DeadLetter {
	c.Helper()
	ls, err := c.b.ListDead(c.ctx(), q)
	c.ok("ListDead", err)
	return ls
}

func (c *check) onlyLetter(q queue.DeadQuery) queue.DeadLetter {
	c.Helper()
	ls := c.letters(q)
	if len(ls) != 1 {
		c.Fatalf("ListDead(%+v): %d letters, want 1: %+v", q, len(ls), ls)
	}
	return ls[0]
}
