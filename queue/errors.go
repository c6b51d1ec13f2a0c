package queue

import (
	"errors"
	"fmt"
	"strings"
)

// ErrLeaseLost is the result of an entry whose token is not the job's claim any
// more: the lease has ended and somebody else has claimed the job, or it was done or
// given back before.
var ErrLeaseLost = errors.New("the lease on the job is lost")

// ErrUnknown is the result of an entry that names nothing: a token that is none of
// this queue's, a dead letter that is not there.
var ErrUnknown = errors.New("no such job")

// ErrUnavailable is wrapped by an [*Error] whose cause is that the server could not
// be asked or did not answer in time, as opposed to an answer that is an error. An
// operation that failed so may have been applied.
var ErrUnavailable = errors.New("queue unavailable")

// ErrInvalid is wrapped by an [*Error] that refuses a job or a request because it
// breaks the contract or exceeds the queue's limits.
var ErrInvalid = errors.New("invalid")

// Error is what an operation of a queue returns when it fails: which service, at
// which address, in which operation, and why.
type Error struct {
	Service string // "postgres", "sqs", "memory"
	Addr    string // host:port/database, the queue's URL
	Op      string // "enqueue", "receive", "ack", "extend", "nack", "dead", "stats", ...
	Err     error  // the cause
	// Unavailable: the server could not be asked or did not answer in time.
	Unavailable bool
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s at %s: %s: %v", e.Service, e.Addr, e.Op, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is(err, ErrUnavailable) say what Unavailable says.
func (e *Error) Is(target error) bool { return target == ErrUnavailable && e.Unavailable }

// Errors are the results of a call with several entries, one for each in the order
// of the entries, nil for those that were done. A queue returns it if at least one of
// them is not nil, and so may a batch handler. errors.Is and errors.As look at all.
type Errors []error

func (es Errors) Error() string {
	failed, first := 0, ""
	for i, err := range es {
		if err == nil {
			continue
		}
		if failed++; failed == 1 {
			first = fmt.Sprintf("entry %d: %v", i, err)
		}
	}
	if failed < 2 {
		return first
	}
	return fmt.Sprintf("%d of %d entries failed; %s", failed, len(es), first)
}

// Unwrap returns the errors that are not nil.
func (es Errors) Unwrap() []error {
	var errs []error
	for _, err := range es {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Err is nil if every entry was done, es otherwise: what a call returns.
func (es Errors) Err() error {
	for _, err := range es {
		if err != nil {
			return es
		}
	}
	return nil
}

// ErrorOf is entry i's part of the error of a call with several entries: its own if
// the error tells the entries apart, else the whole error, since then nothing was done
// or nobody knows.
func ErrorOf(err error, i int) error {
	if err == nil {
		return nil // most are: errors.As would allocate for each
	}
	var es Errors
	if !errors.As(err, &es) {
		return err
	}
	if i >= len(es) {
		return fmt.Errorf("no result for entry %d: %w", i, err)
	}
	return es[i]
}

// MaxErrorBytes is how much of an error's text a queue keeps. Queues cut longer ones
// with [ErrorText].
const MaxErrorBytes = 4096

// ErrorText is text as a queue keeps it: valid UTF-8 without NUL, cut to
// [MaxErrorBytes].
func ErrorText(text string) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	if len(text) <= MaxErrorBytes {
		return text
	}
	return strings.ToValidUTF8(text[:MaxErrorBytes], "") // the cut may have halved a rune
}
