// Package queue is the contract of a small job queue, the worker that runs its jobs,
// and the errors. It imports the standard library only; pgqueue, sqsqueue and
// queue/memqueue are queues.
//
// It was made for one purpose, that a committed change reaches the cache although the
// cache's server is away, the process dies or a message comes twice, and it does other
// work that must not get lost as well:
//
//	q := memqueue.New() // or pgqueue, sqsqueue
//	worker, err := queue.NewWorker(queue.WorkerOptions{
//		Queue: q,
//		Handlers: map[string]queue.Handler{
//			"mail": {Job: sendMail}, // func(ctx context.Context, d queue.Delivery) error
//		},
//	})
//	...
//	if err := worker.Start(ctx); err != nil { ... }
//	defer worker.Stop(stopCtx)
//	_, err = q.Enqueue(ctx, queue.Job{Kind: "mail", Payload: []byte(`{"to":"a@example.org"}`)})
//
// # What a queue promises
//
//  1. At least once. A job that Enqueue has returned an ID for is delivered until
//     somebody has acknowledged it or moved it to the dead letters; nothing else
//     removes it. That a worker dies, at whatever moment, delays it until the end of
//     its lease and no longer.
//  2. One claim. While a lease lasts nobody else gets the job. Receive claims by the
//     job's state, never by its position, so a job that becomes visible late (its
//     transaction was open for long) is not skipped.
//  3. The fence. Where [Caps.FencedAck], the token of an older claim does nothing to a
//     newer one. A lease that has ended and that nobody has taken over may still be
//     acted on.
//  4. Attempts are counted at the claim, so that a handler that takes its process along
//     is counted, too.
//  5. No client's clock decides: only durations go to the server.
//  6. No claim costs more when more jobs wait.
//  7. Where [Caps.AtomicDead], a job is at each moment either alive or dead. A replay
//     is a new job: new ID, no attempts; the DedupeKey stays.
//  8. Operations respect the context that they get.
//
// What a queue does not promise: order, unless [Caps.OrderedKeys]; exactly once.
//
// # At least once
//
// A handler may be called again for a job that it has finished: its acknowledgement
// was lost, or its lease. Three ways to live with that:
//
//   - Work that may be done twice, as the invalidation of a cache's key may.
//   - The job's Version, kept with what the job changes: an older one does nothing.
//   - [Delivery].DedupeKey, which names the work over redeliveries and replays: insert
//     it, in the transaction in which the handler does its work, into a table where it
//     is unique; if it is there already, the work is done. A mark kept anywhere else
//     than in that transaction can be there without the work, or the work without it.
//
// # The worker
//
// A [Worker] receives, leases, extends, retries and buries. What a handler returns
// decides: nil, done; an error, again after an exponential back-off with full jitter,
// and to the dead letters after MaxAttempts; [PermanentError], to the dead letters at
// once; [RetryAfter], again after that time; [Postpone], again, without counting the
// attempt, since what the handler needs is not there. Panics and runtime.Goexit are
// errors. Jobs of a kind that it has no handler for are kept, counted, and end with the
// dead letters like jobs that fail, so a worker that is deployed after its writers
// loses nothing.
package queue
