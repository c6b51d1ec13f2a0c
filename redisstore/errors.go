package redisstore

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/onefill/onefill/store"
	"github.com/redis/rueidis"
)

var (
	errSessionClosed = errors.New("the cache's session is closed")
	errStoreClosed   = errors.New("the store is closed")
)

// misuse is an error of the program's, which no server can do anything about.
type misuse string

func (m misuse) Error() string { return string(m) }

// passing are the refusals that say "not now" rather than "not this": the server
// loads its data, has lost its primary, or is none any more.
var passing = []string{"LOADING", "CLUSTERDOWN", "MASTERDOWN", "READONLY"}

// failure wraps what went wrong in the error type of the contract.
func (s *Store) failure(op string, err error) error {
	if err == nil {
		return nil
	}
	var done *store.Error
	if errors.As(err, &done) {
		return err
	}
	return &store.Error{
		Service: s.service(), Addr: s.link.addr(), Op: op, Err: err, Unavailable: unavailable(err),
	}
}

// unavailable says whether the server could not be asked or did not answer in
// time. A server that answers with an error has been asked; a caller that gave up
// says nothing about the server.
func unavailable(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, errSessionClosed) || errors.Is(err, errStoreClosed) {
		return false
	}
	var wrong misuse
	if errors.As(err, &wrong) || errors.Is(err, store.ErrNotReplicated) { // the write was answered
		return false
	}
	if refusal, ok := asRefusal(err); ok {
		return hasAnyPrefix(refusal.Error(), passing)
	}
	return !errors.Is(err, store.ErrTooLarge)
}

// asRefusal finds the error that the server itself has answered with, also where
// rueidis has wrapped it.
func asRefusal(err error) (*rueidis.RedisError, bool) {
	var refusal *rueidis.RedisError
	ok := errors.As(err, &refusal)
	return refusal, ok
}

func hasAnyPrefix(s string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(s, prefix) {
			return true
		}
	}
	return false
}

// unreachable is what Config.AllowDown forgives: nobody there, nobody answering, or
// a server that is not ready yet. A wrong password or another protocol on the port
// does not heal by waiting.
func unreachable(err error) bool {
	if refusal, ok := asRefusal(err); ok {
		return hasAnyPrefix(refusal.Error(), passing)
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, net.ErrClosed) || errors.Is(err, errReplica)
}

func isWrongType(err error) bool {
	refusal, ok := rueidis.IsRedisErr(err)
	return ok && strings.HasPrefix(refusal.Error(), "WRONGTYPE")
}

// isTryAgain says that a slot of the cluster is on its way, and with it some of the keys.
func isTryAgain(err error) bool {
	refusal, ok := rueidis.IsRedisErr(err)
	return ok && refusal.IsTryAgain()
}

func isReadOnly(err error) bool {
	refusal, ok := rueidis.IsRedisErr(err)
	return ok && strings.Contains(refusal.Error(), "READONLY")
}
