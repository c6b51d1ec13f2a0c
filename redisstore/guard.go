package redisstore

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// guard keeps every command inside its context. rueidis does so while a server
// answers, but some of its waits know no context: the wait for another command's dial,
// the wait for a place in the ring of a connection whose server does not answer (1,024
// places by default; a command that was given up keeps its place), and, on a client of
// the user's, a command that has a deadline and is cancelled before.
//
// So commands run directly while all is well, and in a goroutine that can be left
// behind otherwise. Those goroutines end when the server answers or rueidis declares
// the connection dead (about ten seconds).
//
// In a cluster each server has a guard, since each has a ring: one that hangs neither takes
// the places of the others' commands, nor do their answers say anything about it.
//
// places is the bound of both: fewer than the ring has. While the store is not suspect
// no command has been given up since the last answer, so there is a place in the ring
// for whoever has one here.
type guard struct {
	places chan struct{}
	// suspect is set by a command that ended without an answer and cleared by one
	// that got one. Replies come in order, so that answer means that the ring has
	// been drained of all that were given up before.
	suspect atomic.Bool
}

func newGuard(places int) *guard { return &guard{places: make(chan struct{}, places)} }

// guardOf is the guard of a key's server, by any key of ours.
func (s *Store) guardOf(full string) *guard {
	c := s.atlas.present.Load()
	if c == nil {
		return s.guard
	}
	return c.guards[c.owners[slotOfFull(full)]]
}

// dialing suspects the server at an address that is being connected to, or all of them if
// it is not known which one that is.
func (s *Store) dialing(addr string) {
	s.guard.suspect.Store(true)
	c := s.atlas.present.Load()
	if c == nil {
		return
	}
	if i := slices.Index(c.addrs, addr); i > 0 {
		c.guards[i].suspect.Store(true)
		return
	}
	for _, g := range c.guards {
		g.suspect.Store(true)
	}
}

// defaultPlaces suits rueidis' default ring; placesFor suits any.
const defaultPlaces = 768

func placesFor(ringScale int) int {
	const defaultScale = 10
	if ringScale <= 0 || ringScale >= defaultScale {
		return defaultPlaces
	}
	return max(1, (1<<ringScale)*3/4)
}

func (g *guard) do(ctx context.Context, c *conn, cmd rueidis.Completed) rueidis.RedisResult {
	if err := g.enter(ctx); err != nil {
		return rueidis.NewErrorResult(err)
	}
	if g.direct(c) {
		result := c.Do(ctx, cmd)
		g.leave(ctx, c, result.NonRedisError())
		return result
	}
	result, err := patiently(ctx, func() (rueidis.RedisResult, error) {
		result := c.Do(ctx, cmd)
		g.leave(ctx, c, result.NonRedisError())
		return result, nil
	})
	if err != nil {
		return rueidis.NewErrorResult(err)
	}
	return result
}

func (g *guard) doMulti(ctx context.Context, c *conn, cmds []rueidis.Completed) []rueidis.RedisResult {
	n := len(cmds) // the commands are rueidis' once they are on their way
	if err := g.enter(ctx); err != nil {
		return repeatError(err, n)
	}
	if g.direct(c) {
		results := c.DoMulti(ctx, cmds...)
		g.leave(ctx, c, firstFailure(results))
		return results
	}
	results, err := patiently(ctx, func() ([]rueidis.RedisResult, error) {
		results := c.DoMulti(ctx, cmds...)
		g.leave(ctx, c, firstFailure(results))
		return results, nil
	})
	if err != nil {
		return repeatError(err, n)
	}
	return results
}

// patiently makes a call in a goroutine, and leaves it behind when the context ends. The
// error is the call's or the context's.
func patiently[T any](ctx context.Context, call func() (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	out := make(chan outcome, 1)
	go func() {
		value, err := call()
		out <- outcome{value, err}
	}()
	select {
	case o := <-out:
		return o.value, o.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

func (g *guard) enter(ctx context.Context) error {
	select {
	case g.places <- struct{}{}:
		return nil
	default:
	}
	select {
	case g.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *guard) direct(c *conn) bool { return !c.borrowed && !g.suspect.Load() }

// leave notes how a command ended and gives its place back, in this order: who gets
// the place must know that the ring may not have one. An unchanged flag is not
// written, since every command comes by here.
func (g *guard) leave(ctx context.Context, c *conn, failure error) {
	if c.failed != nil && failure != nil && ctx.Err() == nil {
		c.failed()
	}
	if suspect := failure != nil; g.suspect.Load() != suspect {
		g.suspect.Store(suspect)
	}
	<-g.places
}

func firstFailure(results []rueidis.RedisResult) error {
	for i := range results {
		if err := results[i].NonRedisError(); err != nil {
			return err
		}
	}
	return nil
}

func repeatError(err error, n int) []rueidis.RedisResult {
	results := make([]rueidis.RedisResult, n)
	for i := range results {
		results[i] = rueidis.NewErrorResult(err)
	}
	return results
}
