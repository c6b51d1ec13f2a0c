package queuetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/onefill/onefill/queue"
)

var enqueueing = []test{
	{"RoundTrip", func(c *check) {
		j := queue.Job{Kind: "a.Kind/of-job_1:x", Key: "users:42 é\n\t\"'%{}\\", Payload: json.RawMessage(`{"b":[1,2],"a":"x"}`),
			Version: math.MaxUint64, DedupeKey: "order é 17"}
		before := time.Now()
		id := c.a.enqueue(j)[0]
		d := c.b.one(c.long())
		if d.ID != id || d.Kind != j.Kind || d.Key != j.Key || d.Version != j.Version || d.DedupeKey != j.DedupeKey {
			c.Errorf("delivered %+v, want %+v with ID %s", d, j, id)
		}
		c.same("delivered", d.Payload, j.Payload)
		if d.Attempt != 1 || d.LastError != "" || d.Delay != 0 || d.Merge {
			c.Errorf("attempt %d, last error %q, delay %v, merge %t, want 1, none, 0, false", d.Attempt, d.LastError, d.Delay, d.Merge)
		}
		if spent := time.Since(before) + time.Second; d.Age > spent || d.Lag > spent {
			c.Errorf("aged %v with a lag of %v, %v after it was enqueued", d.Age, d.Lag, spent)
		}
		if latest := time.Now().Add(c.long() + c.caps.Granularity); d.Deadline.After(latest) {
			c.Errorf("the deadline %v is after the end of the lease, %v", d.Deadline, latest)
		}
		c.b.ack(d)
		c.a.drained()
	}},
	{"PayloadsKeepTheirValue", func(c *check) {
		for _, p := range []string{
			``, `null`, `true`, `0`, `-1.5e-7`, `9007199254740993`, `[1e300, -2.5E-300, 1.0]`, `""`, `"\\u0000"`, `"\ud83d\ude00 \u00e9 \/ \n"`, `"😀"`,
			`[]`, `{}`, `{"a":{"b":[null,false,"c",{"d":1e3}]}}`, ` [ 1 , 2 ] `, `"` + strings.Repeat("x", 10_000) + `"`, strings.Repeat("[", 100) + strings.Repeat("]", 100),
		} {
			c.a.enqueue(queue.Job{Kind: "k", Payload: json.RawMessage(p)})
			d := c.b.one(c.long())
			c.same(fmt.Sprintf("%.40s", p), d.Payload, json.RawMessage(p))
			c.b.ack(d)
		}
	}},
	{"LargestPayload", func(c *check) {
		c.needs(c.caps.MaxPayload > 0, "the queue declares no MaxPayload")
		largest := append(append([]byte{'"'}, bytes.Repeat([]byte{'x'}, c.caps.MaxPayload-2)...), '"')
		c.a.enqueue(queue.Job{Kind: "k", Payload: largest})
		c.same("the largest", c.b.one(c.long()).Payload, largest)
	}},
	{"CallerKeepsItsBytes", func(c *check) {
		payload := []byte(`{"n":1}`)
		c.a.enqueue(queue.Job{Kind: "k", Payload: payload})
		copy(payload, `{"n":2}`)
		d := c.b.one(c.h.Lease)
		c.same("changed after Enqueue", d.Payload, json.RawMessage(`{"n":1}`))
		clear(d.Payload)
		c.same("changed after Receive", c.b.one(c.long()).Payload, json.RawMessage(`{"n":1}`))
	}},
	{"InvalidJobsFailAlone", func(c *check) {
		bad := c.invalidJobs()
		jobs := []queue.Job{job("first")}
		want := []error{nil}
		for _, j := range bad {
			jobs = append(jobs, j)
			want = append(want, queue.ErrInvalid)
		}
		jobs, want = append(jobs, job("last")), append(want, nil)
		ids, err := c.a.Enqueue(c.ctx(), jobs...)
		c.is("Enqueue", err, want...)
		for i := range jobs {
			if (ids[i] == "") != (want[i] != nil) {
				c.Errorf("job %d, %+.80v: ID %q", i, jobs[i], ids[i])
			}
			if want[i] != nil {
				c.fails("Enqueue", queue.ErrorOf(err, i))
			}
		}
		kinds := []string{}
		for _, d := range c.b.receive(2, c.long()) {
			kinds = append(kinds, d.Kind)
		}
		slices.Sort(kinds)
		if !slices.Equal(kinds, []string{"first", "last"}) {
			c.Errorf("delivered %q, want the first and the last", kinds)
		}
		c.b.empty("the others are invalid")
	}},
	{"NothingIsNoError", func(c *check) {
		ids, err := c.a.Enqueue(c.ctx())
		c.ok("Enqueue()", err)
		if len(ids) > 0 {
			c.Errorf("Enqueue() = %q", ids)
		}
		c.ok("Ack()", c.a.Ack(c.ctx()))
		c.ok("Extend()", c.a.Extend(c.ctx(), c.h.Lease))
		c.ok("Nack()", c.a.Nack(c.ctx()))
		c.ok("Dead()", c.a.Dead(c.ctx()))
		if c.caps.Replay {
			_, err = c.a.ReplayDead(c.ctx())
			c.ok("ReplayDead()", err)
			c.ok("DropDead()", c.a.DropDead(c.ctx()))
		}
	}},
	{"ManyInOneCall", func(c *check) {
		// More entries than any queue takes at once: they are split.
		const n = 230
		jobs := make([]queue.Job, n)
		for i := range jobs {
			jobs[i] = keyed("k", fmt.Sprint(i))
		}
		ids := c.a.enqueue(jobs...)
		ds := c.b.receive(n, c.long())
		byID := map[string]string{}
		for _, d := range ds {
			byID[d.ID] = d.Key
		}
		for i, id := range ids {
			if byID[id] != jobs[i].Key {
				c.Fatalf("ID %s of job %d was delivered with key %q; %d different jobs", id, i, byID[id], len(byID))
			}
		}
		c.ok("Extend", c.b.Extend(c.ctx(), c.long(), tokens(ds)...))
		c.b.ack(ds...)
		c.a.drained()
	}},
	{"SameDedupeKeyIsTwoJobs", func(c *check) {
		// The queue drops nothing: what a DedupeKey is good for is the handler's affair.
		j := keyed("k", "key")
		j.DedupeKey, j.Version = "the same", 7
		c.a.enqueue(j)
		c.a.enqueue(j)
		c.a.enqueue(j, j)
		got := map[string]bool{}
		for range 4 {
			d := c.b.one(c.long())
			got[d.ID] = true
			c.b.ack(d)
		}
		if len(got) != 4 {
			c.Errorf("%d jobs, want 4", len(got))
		}
	}},
	{"DedupeKeysDiffer", func(c *check) {
		jobs := slices.Repeat([]queue.Job{job("k")}, 20)
		c.a.enqueue(jobs...)
		keys := map[string]bool{}
		for _, d := range c.b.receive(20, c.long()) {
			keys[d.DedupeKey] = true
		}
		if len(keys) != 20 {
			c.Errorf("20 jobs have %d dedupe keys", len(keys))
		}
	}},
	{"Check", func(c *check) {
		c.ok("Check", c.a.Check(c.ctx()))
		c.ok("Check", c.b.Check(c.ctx()))
	}},
}

// invalidJobs are jobs that this queue must refuse.
func (c *check) invalidJobs() []queue.Job {
	payload := func(p string) queue.Job { return queue.Job{Kind: "k", Payload: json.RawMessage(p)} }
	bad := []queue.Job{
		{}, {Kind: "two words"}, {Kind: "é"}, {Kind: strings.Repeat("k", 129)},
		keyed("k", "\x00"), keyed("k", "\xff"), keyed("k", strings.Repeat("k", 1025)),
		{Kind: "k", DedupeKey: "\x00"}, {Kind: "k", DedupeKey: strings.Repeat("k", 257)},
		{Kind: "k", Merge: true},
		payload(`{`), payload(` `), payload(`1 2`), payload(`hello`), payload("\"\xff\""),
		payload(`"\u0000"`), payload(`{"a\\\u0000":1}`), payload(`"\ud83d"`), payload(`"\ud83d\u0041"`), payload(`"\ude00"`), payload(`{"a":1e200000}`), payload(`1e-200000`),
	}
	if c.caps.MaxDelay > 0 {
		bad = append(bad, queue.Job{Kind: "k", Delay: c.caps.MaxDelay + 1})
	}
	if c.caps.MaxPayload > 0 {
		bad = append(bad, payload(`"`+strings.Repeat("x", c.caps.MaxPayload-1)+`"`))
	}
	return bad
}
