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

// naive is plain cache-aside.
type naive struct {
	store plainStore
	cfg   readerConfig
}

func (n *naive) Get(ctx context.Context, key string) (answer, error) {
	value, found, err := n.store.Get(ctx, plainKey(n.cfg.run, key))
	if err != nil || found {
		return answer{value, sourceStore}, err
	}
	return n.fill(ctx, key)
}

// fill loads and stores: what every recipe ends in.
func (n *naive) fill(ctx context.Context, key string) (answer, error) {
	value, err := n.cfg.load(ctx, key)
	if err == nil {
		err = n.store.Set(ctx, plainKey(n.cfg.run, key), value, n.cfg.ttl)
	}
	return answer{value, sourceLoad}, err
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
// a look at whose it is by then.
type lock struct{ naive }

// The losers' pauses between two looks.
const (
	lockPauseMin = 10 * time.Millisecond
	lockPauseMax = 50 * time.Millisecond
)

func (l *lock) Get(ctx context.Context, key string) (answer, error) {
	value, found, err := l.store.Get(ctx, plainKey(l.cfg.run, key))
	if err != nil || found {
		return answer{value, sourceStore}, err
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
			return answer{value, sourceStore}, err
		}
	}
	return l.fill(ctx, key)
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
