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
	there, hit := c.local.Look(key)
	if hit && c.opts.EarlyRefresh == 0 && load != nil && !c.closed.Load() {
		c.hit(key, there.Entry)
		return c.copied(there.Entry.Value), nil
	}
	out, w, err := c.ask(ctx, key, load, there)
	if w.f != nil {
		out, err = c.wait(ctx, w)
	}
	if err != nil {
		var none V
		return none, err
	}
	return c.value(key, out)
}

// Fetch is Get with what is known about the value. With an error the Result is
// zero but for Waited and Coalesced.
func (c *Cache[K, V]) Fetch(ctx context.Context, key K) (Result[V], error) {
	there, _ := c.local.Look(key)
	out, w, err := c.ask(ctx, key, c.opts.Load, there)
	if w.f != nil {
		out, err = c.wait(ctx, w)
	}
	r := Result[V]{}
	if err == nil {
		r, err = c.result(key, out)
	}
	if w.how != direct {
		r.Waited, r.Coalesced = time.Duration(c.local.Now()-there.At), w.how == joined
	}
	return r, err
}

// route is how a call came to its answer.
type route uint8

const (
	direct route = iota // without a flight
	led                 // by a flight of its own
	joined              // by another call's
)

// ask is what a call does that has looked at local: it comes back with an answer, with the
// error that there is none, since the call has left or is wrong, or with a flight to wait for.
//
// Most of a herd does nothing else, each goroutine on a stack of its own, of which a new one
// has 2 KB, and Go keeps half of that for itself. To grow it would take as long as everything
// else until the wait, and 2 KB more for each caller as long as it waits. So ask is over when
// the wait begins, and what only the leader does is apart. TestWaitingTakesNoMoreStack says
// whether it fits.
func (c *Cache[K, V]) ask(ctx context.Context, key K, load LoadFunc[K, V], there local.Sight[V]) (out outcome[V], w waiting[V], err error) {
	if c.closed.Load() {
		return out, w, ErrClosed
	}
	if load == nil {
		return out, w, errors.New("onefill: the loader is nil: set Options.Load, or give one to GetOrLoad, or use Peek, which never loads")
	}
	if out, ok := c.fromLocal(ctx, key, load, there); ok {
		return out, w, nil
	}
	if err := ctx.Err(); err != nil {
		return out, w, err
	}
	skey, err := c.storeKey(key)
	if err != nil {
		return out, w, err
	}
	patience := c.patience.get(there.At)
	f, leads := c.flights.Join(skey, c.call(there.At, patience.end))
	if leads {
		out, landed, err := c.lead(ctx, f, key, load)
		if w.how = led; !landed {
			w.f, w.patience = f, patience
		}
		return out, w, err
	}
	if out, ok := c.interim(f); ok {
		return out, w, nil
	}
	c.stats.coalesced.Add(1)
	return out, waiting[V]{f: f, patience: patience, how: joined}, nil
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
		return "", fmt.Errorf("onefill: %w: the key %q has %d bytes, at most MaxKeyBytes (%d) are allowed; hash it in Options.Key", store.ErrTooLarge, abbreviate(s), len(s), MaxKeyBytes)
	}
	return s, nil
}

// fromLocal answers from local, if it may. A stale answer, and one that is due for
// an early refresh, starts a flight in the background.
func (c *Cache[K, V]) fromLocal(ctx context.Context, key K, load LoadFunc[K, V], there local.Sight[V]) (out outcome[V], ok bool) {
	now := there.At
	e, current := c.local.Kept(there.Entry, now)
	if e == nil || !current {
		return outcome[V]{}, false
	}
	out = outcome[V]{entry: e, source: SourceLocal}
	failure, heldBack := e.FailureAt(now), e.HeldBack(now)
	switch {
	case e.Fresh(now) && e.Has():
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

// value turns an outcome into what a caller gets, and counts it.
func (c *Cache[K, V]) value(key K, out outcome[V]) (v V, err error) {
	if err := out.failure(); err != nil {
		if out.entry != nil {
			c.stats.notFound.Add(1)
		}
		return v, err
	}
	switch {
	case out.stale:
		c.stats.staleServed.Add(1)
		if c.opts.Observer != nil { // the key and the age are made for it only
			c.tell(Event{Kind: EventStale, Key: c.opts.Key(key), Age: ageOf(out.entry)})
		}
	case out.source == SourceLocal:
		c.hit(key, out.entry)
	}
	return c.copied(out.entry.Value), nil
}

// result is value with what Fetch tells of it.
func (c *Cache[K, V]) result(key K, out outcome[V]) (Result[V], error) {
	v, err := c.value(key, out)
	if err != nil {
		return Result[V]{}, err
	}
	return Result[V]{Value: v, Source: out.source, Age: ageOf(out.entry), Stale: out.stale}, nil
}

// failure is the error that the outcome is to its callers.
func (out *outcome[V]) failure() error {
	switch {
	case out.entry == nil:
		return out.err
	case !out.entry.IsValue():
		return orNotFound(out.err)
	}
	return nil
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

// copied is the value as it crosses the cache's border, inwards or outwards: nobody outside
// shares it, where Options.Clone is set.
func (c *Cache[K, V]) copied(v V) V {
	if c.opts.Clone != nil {
		return c.opts.Clone(v)
	}
	return v
}

// lead sends a flight off, unless its leader can answer without.
func (c *Cache[K, V]) lead(ctx context.Context, f *flight.Flight[outcome[V]], key K, load LoadFunc[K, V]) (out outcome[V], landed bool, err error) {
	m := &miss[K, V]{c: c, f: f, key: key, load: load}
	if c.remote != nil && c.remote.session.Features().AcquireReads && c.enter() {
		defer c.aloft.Done() // Close waits: the leader may be granted a lease, which is to be given back
	}
	if out, landed := m.taxi(ctx); landed {
		return out, true, nil
	}
	if !m.takeOff(ctx) {
		return out, true, ErrClosed
	}
	return out, false, nil
}

// waiting is a call that waits for a flight, or does not need to.
type waiting[V any] struct {
	f        *flight.Flight[outcome[V]] // nil: there is nothing to wait for
	patience *oneLimit                  // how long
	how      route
	many     bool // it waits for others as well, and has done what beforeWait does for all of them
}

// wait waits for the end of the flight, of ctx, or of the caller's patience, whichever is
// first. A flight that has landed beats a context that has ended. The error is that of who
// does not wait on.
func (c *Cache[K, V]) wait(ctx context.Context, w waiting[V]) (out outcome[V], err error) {
	var over func(error)
	if !w.many {
		over, err = c.beforeWait(ctx, w.f)
	}
	if err == nil {
		select {
		case <-w.f.Done():
		case <-ctx.Done():
			err = c.gaveUp(ctx, w.f)
		case <-w.patience.Done():
			err = c.gaveUp(ctx, w.f)
		}
	}
	if over != nil {
		over(err)
	}
	if err == nil {
		out = w.f.Result()
	}
	return out, err
}

// beforeWait is called before a call waits for a flight, if the call comes from inside a load,
// which then waits too, or if somebody observes it. over, if any, is called after the wait.
func (c *Cache[K, V]) beforeWait(ctx context.Context, f *flight.Flight[outcome[V]]) (over func(error), err error) {
	parent := flight.From(ctx)
	if parent == nil && c.opts.Observer == nil {
		return nil, nil
	}
	done, end, start := func() {}, c.traceWait(ctx, f), c.local.Now()
	if parent != nil {
		var ok bool
		if done, ok = parent.WaitFor(&f.Node); !ok {
			return end, cycle(f.Key)
		}
	}
	return func(err error) {
		done()
		if c.opts.Observer != nil {
			c.tell(Event{Kind: EventWait, Key: f.Key, Flight: f.ID, Took: time.Duration(c.local.Now() - start), Err: err})
		}
		if err == nil {
			out := f.Result()
			err = out.failure()
		}
		end(err)
	}, nil
}

func cycle(skey string) error {
	return fmt.Errorf("%w: loading %q waits for itself", ErrCycle, abbreviate(skey))
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

// gaveUp is why a call waits no longer.
//
//go:noinline
func (c *Cache[K, V]) gaveUp(ctx context.Context, f *flight.Flight[outcome[V]]) error {
	select {
	case <-f.Done():
		return nil
	default:
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c.stats.waitTimeouts.Add(1)
	return fmt.Errorf("%w after %v for %q", ErrWaitTimeout, c.opts.WaitTimeout, abbreviate(f.Key))
}

// Peek returns what is cached and fresh, or stale within StaleFor, and false if
// there is nothing. It never loads, joins no flight and takes no lease. A row
// that is known not to exist gives false and ErrNotFound.
func (c *Cache[K, V]) Peek(ctx context.Context, key K) (Result[V], bool, error) {
	if c.closed.Load() {
		return Result[V]{}, false, ErrClosed
	}
	e, now, current := c.local.Get(key)
	if e != nil && current && now < e.Trusted && e.Has() && (e.Fresh(now) || c.mayServeStale(e, now)) {
		r, err := c.result(key, outcome[V]{entry: e, source: SourceLocal, stale: now >= e.Soft})
		return r, err == nil, err
	}
	skey, err := c.storeKey(key)
	if err != nil || c.remote == nil {
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
	e, t, err := c.decode(new(local.Entry[V]), key, item.Data, local.Stamp{}, asked, c.moment())
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
