package sqsqueue

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/queue"
)

// With Adjust set, the error does not say that Adjust would mend it.
func TestAdviceOfAdjust(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		must(w, set(w.Context(), w.client, w.q.url, map[string]string{retentionAttr: "1209600"})) // 14 d, as long as the dead letters
		_, err := New(w.Context(), w.client, w.q.url, Options{Adjust: true})
		if !errors.Is(err, ErrSettings) {
			w.Fatalf("%v, want ErrSettings", err)
		}
		if strings.Contains(err.Error(), "Options.Adjust makes sqsqueue.New change them") {
			w.Errorf("advice that was followed already: %v", err)
		}
	})
}

// A worker with the defaults on a queue with the defaults: the dead letter of a job that
// fails has the handler's error.
func TestDefaultsKeepTheError(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		worker, err := queue.NewWorker(queue.WorkerOptions{Queue: w.q, Logger: quiet(), RetryMin: time.Second, RetryMax: time.Second, Handlers: map[string]queue.Handler{
			"k": {Job: func(context.Context, queue.Delivery) error { return errors.New("I cannot") }}}})
		must(w, err)
		w.enqueue(job("k"))
		must(w, worker.Start(w.Context()))
		time.Sleep(10 * time.Minute)
		must(w, worker.Stop(w.Context()))
		ls, err := w.q.ListDead(w.Context(), queue.DeadQuery{})
		must(w, err)
		if len(ls) != 1 || ls[0].LastError != "I cannot" {
			w.Errorf("letters %+v, want one with the handler's error", ls)
		}
	})
}
