package sqsqueue

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/memqueue"
	"github.com/onefill/onefill/sqsqueue/internal/sqsfake"
)

// relaying starts a worker that relays jobs of kind k from a queue to w's.
func (w *world) relaying(source *memqueue.Queue) *queue.Worker {
	w.Helper()
	return w.worker(queue.WorkerOptions{Queue: source, Handlers: map[string]queue.Handler{"k": Relay(w.q)}, MaxAttempts: 3})
}

// What SQS takes is done, as it was; what it does not take stays, and what it never can
// take dies with the reason.
func TestRelay(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		source := memqueue.New()
		want := map[string]queue.Job{}
		for i := range 25 {
			j := queue.Job{Kind: "k", Key: fmt.Sprint("key", i), Payload: []byte(fmt.Sprint(i)), Version: uint64(i), DedupeKey: fmt.Sprint("work", i)}
			want[j.DedupeKey] = j
			_, err := source.Enqueue(w.Context(), j)
			must(w, err)
		}
		_, err := source.Enqueue(w.Context(), queue.Job{Kind: "k", DedupeKey: "large", Payload: []byte(`"` + strings.Repeat("x", 1<<20) + `"`)})
		must(w, err)
		// Two entries of each of the first three batches fail by the service's fault, in all
		// of their four tries.
		requests := 0
		w.fake.SetFault(func(c sqsfake.Call) sqsfake.Fault {
			if c.Op != "SendMessageBatch" {
				return sqsfake.Fault{}
			}
			requests++
			if requests > 12 {
				return sqsfake.Fault{}
			}
			return sqsfake.Fault{Entry: func(i int) *sqsfake.Error {
				if i < 2 {
					return internal
				}
				return nil
			}}
		})
		worker := w.relaying(source)
		w.until("all are relayed", func() bool { return worker.Stats().Done == 25 })
		if s := worker.Stats(); s.Postponed != 6 || s.Dead != 1 || len(source.Jobs()) != 0 {
			w.Errorf("%+v, %d jobs at the source", s, len(source.Jobs()))
		}
		must(w, worker.Stop(w.Context()))
		ls, err := source.ListDead(w.Context(), queue.DeadQuery{})
		must(w, err)
		if len(ls) != 1 || ls[0].DedupeKey != "large" || !strings.Contains(ls[0].LastError, "bytes") {
			w.Errorf("letters at the source: %.300v", ls)
		}
		for len(want) > 0 {
			ds := w.receive(10, time.Hour)
			if len(ds) == 0 {
				w.Fatalf("%d jobs did not arrive", len(want))
			}
			for _, d := range ds {
				j := want[d.DedupeKey]
				if d.Kind != j.Kind || d.Key != j.Key || d.Version != j.Version || string(d.Payload) != string(j.Payload) {
					w.Errorf("relayed %+v, want %+v", d.Job, j)
				}
				delete(want, d.DedupeKey)
			}
		}
	})
}

// SQS is away for ten minutes, far more tries than MaxAttempts: no job dies, and none
// counts as done.
func TestRelayOutlastsAnOutage(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		source := memqueue.New()
		for range 4 {
			_, err := source.Enqueue(w.Context(), job("k"))
			must(w, err)
		}
		w.fake.SetFault(func(c sqsfake.Call) sqsfake.Fault { return sqsfake.Fault{Drop: true} })
		worker := w.relaying(source)
		time.Sleep(10 * time.Minute)
		if s := worker.Stats(); s.Done != 0 || s.Dead != 0 || s.Postponed < 100 || len(source.Jobs()) != 4 {
			w.Errorf("after ten minutes: %+v, %d jobs at the source", s, len(source.Jobs()))
		}
		w.fake.SetFault(nil)
		w.until("all are relayed", func() bool { return worker.Stats().Done == 4 })
		must(w, worker.Stop(w.Context()))
		if n := len(w.fake.Messages("q")); n != 4 {
			w.Errorf("%d messages, want 4", n)
		}
	})
}

// SQS takes a job and its answer is lost, or the relay dies before the source hears of it:
// the job is relayed again. A FIFO queue drops the second copy; a replay at the source is
// another job and is not dropped.
func TestRelayedAgain(t *testing.T) {
	for _, tt := range []struct {
		name string
		want int
	}{{"q", 2}, {"q.fifo", 1}} {
		inBubble(t, tt.name, Options{}, func(w *world) {
			source := memqueue.New()
			relay := Relay(w.q).Batch
			_, err := source.Enqueue(w.Context(), keyed("k", "key"))
			must(w, err)
			claim := func() queue.Delivery {
				ds, err := source.Receive(w.Context(), queue.Request{Max: 1, Lease: time.Second})
				must(w, err)
				return ds[0]
			}
			for range 2 { // the first one's acknowledgement never comes
				if errs := relay(w.Context(), []queue.Delivery{claim()}); errs != nil {
					w.Fatal(errs)
				}
				time.Sleep(2 * time.Second)
			}
			if n := len(w.fake.Messages(tt.name)); n != tt.want {
				w.Errorf("%s: %d messages, want %d", tt.name, n, tt.want)
			}
			d := claim()
			must(w, source.Dead(w.Context(), queue.Death{Token: d.Token}))
			_, err = source.ReplayDead(w.Context(), d.ID)
			must(w, err)
			if errs := relay(w.Context(), []queue.Delivery{claim()}); errs != nil {
				w.Fatal(errs)
			}
			if n := len(w.fake.Messages(tt.name)); n != tt.want+1 {
				w.Errorf("%s: %d messages after a replay, want %d", tt.name, n, tt.want+1)
			}
		})
	}
}

// A relay that is stopped in the middle has acknowledged only what SQS took.
func TestRelayIsStopped(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		source := memqueue.New()
		for range 50 {
			_, err := source.Enqueue(w.Context(), job("k"))
			must(w, err)
		}
		taken, never := make(chan struct{}, 100), make(chan struct{})
		w.fake.SetFault(func(c sqsfake.Call) sqsfake.Fault {
			if c.Op == "SendMessageBatch" {
				taken <- struct{}{}
				return sqsfake.Fault{ReplyHold: never}
			}
			return sqsfake.Fault{}
		})
		worker := w.relaying(source)
		<-taken
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		worker.Stop(ctx) // the handlers are cut off
		close(never)
		w.fake.SetFault(nil)
		time.Sleep(time.Minute)
		sent := len(w.fake.Messages("q"))
		if done := int(worker.Stats().Done); done+len(source.Jobs()) != 50 || done > sent {
			w.Errorf("%d done, %d at the source, %d sent", done, len(source.Jobs()), sent)
		}
	})
}
