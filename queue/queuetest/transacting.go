package queuetest

import "github.com/onefill/onefill/queue"

var transacting = []test{
	{"CommittedJobIsThere", func(c *check) {
		// A transaction enqueues and stays open; others enqueue later and their jobs are
		// done; then it commits: its job, which has an older place, is not skipped.
		c.needsTx()
		tx := c.h.Begin(c, c.a.Queue)
		c.ok("Enqueue in a transaction", tx.Enqueue(keyed("in", "key")))
		c.a.empty("it is not committed")
		for range 3 {
			c.a.enqueue(keyed("out", "key"))
			c.b.ack(c.b.one(c.long()))
		}
		c.ok("Commit", tx.Commit())
		if d := c.b.one(c.long()); d.Kind != "in" || d.Attempt != 1 {
			c.Errorf("job %q was delivered, attempt %d", d.Kind, d.Attempt)
		}
	}},
	{"RolledBackJobIsNot", func(c *check) {
		c.needsTx()
		tx := c.h.Begin(c, c.a.Queue)
		c.ok("Enqueue in a transaction", tx.Enqueue(job("k")))
		c.ok("Rollback", tx.Rollback())
		c.b.drained()
	}},
	{"InvalidJobInATransaction", func(c *check) {
		// It is refused before the database sees it, so the transaction is not broken.
		c.needsTx()
		tx := c.h.Begin(c, c.a.Queue)
		for _, j := range c.invalidJobs() {
			c.is("Enqueue", tx.Enqueue(j), queue.ErrInvalid)
		}
		c.ok("Enqueue", tx.Enqueue(job("good")))
		c.ok("Commit", tx.Commit())
		if d := c.b.one(c.long()); d.Kind != "good" {
			c.Errorf("job %q was delivered", d.Kind)
		}
		c.b.empty("one job was enqueued")
	}},
}

func (c *check) needsTx() {
	c.Helper()
	c.needs(c.caps.TxEnqueue, "the queue declares no TxEnqueue")
	if c.h.Begin == nil {
		c.Fatal("the queue declares TxEnqueue, but the harness has no Begin")
	}
}
