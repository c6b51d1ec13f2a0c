package lab

import (
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/singleflight"
)

// Where an answer came from.
const (
	sourceLocal = "local"
	sourceStore = "store"
	sourceLoad  = "load"
)

// naive is plain cache-aside. An error of the store is a miss to it, and whether it
// could store what it has loaded is all the same to its caller.
type naive struct {
	store plainStore
	cfg   readerConfig
}

func (n *naive) Get(ctx context.Context, key string) (answer, error) {
	value, found, err := n.store.Get(ctx, plainKey(n.cfg.run, key))
	switch {
	case found:
		return answer{payload: value, source: sourceStore}, nil
	case err != nil && ctx.Err() != nil:
		return answer{}, ctx.Err()
	}
	if value, err = n.cfg.load(ctx, key); err != nil {
		return answer{}, err
	}
	n.put(ctx, key, value)
	return answer{payload: value, source: sourceLoad}, nil
}

func (n *naive) put(ctx context.Context, key, value string) error {
	return n.store.Set(ctx, plainKey(n.cfg.run, key), value, ttlOf(ctx, n.cfg.ttl))
}

func (n *naive) Invalidate(ctx context.Context, key string) error {
	_, err := n.store.Delete(ctx, plainKey(n.cfg.run, key))
	return err
}

func (n *naive) Stored(ctx context.Context, key string) (string, bool, error) {
	return n.store.Get(ctx, plainKey(n.cfg.run, key))
}

func (n *naive) Close() error {
	n.store.Close()
	return nil
}

// local coalesces the misses of its own process, on the context of whoever came
// first, as singleflight is commonly used.
type local struct {
	naive
	group singleflight.Group
}

func (l *local) Get(ctx context.Context, key string) (answer, error) {
	v, err, _ := l.group.Do(key, func() (any, error) { return l.naive.Get(ctx, key) })
	a, _ := v.(answer)
	return a, err
}

// lock is the common recipe: SET NX (memcached: add) with an expiry, losers sleep and read again
// and in the end load themselves, and whoever held the lock deletes it, without
// a look at whose it is by then. Without its store it knows no way to go on: whose lock
// could it be?
type lock struct{ naive }

// The losers' pauses between two looks.
const (
	lockPauseMin = 10 * time.Millisecond
	lockPauseMax = 50 * time.Millisecond
)

func (l *lock) Get(ctx context.Context, key string) (answer, error) {
	value, found, err := l.store.Get(ctx, plainKey(l.cfg.run, key))
	if err != nil || found {
		return answer{payload: value, source: sourceStore}, err
	}
	won, err := l.Take(ctx, key, "")
	if err != nil {
		return answer{}, err
	}
	if won {
		defer l.Drop(ctx, key, "")
		return l.fill(ctx, key)
	}
	for deadline := time.Now().Add(l.cfg.lease); time.Now().Before(deadline); {
		if err := pause(ctx, lockPauseMin+rand.N(lockPauseMax-lockPauseMin)); err != nil {
			return answer{}, err
		}
		value, found, err := l.store.Get(ctx, plainKey(l.cfg.run, key))
		if err != nil || found {
			return answer{payload: value, source: sourceStore}, err
		}
	}
	return l.fill(ctx, key)
}

// fill loads and stores.
func (l *lock) fill(ctx context.Context, key string) (answer, error) {
	value, err := l.cfg.load(ctx, key)
	if err == nil {
		err = l.put(ctx, key, value)
	}
	return answer{payload: value, source: sourceLoad}, err
}

func (l *lock) Take(ctx context.Context, key, _ string) (bool, error) {
	return l.store.Add(ctx, lockKey(l.cfg.run, key), "locked", l.cfg.lease)
}

// Publish is what the recipe does at the end of a load: nobody looks at the lock.
func (l *lock) Publish(ctx context.Context, key, _, payload string) (bool, error) {
	err := l.store.Set(ctx, plainKey(l.cfg.run, key), payload, l.cfg.ttl)
	return err == nil, err
}

func (l *lock) Drop(ctx context.Context, key, _ string) (bool, error) {
	return l.store.Delete(ctx, lockKey(l.cfg.run, key))
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
