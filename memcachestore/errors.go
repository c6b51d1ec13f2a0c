package memcachestore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/onefill/onefill/store"
)

var (
	errSessionClosed = errors.New("the cache's session is closed")
	errStoreClosed   = errors.New("the store is closed")
	errBusy          = errors.New("too many requests wait already for a server that does not answer")
	errStalled       = errors.New("the server has stopped answering; the connection was given up")
	errContended     = errors.New("other clients have changed the key again and again meanwhile")
)

// refusal is an answer that is an error: SERVER_ERROR.
type refusal string

func (r refusal) Error() string { return "the server answered: " + string(r) }

// Is finds the refusal of an item that is larger than the server's limit.
func (r refusal) Is(target error) bool {
	return target == store.ErrTooLarge && strings.Contains(string(r), "too large")
}

// unfit is a server that will never do, however long one waits: it is no memcached,
// too old a one, or one without compare-and-swap.
type unfit struct{ error }

func (u unfit) Unwrap() error { return u.error }

// failure wraps what went wrong in the error type of the contract.
func failure(op, addr string, err error) error {
	if err == nil {
		return nil
	}
	var done *store.Error
	if errors.As(err, &done) {
		return err
	}
	return &store.Error{Service: "memcached", Addr: addr, Op: op, Err: err, Unavailable: unavailable(err)}
}

// invalid is an error of the configuration: no server was asked.
func invalid(addr string, err error) *store.Error {
	return &store.Error{Service: "memcached", Addr: addr, Op: "attach", Err: err}
}

// unavailable says whether the server could not be asked or did not answer in time.
// A server that answers with an error has been asked; a caller that gave up says
// nothing about the server.
func unavailable(err error) bool {
	var r refusal
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, errSessionClosed), errors.Is(err, errStoreClosed),
		errors.Is(err, store.ErrTooLarge), errors.Is(err, errContended), errors.As(err, &r):
		return false
	}
	return true
}

// ended is the error of a request whose context has ended before the answer came.
func ended(ctx context.Context) error {
	return fmt.Errorf("no answer yet: %w", ctx.Err())
}

// unexpected is for a reply that has no place in what was asked.
func (r reply) unexpected() error {
	if r.code == codeRefused {
		return refusal(r.message)
	}
	return fmt.Errorf("%w: a reply of another kind (%d)", errProtocol, r.code)
}
