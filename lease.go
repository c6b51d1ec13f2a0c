package onefill

import (
	"context"
	"errors"
	"time"

	"github.com/onefill/onefill/store"
)

// A lease while its load runs, and the ways in which it is given back.

// keeper renews a lease while its load runs.
type keeper struct {
	cancel context.CancelFunc
	done   chan struct{}
	lost   bool // read after done
}

// keepAlive renews the lease at a third of its TTL, until stop. A renewal that
// finds the lease lost is the last one.
func (m *miss[K, V]) keepAlive(ctx context.Context, lease store.Lease) *keeper {
	c := m.c
	ctx, cancel := context.WithCancel(ctx)
	k := &keeper{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(k.done)
		defer context.AfterFunc(c.life, cancel)()
		t := time.NewTicker(max(c.opts.LeaseTTL/3, time.Millisecond))
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			ok := true
			err := c.remote.do(ctx, m.f.Key, func(ctx context.Context) (err error) {
				ok, err = lease.Renew(ctx, c.opts.LeaseTTL)
				return err
			})
			if err == nil && !ok {
				k.lost = true
				c.stats.leasesLost.Add(1)
				c.tell(Event{Kind: EventLeaseLost, Key: m.f.Key, Flight: m.f.ID})
				return
			}
		}
	}()
	return k
}

// stop ends the renewals, also one that hangs, and says whether the lease was found
// lost. It may be called more than once.
func (k *keeper) stop() (lost bool) {
	k.cancel()
	<-k.done
	return k.lost
}

// release gives the lease back, with nothing in its place.
func (c *Cache[K, V]) release(ctx context.Context, skey string, lease store.Lease) (ok bool, err error) {
	err = c.remote.do(ctx, skey, func(ctx context.Context) error {
		ok, err = lease.Release(ctx)
		return err
	})
	return ok, err
}

// releaseLater is release for those who have an answer already and should not wait
// for a store that is in trouble. It is repeated until the store has answered: the
// fleet waits for it.
func (c *Cache[K, V]) releaseLater(ctx context.Context, skey string, lease store.Lease) {
	op := func() error {
		_, err := c.release(ctx, skey, lease)
		return err
	}
	if !c.insist(c.opts.LeaseTTL, op) {
		_ = op() // the cache is closed: once, and then the lease's own end
	}
}

// disown gives back a lease that was perhaps granted by an acquire whose answer was
// lost: the fleet would wait for a holder that does not know of it. Its token finds
// it; a store that forgets tokens gives it back by itself.
func (c *Cache[K, V]) disown(ctx context.Context, skey string, req store.Request, err error) {
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, errNotAsked) || !c.remote.session.Features().KeepsToken {
		return
	}
	c.insist(req.TTL, func() error {
		a, err := c.remote.acquireOnce(ctx, skey, &req)
		if a.Watch != nil {
			a.Watch.Stop()
		}
		if a.State == store.Won {
			_, err = c.release(ctx, skey, a.Lease)
		}
		return err
	})
}

// insist repeats an operation in the background until the store has answered, or for d,
// which is how long the lease lasts that it is to end. False: the cache is closed.
func (c *Cache[K, V]) insist(d time.Duration, op func() error) bool {
	over := until(c.local.Now(), d)
	return c.begin(func() {
		for errors.Is(op(), store.ErrUnavailable) && c.local.Now() < over && !c.closed.Load() {
			t := time.NewTimer(probeEvery)
			select {
			case <-t.C:
			case <-c.life.Done():
			}
			t.Stop()
		}
	})
}
