package queue

import (
	"context"
	"encoding/json"
	"time"
)

// Job is a piece of work that is to be done at least once.
type Job struct {
	// Kind says which handler does it. See [ValidKind].
	Kind string
	// Key names what the job is about, "users:42", or is empty. Jobs of one key are
	// those that may be coalesced, merged (Merge), and kept in order
	// ([WorkerOptions.OrderedKeys], [Caps.OrderedKeys]). At most 1,024 bytes of UTF-8
	// without NUL.
	Key string
	// Payload is any JSON value; empty means null. A queue may hand it out in another
	// spelling of the same value: white space, the order of an object's members, the
	// form of a number. Strings with \u0000 or half a surrogate pair, and numbers of more
	// than 1,024 characters or an exponent beyond 1,024, are refused, since databases
	// refuse them.
	Payload json.RawMessage
	// Version is the version of what Key names, 0 if it has none. It is for the
	// handlers, which see to it that an older one never undoes a newer one; a queue
	// never drops a job for its version.
	Version uint64
	// Delay is the least time before the job may be claimed. Negative is 0; longer
	// than [Caps.MaxDelay] is refused.
	Delay time.Duration
	// Merge allows this job to take the place of one of the same Kind and Key (not
	// empty) that has been enqueued with Merge, too, and that nobody has ever claimed:
	// then one job is left, with the Payload, Version and DedupeKey of the one with the
	// higher Version (of this one if they are equal), due at the earlier of both times,
	// aged from the first. If one of them has no Version, nobody knows which is newer:
	// then this one's Payload and DedupeKey are left, and no Version. A job that was
	// claimed is never merged with, so that no change gets lost that was committed while
	// an older job was at work. Without [Caps.Merge] it does nothing.
	Merge bool
	// DedupeKey names the work itself, for handlers that must not do it twice (package
	// comment, "At least once"). Left empty, the queue makes one that no other job has.
	// At most 256 bytes of UTF-8 without NUL.
	DedupeKey string
}

// Token is a claim on one job: it is handed out by Receive and given back to Ack,
// Extend, Nack and Dead. What is in it is the queue's own affair.
type Token string

// Delivery is a job that was claimed.
type Delivery struct {
	// Job as it was enqueued, but that Payload may be spelled differently, that
	// DedupeKey is set, the same one over redeliveries and replays, and that Delay
	// and Merge are not kept.
	Job
	// ID is the job's, the one that Enqueue returned, the same one over redeliveries;
	// a replay has another.
	ID string
	// Token of this claim.
	Token Token
	// Attempt counts the claims, from 1 and with this one, except those that were
	// given back as [Return.Uncounted]. Without [Caps.AttemptsExact] it is a good guess.
	Attempt int
	// Deadline is when the lease ends, by this process's clock: as well as can be told,
	// and rather early than late.
	Deadline time.Time
	// Lag is for how long the job had been due when it was claimed, by the queue's
	// clock: since it was enqueued, its delay was over or an earlier lease had ended.
	Lag time.Duration
	// Age is how long ago the job was enqueued, by the queue's clock. A replay is as
	// old as itself, not as the job that had died.
	Age time.Duration
	// LastError is what the last Nack has said, where [Caps.LastError].
	LastError string
}

// Request is what Receive needs.
type Request struct {
	// Max is how many jobs are wanted, at least 1. At most [Caps.MaxBatch] come.
	Max int
	// Wait is how long to wait for the first job, 0 not at all; longer than
	// [Caps.MaxWait] is shortened to it.
	Wait time.Duration
	// AtHand says that the caller concludes nothing from an empty answer, as another Receive of
	// its finds out what there is: a queue may leave out what it would do only to be sure.
	AtHand bool
	// Lease is for how long the jobs are the caller's, from the moment of the claim.
	// Rounded up to [Caps.Granularity]; longer than [Caps.MaxLease] is refused.
	Lease time.Duration
	// Stop ends the wait early when it is closed, at a point where no job can have
	// been claimed for a caller who is not told: unlike the end of the context, it
	// loses nothing. A queue on which a request that is under way cannot be called back
	// (SQS) lets it end and returns what it brings. Nil never stops.
	Stop <-chan struct{}
}

// Return is a job that is given back.
type Return struct {
	Token Token
	// Delay is the least time before it may be claimed again. Negative is 0; what is too
	// long for the queue is shortened.
	Delay time.Duration
	// Err is why, kept as LastError where [Caps.LastError]. See [MaxErrorBytes].
	Err string
	// Uncounted: this claim does not count as an attempt, since the job was not begun.
	// Without [Caps.AttemptsExact] it counts all the same.
	Uncounted bool
}

// Death moves a job to the dead letters.
type Death struct {
	Token Token
	// Reason says in a few words why nobody shall try again: "20 attempts failed".
	Reason string
	// Err is the last error, if there was one. See [MaxErrorBytes].
	Err string
}

// DeadLetter is a job that nobody tries any more.
type DeadLetter struct {
	// Job as in [Delivery].
	Job
	// ID names the dead letter to ReplayDead and DropDead. It is the ID that the job had,
	// where the queue still knows it.
	ID string
	// Attempts is how many it has had.
	Attempts int
	// Reason and LastError are those of the [Death]; a queue that moves jobs to the
	// dead letters by itself gives a reason of its own.
	Reason    string
	LastError string
	// Died is when, by the queue's clock; zero where it does not know.
	Died time.Time
	// ReplayedAs is the ID of the job that ReplayDead has made of it, empty if none.
	ReplayedAs string
}

// DeadQuery says which dead letters to list: those that meet all of it, the zero
// value all that were not replayed.
type DeadQuery struct {
	// Kind, Key and ID, each unless it is empty.
	Kind, Key, ID string
	// Replayed lists those that were replayed as well, as far as the queue keeps them.
	Replayed bool
	// After is the ID of the last letter of the page before; empty means from the start.
	After string
	// Max is the most letters of one page; default and limit 1,000.
	Max int
}

// Stats are numbers for operators. A number that a queue cannot tell is -1. Queues
// without a clock of their own for this (SQS) give approximations.
type Stats struct {
	// Ready jobs could be claimed now.
	Ready int64
	// NotReady jobs are claimed by somebody, or their delay is not over.
	NotReady int64
	// Dead letters that were not replayed.
	Dead int64
	// Lag is for how long the job that has been due for longest has been due; 0 if
	// none is, -1 where the queue cannot tell.
	Lag time.Duration
}

// Caps says what a queue can do. The conformance suite expects exactly what is
// declared and logs what it leaves out.
type Caps struct {
	// TxEnqueue: there is a way to enqueue in the caller's own transaction, so that a
	// job exists if and only if what it belongs to was committed: a method EnqueueTx of
	// the queue's own type, since each database has a transaction type of its own.
	TxEnqueue bool
	// FencedAck: Ack, Extend, Nack and Dead act only while the token is the job's
	// newest, and say [ErrLeaseLost] otherwise. Without it an Ack that comes late or
	// twice may say nil.
	FencedAck bool
	// OrderedKeys: of the jobs of one Key that were enqueued one after the other, none
	// is delivered before those in front of it are done or dead.
	OrderedKeys bool
	// AtomicDead: Dead moves a job in one step. Without it a job may, after a crash
	// between two steps, be both dead and alive.
	AtomicDead bool
	// Replay: ListDead, ReplayDead and DropDead work. Without it they fail with an
	// [*Error] that wraps errors.ErrUnsupported.
	Replay bool
	// AttemptsExact: Delivery.Attempt is exact, and Return.Uncounted is heeded.
	AttemptsExact bool
	// LastError: the error of a Nack is kept for the next Delivery.
	LastError bool
	// Merge: Job.Merge is heeded.
	Merge bool
	// MaxAttempts is after how many claims the queue itself moves a job to the dead
	// letters, without the error of its last attempt; 0 if it never does.
	MaxAttempts int
	// MaxBatch is how many jobs one Receive returns at most, 0 if there is no limit.
	// The other calls take any number of entries, and are split as need be.
	MaxBatch int
	// MaxDelay is the longest Job.Delay, 0 if there is no limit.
	MaxDelay time.Duration
	// MaxLease is the longest time for which one claim can last, extensions included;
	// 0 if there is no limit.
	MaxLease time.Duration
	// MaxWait is the longest Request.Wait; 0 means that Receive cannot wait.
	MaxWait time.Duration
	// MaxPayload is the most bytes of a Job.Payload, 0 if there is no limit.
	MaxPayload int
	// Granularity is the step to which delays and leases are rounded up, 0 if the
	// clock's.
	Granularity time.Duration
}

// Queue is where jobs wait. It is safe for concurrent use.
//
// Calls with several entries have a result for each. They return nil if every entry
// was done; otherwise an error of which [ErrorOf] tells each entry's part: what has
// failed for one entry was done for another. [ErrLeaseLost] and [ErrUnknown] are
// returned as they are, everything else is an [*Error].
type Queue interface {
	// Caps says what this queue can do. It costs nothing and does not change.
	Caps() Caps
	// Check asks the server whether the queue is there and fit for use: that it can be
	// reached, that the table has the version that this code needs, that the rights
	// are there. Its error says what to do.
	Check(ctx context.Context) error
	// Enqueue adds jobs and returns their IDs, one for each, empty where ErrorOf(err, i)
	// is not nil. A job that breaks the contract (see [Caps.Check]) fails alone. After
	// an error that is unavailable nobody knows whether the job was added: add it again,
	// with a DedupeKey of its own if it must not be done twice.
	Enqueue(ctx context.Context, jobs ...Job) (ids []string, err error)
	// Receive claims jobs that are due, as far as the queue can those first that have
	// been due for longest: each is leased to the caller and counted as attempted. It
	// returns what there is as soon as there is something, and nothing without an error
	// when the wait is over or Request.Stop is closed. When the context ends, jobs may have
	// been claimed for a caller who is not told: those come back when their lease ends.
	Receive(ctx context.Context, r Request) ([]Delivery, error)
	// Ack says that jobs are done: they are gone.
	Ack(ctx context.Context, tokens ...Token) error
	// Extend makes leases last for lease from now.
	Extend(ctx context.Context, lease time.Duration, tokens ...Token) error
	// Nack gives jobs back.
	Nack(ctx context.Context, returns ...Return) error
	// Dead moves jobs to the dead letters.
	Dead(ctx context.Context, deaths ...Death) error

	// ListDead lists dead letters, one page, in an order that does not change; a page
	// that is shorter than DeadQuery.Max is the last.
	ListDead(ctx context.Context, q DeadQuery) ([]DeadLetter, error)
	// ReplayDead makes a new job, with a new ID, no attempts and the same DedupeKey, of
	// each dead letter, in one step with marking or removing the letter, and returns
	// the new IDs like Enqueue. A letter that is not there or that was replayed already
	// is [ErrUnknown].
	ReplayDead(ctx context.Context, ids ...string) (newIDs []string, err error)
	// DropDead removes dead letters, replayed or not.
	DropDead(ctx context.Context, ids ...string) error
	// Stats counts. It may cost more when the queue holds more.
	Stats(ctx context.Context) (Stats, error)
}
