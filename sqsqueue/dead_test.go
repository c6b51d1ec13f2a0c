package sqsqueue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/sqsqueue/internal/sqsfake"
)

// The letter is sent, and deleting the message fails: the job is both dead and alive. The
// worker tells the queue again; that sends no second letter.
func TestDeadIsTriedAgain(t *testing.T) {
	for _, name := range []string{"q", "q.fifo"} {
		inBubble(t, name, Options{}, func(w *world) {
			w.enqueue(job("k"))
			d := w.one(time.Hour)
			death := queue.Death{Token: d.Token, Reason: "why", Err: "because"}
			w.fake.SetFault(func(c sqsfake.Call) sqsfake.Fault {
				if c.Op == "DeleteMessageBatch" {
					return sqsfake.Fault{Entry: func(int) *sqsfake.Error { return internal }}
				}
				return sqsfake.Fault{}
			})
			if err := queue.ErrorOf(w.q.Dead(w.Context(), death), 0); !isUnavailable(err) {
				w.Errorf("Dead: %v, want ErrUnavailable", err)
			}
			w.fake.SetFault(nil)
			must(w, w.q.Dead(w.Context(), death))
			if dead, alive := len(w.fake.Messages(deadName(name))), len(w.fake.Messages(name)); dead != 1 || alive != 0 {
				w.Errorf("%d letters, %d messages, want 1, 0", dead, alive)
			}
		})
	}
}

// The lease has ended, whether somebody else has the job by now or nobody: no letter is
// sent, and the job comes again.
func TestDeadAfterTheLease(t *testing.T) {
	for _, taken := range []bool{false, true} {
		inBubble(t, "q", Options{}, func(w *world) {
			other, err := New(w.Context(), w.client, w.q.url)
			must(w, err)
			w.enqueue(job("k"))
			d := w.one(2 * time.Second)
			time.Sleep(3 * time.Second)
			if taken {
				receive(w, other, 1, time.Hour)
			}
			err = queue.ErrorOf(w.q.Dead(w.Context(), queue.Death{Token: d.Token, Reason: "late"}), 0)
			// A lease that is over cannot be taken again: SQS says that the message is not
			// in flight, whoever has it.
			if err != queue.ErrLeaseLost || len(w.fake.Messages("q-dead")) != 0 || len(w.fake.Messages("q")) != 1 {
				w.Errorf("taken %t: Dead: %v, %d letters", taken, err, len(w.fake.Messages("q-dead")))
			}
		})
	}
}

// A token works in another process, too: it holds the job.
func TestDeadFromElsewhere(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		other, err := New(w.Context(), w.client, w.q.url)
		must(w, err)
		j := keyed("k", "key")
		j.Version = 3
		w.enqueue(j)
		d := w.one(time.Hour)
		must(w, other.Extend(w.Context(), time.Hour, d.Token))
		must(w, other.Dead(w.Context(), queue.Death{Token: d.Token, Reason: "why"}))
		ls, err := w.q.ListDead(w.Context(), queue.DeadQuery{})
		must(w, err)
		if len(ls) != 1 || ls[0].ID != d.ID || ls[0].Version != 3 || ls[0].Attempts != 1 {
			w.Errorf("letters: %+v", ls)
		}
	})
}

// What SQS has moved by itself is listed and replayed like what was buried (bunnybus #95:
// a replay that keeps the old count dies again at once): attempt 1, however often it was
// received before.
func TestReplayStartsAnew(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		j := keyed("k", "key")
		j.DedupeKey = "the work"
		id := w.enqueue(j)[0]
		for range 2 {
			for range 5 {
				w.one(time.Second)
				time.Sleep(time.Second)
			}
			if ds := w.receive(1, time.Second); len(ds) > 0 {
				w.Fatalf("delivered a sixth time: %+v", ds)
			}
			// Looking at it does not use it up.
			for range 10 {
				ls, err := w.q.ListDead(w.Context(), queue.DeadQuery{Key: "key"})
				must(w, err)
				if len(ls) != 1 || ls[0].ID != id {
					w.Fatalf("letters: %+v, want %s", ls, id)
				}
			}
			ids, err := w.q.ReplayDead(w.Context(), id)
			must(w, err)
			if id == ids[0] {
				w.Error("the replay has the old ID")
			}
			id = ids[0]
		}
		if d := w.one(time.Second); d.Attempt != 1 || d.DedupeKey != "the work" {
			w.Errorf("the replay was delivered as %+v", d)
		}
	})
}

// Somebody else looks through the dead letters meanwhile, and so hides them: a letter
// that is not seen is not called unknown. When that one is done, it is found.
func TestLettersInOtherHands(t *testing.T) {
	log := &logged{}
	inBubble(t, "q", Options{Logger: log.logger()}, func(w *world) {
		id := w.enqueue(job("k"))[0]
		must(w, w.q.Dead(w.Context(), queue.Death{Token: w.one(time.Hour).Token, Reason: "why"}))
		other, err := New(w.Context(), w.client, w.q.url)
		must(w, err)
		looking, err := other.look(w.Context(), opListDead, func(*letter) bool { return false })
		must(w, err)
		_, err = w.q.ReplayDead(w.Context(), id)
		if err := queue.ErrorOf(err, 0); errors.Is(err, queue.ErrUnknown) || !isUnavailable(err) || !strings.Contains(fmt.Sprint(err), "other hands") {
			w.Errorf("ReplayDead: %v, want that it is in other hands", err)
		}
		if ls, err := w.q.ListDead(w.Context(), queue.DeadQuery{}); len(ls) != 0 || err != nil || !strings.Contains(log.String(), "not complete") {
			w.Errorf("ListDead: %+v, %v, log %s", ls, err, log)
		}
		go func() { // it ends two seconds after the next look has begun
			time.Sleep(2 * time.Second)
			looking.end(context.Background())
		}()
		_, err = w.q.ReplayDead(w.Context(), id)
		must(w, err)
	})
}

// Many letters, by pages, twice: the order does not change, and nothing is left out.
func TestManyLetters(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		const n = 250
		for range n / 10 {
			for range 10 {
				w.enqueue(keyed("k", "key"))
			}
			for _, d := range w.receive(10, time.Hour) {
				must(w, w.q.Dead(w.Context(), queue.Death{Token: d.Token}))
			}
		}
		seen := map[string]bool{}
		pages, after := 0, ""
		for {
			ls, err := w.q.ListDead(w.Context(), queue.DeadQuery{After: after, Max: 100})
			must(w, err)
			pages++
			for _, l := range ls {
				if seen[l.ID] || l.ID <= after {
					w.Fatalf("letter %s after %s", l.ID, after)
				}
				seen[l.ID], after = true, l.ID
			}
			if len(ls) < 100 {
				break
			}
		}
		if len(seen) != n || pages != 3 {
			w.Errorf("%d letters on %d pages, want %d on 3", len(seen), pages, n)
		}
		if left := w.visible("q-dead"); left != n {
			w.Errorf("%d of %d letters are visible", left, n)
		}
	})
}

// The job is sent, and deleting its letter fails: that is told, with the new ID.
func TestReplayedTwice(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		id := w.enqueue(job("k"))[0]
		must(w, w.q.Dead(w.Context(), queue.Death{Token: w.one(time.Hour).Token}))
		w.fake.SetFault(func(c sqsfake.Call) sqsfake.Fault {
			if c.Op == "DeleteMessageBatch" {
				return sqsfake.Fault{Entry: func(int) *sqsfake.Error { return internal }}
			}
			return sqsfake.Fault{}
		})
		ids, err := w.q.ReplayDead(w.Context(), id)
		mentions(w, queue.ErrorOf(err, 0), "was sent as", "still there")
		if ids[0] != "" || len(w.fake.Messages("q")) != 1 || w.visible("q-dead") != 1 {
			w.Errorf("IDs %q, %d messages, %d letters", ids, len(w.fake.Messages("q")), w.visible("q-dead"))
		}
	})
}
