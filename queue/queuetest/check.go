package queuetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/queue"
)

// long is a lease that outlasts every test, if the queue can lease for so long.
const long = 10 * time.Minute

// check is one test: a queue of its own, two clients of it, and the helpers that state
// what must hold.
type check struct {
	*testing.T
	h    *Harness
	a, b *client
	caps queue.Caps
	wait time.Duration
}

func newCheck(t *testing.T, h *Harness) *check {
	c := &check{T: t, h: h}
	a, b := h.New(t)
	c.a, c.b = &client{a, c}, &client{b, c}
	c.caps = a.Caps()
	c.wait = min(h.Wait, c.caps.MaxWait)
	return c
}

// client is a queue with helpers that fail the test.
type client struct {
	queue.Queue
	c *check
}

// ctx is a context that ends when the test has no more patience.
func (c *check) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), c.h.Patience)
	c.Cleanup(cancel)
	return ctx
}

// needs skips the test unless what it needs is there.
func (c *check) needs(there bool, what string) {
	c.Helper()
	if !there {
		c.Skipf("left out: %s", what)
	}
}

// long is a lease that does not end.
func (c *check) long() time.Duration {
	if c.caps.MaxLease > 0 {
		return min(long, c.caps.MaxLease)
	}
	return long
}

// eventually polls until cond holds.
func (c *check) eventually(what string, cond func() bool) {
	c.Helper()
	c.within(c.h.Patience, what, cond)
}

func (c *check) within(d time.Duration, what string, cond func() bool) {
	c.Helper()
	if !c.before(time.Now().Add(d), cond) {
		c.Fatalf("not within %v: %s", d, what)
	}
}

// until is eventually for goroutines, which must not end the test.
func (c *check) until(cond func() bool) bool { return c.before(time.Now().Add(c.h.Patience), cond) }

func (c *check) before(deadline time.Time, cond func() bool) bool {
	for !cond() {
		if time.Now().After(deadline) {
			return false
		}
		c.moment()
	}
	return true
}

// moment is a pause between two looks at a condition.
func (c *check) moment() { <-time.After(min(max(c.h.Lease/20, time.Millisecond), 50*time.Millisecond)) }

// longer tries what must happen before a lease is over, with a longer one each time
// the machine was too slow (false).
func (c *check) longer(try func(lease time.Duration) bool) {
	c.Helper()
	lease := c.h.Lease
	for range 5 {
		if try(lease) {
			return
		}
		lease *= 2
	}
	c.Fatalf("over before %v, however long it was meant to last", lease)
}

// stalls asks the queue for its numbers again and again, beside what is checked. The
// returned function ends that, and says how long it took at most from when a question was
// due to its answer: as long as the machine, or the service, kept everybody waiting.
func (c *check) stalls() (worst func() time.Duration) {
	const every = 10 * time.Millisecond
	over, longest := make(chan struct{}), make(chan time.Duration, 1)
	end := sync.OnceFunc(func() { close(over) })
	c.Cleanup(end) // also if the test is given up
	go func() {
		most := time.Duration(0)
		for {
			due := time.Now().Add(every)
			select {
			case <-time.After(every):
				c.a.Stats(context.Background()) // how long it takes is all
				most = max(most, time.Since(due))
			case <-over:
				longest <- most
				return
			}
		}
	}()
	return func() time.Duration { end(); return <-longest }
}

func (c *check) ok(what string, err error) {
	c.Helper()
	if err != nil {
		c.Fatalf("%s: %v", what, err)
	}
}

// fails checks that an error is there and has the type that the contract gives it.
func (c *check) fails(what string, err error) *queue.Error {
	c.Helper()
	var e *queue.Error
	switch {
	case err == nil:
		c.Fatalf("%s: no error, want one", what)
	case !errors.As(err, &e):
		c.Fatalf("%s: error %v is a %T, want a *queue.Error", what, err, err)
	case e.Service == "" || e.Addr == "" || e.Op == "" || e.Err == nil:
		c.Fatalf("%s: error %#v leaves out service, address, operation or cause", what, e)
	}
	return e
}

// is checks each entry's part of an error: nil, or an error that wraps what is wanted.
func (c *check) is(what string, err error, want ...error) {
	c.Helper()
	failed := false
	for i, w := range want {
		got := queue.ErrorOf(err, i)
		if w == nil && got != nil || w != nil && !errors.Is(got, w) {
			c.Errorf("%s: entry %d: %v, want %v", what, i, got, w)
		}
		failed = failed || w != nil
	}
	if failed == (err == nil) {
		c.Errorf("%s: the whole error is %v", what, err)
	}
	if c.Failed() {
		c.FailNow()
	}
}

func job(kind string) queue.Job {
	return queue.Job{Kind: kind, Payload: json.RawMessage(fmt.Sprintf(`{"kind":%q}`, kind))}
}

func keyed(kind, key string) queue.Job {
	j := job(kind)
	j.Key = key
	return j
}

// enqueue adds jobs that must be taken, and returns their IDs.
func (q *client) enqueue(jobs ...queue.Job) []string {
	q.c.Helper()
	ids, err := q.Enqueue(q.c.ctx(), jobs...)
	q.c.ok("Enqueue", err)
	if len(ids) != len(jobs) {
		q.c.Fatalf("Enqueue of %d jobs has returned %d IDs", len(jobs), len(ids))
	}
	for i, id := range ids {
		if id == "" {
			q.c.Fatalf("Enqueue: job %d has no ID", i)
		}
	}
	return ids
}

// look is one Receive that does not wait.
func (q *client) look(n int, lease time.Duration) []queue.Delivery {
	q.c.Helper()
	return q.ask(queue.Request{Max: n, Lease: lease})
}

func (q *client) ask(r queue.Request) []queue.Delivery {
	q.c.Helper()
	ds, err := q.Receive(q.c.ctx(), r)
	q.c.ok("Receive", err)
	most := r.Max
	if limit := q.c.caps.MaxBatch; limit > 0 {
		most = min(most, limit)
	}
	if len(ds) > most {
		q.c.Fatalf("Receive(Max %d) has delivered %d jobs, at most %d are allowed", r.Max, len(ds), most)
	}
	for i := range ds {
		q.c.wellFormed(&ds[i])
	}
	return ds
}

// wellFormed checks what must hold for every delivery.
func (c *check) wellFormed(d *queue.Delivery) {
	c.Helper()
	switch {
	case d.ID == "" || d.Token == "" || d.Kind == "" || d.DedupeKey == "":
		c.Fatalf("a delivery without ID, Token, Kind or DedupeKey: %+v", d)
	case d.Attempt < 1:
		c.Fatalf("job %s: attempt %d", d.ID, d.Attempt)
	case d.Lag < 0 || d.Age < 0:
		c.Fatalf("job %s: a lag of %v, an age of %v", d.ID, d.Lag, d.Age)
	case d.Deadline.IsZero():
		c.Fatalf("job %s has no deadline", d.ID)
	case d.LastError != "" && !c.caps.LastError:
		c.Fatalf("job %s: last error %q from a queue that declares to keep none", d.ID, d.LastError)
	case !json.Valid(d.Payload):
		c.Fatalf("job %s: payload %q is not JSON", d.ID, d.Payload)
	}
}

// receive claims n jobs, in as many calls as it takes.
func (q *client) receive(n int, lease time.Duration) []queue.Delivery {
	q.c.Helper()
	var ds []queue.Delivery
	q.c.eventually(fmt.Sprintf("%d jobs are delivered", n), func() bool {
		q.c.Helper()
		ds = append(ds, q.ask(queue.Request{Max: n - len(ds), Wait: q.c.wait, Lease: lease})...)
		return len(ds) == n
	})
	return ds
}

// one claims one job.
func (q *client) one(lease time.Duration) queue.Delivery {
	q.c.Helper()
	return q.receive(1, lease)[0]
}

// empty checks that nothing can be claimed now.
func (q *client) empty(why string) {
	q.c.Helper()
	if ds := q.look(10, q.c.h.Lease); len(ds) > 0 {
		q.c.Fatalf("%s: job %s of kind %s was delivered, attempt %d", why, ds[0].ID, ds[0].Kind, ds[0].Attempt)
	}
}

// drained checks that nothing is left but dead letters.
func (q *client) drained() {
	q.c.Helper()
	q.c.eventually("the queue is empty", func() bool {
		s := q.stats()
		return s.Ready <= 0 && s.NotReady <= 0
	})
	q.empty("the queue was drained")
}

func (q *client) stats() queue.Stats {
	q.c.Helper()
	s, err := q.Stats(q.c.ctx())
	q.c.ok("Stats", err)
	return s
}

func (q *client) ack(ds ...queue.Delivery) {
	q.c.Helper()
	q.c.ok("Ack", q.Ack(q.c.ctx(), tokens(ds)...))
}

func tokens(ds []queue.Delivery) []queue.Token {
	ts := make([]queue.Token, len(ds))
	for i := range ds {
		ts[i] = ds[i].Token
	}
	return ts
}

// bury claims a job, which must be the only one, and moves it to the dead letters.
func (q *client) bury(reason, text string) queue.Delivery {
	q.c.Helper()
	d := q.one(q.c.long())
	q.c.ok("Dead", q.Dead(q.c.ctx(), queue.Death{Token: d.Token, Reason: reason, Err: text}))
	return d
}

// same checks that two JSON texts have the same value.
func (c *check) same(what string, got, want json.RawMessage) {
	c.Helper()
	if len(want) == 0 {
		want = json.RawMessage("null")
	}
	var g, w any
	c.ok("Unmarshal "+what, json.Unmarshal(got, &g))
	c.ok("Unmarshal", json.Unmarshal(want, &w))
	if !reflect.DeepEqual(g, w) {
		c.Errorf("%s: payload %.100s, want %.100s", what, got, want)
	}
}
