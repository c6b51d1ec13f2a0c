// Package invalidation brings committed changes to caches: job kinds for a queue of
// package queue, and the handlers that apply them.
//
// A writer enqueues the job in the transaction that changes the row, so that there is
// one if and only if the change was committed:
//
//	jobs, err := invalidation.Invalidate("users", id)
//	...
//	_, err = tx.Exec(ctx, "UPDATE users SET name = $1 WHERE id = $2", name, id)
//	...
//	_, err = q.EnqueueTx(ctx, tx, jobs...) // q is a pgqueue.Queue
//	...
//	err = tx.Commit(ctx)
//
// and a worker, in this process or another, applies it:
//
//	handlers, err := invalidation.Handlers(
//		invalidation.For("users", users), // users is a *onefill.Cache[int64, User]
//		invalidation.For("orders", orders),
//	)
//	...
//	worker, err := queue.NewWorker(queue.WorkerOptions{Queue: q, Handlers: handlers})
//
// The cache needs a Store: a job is done by one process, and it is through the store that
// the others hear of it ([onefill.LocalOptions].TTL says how late at most).
//
// # What is promised
//
// A job is acknowledged only after the store has said yes. It is applied at least once, in
// any order, as late as the queue delivers it, and as often; none of it does harm. Jobs of
// one key that were claimed together are applied once.
//
// An outage of the store kills no job: while the store does not answer, or refuses, jobs are
// postponed, which does not count as an attempt (where the queue's Caps.AttemptsExact). They
// come back after half a second at first and after 15 seconds at most, so that is how long
// after the outage the last of them may be applied. What the cache itself does about a
// write that its store has missed goes on besides.
//
// # Kinds
//
//	onefill.invalidate  Cache.Invalidate: the key is gone
//	onefill.expire      Cache.Expire: it is stale, and may be served as StaleFor and StaleOnError allow
//	onefill.refresh     Cache.Expire, and then it is loaded at once
//
// With [queue.Job].Merge set, a job takes the place of one of the same kind and key that
// nobody has claimed yet.
//
// # Versions
//
// Invalidate and expire do the same whatever their job's Version: what they remove is loaded
// again from the row as it is by then. A refresh of a cache that was given with
// [Versioned], whose job has a Version, is about a row of at least that version. If the cache
// has it already, nothing is done, so that a job that comes late undoes nothing; if the
// loader brings an older one, since it reads from a replica that lags, the job is tried
// again.
//
// # Payload
//
// A JSON object, which any writer can make, a trigger too:
//
//	{"cache": "users", "key": 42}
//
// The key is the cache's key as JSON. A string that JSON cannot hold, one that is not UTF-8 or
// that holds a NUL, is given as its bytes in base64, by the name "bytes" instead of "key". An
// integer may be given as a string and a string as an integer.
//
// # What cannot be done
//
// A payload that cannot be understood, and a key that is too long for the store, go to the
// dead letters at once. A cache that this worker does not know, a key of another type than
// the cache's, an empty key, a load that fails: those are errors that name the cache and the
// key. The job is tried again, as another worker, or the next release, may do it, and ends
// with the dead letters after MaxAttempts, from where it can be replayed. None of them keeps
// the other jobs of its batch from being done.
package invalidation
