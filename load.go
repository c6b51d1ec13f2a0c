package onefill

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill/internal/flight"
	"github.com/onefill/onefill/internal/local"
	"github.com/onefill/onefill/store"
)

// loading is what a loader's context carries.
type loading struct {
	owner any          // the cache
	ttl   atomic.Int64 // set by SetTTL; unset: noTTL
	place *place       // at the origin
}

// place is a load's place at the origin. A load lends it to a load that is nested
// in it, one at a time: it waits for that one, and MaxLoads outer loads would
// otherwise wait for places that only they could free. It is free when both have
// ended: the outer one may end first.
type place struct {
	holders atomic.Int32
	free    func()
}

func newPlace(free func()) *place {
	p := &place{free: free}
	p.holders.Store(1)
	return p
}

// lend gives the place to a nested load, unless it is lent already or free.
func (p *place) lend() bool { return p.holders.CompareAndSwap(1, 2) }

// leave is called once by each holder.
func (p *place) leave() {
	if p.holders.Add(-1) == 0 {
		p.free()
	}
}

const noTTL = math.MinInt64

type loadingKey struct{}

// SetTTL is called by a loader, with its own context, to decide how long what it
// returns is fresh: instead of Options.TTL, or of NotFoundTTL with ErrNotFound.
// 0 or less means that it is not stored at all. It does nothing outside a load.
func SetTTL(ctx context.Context, ttl time.Duration) {
	if l, ok := ctx.Value(loadingKey{}).(*loading); ok {
		l.ttl.Store(int64(max(ttl, 0)))
	}
}

// ttlOf is the TTL that the loader has set, or def.
func (l *loading) ttlOf(def time.Duration) time.Duration {
	if ttl := l.ttl.Load(); ttl != noTTL {
		return time.Duration(ttl)
	}
	return def
}

// loaded is what a load brought.
type loaded[V any] struct {
	value V
	err   error
	ttl   time.Duration // with jitter; 0: not to be stored
	cost  time.Duration
}

func (l *loaded[V]) notFound() bool { return errors.Is(l.err, ErrNotFound) }

// contextual: the failure says something about a context, nothing about the row.
func (l *loaded[V]) contextual() bool {
	return errors.Is(l.err, context.Canceled) || errors.Is(l.err, context.DeadlineExceeded)
}

// loadAlone loads without a lease: there is no store, it cannot be asked, or it
// says that it cannot hold the value.
func (m *miss[K, V]) loadAlone(ctx context.Context) outcome[V] {
	c := m.c
	start := c.local.Now()
	reachable := c.remote == nil || m.unstorable
	l, err := m.loadInPlace(ctx)
	if err != nil {
		return m.failed(err, reachable)
	}
	switch {
	case l.err == nil || l.notFound():
		e := c.entry(l, m.stamp)
		switch {
		case !reachable:
			e.Trusted = min(e.Trusted, until(c.local.Now(), degradedTTL))
		case m.unstorable: // nothing refuses a late value here, so its time counts from the load's start
			e.Trusted = min(e.Trusted, until(start, c.localTTL()))
		}
		e.Fresh = min(e.Fresh, e.Trusted)
		if l.ttl > 0 {
			m.publish = e
		}
		return outcome[V]{entry: e, err: l.err, source: SourceLoad}
	case !l.contextual():
		m.rememberFailure(l.err, c.opts.ErrorTTL)
	}
	return m.failed(l.err, reachable)
}

// degradedTTL is how long local keeps what was loaded without a lease, as nobody
// can tell this process of a change.
const degradedTTL = 2 * time.Second

// loadLeased loads under a lease, which is kept alive meanwhile, and fills.
func (m *miss[K, V]) loadLeased(ctx context.Context, lease store.Lease) outcome[V] {
	defer func() {
		if r := recover(); r != nil { // Options.Version, say: nobody else is to wait for that
			m.c.release(ctx, m.f.Key, lease)
			panic(r)
		}
	}()
	granted := time.Now()
	alive := m.keepAlive(ctx, lease)
	l, err := m.loadInPlace(ctx)
	lost := alive.stop()
	if err != nil {
		m.c.release(ctx, m.f.Key, lease)
		return m.failed(err, true)
	}
	switch {
	case l.err == nil || l.notFound():
		e := m.c.entry(l, m.stamp)
		if !lost {
			m.fill(ctx, lease, l, e, granted)
		} else {
			m.refused()
		}
		return outcome[V]{entry: e, err: l.err, source: SourceLoad}
	case l.contextual():
		m.c.release(ctx, m.f.Key, lease)
	default:
		m.fail(ctx, lease, l)
	}
	return m.failed(l.err, true)
}

// fill writes a loaded value under the lease. Only what the store accepts is
// published in local.
func (m *miss[K, V]) fill(ctx context.Context, lease store.Lease, l *loaded[V], e *local.Entry[V], granted time.Time) {
	c := m.c
	if l.ttl <= 0 {
		c.release(ctx, m.f.Key, lease)
		return
	}
	data, err := c.encode(l, e, granted)
	if err == nil {
		err = m.fillWith(ctx, lease, data, after(l.ttl, c.opts.grace()), e)
		if !errors.Is(err, store.ErrTooLarge) {
			return
		}
	}
	// The value cannot be stored. A mark in its place keeps the other processes from
	// loading it one after the other, each hoping to store it; local has the value.
	c.stats.unstorable.Add(1)
	c.log.Warn("a loaded value cannot be stored", "key", abbreviate(m.f.Key), "err", err)
	c.tell(Event{Kind: EventUnstorable, Key: m.f.Key, Err: err})
	m.fillWith(ctx, lease, unstorableMark(e, l.ttl, granted), l.ttl, e)
}

// fillWith fills with data. If the store accepts it, e is published in local.
func (m *miss[K, V]) fillWith(ctx context.Context, lease store.Lease, data []byte, ttl time.Duration, e *local.Entry[V]) (err error) {
	c := m.c
	m.stamp = c.local.Stamp(m.f.Key) // the fill reads the value again, and arms for it
	var ok bool
	err = c.remote.do(ctx, m.f.Key, func(ctx context.Context) error {
		ok, err = lease.Fill(ctx, data, ttl)
		return err
	})
	switch {
	case errors.Is(err, store.ErrTooLarge): // not applied, and the lease is still there
	case err != nil: // nobody knows whether it was applied
		c.releaseLater(ctx, m.f.Key, lease)
	case !ok:
		m.refused()
	default:
		c.stats.fills.Add(1)
		c.tell(Event{Kind: EventFill, Key: m.f.Key})
		e.Stamp = m.stamp
		m.publish = e
	}
	return err
}

// refused: the lease was lost, so the value is late. Whoever waited gets it; it is
// stored nowhere, and the flight does not start over.
func (m *miss[K, V]) refused() {
	m.c.stats.fillsRefused.Add(1)
	m.c.tell(Event{Kind: EventFillRefused, Key: m.f.Key})
}

// fail leaves the failure in the store for ErrorTTL, for all processes.
func (m *miss[K, V]) fail(ctx context.Context, lease store.Lease, l *loaded[V]) {
	c := m.c
	const longest = 1 << 10 // bytes of the message
	text := causeOf(l.err).Error()
	record := store.Envelope{Kind: store.KindFailure, Created: time.Now(), Cost: l.cost,
		Payload: []byte(text[:min(len(text), longest)])}
	var ok bool
	err := c.remote.do(ctx, m.f.Key, func(ctx context.Context) (err error) {
		ok, err = lease.Fail(ctx, record.Encode(), c.opts.ErrorTTL)
		return err
	})
	if err != nil { // nobody knows whether it was applied
		c.releaseLater(ctx, m.f.Key, lease)
	}
	if err != nil || ok {
		m.rememberFailure(l.err, c.opts.ErrorTTL)
	}
}

// causeOf is the loader's own error, without the key that LoadError names.
func causeOf(err error) error {
	var le *LoadError
	if errors.As(err, &le) {
		return le.Err
	}
	return err
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
// for a store that is in trouble.
func (c *Cache[K, V]) releaseLater(ctx context.Context, skey string, lease store.Lease) {
	ctx = context.WithoutCancel(ctx)
	if !c.begin(func() { c.release(ctx, skey, lease) }) {
		c.release(ctx, skey, lease)
	}
}

// keeper renews a lease while its load runs.
type keeper struct {
	quit, done chan struct{}
	lost       bool // read after done
}

// keepAlive renews the lease at a third of its TTL, until stop. A renewal that
// finds the lease lost is the last one.
func (m *miss[K, V]) keepAlive(ctx context.Context, lease store.Lease) *keeper {
	k := &keeper{quit: make(chan struct{}), done: make(chan struct{})}
	c := m.c
	go func() {
		defer close(k.done)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(c.life, cancel)()
		t := time.NewTicker(max(c.opts.LeaseTTL/3, time.Millisecond))
		defer t.Stop()
		for {
			select {
			case <-k.quit:
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
				c.tell(Event{Kind: EventLeaseLost, Key: m.f.Key})
				return
			}
		}
	}()
	return k
}

// stop ends the renewals and says whether the lease was found lost.
func (k *keeper) stop() (lost bool) {
	close(k.quit)
	<-k.done
	return k.lost
}

// loadInPlace gets a place at the origin and loads. The error is that there was
// no place; what the loader said is in loaded.
func (m *miss[K, V]) loadInPlace(ctx context.Context) (*loaded[V], error) {
	if m.batch != nil && m.inBatch {
		return m.loadInBatch(ctx)
	}
	at, err := m.c.place(ctx, m.f.Key)
	if err != nil {
		return nil, err
	}
	defer at.leave()
	l := &loaded[V]{}
	in := m.c.callLoader(ctx, at, &m.f.Node, m.f.Key, l, func(ctx context.Context) (V, error) { return m.load(ctx, m.key) })
	m.c.judge(m.f.Key, l, in)
	return l, nil
}

// place gets a place at the origin for one load, which leaves it when it ends.
func (c *Cache[K, V]) place(ctx context.Context, skey string) (*place, error) {
	outer, _ := ctx.Value(loadingKey{}).(*loading)
	if outer != nil && outer.owner == any(c) && outer.place.lend() {
		return newPlace(outer.place.leave), nil
	}
	patience, cancel := context.WithTimeout(ctx, c.opts.WaitTimeout/2)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	if c.slots.Acquire(patience) != nil {
		c.stats.originBusy.Add(1)
		c.tell(Event{Kind: EventOriginBusy, Key: skey})
		_, limit, waiting := c.slots.State()
		return nil, fmt.Errorf("%w: no place for %q within %v; %d loads run at most, %d more wait", ErrOriginBusy, abbreviate(skey), c.opts.WaitTimeout/2, limit, waiting)
	}
	return newPlace(c.slots.Release), nil
}

// callLoader calls the loader in a goroutine of its own: one that panics, exits,
// or does not return in time takes nothing along. What it brings is put into l.
func (c *Cache[K, V]) callLoader(ctx context.Context, at *place, node *flight.Node, skey string, l *loaded[V], load func(context.Context) (V, error)) *loading {
	v, err, cost, in := call(ctx, c, at, node, skey, load)
	l.value, l.err, l.cost = v, err, cost
	return in
}

// call runs one load of either kind and counts it.
func call[T any, K comparable, V any](ctx context.Context, c *Cache[K, V], at *place, node *flight.Node, skey string, load func(context.Context) (T, error)) (T, error, time.Duration, *loading) {
	in := &loading{owner: c, place: at}
	in.ttl.Store(noTTL)
	ctx, cancel := context.WithTimeout(context.WithValue(node.Inside(ctx), loadingKey{}, in), c.opts.LoadTimeout)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()

	c.stats.loads.Add(1)
	start := time.Now()
	done := make(chan sandboxed[T], 1)
	go func() { sandbox(ctx, done, load) }()

	var r sandboxed[T]
	select {
	case r = <-done:
	case <-ctx.Done():
		select {
		case r = <-done: // it ended in the same moment, or notices that its context has
		case <-time.After(abandonAfter):
			c.stats.abandoned.Add(1)
			c.log.Warn("a loader did not return although its context has ended; it is left behind", "key", abbreviate(skey), "load_timeout", c.opts.LoadTimeout)
			r.err = ctx.Err()
		}
	}
	cost := time.Since(start)
	c.lastCost.Store(int64(cost))
	c.tell(Event{Kind: EventLoad, Key: skey, Took: cost, Err: r.err})
	return r.value, r.err, cost, in
}

// abandonAfter is what a loader has to notice that its context has ended.
const abandonAfter = 50 * time.Millisecond

type sandboxed[T any] struct {
	value T
	err   error
}

// sandbox turns every way in which user code can end into a result.
func sandbox[T any](ctx context.Context, done chan<- sandboxed[T], load func(context.Context) (T, error)) {
	r := sandboxed[T]{err: ErrGoexit}
	defer func() { done <- r }()
	defer func() {
		if p := recover(); p != nil {
			r.err = &PanicError{p, debug.Stack()}
		}
	}()
	r.value, r.err = load(ctx)
}

// judge completes what the loader returned: its TTL, or its error's form.
func (c *Cache[K, V]) judge(skey string, l *loaded[V], in *loading) {
	switch {
	case l.err == nil:
		l.ttl = jittered(in.ttlOf(c.opts.TTL), c.opts.Jitter)
	case l.notFound():
		l.ttl = jittered(in.ttlOf(c.opts.NotFoundTTL), c.opts.Jitter)
	default:
		c.stats.loadErrors.Add(1)
		var p *PanicError
		if errors.As(l.err, &p) || l.err == ErrGoexit {
			c.stats.panics.Add(1)
			c.log.Error("a loader panicked or exited", "key", abbreviate(skey), "err", l.err)
		}
		l.err = &LoadError{Key: skey, Err: l.err}
	}
}
