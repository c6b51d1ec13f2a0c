package queue_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"

	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/memqueue"
)

// What the worker itself costs for each job, on a queue that costs little.
func BenchmarkWorker(b *testing.B) {
	for name, handler := range map[string]func(done *sync.WaitGroup) queue.Handler{
		"single": func(done *sync.WaitGroup) queue.Handler {
			return queue.Handler{Job: func(context.Context, queue.Delivery) error { done.Done(); return nil }}
		},
		"batch": func(done *sync.WaitGroup) queue.Handler {
			return queue.Handler{Batch: func(_ context.Context, ds []queue.Delivery) []error { done.Add(-len(ds)); return nil }}
		},
	} {
		b.Run(name, func(b *testing.B) {
			q, ctx := memqueue.New(), context.Background()
			var done sync.WaitGroup
			w, err := queue.NewWorker(queue.WorkerOptions{Queue: q, Handlers: handlers{"k": handler(&done)}, Concurrency: 4, Batch: 100,
				Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
			if err != nil {
				b.Fatal(err)
			}
			js := make([]queue.Job, 100)
			for i := range js {
				js[i] = queue.Job{Kind: "k", Key: fmt.Sprint(i)}
			}
			for left := b.N; left > 0; left -= len(js) {
				js = js[:min(left, len(js))]
				done.Add(len(js))
				if _, err := q.Enqueue(ctx, js...); err != nil {
					b.Fatal(err)
				}
			}
			b.ResetTimer()
			if err := w.Start(ctx); err != nil {
				b.Fatal(err)
			}
			done.Wait()
			if err := w.Stop(ctx); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
		})
	}
}
