// Package sqsqueue is the queue of package queue on Amazon SQS, standard or FIFO, with the
// official SDK (aws-sdk-go-v2).
//
//	q, err := sqsqueue.Create(ctx, sqs.NewFromConfig(cfg), "mails") // or New, with its URL
//	...
//	worker, err := queue.NewWorker(queue.WorkerOptions{Queue: q, Lease: 2 * time.Minute, ...})
//
// # Settings
//
// [New] refuses a queue whose settings would lose or repeat work: a visibility timeout
// that is shorter than the handlers take, no dead-letter queue, dead letters that are kept
// for no longer than the queue keeps its messages, an HTTP client that gives up before a
// long poll does. [Create] makes a queue with the right ones, [Options].Adjust changes
// those of one that is there.
//
// # What SQS can do, and what not
//
//   - At least once: a message may come twice, also while its lease lasts, and in any
//     order (standard queues). Handlers must live with that, as package queue tells.
//   - No fence. An Ack of a lease that has ended and that nobody has taken over works; of
//     one that somebody else has taken over it may say nil and do nothing. Within one Queue
//     value the newest receipt counts: a late Ack deletes, a late Nack, Extend or Dead is
//     refused with queue.ErrLeaseLost.
//   - Attempts are SQS's count of receives, a good guess. Whatever comes back counts, also
//     jobs that were not begun. Beyond the queue's maxReceiveCount SQS moves a job to the
//     dead letters by itself, without the handler's error: a worker whose MaxAttempts is
//     not larger, as by default, buries it before, with the error.
//   - The error of a failed attempt is not kept, and jobs are not merged.
//   - Whole seconds; a Delay of 15 minutes, a lease of 12 hours in all, 10 jobs in one
//     Receive, 1 MiB in one message (as the queue's MaximumMessageSize says; Caps.MaxPayload
//     leaves room for the rest).
//   - Dead letters are moved in two steps, and to list them is to receive them: it takes a
//     second or more, grows with their number, and hides them from others meanwhile.
//   - SQS does not tell the lag of what waits; the numbers of Stats are approximate.
//
// # FIFO queues
//
// The queue's URL ends in ".fifo". The message group is the job's Key (a digest of it
// where SQS does not take it; a job without a Key is alone in its group), so the jobs of
// one key are done one after the other, and Caps.OrderedKeys holds. That has its price: a
// hot key is worked on by one handler at a time, and a job that fails holds up those
// behind it until it succeeds or dies. [Metrics].HotGroup shows it. Receive takes one
// message of a group at a time: SQS would deliver ten in a row, but giving back those
// behind a failure counts as receives, and a poison job would take them along to the dead
// letters.
//
// A FIFO queue drops a message whose deduplication ID was used within five minutes, also
// if the first one is done already. Here each job has its own, so nothing is dropped but a
// second copy of a request; Options.DedupeByVersion makes it of the job's Kind, Key and
// Version. Delays, which SQS knows on standard queues only, are seen to by the receiver.
//
// # After a commit
//
// A message that is sent after a commit is lost if the process dies in between, and one
// that is sent before it may tell of what never happened. The way that loses nothing is to
// enqueue in the transaction, in the database, and to [Relay] from there.
//
// # Stopping
//
// A long poll cannot be called back, and cancelling it loses what it was about to bring
// until the lease ends. So the worker's Stop lasts as long as its poll, 20 s at most, or a
// shorter WorkerOptions.Wait; what the poll brings then is given back. See [Queue.Close].
package sqsqueue
