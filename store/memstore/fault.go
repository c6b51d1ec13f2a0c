package memstore

import (
	"context"
	"errors"
	"time"
)

// Kind names an operation.
type Kind string

// The operations, by the names that errors carry.
const (
	OpAttach      Kind = "attach"
	OpGet         Kind = "get"
	OpGetMany     Kind = "get many" // Op.Key is the first one
	OpAcquire     Kind = "acquire"
	OpFill        Kind = "fill"
	OpFail        Kind = "fail"
	OpRenew       Kind = "renew"
	OpRelease     Kind = "release"
	OpSet         Kind = "set"
	OpInvalidate  Kind = "invalidate" // once for each key
	OpExpire      Kind = "expire"     // once for each key
	OpPing        Kind = "ping"
	OpEpoch       Kind = "epoch"
	OpGenerations Kind = "generations" // once for all tags
	OpVoidTags    Kind = "void tags"   // once for all tags
)

// Op is one operation on its way to the store. Key is empty for attach and ping,
// and for what is about tags.
type Op struct {
	Kind      Kind
	Name, Key string
}

// ErrLostReply is wrapped by the error of an operation whose Fault has LoseReply
// and no Err of its own.
var ErrLostReply = errors.New("the reply was lost")

// Fault is what happens to one operation. The zero value is nothing. All waits
// end with the operation's context; then the operation fails with the context's
// error, applied only if the wait came after.
type Fault struct {
	// Delay and Hold come before the operation is applied: it waits for the
	// duration, then until the channel is closed.
	Delay time.Duration
	Hold  <-chan struct{}
	// Err makes the operation fail without being applied. The error is an
	// unavailable one unless Refused is set: then it is the store's answer.
	Err     error
	Refused bool
	// LoseReply applies the operation and makes it fail as unavailable, with Err
	// or ErrLostReply.
	LoseReply bool
	// ReplyDelay and ReplyHold come after the operation was applied and its
	// pushes were delivered: the reply waits.
	ReplyDelay time.Duration
	ReplyHold  <-chan struct{}
}

// SetFault makes decide say what happens to each operation from now on; nil ends
// that. decide runs on the goroutine of the operation before it is applied, with
// no lock held: it may signal a test, block, and call the store's methods.
func (st *Store) SetFault(decide func(Op) Fault) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.fault = decide
}

// Down makes every operation fail as unavailable, with ErrDown, until Up. The
// data stays, and goes on to expire. Sessions are told that pushes may be lost.
func (st *Store) Down() {
	st.mu.Lock()
	defer st.unlock()
	st.down = true
	st.lose()
}

// Up ends Down.
func (st *Store) Up() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.down = false
}

// HoldPushes keeps back the events and the wake-ups of other sessions' changes,
// as a slow connection does, until ReleasePushes. A session's own writes go on to
// wake its own watches.
func (st *Store) HoldPushes() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.held = true
}

// ReleasePushes delivers what HoldPushes has kept back, in order, before it
// returns.
func (st *Store) ReleasePushes() {
	st.mu.Lock()
	defer st.unlock()
	st.held = false
	for _, peers := range st.sessions {
		st.dirty = append(st.dirty, peers...)
	}
}

// DropPushes forgets what HoldPushes has kept back, and goes on holding: nobody
// will ever hear of those changes. No server is meant to do that; waiters must
// survive it all the same.
func (st *Store) DropPushes() {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, peers := range st.sessions {
		for _, s := range peers {
			s.queue = nil
		}
	}
}

// LosePushes does what a broken push connection does: sessions hear no more of
// what they have read so far, and are told so.
func (st *Store) LosePushes() {
	st.mu.Lock()
	defer st.unlock()
	st.lose()
}

// Counts returns how many operations of each kind were begun since New, failed
// ones included.
func (st *Store) Counts() map[Kind]int {
	st.mu.Lock()
	defer st.mu.Unlock()
	counts := make(map[Kind]int, len(st.counts))
	for kind, n := range st.counts {
		counts[kind] = n
	}
	return counts
}

// do runs one operation: apply, under the lock, with whatever the fault adds.
func (st *Store) do(ctx context.Context, op Op, apply func(now time.Time)) error {
	if err := ctx.Err(); err != nil {
		return contextError(op.Kind, err)
	}
	f := st.begin(op)
	if err := wait(ctx, f.Delay, f.Hold); err != nil {
		return contextError(op.Kind, err)
	}
	if f.Err != nil && f.Refused {
		return fail(op.Kind, f.Err)
	}
	if f.Err != nil && !f.LoseReply {
		return unavailable(op.Kind, f.Err)
	}
	if err := st.apply(ctx, op.Kind, apply); err != nil {
		return err
	}
	if err := wait(ctx, f.ReplyDelay, f.ReplyHold); err != nil {
		return contextError(op.Kind, err)
	}
	if !f.LoseReply {
		return nil
	}
	if f.Err == nil {
		f.Err = ErrLostReply
	}
	return unavailable(op.Kind, f.Err)
}

// begin counts the operation and asks for its fault.
func (st *Store) begin(op Op) Fault {
	st.mu.Lock()
	st.counts[op.Kind]++
	decide := st.fault
	st.mu.Unlock()
	if decide == nil {
		return Fault{}
	}
	return decide(op)
}

// apply runs act under the lock, unless the store is down. During a failover it waits
// for the server that comes.
func (st *Store) apply(ctx context.Context, kind Kind, act func(now time.Time)) error {
	st.mu.Lock()
	for st.failover != nil {
		over := st.failover
		st.mu.Unlock()
		if err := wait(ctx, 0, over); err != nil {
			return contextError(kind, err)
		}
		st.mu.Lock()
	}
	defer st.unlock()
	if st.down {
		return unavailable(kind, ErrDown)
	}
	act(time.Now())
	return nil
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
