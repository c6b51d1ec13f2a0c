package queue_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/memqueue"
)

// A worker sends mails; one of them cannot be sent, dies, and is replayed by hand when
// the cause is gone.
func Example() {
	ctx := context.Background()
	q := memqueue.New() // or pgqueue, sqsqueue
	moved := true       // what the operator will set right

	worker, err := queue.NewWorker(queue.WorkerOptions{
		Queue: q,
		Handlers: map[string]queue.Handler{
			"mail": {Job: func(ctx context.Context, d queue.Delivery) error {
				var mail struct{ To string }
				if err := json.Unmarshal(d.Payload, &mail); err != nil {
					return queue.PermanentError(err)
				}
				if mail.To == "bob" && moved {
					return queue.PermanentError(errors.New("bob has moved"))
				}
				fmt.Println("mail to", mail.To)
				return nil
			}},
		},
		Concurrency: 1,
		Logger:      slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		panic(err)
	}
	if _, err := q.Enqueue(ctx,
		queue.Job{Kind: "mail", Payload: json.RawMessage(`{"to":"ann"}`)},
		queue.Job{Kind: "mail", Payload: json.RawMessage(`{"to":"bob"}`)},
	); err != nil {
		panic(err)
	}
	if err := worker.Start(ctx); err != nil {
		panic(err)
	}
	waitFor(func() bool { return worker.Stats().Dead == 1 })

	letters, _ := q.ListDead(ctx, queue.DeadQuery{})
	fmt.Println(letters[0].Reason+":", letters[0].LastError)
	moved = false
	if _, err := q.ReplayDead(ctx, letters[0].ID); err != nil {
		panic(err)
	}
	waitFor(func() bool { return worker.Stats().Done == 2 })

	stopCtx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	fmt.Println("stopped:", worker.Stop(stopCtx))
	// Output:
	// mail to ann
	// permanent error: bob has moved
	// mail to bob
	// stopped: <nil>
}

func waitFor(cond func() bool) {
	for deadline := time.Now().Add(10 * time.Second); !cond() && time.Now().Before(deadline); {
		<-time.After(time.Millisecond)
	}
}

// A batch handler does the jobs of one key once.
func ExampleHandler_batch() {
	invalidate := func(_ context.Context, ds []queue.Delivery) []error {
		byKey := map[string][]int{}
		for i, d := range ds {
			byKey[d.Key] = append(byKey[d.Key], i)
		}
		errs := make([]error, len(ds))
		for key, jobs := range byKey {
			var err error // of the one call of the cache
			fmt.Printf("invalidate %s for %d jobs\n", key, len(jobs))
			for _, i := range jobs {
				errs[i] = err
			}
		}
		return errs
	}
	ctx := context.Background()
	q := memqueue.New()
	for range 3 {
		q.Enqueue(ctx, queue.Job{Kind: "invalidate", Key: "users:42"})
	}
	worker, err := queue.NewWorker(queue.WorkerOptions{Queue: q, Handlers: map[string]queue.Handler{"invalidate": {Batch: invalidate}}})
	if err != nil {
		panic(err)
	}
	if err := worker.Start(ctx); err != nil {
		panic(err)
	}
	waitFor(func() bool { return worker.Stats().Done == 3 })
	worker.Stop(ctx)
	// Output: invalidate users:42 for 3 jobs
}
