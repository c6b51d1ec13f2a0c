package onefill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onefill/onefill/internal/flight"
	"github.com/onefill/onefill/internal/local"
	"github.com/onefill/onefill/store"
)

// LoadFunc asks the origin for one key. See Options.Load.
type LoadFunc[K comparable, V any] = func(ctx context.Context, key K) (V, error)

// outcome is what a flight comes back with, for everybody who joined it.
type outcome[V any] struct {
	entry  *local.Entry[V] // nil if there is only an error
	err    error
	source Source
	stale  bool
}

// Get returns the value of key: from local, from the store, or loaded, once for
// all who wait. It returns ErrNotFound if the row does not exist, ctx's error if
// ctx ends first, and otherwise one of the errors listed in the package
// documentation. Options.Load must be set.
func (c *Cache[K, V]) Get(ctx context.Context, key K) (V, error) {
	return c.GetOrLoad(ctx, key, c.opts.Load)
}

// GetOrLoad is Get with the loader given by the call. Callers who join the flight
// of another call get what that call's loader loads.
func (c *Cache[K, V]) GetOrLoad(ctx context.Context, key K, load LoadFunc[K, V]) (V, error) {
	// The whole of the hot path: a reading of the clock, a look-up, a few loads of
	// words that rarely change, and one addition.
	if c.opts.EarlyRefresh == 0 && load != nil && !c.closed.Load() {
		if v, ok := c.local.Hit(key); ok {
			c.hit(key)
			return c.handOut(v), nil
		}
	}
	r, err := c.fetch(ctx, key, load)
	return r.Value, err
}

// Fetch is Get with what is known about the value. With an error the Result is
// zero but for Waited and Coalesced.
func (c *Cache[K, V]) Fetch(ctx context.Context, key K) (Result[V], error) {
	return c.fetch(ctx, key, c.opts.Load)
}

func (c *Cache[K, V]) fetch(ctx context.Context, key K, load LoadFunc[K, V]) (Result[V], error) {
	if c.closed.Load() {
		return Result[V]{}, ErrClosed
	}
	if load == nil {
		return Result[V]{}, errors.New("onefill: the loader is nil: set Options.Load, or give one to GetOrLoad, or use Peek, which never loads")
	}
	if out, ok := c.fromLocal(ctx, key, load); ok {
		return c.result(key, out)
	}
	if err := ctx.Err(); err != nil {
		return Result[V]{}, err
	}
	skey, err := c.storeKey(key)
	if err != nil {
		return Result[V]{}, err
	}
	return c.board(ctx, key, skey, load)
}

// storeKey is the key as a string, checked.
func (c *Cache[K, V]) storeKey(key K) (string, error) {
	if key != key {
		return "", fmt.Errorf("onefill: the key %v is not equal to itself and can never be found", key)
	}
	s := c.opts.Key(key)
	switch {
	case s == "":
		return "", fmt.Errorf("onefill: Options.Key turns the key %#v into the empty string (without Options.Key it is the empty string itself); every key needs a name", key)
	case len(s) > MaxKeyBytes:
		return "", fmt.Errorf("onefill: the key %q has %d bytes, at most MaxKeyBytes (%d) are allowed; hash it in Options.Key", abbreviate(s), len(s), MaxKeyBytes)
	}
	return s, nil
}

// fromLocal answers from local, if it may. A stale answer, and one that is due for
// an early refresh, starts a flight in the background.
func (c *Cache[K, V]) fromLocal(ctx context.Context, key K, load LoadFunc[K, V]) (outcome[V], bool) {
	e, now, current := c.local.Get(key)
	if e == nil {
		return outcome[V]{}, false
	}
	out := outcome[V]{entry: e, source: SourceLocal}
	failure, heldBack := e.FailureAt(now), e.HeldBack(now)
	switch {
	case !current:
		return outcome[V]{}, false
	case now < e.Fresh && e.Has():
		if !heldBack && c.dueEarly(e, now) {
			c.refresh(ctx, key, load, e, EventEarlyRefresh)
		}
		return out, true
	case now < e.Trusted && c.mayServeStale(e, now):
		if !heldBack {
			c.refresh(ctx, key, load, e, EventRefresh)
		}
		out.stale = true
		return out, true
	case heldBack && now < e.Trusted && c.mayServeOnError(e, now):
		out.stale = true
		return out, true
	case failure != nil && !c.mayConfirm(e, now):
		return outcome[V]{err: failure, source: SourceLocal}, true
	}
	return outcome[V]{}, false
}

// mayServeStale and mayServeOnError are the two windows after the soft expiry.
func (c *Cache[K, V]) mayServeStale(e *local.Entry[V], now int64) bool {
	return within(e, now, c.opts.StaleFor)
}

func (c *Cache[K, V]) mayServeOnError(e *local.Entry[V], now int64) bool {
	return within(e, now, c.opts.StaleOnError)
}

// mayConfirm says that the store may confirm a value of local whose Local.TTL has ended
// as one that may be served although it cannot be loaded.
func (c *Cache[K, V]) mayConfirm(e *local.Entry[V], now int64) bool {
	return c.remote != nil && now >= e.Trusted && (c.mayServeOnError(e, now) || c.mayServeStale(e, now))
}

func within[V any](e *local.Entry[V], now int64, window time.Duration) bool {
	return e.IsValue() && window > 0 && now < until(e.Soft, window)
}

// result turns an outcome into what a caller gets, and counts it.
func (c *Cache[K, V]) result(key K, out outcome[V]) (Result[V], error) {
	if out.entry == nil {
		return Result[V]{}, out.err
	}
	if !out.entry.IsValue() {
		c.stats.notFound.Add(1)
		return Result[V]{}, orNotFound(out.err)
	}
	age := ageOf(out.entry)
	switch {
	case out.stale:
		c.stats.staleServed.Add(1)
		if c.opts.Observer != nil { // the key is made for it only
			c.tell(Event{Kind: EventStale, Key: c.opts.Key(key), Age: age})
		}
	case out.source == SourceLocal:
		c.hit(key)
	}
	return Result[V]{Value: c.handOut(out.entry.Value), Source: out.source, Age: age, Stale: out.stale}, nil
}

// ageOf is the time since a value was loaded or Set, by this machine's clock.
func ageOf[V any](e *local.Entry[V]) time.Duration {
	return max(time.Since(time.UnixMicro(e.Created)), 0)
}

func orNotFound(err error) error {
	if err == nil {
		return ErrNotFound
	}
	return err
}

func (c *Cache[K, V]) handOut(v V) V {
	if c.opts.Clone != nil {
		return c.opts.Clone(v)
	}
	return v
}

// board joins the key's flight, or leads a new one, and waits for it.
func (c *Cache[K, V]) board(ctx context.Context, key K, skey string, load LoadFunc[K, V]) (Result[V], error) {
	start := c.local.Now()
	f, leads := c.flights.Join(skey, c.call(until(start, c.opts.WaitTimeout)))
	if leads {
		m := &miss[K, V]{c: c, f: f, key: key, load: load}
		if out, ok := m.taxi(ctx); ok {
			r, err := c.result(key, out)
			r.Waited = time.Duration(c.local.Now() - start)
			return r, err
		}
		if !m.takeOff(ctx) {
			return Result[V]{}, ErrClosed
		}
	} else if out, ok := c.interim(f); ok {
		return c.result(key, out)
	} else {
		c.stats.coalesced.Add(1)
	}
	if parent := flight.From(ctx); parent != nil {
		done, ok := parent.WaitFor(&f.Node)
		if !ok {
			return Result[V]{}, fmt.Errorf("%w: loading %q waits for itself", ErrCycle, abbreviate(skey))
		}
		defer done()
	}
	end := c.traceWait(ctx, f)
	t := c.timer(start)
	err := c.await(ctx, f, t)
	c.keep(t)
	waited := time.Duration(c.local.Now() - start)
	c.tell(Event{Kind: EventWait, Key: skey, Took: waited, Err: err})
	var r Result[V]
	if err == nil {
		r, err = c.result(key, f.Result())
	}
	r.Waited, r.Coalesced = waited, !leads
	end(err)
	return r, err
}

// interim is what a refresh is about to replace, if that may still be served: a
// caller who does not find it in local need not wait for the refresh.
func (c *Cache[K, V]) interim(f *flight.Flight[outcome[V]]) (outcome[V], bool) {
	if f.Interim == nil || !c.acceptInterim(f.Interim) {
		return outcome[V]{}, false
	}
	out := *f.Interim
	out.stale = c.local.Now() >= out.entry.Soft
	return out, true
}

// acceptInterim is asked under the lock of the key's flights as well.
func (c *Cache[K, V]) acceptInterim(out *outcome[V]) bool {
	e, now := out.entry, c.local.Now()
	return c.local.CurrentEntry(e) && now < e.Trusted && (now < e.Soft || c.mayServeStale(e, now))
}

// await waits for the flight's end, the end of ctx or t, which runs for WaitTimeout,
// whichever is first. A flight that has landed beats a context that has ended.
func (c *Cache[K, V]) await(ctx context.Context, f *flight.Flight[outcome[V]], t *time.Timer) error {
	var err error
	select {
	case <-f.Done():
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-t.C:
		err = ErrWaitTimeout
	}
	select {
	case <-f.Done():
		return nil
	default:
	}
	if err == ErrWaitTimeout {
		c.stats.waitTimeouts.Add(1)
		err = fmt.Errorf("%w after %v for %q", ErrWaitTimeout, c.opts.WaitTimeout, abbreviate(f.Key))
	}
	return err
}

// timer runs until WaitTimeout after start. Timers are kept, so that a herd of
// waiters makes none.
func (c *Cache[K, V]) timer(start int64) *time.Timer {
	left := time.Duration(until(start, c.opts.WaitTimeout) - c.local.Now())
	if t, ok := c.timers.Get().(*time.Timer); ok {
		t.Reset(left)
		return t
	}
	return time.NewTimer(left)
}

func (c *Cache[K, V]) keep(t *time.Timer) {
	t.Stop()
	c.timers.Put(t)
}

// Peek returns what is cached and fresh, or stale within StaleFor, and false if
// there is nothing. It never loads, joins no flight and takes no lease. A row
// that is known not to exist gives false and ErrNotFound.
func (c *Cache[K, V]) Peek(ctx context.Context, key K) (Result[V], bool, error) {
	if c.closed.Load() {
		return Result[V]{}, false, ErrClosed
	}
	e, now, current := c.local.Get(key)
	if e != nil && current && now < e.Trusted && e.Has() && (now < e.Fresh || c.mayServeStale(e, now)) {
		r, err := c.result(key, outcome[V]{entry: e, source: SourceLocal, stale: now >= e.Soft})
		return r, err == nil, err
	}
	if c.remote == nil {
		return Result[V]{}, false, nil
	}
	skey, err := c.storeKey(key)
	if err != nil {
		return Result[V]{}, false, err
	}
	if err := c.payDebt(ctx, skey); err != nil {
		return Result[V]{}, false, err
	}
	asked := c.local.Now()
	item, err := c.remote.get(ctx, skey)
	if err != nil || !item.Found {
		return Result[V]{}, false, err
	}
	e, t, err := c.decode(key, item.Data, local.Stamp{}, asked)
	if err == nil && c.tags != nil {
		if err = c.checkTags(ctx, e, t); errors.Is(err, store.ErrUnavailable) {
			return Result[V]{}, false, err
		}
	}
	if err != nil || !e.Has() {
		return Result[V]{}, false, nil // a miss, as for every reader
	}
	if now = c.local.Now(); now >= e.Soft && !c.mayServeStale(e, now) {
		return Result[V]{}, false, nil
	}
	r, err := c.result(key, outcome[V]{entry: e, source: SourceStore, stale: now >= e.Soft})
	return r, err == nil, err
}
