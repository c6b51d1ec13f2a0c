package invalidation_test

import (
	"context"
	"fmt"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/invalidation"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/memqueue"
	"github.com/onefill/onefill/store/memstore"
)

// A row changes, and the job that was enqueued with it brings the change to the cache. In
// earnest the queue is a pgqueue, and the job is enqueued by EnqueueTx in the transaction that
// changes the row.
func Example() {
	ctx := context.Background()
	name := "Ann" // the row
	users, err := onefill.New(onefill.Options[int64, string]{
		Name:  "users",
		Store: memstore.New(),
		Load:  func(context.Context, int64) (string, error) { return name, nil },
	})
	if err != nil {
		panic(err)
	}
	defer users.Close()

	q := memqueue.New()
	handlers, err := invalidation.Handlers(invalidation.For("users", users))
	if err != nil {
		panic(err)
	}
	worker, err := queue.NewWorker(queue.WorkerOptions{Queue: q, Handlers: handlers})
	if err != nil {
		panic(err)
	}
	if err := worker.Start(ctx); err != nil {
		panic(err)
	}
	defer worker.Stop(ctx)

	fmt.Println(users.Get(ctx, 42))
	name = "Anna"
	jobs, err := invalidation.Invalidate("users", int64(42))
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s %s\n", jobs[0].Key, jobs[0].Payload)
	if _, err := q.Enqueue(ctx, jobs...); err != nil {
		panic(err)
	}
	for deadline := time.Now().Add(10 * time.Second); worker.Stats().Done == 0 && time.Now().Before(deadline); {
		<-time.After(time.Millisecond)
	}
	fmt.Println(users.Get(ctx, 42))
	// Output:
	// Ann <nil>
	// users:42 {"cache":"users","key":42}
	// Anna <nil>
}
