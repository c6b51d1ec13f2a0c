package sqsqueue

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/onefill/onefill/queue"
)

// relayPause is how long a job waits in its own queue while SQS cannot be reached.
const relayPause = 5 * time.Second

// Relay is a handler that sends the jobs that it is given to a queue on SQS, in batches,
// with the same Kind, Key, Payload, Version and DedupeKey. A job counts as done when SQS
// has taken it, and not before. Use it on a queue in the writer's database:
//
//	worker, err := queue.NewWorker(queue.WorkerOptions{
//		Queue:    pgQueue, // jobs come here by EnqueueTx
//		Handlers: map[string]queue.Handler{"mail": sqsqueue.Relay(mails)},
//	})
//
// While SQS cannot be reached the jobs stay where they are, and the attempts do not
// count; what SQS can never take (it is too large) goes to the dead letters of the queue
// that it comes from. A relay that dies after SQS has taken a job and before that is
// acknowledged sends it again: SQS is at least once anyhow, and a FIFO queue drops the
// second copy if it comes within five minutes.
//
// For the order of a FIFO queue to be that of the source, run one worker with OrderedKeys
// on a source that has it.
func Relay(q *Queue) queue.Handler {
	return queue.Handler{Batch: func(ctx context.Context, ds []queue.Delivery) []error {
		jobs := make([]queue.Job, len(ds))
		for i := range ds {
			jobs[i] = ds[i].Job
		}
		// The source's ID is the same one when the job is relayed again, and another one
		// for a replay, which must not be dropped as a copy of what has died.
		_, err := q.enqueue(ctx, jobs, func(i int) string { return digest("relay", ds[i].ID, ds[i].DedupeKey) })
		if err == nil {
			return nil
		}
		results := make([]error, len(ds))
		for i := range results {
			results[i] = relayed(queue.ErrorOf(err, i))
		}
		return results
	}}
}

func relayed(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, queue.ErrUnavailable):
		return queue.Postpone(relayPause/2+rand.N(relayPause), err)
	case errors.Is(err, queue.ErrInvalid):
		return queue.PermanentError(err)
	}
	return err
}
