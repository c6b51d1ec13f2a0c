package queue

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// verdict is a handler's error that says what shall become of the job.
type verdict struct {
	kind  verdictKind
	delay time.Duration
	err   error
}

type verdictKind uint8

const (
	permanent verdictKind = iota + 1
	retryAfter
	postpone
)

func (v *verdict) Error() string { return v.err.Error() }
func (v *verdict) Unwrap() error { return v.err }

var errAgain = errors.New("the handler asks to be called again")

// PermanentError is err as the error of a handler that sees no use in trying again: the
// job goes to the dead letters at once. PermanentError(nil) is nil.
func PermanentError(err error) error {
	if err == nil {
		return nil
	}
	return &verdict{permanent, 0, err}
}

// RetryAfter is err as the error of a handler that knows when to try again: after d,
// instead of the back-off. The attempt counts. The error may be nil, the result is not.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		err = errAgain
	}
	return &verdict{retryAfter, d, err}
}

// Postpone is err as the error of a handler that could not try: what it needs is not
// there, a server is down. The job comes back after d, and the attempt does not count
// where [Caps.AttemptsExact], so that an outage sends no job to the dead letters. The
// error may be nil, the result is not.
func Postpone(d time.Duration, err error) error {
	if err == nil {
		err = errAgain
	}
	return &verdict{postpone, d, err}
}

// result is what a handler has returned for one job, read outside of any lock: reading
// an error runs its methods, which are the handler's.
type result struct {
	err     error
	text    string
	verdict verdictKind // 0 if err is none
	delay   time.Duration
}

func judge(err error) (r result) {
	if err == nil {
		return result{}
	}
	defer func() {
		if p := recover(); p != nil {
			r.err = fmt.Errorf("the handler's error, a %T, cannot be read: %v", err, p)
			r.text = r.err.Error()
		}
	}()
	r = result{err: err, text: err.Error()}
	if v := (*verdict)(nil); errors.As(err, &v) {
		r.verdict, r.delay = v.kind, max(v.delay, 0)
	}
	return r
}

// deadError is the error of an EventDead.
type deadError struct {
	reason string
	err    error
}

func (e *deadError) Error() string { return fmt.Sprintf("%s: %v", e.reason, e.err) }
func (e *deadError) Unwrap() error { return e.err }

// PanicError is the error of a handler that has panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("the handler panicked: %v", e.Value) }

// Unwrap returns the value of the panic if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// ErrExited is the error of a handler that has ended its goroutine with runtime.Goexit.
var ErrExited = errors.New("the handler has ended its goroutine (runtime.Goexit)")

// ErrRunTime is the cause of a handler's context that ends because the handler has run
// for its MaxRunTime. See context.Cause.
var ErrRunTime = errors.New("the handler has run for its MaxRunTime")

// ErrWorkerStopped is the cause of a handler's context that ends because the context of
// Stop has ended, and what Start returns after Stop.
var ErrWorkerStopped = errors.New("the worker is stopped")

// backoff is the pause after an attempt that failed: anything from 0 up to a bound that
// doubles with each attempt. The whole range is random, so that jobs that have failed
// together do not come back together.
func backoff(attempt int, least, most time.Duration) time.Duration {
	bound := least
	for range attempt - 1 {
		if bound >= most/2 {
			bound = most
			break
		}
		bound *= 2
	}
	return rand.N(min(bound, most, math.MaxInt64-1) + 1)
}
