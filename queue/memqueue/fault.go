package memqueue

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/onefill/onefill/queue"
)

// Kind names an operation.
type Kind string

// The operations, by the names that errors carry.
const (
	OpCheck      Kind = "check"
	OpEnqueue    Kind = "enqueue"
	OpReceive    Kind = "receive"
	OpAck        Kind = "ack"
	OpExtend     Kind = "extend"
	OpNack       Kind = "nack"
	OpDead       Kind = "dead"
	OpListDead   Kind = "list dead"
	OpReplayDead Kind = "replay dead"
	OpDropDead   Kind = "drop dead"
	OpStats      Kind = "stats"
)

// Op is one operation on its way to the queue. Entries is how many entries it has;
// for Receive, Max.
type Op struct {
	Kind    Kind
	Entries int
}

// ErrLostReply is wrapped by the error of an operation whose Fault has LoseReply and no
// Err of its own.
var ErrLostReply = errors.New("the reply was lost")

// Fault is what happens to one operation. The zero value is nothing. All waits end with
// the operation's context; then the operation fails with the context's error, applied
// only if the wait came after.
type Fault struct {
	// Delay and Hold come before the operation is applied: it waits for the duration,
	// then until the channel is closed.
	Delay time.Duration
	Hold  <-chan struct{}
	// Err makes the operation fail without being applied. The error is an unavailable
	// one unless Refused is set: then it is the queue's answer.
	Err     error
	Refused bool
	// Entry makes single entries fail as the queue's answer without being applied: those
	// for whose index it returns an error. It must not call the queue.
	Entry func(i int) error
	// LoseReply applies the operation and makes it fail as unavailable, with Err or
	// ErrLostReply.
	LoseReply bool
	// ReplyHold comes after the operation was applied: the reply waits until it is closed.
	ReplyHold <-chan struct{}
}

// SetFault makes decide say what happens to each operation from now on; nil ends that.
// decide runs on the goroutine of the operation before it is applied, with no lock held:
// it may signal a test, block, and call the queue's methods.
func (q *Queue) SetFault(decide func(Op) Fault) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.fault = decide
}

// Down makes every operation fail as unavailable, with ErrDown, until Up; also a
// Receive that waits. The jobs stay, and leases go on to end.
func (q *Queue) Down() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.down = true
	q.wake()
}

// Up ends Down.
func (q *Queue) Up() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.down = false
}

// Counts returns how many operations of each kind were begun since New, failed ones
// included.
func (q *Queue) Counts() map[Kind]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return maps.Clone(q.counts)
}

// JobState is what the queue holds of one job that is alive.
type JobState struct {
	queue.Job
	ID       string
	Attempts int
	// Held: somebody has claimed it and not given it back.
	Held bool
	// Due is when it may be claimed.
	Due       time.Time
	LastError string
}

// Jobs lists the jobs that are alive, as they were enqueued, for tests that want to see
// nothing left. Its cost grows with the queue.
func (q *Queue) Jobs() []JobState {
	q.mu.Lock()
	defer q.mu.Unlock()
	jobs := make([]JobState, 0, len(q.jobs))
	for _, n := range slices.Sorted(maps.Keys(q.jobs)) {
		it := q.jobs[n]
		jobs = append(jobs, JobState{Job: it.job, ID: id(n), Attempts: it.claims - it.uncounted, Held: it.held, Due: it.due, LastError: it.lastError})
	}
	return jobs
}

// each runs an operation with entries: act for each of them, under the lock.
func (q *Queue) each(ctx context.Context, kind Kind, entries int, act func(i int) error) error {
	errs := make(queue.Errors, entries)
	err := q.do(ctx, kind, entries, func(f Fault) {
		for i := range errs {
			if f.Entry != nil {
				if err := f.Entry(i); err != nil {
					errs[i] = fail(kind, err)
					continue
				}
			}
			errs[i] = act(i)
		}
	})
	if err != nil {
		return err
	}
	return errs.Err()
}

// do runs one operation: apply, under the lock, with whatever the fault adds.
func (q *Queue) do(ctx context.Context, kind Kind, entries int, apply func(Fault)) error {
	return q.withFault(ctx, kind, entries, func(f Fault) error {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.down {
			return unavailable(kind, ErrDown)
		}
		apply(f)
		return nil
	})
}

// withFault runs act with whatever the fault adds before and after.
func (q *Queue) withFault(ctx context.Context, kind Kind, entries int, act func(Fault) error) error {
	if err := ctx.Err(); err != nil {
		return contextError(kind, err)
	}
	f := q.begin(Op{kind, entries})
	if err := wait(ctx, f.Delay, f.Hold); err != nil {
		return contextError(kind, err)
	}
	if f.Err != nil && f.Refused {
		return fail(kind, f.Err)
	}
	if f.Err != nil && !f.LoseReply {
		return unavailable(kind, f.Err)
	}
	if err := act(f); err != nil {
		return err
	}
	if err := wait(ctx, 0, f.ReplyHold); err != nil {
		return contextError(kind, err)
	}
	if !f.LoseReply {
		return nil
	}
	if f.Err == nil {
		f.Err = ErrLostReply
	}
	return unavailable(kind, f.Err)
}

// begin counts the operation and asks for its fault.
func (q *Queue) begin(op Op) Fault {
	q.mu.Lock()
	q.counts[op.Kind]++
	decide := q.fault
	q.mu.Unlock()
	if decide == nil {
		return Fault{}
	}
	return decide(op)
}

// wait returns the context's error if the context ends first.
func wait(ctx context.Context, delay time.Duration, hold <-chan struct{}) error {
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// fail is an error that is an answer: the queue was asked and refused.
func fail(kind Kind, err error) *queue.Error {
	return &queue.Error{Service: "memory", Addr: "in-process", Op: string(kind), Err: err}
}

// unavailable is an error of a queue that could not be asked or that did not answer in
// time.
func unavailable(kind Kind, err error) *queue.Error {
	e := fail(kind, err)
	e.Unavailable = true
	return e
}

// contextError is the error of an operation whose context has ended. A deadline says
// that the queue was too slow; a cancellation says nothing about the queue.
func contextError(kind Kind, err error) *queue.Error {
	if errors.Is(err, context.DeadlineExceeded) {
		return unavailable(kind, err)
	}
	return fail(kind, err)
}
