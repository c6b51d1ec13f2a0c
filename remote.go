package onefill

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill/store"
)

// remote is a cache's way to its store: each operation bounded by StoreTimeout, and
// tried only if the server that has the key is not known to be unreachable.
type remote struct {
	session store.Session
	timeout time.Duration
	shared  sharedLimit // of operations that nobody can cancel
	hears   healthListener

	// A session that keeps its keys on several servers has a health for each.
	sharded store.Sharded // nil if it does not
	whole   health
	servers sync.Map     // by address: *health
	downs   atomic.Int32 // how many of them are down

	broken atomic.Bool // pushes may have been missed since the last answer
}

type healthListener interface {
	storeDown(error)
	storeUp()
	mended()
	storeError(key string, err error)
}

// retryAfter is what a store has to make a new connection.
const retryAfter = 10 * time.Millisecond

func newRemote(timeout time.Duration, hears healthListener) *remote {
	return &remote{timeout: timeout, shared: sharedLimit{timeout: timeout}, hears: hears}
}

// attach completes the remote with its session.
func (r *remote) attach(s store.Session) {
	r.session = s
	r.sharded, _ = s.(store.Sharded)
}

// down says whether the store, or a part of it, is taken for unreachable.
func (r *remote) down() bool { return r.downs.Load() > 0 }

// health returns what is known of the server of a key.
func (r *remote) health(key string) *health {
	if r.sharded == nil {
		return &r.whole
	}
	server := r.sharded.Server(key)
	if h, ok := r.servers.Load(server); ok {
		return h.(*health)
	}
	h, _ := r.servers.LoadOrStore(server, &health{})
	return h.(*health)
}

// do runs one operation. ctx bounds it too, but its end says nothing about the
// store. The functions that take an operation only call it, so that none is allocated.
func (r *remote) do(ctx context.Context, key string, op func(context.Context) error) error {
	if r.unknown(key) {
		return r.must(ctx, key, op)
	}
	if h := r.health(key); !h.admit() {
		return h.skipped()
	}
	return r.must(ctx, key, op)
}

// unknown says that an operation is about one or more of several servers, nobody knows
// which.
func (r *remote) unknown(key string) bool { return key == "" && r.sharded != nil }

// must is do for writes: they are tried also while the store is taken for
// unreachable, since the writer's answer depends on it.
func (r *remote) must(ctx context.Context, key string, op func(context.Context) error) error {
	start := time.Now()
	opCtx, cancel := r.limit(ctx)
	err := op(opCtx)
	cancel()
	r.learn(ctx, key, err, start)
	return err
}

// twice is do for operations that may be repeated: if one fails quickly, as on a
// connection that was cut, it is tried once more, so that this costs no load
// without a lease.
func (r *remote) twice(ctx context.Context, key string, op func(context.Context) error) error {
	return r.again(ifUp, ctx, key, op)
}

// way is do or must.
type way bool

const (
	ifUp   way = false
	always way = true
)

func (r *remote) by(w way, ctx context.Context, key string, op func(context.Context) error) error {
	if w == always {
		return r.must(ctx, key, op)
	}
	return r.do(ctx, key, op)
}

func (r *remote) again(w way, ctx context.Context, key string, op func(context.Context) error) error {
	start := time.Now()
	err := r.by(w, ctx, key, op)
	if err == nil || !errors.Is(err, store.ErrUnavailable) || r.health(key).isDown.Load() || time.Since(start) > r.timeout/2 {
		return err
	}
	t := time.NewTimer(retryAfter)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return err
	case <-t.C:
	}
	return r.by(w, ctx, key, op)
}

// learn passes the outcome of an operation on: to the observer, and to those who
// have to know when the store goes away or comes back.
func (r *remote) learn(ctx context.Context, key string, err error, start time.Time) {
	if err != nil && ctx.Err() == nil { // who has left himself is no error of the store's
		r.hears.storeError(key, err)
	}
	if r.unknown(key) {
		return
	}
	wentDown, cameUp := r.health(key).learn(ctx, err, start)
	switch {
	case wentDown:
		r.downs.Add(1)
		r.hears.storeDown(err)
	case cameUp:
		r.downs.Add(-1)
		r.hears.storeUp()
	}
	if answered := err == nil || !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, context.Canceled); answered &&
		r.broken.Load() && r.broken.CompareAndSwap(true, false) {
		r.hears.mended()
	}
}

func (r *remote) get(ctx context.Context, key string) (item store.Item, err error) {
	err = r.twice(ctx, key, func(ctx context.Context) error {
		item, err = r.session.Get(ctx, key)
		return err
	})
	return item, err
}

// acquire may be repeated where the token tells the store that the lease, which was
// won by an attempt whose answer was lost, is the flight's own. Each attempt counts
// itself in req.
func (r *remote) acquire(ctx context.Context, key string, req *store.Request) (a store.Answer, err error) {
	op := func(ctx context.Context) error {
		req.Try++
		a, err = r.session.Acquire(ctx, key, *req)
		return err
	}
	if r.session.Features().KeepsToken {
		err = r.twice(ctx, key, op)
	} else {
		err = r.do(ctx, key, op)
	}
	return a, err
}

func (r *remote) acquireOnce(ctx context.Context, key string, req *store.Request) (a store.Answer, err error) {
	err = r.do(ctx, key, func(ctx context.Context) error {
		req.Try++
		a, err = r.session.Acquire(ctx, key, *req)
		return err
	})
	return a, err
}
