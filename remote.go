package onefill

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill/store"
)

// remote is a cache's way to its store: each operation bounded by StoreTimeout,
// its outcome watched. When several operations in a row, over some time, were not
// answered, the store is taken for unreachable: then one operation at a time goes
// through as a probe, and the others fail at once.
type remote struct {
	session store.Session
	timeout time.Duration
	hears   healthListener

	broken atomic.Bool  // pushes may have been missed since the last answer
	failed atomic.Int32 // operations in a row that were not answered
	since  atomic.Int64 // when the first of them began, Unix nanoseconds
	isDown atomic.Bool
	probe  atomic.Int64                // when the next probe may go, Unix nanoseconds
	last   atomic.Pointer[store.Error] // why it is down
}

type healthListener interface {
	storeDown(error)
	storeUp()
	mended()
	storeError(key string, err error)
}

const (
	downAfter  = 3                      // failures in a row, and
	downTime   = 100 * time.Millisecond // since the first of them: one cut connection fails many at once
	probeEvery = 250 * time.Millisecond // while down
	retryAfter = 10 * time.Millisecond  // what a store has to make a new connection
)

func newRemote(timeout time.Duration, hears healthListener) *remote {
	return &remote{timeout: timeout, hears: hears}
}

func (r *remote) down() bool { return r.isDown.Load() }

// skipped is the error of an operation that was not tried.
func (r *remote) skipped() error {
	e := store.Error{Service: "store", Op: "ask", Unavailable: true, Err: errors.New("no answer")}
	if last := r.last.Load(); last != nil {
		e = *last
	}
	e.Err = fmt.Errorf("not asked, as it was unreachable a moment ago: %w", e.Err)
	return &e
}

// admit says whether an operation may be tried.
func (r *remote) admit() bool {
	if !r.isDown.Load() {
		return true
	}
	now, next := time.Now().UnixNano(), r.probe.Load()
	return now >= next && r.probe.CompareAndSwap(next, now+int64(probeEvery))
}

// do runs one operation. ctx bounds it too, but its end says nothing about the
// store.
func (r *remote) do(ctx context.Context, key string, op func(context.Context) error) error {
	if !r.admit() {
		return r.skipped()
	}
	return r.must(ctx, key, op)
}

// must is do for writes: they are tried also while the store is taken for
// unreachable, since the writer's answer depends on it.
func (r *remote) must(ctx context.Context, key string, op func(context.Context) error) error {
	start := time.Now()
	opCtx, cancel := context.WithTimeout(ctx, r.timeout)
	err := op(opCtx)
	cancel()
	r.learn(ctx, key, err, start)
	return err
}

// twice is do for operations that may be repeated: if one fails quickly, as on a
// connection that was cut, it is tried once more, so that this costs no load
// without a lease.
func (r *remote) twice(ctx context.Context, key string, op func(context.Context) error) error {
	start := time.Now()
	err := r.do(ctx, key, op)
	if err == nil || !errors.Is(err, store.ErrUnavailable) || r.down() || time.Since(start) > r.timeout/2 {
		return err
	}
	t := time.NewTimer(retryAfter)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return err
	case <-t.C:
	}
	return r.do(ctx, key, op)
}

// learn draws its conclusions from the outcome of an operation that began at start.
func (r *remote) learn(ctx context.Context, key string, err error, start time.Time) {
	if err != nil {
		r.hears.storeError(key, err)
	}
	if errors.Is(err, store.ErrUnavailable) {
		if ctx.Err() != nil {
			return // the caller's context ended: no sign of the store's health
		}
		n := r.failed.Add(1)
		if n == 1 {
			r.since.Store(start.UnixNano())
		}
		long := time.Since(time.Unix(0, r.since.Load())) >= downTime
		if n >= downAfter && long && r.isDown.CompareAndSwap(false, true) {
			if e := (*store.Error)(nil); errors.As(err, &e) {
				r.last.Store(e)
			}
			r.probe.Store(time.Now().UnixNano() + int64(probeEvery))
			r.hears.storeDown(err)
		}
		return
	}
	if errors.Is(err, context.Canceled) {
		return
	}
	if r.failed.Load() != 0 {
		r.failed.Store(0)
	}
	broken := r.broken.Load() && r.broken.CompareAndSwap(true, false)
	switch {
	case r.isDown.Load() && r.isDown.CompareAndSwap(true, false):
		r.hears.storeUp()
	case broken:
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
// won by an attempt whose answer was lost, is the flight's own: otherwise the fleet
// would wait for the end of a lease that nobody holds.
func (r *remote) acquire(ctx context.Context, key string, req store.Request) (a store.Answer, err error) {
	do := r.do
	if r.session.Features().KeepsToken {
		do = r.twice
	}
	err = do(ctx, key, func(ctx context.Context) error {
		a, err = r.session.Acquire(ctx, key, req)
		return err
	})
	return a, err
}
