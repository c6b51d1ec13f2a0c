package sqsqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/queue"
)

// order is what a handler was called with.
type order struct {
	mu    sync.Mutex
	kinds []string
}

func (o *order) add(kind string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kinds = append(o.kinds, kind)
}

func (o *order) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.kinds, " ")
}

// A poison job is in front of its group (drake #11192: the group stands still for ever;
// or the jobs behind it, received with it and given back each time, die along with it). It
// dies after MaxAttempts; those behind it are done in order, at their first receive.
func TestPoisonDoesNotBlockItsGroup(t *testing.T) {
	inBubble(t, "q.fifo", Options{}, func(w *world) {
		w.enqueue(keyed("poison", "g"), keyed("1", "g"), keyed("2", "g"), keyed("3", "g"), keyed("free", "other"))
		var done order
		attempts := map[string]int{}
		good := queue.Handler{Job: func(_ context.Context, d queue.Delivery) error {
			done.add(d.Kind)
			attempts[d.Kind] = d.Attempt
			return nil
		}}
		poison := queue.Handler{Job: func(context.Context, queue.Delivery) error { return errors.New("poison") }}
		worker := w.worker(queue.WorkerOptions{MaxAttempts: 4, RetryMin: time.Second, RetryMax: 5 * time.Second, OrderedKeys: true,
			Handlers: map[string]queue.Handler{"poison": poison, "1": good, "2": good, "3": good, "free": good}})
		w.until("all came to their ends", func() bool { s := worker.Stats(); return s.Done == 4 && s.Dead == 1 })
		must(w, worker.Stop(w.Context()))
		if done.String() != "free 1 2 3" {
			w.Errorf("done: %s, want free 1 2 3", &done)
		}
		for kind, n := range attempts {
			if n != 1 {
				w.Errorf("job %s was done at attempt %d, want 1", kind, n)
			}
		}
		ls, err := w.q.ListDead(w.Context(), queue.DeadQuery{})
		must(w, err)
		if len(ls) != 1 || ls[0].Kind != "poison" || ls[0].LastError != "poison" || ls[0].Attempts != 4 {
			w.Errorf("letters: %+v", ls)
		}
	})
}

// The same where the handler takes its process along, so that nobody ever gives the job
// back: SQS moves it, and the group goes on.
func TestKillerDoesNotBlockItsGroup(t *testing.T) {
	inBubble(t, "q.fifo", Options{}, func(w *world) {
		w.enqueue(keyed("killer", "g"), keyed("next", "g"))
		for range 5 {
			if d := w.one(time.Second); d.Kind != "killer" {
				w.Fatalf("job %s was delivered", d.Kind)
			}
			time.Sleep(time.Second)
		}
		if d := w.one(time.Minute); d.Kind != "next" || d.Attempt != 1 {
			w.Errorf("job %s was delivered, attempt %d", d.Kind, d.Attempt)
		}
		ls, err := w.q.ListDead(w.Context(), queue.DeadQuery{})
		must(w, err)
		if len(ls) != 1 || ls[0].Kind != "killer" || ls[0].Attempts != 5 || !strings.Contains(ls[0].Reason, "moved by SQS") || !ls[0].Died.IsZero() {
			w.Errorf("letters: %+v", ls)
		}
	})
}

// A handler takes 10 s with a lease of 3 s, with others of its group behind it: the
// heartbeat keeps the whole group, nobody is delivered twice or out of order, also with two workers.
func TestHeartbeatKeepsTheGroup(t *testing.T) {
	inBubble(t, "q.fifo", Options{}, func(w *world) {
		for i := range 5 {
			w.enqueue(keyed(fmt.Sprint(i), "g"))
		}
		var done order
		handlers := map[string]queue.Handler{}
		for i := range 5 {
			handlers[fmt.Sprint(i)] = queue.Handler{Job: func(_ context.Context, d queue.Delivery) error {
				done.add("<" + d.Kind)
				time.Sleep(10 * time.Second)
				done.add(d.Kind + ">")
				return nil
			}}
		}
		o := queue.WorkerOptions{Lease: 3 * time.Second, Batch: 10, Handlers: handlers}
		one, two := w.worker(o), w.worker(o)
		w.until("all are done", func() bool { return one.Stats().Done+two.Stats().Done == 5 })
		must(w, one.Stop(w.Context()))
		must(w, two.Stop(w.Context()))
		if got := done.String(); got != "<0 0> <1 1> <2 2> <3 3> <4 4>" {
			w.Errorf("done: %s", got)
		}
	})
}

// One Receive brings jobs of many groups, one of each.
func TestOneOfEachGroup(t *testing.T) {
	inBubble(t, "q.fifo", Options{}, func(w *world) {
		for i := range 3 {
			for g := range 12 {
				w.enqueue(keyed(fmt.Sprint(i), fmt.Sprint("group", g)))
			}
		}
		before := w.fake.Counts()["ReceiveMessage"]
		ds := w.receive(10, time.Minute)
		if len(ds) != 10 || strings.Trim(kinds(ds), "0 ") != "" {
			w.Errorf("received %s, want the first of ten groups", kinds(ds))
		}
		if n := w.fake.Counts()["ReceiveMessage"] - before; n != 10 {
			w.Errorf("%d requests for 10 jobs", n)
		}
		more := w.receive(10, time.Minute)
		if len(more) != 2 {
			w.Errorf("received %s, want those of the last two groups", kinds(more))
		}
		for range 4 {
			w.enqueue(keyed("x", "hot"))
			must(w, w.q.Ack(w.Context(), w.one(time.Minute).Token))
		}
		if hot := w.q.Metrics().HotGroup; hot.Name != "hot" || hot.Deliveries != 4 {
			w.Errorf("the hottest group is %+v", hot)
		}
	})
}

// Nothing is dropped unless it was asked for: a version 0 says nothing, and without
// DedupeByVersion each job has an ID of its own. With it, a job of the same kind, key and
// version is one that was sent, for five minutes, done or not.
func TestDedupe(t *testing.T) {
	versioned := func(kind string, v uint64) queue.Job {
		j := keyed(kind, "users:42")
		j.Version = v
		return j
	}
	jobs := []queue.Job{versioned("k", 7), versioned("k", 7), versioned("other", 7), versioned("k", 8), versioned("k", 0), versioned("k", 0)}
	for _, tt := range []struct {
		o    Options
		want int
	}{{Options{}, 6}, {Options{DedupeByVersion: true}, 5}} {
		inBubble(t, "q.fifo", tt.o, func(w *world) {
			ids := w.enqueue(jobs...)
			if got := len(slices.Compact(slices.Sorted(slices.Values(ids)))); got != tt.want {
				w.Errorf("%+v: %d jobs, want %d", tt.o, got, tt.want)
			}
			for len(w.fake.Messages("q.fifo")) > 0 {
				must(w, w.q.Ack(w.Context(), w.one(time.Minute).Token))
			}
			w.enqueue(versioned("k", 7))
			if got := len(w.fake.Messages("q.fifo")); got != tt.want-5 && got != 6-tt.want {
				w.Errorf("%+v: %d jobs after one that was done", tt.o, got)
			}
			time.Sleep(6 * time.Minute)
			w.enqueue(versioned("k", 7))
			if len(w.fake.Messages("q.fifo")) == 0 {
				w.Errorf("%+v: dropped after six minutes", tt.o)
			}
		})
	}
}

// A replay within the five minutes is not dropped as a copy of what has died.
func TestReplayIsNotDeduped(t *testing.T) {
	inBubble(t, "q.fifo", Options{DedupeByVersion: true}, func(w *world) {
		j := keyed("k", "key")
		j.Version = 7
		id := w.enqueue(j)[0]
		for range 2 {
			must(w, w.q.Dead(w.Context(), queue.Death{Token: w.one(time.Minute).Token, Reason: "why"}))
			ids, err := w.q.ReplayDead(w.Context(), id)
			must(w, err)
			id = ids[0]
		}
		if d := w.one(time.Minute); d.Attempt != 1 || d.Version != 7 {
			w.Errorf("delivered %+v", d)
		}
	})
}

// Keys that SQS does not take as a group's name keep their order all the same.
func TestOddKeys(t *testing.T) {
	for _, key := range []string{"a b", "é", strings.Repeat("k", 129), strings.Repeat("\x01", 1024), "!~", strings.Repeat("k", 128)} {
		if g := messageGroup(key); len(g) > 128 || strings.ContainsFunc(g, func(r rune) bool { return r <= ' ' || r > '~' }) || g != messageGroup(key) {
			t.Errorf("key %.20q: group %q", key, g)
		}
	}
	if one, two := messageGroup(""), messageGroup(""); one == two {
		t.Error("jobs without a key share a group")
	}
}

// What the numbers of a FIFO queue are: a job with a delay counts as ready until somebody
// has looked at it.
func TestStatsOfFIFO(t *testing.T) {
	inBubble(t, "q.fifo", Options{}, func(w *world) {
		j := keyed("later", "a")
		j.Delay = time.Minute
		w.enqueue(j, keyed("now", "b"), keyed("behind", "b"))
		stats := func(want queue.Stats) {
			w.Helper()
			got, err := w.q.Stats(w.Context())
			must(w, err)
			if got != want {
				w.Errorf("%+v, want %+v", got, want)
			}
		}
		stats(queue.Stats{Ready: 3, Lag: -1})
		if got := kinds(w.receive(1, time.Hour)) + kinds(w.receive(1, time.Hour)); got != "now" {
			w.Errorf("received %s", got)
		}
		stats(queue.Stats{Ready: 1, NotReady: 2, Lag: -1})
	})
}
