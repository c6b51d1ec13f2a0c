package queuetest

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/onefill/onefill/queue"
)

// mergeable is the n-th job about a key, of a version.
func mergeable(key string, n int, version uint64) queue.Job {
	return queue.Job{Kind: "k", Key: key, Version: version, Merge: true, DedupeKey: fmt.Sprint("work ", n),
		Payload: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n))}
}

var merging = []test{
	{"MergedJobsAreOne", func(c *check) {
		c.needsMerge()
		for _, tt := range []struct {
			versions [2]uint64
			stays    int
			version  uint64
		}{{[2]uint64{0, 0}, 2, 0}, {[2]uint64{5, 6}, 2, 6}, {[2]uint64{6, 5}, 1, 6}, {[2]uint64{5, 5}, 2, 5}, {[2]uint64{0, 5}, 2, 0}, {[2]uint64{5, 0}, 2, 0}} {
			one := c.a.enqueue(mergeable("key", 1, tt.versions[0]))
			two := c.b.enqueue(mergeable("key", 2, tt.versions[1]))
			if one[0] != two[0] {
				c.Errorf("IDs %s and %s of jobs that are one", one[0], two[0])
			}
			d := c.a.one(c.long())
			if d.DedupeKey != fmt.Sprint("work ", tt.stays) || d.Version != tt.version {
				c.Errorf("versions %v: %q of version %d is left, want that of job %d", tt.versions, d.DedupeKey, d.Version, tt.stays)
			}
			c.same("of what is left", d.Payload, mergeable("key", tt.stays, 0).Payload)
			c.a.ack(d)
			c.a.drained()
		}
	}},
	{"MergedInOneCall", func(c *check) {
		c.needsMerge()
		ids := c.a.enqueue(mergeable("a", 1, 0), mergeable("b", 2, 0), mergeable("a", 3, 0), mergeable("a", 4, 0))
		if ids[0] != ids[2] || ids[0] != ids[3] || ids[0] == ids[1] {
			c.Errorf("IDs %q", ids)
		}
		got := map[string]string{}
		for _, d := range c.a.receive(2, c.long()) {
			got[d.Key] = d.DedupeKey
		}
		if got["a"] != "work 4" || got["b"] != "work 2" {
			c.Errorf("left: %v", got)
		}
		c.a.empty("the others were merged")
	}},
	{"ClaimedIsNotMerged", func(c *check) {
		// The worker has claimed the old job and has read the old row; the writer
		// commits the new row and its job: that one must run, too. So it is also after
		// the old one was given back.
		c.needsMerge()
		c.a.enqueue(mergeable("key", 1, 0))
		d := c.a.one(c.long())
		c.a.enqueue(mergeable("key", 2, 0))
		c.ok("Nack", c.a.Nack(c.ctx(), queue.Return{Token: d.Token, Uncounted: true}))
		got := map[string]bool{}
		for range 2 { // one after the other, for queues with order
			d := c.b.one(c.long())
			got[d.DedupeKey] = true
			c.b.ack(d)
		}
		if !got["work 1"] || !got["work 2"] {
			c.Errorf("delivered %v, want both", got)
		}
	}},
	{"WhatIsNotMerged", func(c *check) {
		// Other keys, other kinds, jobs without Merge on either side.
		other, plain := mergeable("key", 3, 0), mergeable("key", 4, 0)
		other.Kind, plain.Merge = "other", false
		jobs := []queue.Job{plain, mergeable("key", 1, 0), mergeable("key2", 2, 0), other, plain}
		want := len(jobs)
		if !c.caps.Merge {
			jobs = append(jobs, mergeable("key", 5, 0))
			want++
		}
		for _, j := range jobs {
			c.a.enqueue(j)
		}
		for range want {
			c.a.ack(c.a.one(c.long()))
		}
		c.a.drained()
	}},
	{"MergeKeepsTheEarlierTime", func(c *check) {
		// A key that is written faster than the delay is not put off for ever.
		c.needsMerge()
		soon, later := mergeable("key", 1, 0), mergeable("key", 2, 0)
		later.Delay = time.Hour
		c.a.enqueue(soon)
		c.a.enqueue(later)
		if d := c.a.one(c.long()); d.DedupeKey != "work 2" {
			c.Errorf("left is %q", d.DedupeKey)
		} else {
			c.a.ack(d)
		}
		c.a.enqueue(later)
		c.a.enqueue(soon)
		c.a.ack(c.a.one(c.long()))
		c.a.drained()
	}},
}

func (c *check) needsMerge() {
	c.Helper()
	c.needs(c.caps.Merge, "the queue declares no Merge")
}
