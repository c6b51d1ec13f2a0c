package recipe

import (
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/singleflight"
)

// Naive is plain cache-aside. An error of the store is a miss to it, and whether it
// could store what it has loaded is all the same to its caller.
type Naive struct {
	Store Store
	Config
}

// Get returns the value of key.
func (n *Naive) Get(ctx context.Context, key string) (Answer, error) {
	value, found, err := n.Store.Get(ctx, n.Key(key))
	switch {
	case found:
		return Answer{Payload: value, Source: SourceStore}, nil
	case err != nil && ctx.Err() != nil:
		return Answer{}, ctx.Err()
	}
	if value, err = n.Load(ctx, key); err != nil {
		return Answer{}, err
	}
	n.put(ctx, key, value)
	return Answer{Payload: value, Source: SourceLoad}, nil
}

func (n *Naive) put(ctx context.Context, key, value string) error {
	return n.Store.Set(ctx, n.Key(key), value, n.TTL(ctx))
}

// Invalidate deletes the value of key.
func (n *Naive) Invalidate(ctx context.Context, key string) error {
	_, err := n.Store.Delete(ctx, n.Key(key))
	return err
}

// Stored is what the store holds for key.
func (n *Naive) Stored(ctx context.Context, key string) (string, bool, error) {
	return n.Store.Get(ctx, n.Key(key))
}

// Close closes the store.
func (n *Naive) Close() error {
	n.Store.Close()
	return nil
}

// Local coalesces the misses of its own process, on the context of whoever came
// first, as singleflight is commonly used.
type Local struct {
	Naive
	group singleflight.Group
}

// Get returns the value of key.
func (l *Local) Get(ctx context.Context, key string) (Answer, error) {
	led := false // written by this goroutine only: Do runs the function on its caller's
	v, err, _ := l.group.Do(key, func() (any, error) {
		led = true
		return l.Naive.Get(ctx, key)
	})
	a, _ := v.(Answer)
	a.Coalesced = !led
	return a, err
}

// Lock is the common recipe: SET NX (memcached: add) with an expiry, losers sleep and read again
// and in the end load themselves, and whoever held the lock deletes it, without
// a look at whose it is by then. Without its store it knows no way to go on: whose lock
// could it be?
type Lock struct{ Naive }

// The losers' pauses between two looks.
const (
	LockPauseMin = 10 * time.Millisecond
	LockPauseMax = 50 * time.Millisecond
)

// Get returns the value of key.
func (l *Lock) Get(ctx context.Context, key string) (Answer, error) {
	value, found, err := l.Store.Get(ctx, l.Key(key))
	if err != nil || found {
		return Answer{Payload: value, Source: SourceStore}, err
	}
	won, err := l.Take(ctx, key, "")
	if err != nil {
		return Answer{}, err
	}
	if won {
		defer l.Drop(ctx, key, "")
		return l.fill(ctx, key)
	}
	a, err := l.poll(ctx, key)
	a.Waited = true
	return a, err
}

// poll is what losers do.
func (l *Lock) poll(ctx context.Context, key string) (Answer, error) {
	for deadline := time.Now().Add(l.Lease); time.Now().Before(deadline); {
		if err := Pause(ctx, LockPauseMin+rand.N(LockPauseMax-LockPauseMin)); err != nil {
			return Answer{}, err
		}
		value, found, err := l.Store.Get(ctx, l.Key(key))
		if err != nil || found {
			return Answer{Payload: value, Source: SourceStore}, err
		}
	}
	return l.fill(ctx, key)
}

// fill loads and stores.
func (l *Lock) fill(ctx context.Context, key string) (Answer, error) {
	value, err := l.Load(ctx, key)
	if err == nil {
		err = l.put(ctx, key, value)
	}
	return Answer{Payload: value, Source: SourceLoad}, err
}

// Take tries to take the lock.
func (l *Lock) Take(ctx context.Context, key, _ string) (bool, error) {
	return l.Store.Add(ctx, l.LockKey(key), "locked", l.Lease)
}

// Publish is what the recipe does at the end of a load: nobody looks at the lock.
func (l *Lock) Publish(ctx context.Context, key, _, payload string) (bool, error) {
	err := l.put(ctx, key, payload)
	return err == nil, err
}

// Drop deletes the lock.
func (l *Lock) Drop(ctx context.Context, key, _ string) (bool, error) {
	return l.Store.Delete(ctx, l.LockKey(key))
}

// Pause waits for d, or until the context ends.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
