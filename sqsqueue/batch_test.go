package sqsqueue

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/sqsqueue/internal/sqsfake"
)

// failing makes single entries of the n-th, n+1st, ... request of one operation fail.
type failing struct {
	op string
	// entry decides about entry i of the try-th request, from 1.
	entry  func(try, i int) *sqsfake.Error
	silent bool

	mu    sync.Mutex
	sizes []int // entries of each request
}

func (f *failing) plan(c sqsfake.Call) sqsfake.Fault {
	if c.Op != f.op {
		return sqsfake.Fault{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sizes = append(f.sizes, c.Entries)
	try := len(f.sizes)
	return sqsfake.Fault{Silent: f.silent, Entry: func(i int) *sqsfake.Error { return f.entry(try, i) }}
}

var (
	internal = &sqsfake.Error{Code: "InternalError", Message: "try again", Receiver: true}
	refused  = &sqsfake.Error{Code: "InvalidMessageContents", Message: "no"}
)

// An answer to a batch is 200 also where entries have failed (sqs-consumer #193,
// shoryuken #370: they looked no further). Each entry has its result: those that failed
// by the service's fault are sent again, and only those; those that failed by ours are
// not; one that the answer does not name is not done.
func TestFailedEntriesAreSentAgain(t *testing.T) {
	for _, op := range []string{"SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"} {
		for _, silent := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s silent=%t", op, silent), func(t *testing.T) {
				inBubble(t, "q", Options{}, func(w *world) {
					jobs := slices.Repeat([]queue.Job{job("k")}, 7)
					var ts []queue.Token
					if op != "SendMessageBatch" {
						w.enqueue(jobs...)
						for _, d := range w.receive(10, time.Hour) {
							ts = append(ts, d.Token)
						}
					}
					// The first request fails for its entries 2 and 5, the second (of two
					// entries) for its first, the third for nothing.
					f := &failing{op: op, silent: silent, entry: func(try, i int) *sqsfake.Error {
						if try == 1 && (i == 2 || i == 5) || try == 2 && i == 0 {
							return internal
						}
						return nil
					}}
					w.fake.SetFault(f.plan)
					switch op {
					case "SendMessageBatch":
						w.enqueue(jobs...)
						if n := len(w.fake.Messages("q")); n != 7 {
							w.Errorf("%d messages, want 7", n)
						}
					case "DeleteMessageBatch":
						must(w, w.q.Ack(w.Context(), ts...))
						if n := len(w.fake.Messages("q")); n != 0 {
							w.Errorf("%d messages are left", n)
						}
					default:
						must(w, w.q.Extend(w.Context(), time.Hour, ts...))
					}
					if !slices.Equal(f.sizes, []int{7, 2, 1}) {
						w.Errorf("requests of %v entries, want 7, 2, 1", f.sizes)
					}
					if m := w.q.Metrics(); m.EntryRetries != 3 || m.EntryFailures != 0 {
						w.Errorf("%d entries were sent again, %d failed, want 3, 0", m.EntryRetries, m.EntryFailures)
					}
				})
			})
		}
	}
}

// What fails to the end is told, entry by entry, and each with what it is worth trying.
func TestEntriesThatFailAreTold(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		f := &failing{op: "SendMessageBatch", entry: func(try, i int) *sqsfake.Error {
			switch {
			case try == 1 && i == 1:
				return refused
			case try == 1 && i == 2, try > 1:
				return internal
			}
			return nil
		}}
		w.fake.SetFault(f.plan)
		ids, err := w.q.Enqueue(w.Context(), job("a"), job("b"), job("c"), job("d"))
		for i, wantUnavailable := range []bool{false, false, true, false} {
			wantErr := i == 1 || i == 2
			got := queue.ErrorOf(err, i)
			if (got != nil) != wantErr || (ids[i] == "") != wantErr || isUnavailable(got) != wantUnavailable {
				w.Errorf("entry %d: ID %q, %v", i, ids[i], got)
			}
		}
		if !slices.Equal(f.sizes, []int{4, 1, 1, 1}) {
			w.Errorf("requests of %v entries, want 4, 1, 1, 1", f.sizes)
		}
		if m := w.q.Metrics(); m.Sent != 2 || m.EntryRetries != 3 || m.EntryFailures != 1 {
			w.Errorf("%+v, want 2 jobs sent, 3 entries sent again and one that failed", m)
		}
		if n := len(w.fake.Messages("q")); n != 2 {
			w.Errorf("%d messages, want 2", n)
		}
	})
}

// A request that fails as a whole: the SDK repeats it; what is left is unavailable, for
// each entry of that batch, and other batches are not touched.
func TestRequestsThatFail(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		var mu sync.Mutex
		requests := 0
		var broken sqsfake.Fault
		w.fake.SetFault(func(c sqsfake.Call) sqsfake.Fault {
			mu.Lock()
			defer mu.Unlock()
			if c.Op != "SendMessageBatch" || c.Entries != 5 {
				return sqsfake.Fault{}
			}
			requests++
			return broken
		})
		for _, tt := range []struct {
			fault       sqsfake.Fault
			unavailable bool
			requests    int
		}{
			{sqsfake.Fault{Err: &sqsfake.Error{Code: "ServiceUnavailable", Status: 503}}, true, 3},
			{sqsfake.Fault{Err: &sqsfake.Error{Code: "RequestThrottled", Message: "slow down"}}, true, 3},
			{sqsfake.Fault{Drop: true}, true, 3},
			{sqsfake.Fault{Err: &sqsfake.Error{Code: "AccessDeniedException", Message: "no"}}, false, 1},
		} {
			broken, requests = tt.fault, 0
			_, err := w.q.Enqueue(w.Context(), slices.Repeat([]queue.Job{job("k")}, 25)...)
			for i := range 25 {
				got := queue.ErrorOf(err, i)
				if (got != nil) != (i >= 20) || isUnavailable(got) != (tt.unavailable && i >= 20) {
					w.Errorf("%+v: entry %d: %v", tt.fault, i, got)
				}
			}
			if requests != tt.requests {
				w.Errorf("%+v: %d requests, want %d", tt.fault, requests, tt.requests)
			}
		}
	})
}

// Batches keep to 1 MiB together, or SQS refuses them as a whole.
func TestLargeMessagesAreSplit(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		big := queue.Job{Kind: "k", Payload: []byte(`"` + strings.Repeat("x", 300<<10) + `"`)}
		f := &failing{op: "SendMessageBatch", entry: func(int, int) *sqsfake.Error { return nil }}
		w.fake.SetFault(f.plan)
		w.enqueue(slices.Repeat([]queue.Job{big}, 8)...)
		slices.Sort(f.sizes)
		if !slices.Equal(f.sizes, []int{2, 3, 3}) {
			w.Errorf("batches of %v, want 3, 3, 2", f.sizes)
		}
	})
}

// The size that counts is the message's: characters that have to be escaped take more.
func TestEncodedSize(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		for _, text := range []string{"\uFFFE", "😀"} {
			n := w.q.Caps().MaxPayload/len(text) - 1
			_, err := w.q.Enqueue(w.Context(), queue.Job{Kind: "k", Payload: []byte(`"` + strings.Repeat(text, n) + `"`)})
			if err = queue.ErrorOf(err, 0); !errors.Is(err, queue.ErrInvalid) || !strings.Contains(err.Error(), "bytes") {
				w.Errorf("%d times %q: %v, want ErrInvalid with the sizes", n, text, err)
			}
		}
		// The most that kind, key and dedupe key can take fits beside the largest payload,
		// and so does what a dead letter adds.
		largest := queue.Job{Kind: strings.Repeat("k", 128), Key: strings.Repeat("\x01", 1024), DedupeKey: strings.Repeat("\x01", 256), Version: 1<<64 - 1,
			Payload: []byte(`"` + strings.Repeat("x", w.q.Caps().MaxPayload-2) + `"`)}
		w.enqueue(largest)
		d := w.one(time.Hour)
		must(w, w.q.Dead(w.Context(), queue.Death{Token: d.Token, Reason: strings.Repeat("\x02", 4096), Err: strings.Repeat("\x02", 4096)}))
		ls, err := w.q.ListDead(w.Context(), queue.DeadQuery{})
		must(w, err)
		if len(ls) != 1 || ls[0].Key != largest.Key || ls[0].LastError == "" || len(ls[0].Payload) != len(largest.Payload) {
			w.Errorf("%d letters", len(ls))
		}
	})
}

// On a FIFO queue a job whose predecessor could not be sent is not sent: it would
// overtake. Jobs of other keys are. What was refused fails alone.
func TestFIFOSendsInOrder(t *testing.T) {
	inBubble(t, "q.fifo", Options{}, func(w *world) {
		jobs := []queue.Job{keyed("1", "a"), keyed("2", "a"), keyed("1", "b"), keyed("3", "a"), keyed("2", "b")}
		sent := func() string {
			var s []string
			for _, m := range w.fake.Messages("q.fifo") {
				j, _ := decode(m.Body, m.ID)
				s = append(s, j.Key+j.Kind)
			}
			return strings.Join(s, " ")
		}
		// The first batch is 1a 1b, the second 2a 2b, the third 3a: 2a fails, four times.
		batches := 0
		second := func(of *sqsfake.Error) func(c sqsfake.Call) sqsfake.Fault {
			batches = 0
			return func(c sqsfake.Call) sqsfake.Fault {
				if c.Op != "SendMessageBatch" {
					return sqsfake.Fault{}
				}
				batches++
				if batches < 2 || batches > 5 || of == refused && batches > 2 {
					return sqsfake.Fault{}
				}
				return sqsfake.Fault{Entry: func(i int) *sqsfake.Error {
					if i == 0 {
						return of
					}
					return nil
				}}
			}
		}
		w.fake.SetFault(second(internal))
		_, err := w.q.Enqueue(w.Context(), jobs...)
		if got := sent(); got != "a1 b1 b2" {
			w.Errorf("sent: %s, want a1 b1 b2", got)
		}
		for i, wantErr := range []bool{false, true, false, true, false} {
			if got := queue.ErrorOf(err, i); (got != nil) != wantErr || wantErr && !isUnavailable(got) {
				w.Errorf("entry %d: %v", i, got)
			}
		}
		w.fake.SetFault(second(refused))
		_, err = w.q.Enqueue(w.Context(), jobs...)
		if got := sent(); got != "a1 b1 b2 a1 b1 b2 a3" {
			w.Errorf("sent: %s, want a1 b1 b2 and a1 b1 b2 a3", got)
		}
		if queue.ErrorOf(err, 1) == nil || queue.ErrorOf(err, 3) != nil {
			w.Errorf("results: %v", err)
		}
	})
}
