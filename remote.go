package onefill

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	base    time.Time   // of shared's clock
	shared  sharedLimit // of operations that nobody can cancel
	hears   healthListener

	// A session that keeps its keys on several servers has a health for each.
	sharded store.Sharded    // nil if it does not
	many    store.ManyReader // nil if it reads key by key
	whole   health
	tags    health       // of the servers of tags, together
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
	return &remote{timeout: timeout, base: time.Now(), shared: sharedLimit{timeout: timeout, slice: timeout / 32}, hears: hears}
}

// attach completes the remote with its session.
func (r *remote) attach(s store.Session) {
	r.session = s
	r.sharded, _ = s.(store.Sharded)
	r.many, _ = s.(store.ManyReader)
}

// down says whether the store, or a part of it, is taken for unreachable.
func (r *remote) down() bool {
	if r.downs.Load() > 0 && r.sharded != nil {
		r.forgetGone()
	}
	return r.downs.Load() > 0
}

// goneAfter is when a server that nobody has asked since it went down is forgotten: it may
// have left the store, and then nothing would ever say that it is up.
const goneAfter = 30 * time.Second

func (r *remote) forgetGone() {
	gone := func(h *health) bool {
		return h.isDown.Load() && h.idle() > goneAfter && h.isDown.CompareAndSwap(true, false)
	}
	if gone(&r.tags) {
		r.downs.Add(-1)
	}
	r.servers.Range(func(server, each any) bool {
		if gone(each.(*health)) {
			r.servers.CompareAndDelete(server, each)
			r.downs.Add(-1)
		}
		return true
	})
}

// ofTags stands for a key in operations on the epoch and the tags, whichever servers keep
// them: no key is like it.
const ofTags = "\x00tags"

// health returns what is known of the server of a key.
func (r *remote) health(key string) *health {
	switch {
	case r.sharded == nil:
		return &r.whole
	case key == ofTags:
		return &r.tags
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
	opCtx, cancel := r.limit(ctx, start)
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
	if err == nil || !errors.Is(err, store.ErrUnavailable) || !r.unknown(key) && r.health(key).hopeless(start) || time.Since(start) > r.timeout/2 {
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
		r.hears.storeError(strings.TrimPrefix(key, ofTags), err)
	}
	if r.unknown(key) {
		return
	}
	wentDown, cameUp := r.health(key).learn(ctx, err, start, r.timeout)
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

// getMany reads many keys at once, from all of their servers at the same time. An error of a
// server is that of each of its keys.
func (r *remote) getMany(ctx context.Context, keys []string) (items []store.Item, errOf func(i int) error) {
	if r.sharded == nil {
		items, err := r.getSome(ctx, keys)
		return items, func(int) error { return err }
	}
	items = make([]store.Item, len(keys))
	errs := make([]error, len(keys))
	read := func(at []int) {
		found, err := r.getSome(ctx, pick(keys, at))
		for i, n := range at {
			if err != nil {
				errs[n] = err
			} else {
				items[n] = found[i]
			}
		}
	}
	var groups sync.WaitGroup
	servers := r.byServer(keys)
	for _, at := range servers[1:] {
		groups.Go(func() { read(at) })
	}
	read(servers[0])
	groups.Wait()
	return items, func(i int) error { return errs[i] }
}

// byServer are the places of the keys that lie on one server, for each server.
func (r *remote) byServer(keys []string) (groups [][]int) {
	found := map[string]int{}
	for i, key := range keys {
		server := r.sharded.Server(key)
		n, ok := found[server]
		if !ok {
			n = len(groups)
			found[server], groups = n, append(groups, nil)
		}
		groups[n] = append(groups[n], i)
	}
	return groups
}

func pick(keys []string, at []int) []string {
	picked := make([]string, len(at))
	for i, n := range at {
		picked[i] = keys[n]
	}
	return picked
}

func (r *remote) getSome(ctx context.Context, keys []string) (items []store.Item, err error) {
	err = r.twice(ctx, keys[0], func(ctx context.Context) error {
		items, err = r.many.GetMany(ctx, keys)
		if err == nil && len(items) != len(keys) {
			err = fmt.Errorf("onefill: the store has %d answers to %d keys", len(items), len(keys))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return items, nil
}

// acquire may be repeated where the token tells the store that the lease, which was
// won by an attempt whose answer was lost, is the flight's own. Each attempt counts
// itself in req.
func (r *remote) acquire(ctx context.Context, key string, req *store.Request) (store.Answer, error) {
	return r.acquireBy(ctx, key, req, r.session.Features().KeepsToken)
}

func (r *remote) acquireOnce(ctx context.Context, key string, req *store.Request) (store.Answer, error) {
	return r.acquireBy(ctx, key, req, false)
}

func (r *remote) acquireBy(ctx context.Context, key string, req *store.Request, mayRepeat bool) (a store.Answer, err error) {
	op := func(ctx context.Context) error {
		req.Try++
		a, err = r.session.Acquire(ctx, key, *req)
		return err
	}
	if mayRepeat {
		err = r.twice(ctx, key, op)
	} else {
		err = r.do(ctx, key, op)
	}
	return a, err
}
