package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store"
)

// localTTLNoPush bounds local staleness where the store cannot tell of changes;
// with pushes the lab keeps local values for as long as the run, so that a
// change that is seen has been told.
const localTTLNoPush = 50 * time.Millisecond

// cached is the mode onefill: a cache, and beside it a session of the same store
// by which the lab looks into the store itself and takes leases by hand.
type cached struct {
	cache   *onefill.Cache[string, string]
	session store.Session
	lease   time.Duration
	ttl     time.Duration
	close   func() error

	mu   sync.Mutex             // guards held
	held map[string]store.Lease // by holder
}

func openOnefill(ctx context.Context, spec storeSpec, cfg readerConfig) (*cached, error) {
	shared, closeStore, err := openShared(spec)
	if err != nil {
		return nil, err
	}
	name := cacheName(cfg.run)
	set, localTTL := cfg.policy, localTTLNoPush
	if cfg.push {
		localTTL = cfg.ttl
	}
	cache, err := onefill.New(onefill.Options[string, string]{
		Name: name,
		Load: func(ctx context.Context, key string) (string, error) {
			if ttl := ttlOf(ctx, 0); ttl > 0 {
				onefill.SetTTL(ctx, ttl)
			}
			value, err := cfg.load(ctx, key)
			if errors.Is(err, errNoRow) {
				return "", onefill.ErrNotFound
			}
			return value, err
		},
		TTL:         cfg.ttl,
		LeaseTTL:    cfg.lease,
		LoadTimeout: cmp.Or(set.LoadTimeout, cfg.timeout),
		WaitTimeout: cmp.Or(set.WaitTimeout, cfg.timeout),
		Store:       shared,
		Local:       onefill.LocalOptions{MaxEntries: 1000, TTL: cmp.Or(set.LocalTTL, localTTL)},

		StoreTimeout: set.StoreTimeout, StaleFor: set.StaleFor, StaleOnError: set.StaleOnError,
		MaxLoads: set.MaxLoads, MaxLoadsDegraded: set.MaxLoadsDegraded,
	})
	if err != nil {
		closeStore()
		return nil, err
	}
	session, err := shared.Attach(ctx, store.Config{Name: name})
	if err != nil {
		cache.Close()
		closeStore()
		return nil, err
	}
	return &cached{cache: cache, session: session, lease: cfg.lease, ttl: cfg.ttl, close: closeStore, held: make(map[string]store.Lease)}, nil
}

func (c *cached) Get(ctx context.Context, key string) (answer, error) {
	r, err := c.cache.Fetch(ctx, key)
	return answer{Payload: r.Value, Source: r.Source.String(), Stale: r.Stale}, err
}

func (c *cached) Invalidate(ctx context.Context, key string) error {
	return c.cache.Invalidate(ctx, key)
}

func (c *cached) Stored(ctx context.Context, key string) (string, bool, error) {
	item, err := c.session.Get(ctx, key)
	if err != nil || !item.Found {
		return "", false, err
	}
	envelope, err := store.Decode(item.Data)
	if err != nil {
		return "", false, fmt.Errorf("the store's value: %w", err)
	}
	return string(envelope.Payload), envelope.Kind == store.KindValue, nil
}

func (c *cached) Take(ctx context.Context, key, holder string) (bool, error) {
	got, err := c.session.Acquire(ctx, key, store.Request{Token: store.NewToken(), TTL: c.lease})
	if err != nil {
		return false, err
	}
	if got.Watch != nil {
		got.Watch.Stop()
	}
	if got.State != store.Won {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[holder] = got.Lease
	return true, nil
}

func (c *cached) Drop(ctx context.Context, key, holder string) (bool, error) {
	lease, err := c.leaseOf(holder)
	if err != nil {
		return false, err
	}
	return lease.Release(ctx)
}

func (c *cached) Publish(ctx context.Context, key, holder, payload string) (bool, error) {
	lease, err := c.leaseOf(holder)
	if err != nil {
		return false, err
	}
	now := time.Now()
	value := store.Envelope{
		Kind: store.KindValue, Version: store.NewVersion(now), Created: now, SoftExpiry: now.Add(c.ttl), Payload: []byte(payload),
	}
	return lease.Fill(ctx, value.Encode(), c.ttl)
}

func (c *cached) leaseOf(holder string) (store.Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if lease := c.held[holder]; lease != nil {
		return lease, nil
	}
	return nil, fmt.Errorf("%s has not taken it", holder)
}

func (c *cached) Close() error {
	return errors.Join(c.session.Close(), c.cache.Close(), c.close())
}
