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

// loading is what SetTTL and SetTags find in a loader's context.
type loading struct {
	ttl  atomic.Int64 // set by SetTTL; unset: noTTL
	tags tagSet       // by SetTags
}

const noTTL = math.MinInt64

type loadingKey struct{}

// SetTTL is called by a loader, with its own context, to decide how long what it
// returns is fresh: instead of Options.TTL, or of NotFoundTTL with ErrNotFound.
// 0 or less means that it is not stored at all: whoever waits in this process gets it,
// other processes that wait load for themselves, one after the other. It does nothing
// outside a load.
func SetTTL(ctx context.Context, ttl time.Duration) {
	if l, ok := ctx.Value(loadingKey{}).(*loading); ok {
		l.ttl.Store(int64(max(ttl, 0)))
	}
}

// loaded is what a load brought.
type loaded[V any] struct {
	value V
	verdict
	took
	ttl    time.Duration // with jitter; 0: not to be stored
	entry  *local.Entry[V]
	tagged tagged
}

// verdict is what a loader's error means. It is made where user code may panic: an
// error's own methods are user code.
type verdict struct {
	err      error
	notFound bool // the row does not exist
	// contextual: the failure says something about a context, nothing about the row.
	contextual bool
	timedOut   bool
	panicked   bool
}

func judge(err error) verdict {
	if err == nil {
		return verdict{}
	}
	p := (*PanicError)(nil)
	return verdict{
		err:        err,
		notFound:   errors.Is(err, ErrNotFound),
		timedOut:   errors.Is(err, context.DeadlineExceeded),
		contextual: errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded),
		panicked:   err == ErrGoexit || errors.As(err, &p),
	}
}

// loadAlone loads without a lease: there is no store, it cannot be asked, or it
// says that it cannot hold the value. Where there is a store, nothing refuses a late
// value here, so its time counts from the load's start.
func (m *miss[K, V]) loadAlone(ctx context.Context) outcome[V] {
	c := m.c
	start := c.local.Now()
	if c.remote == nil {
		m.stamp = c.local.Stamp(m.f.Key)
	}
	reachable := c.remote == nil || m.unstorable
	t, _ := c.beginTagged(ctx, m.unstorable) // without an epoch, what is heard meanwhile decides
	l, err := m.loadInPlace(ctx, !reachable)
	if err != nil {
		return m.failed(err, reachable)
	}
	valid := m.tag(ctx, l, t)
	switch {
	case l.err == nil || l.notFound:
		e := l.entry
		switch {
		case !reachable:
			e.Trusted = min(e.Trusted, until(start, c.localTTL()), until(c.local.Now(), degradedTTL))
		case m.unstorable:
			e.Trusted = min(e.Trusted, until(start, c.localTTL()))
		}
		if l.ttl > 0 && valid {
			m.publish = e
		}
		return outcome[V]{entry: e, err: l.err, source: SourceLoad}
	case !l.contextual:
		m.rememberFailure(l.err, m.holdBack(), false)
	default:
		m.holdBackPrivately(l)
	}
	return m.failed(l.err, reachable)
}

// degradedTTL is how long local keeps what was loaded without a lease, as nobody
// can tell this process of a change.
const degradedTTL = 2 * time.Second

// loadLeased loads under a lease, which is kept alive meanwhile, and fills.
func (m *miss[K, V]) loadLeased(ctx context.Context, lease store.Lease) outcome[V] {
	c := m.c
	granted := time.Now()
	alive := m.keepAlive(ctx, lease)
	settled := false
	defer func() {
		alive.stop()
		if !settled { // a panic or Goexit, in Options.Version, say: nobody is to wait for that
			c.release(ctx, m.f.Key, lease)
		}
	}()
	t, err := m.beginTagged(ctx)
	if err != nil {
		c.releaseLater(ctx, m.f.Key, lease)
		settled = true
		return m.withoutStore(ctx, err)
	}
	l, err := m.loadInPlace(ctx, false)
	valid := err == nil && m.tag(ctx, l, t)
	lost := alive.stop()
	out := outcome[V]{}
	switch {
	case err != nil: // no place at the origin
		m.giveBack(ctx, lease)
		out = m.failed(err, true)
	case l.err == nil || l.notFound:
		out = outcome[V]{entry: l.entry, err: l.err, source: SourceLoad}
		switch {
		case lost:
			m.refused()
		case !valid: // a tag was voided meanwhile: as if the key had been
			c.release(ctx, m.f.Key, lease)
			m.refused()
		default:
			m.fill(ctx, lease, l, out.entry, granted)
		}
	case l.contextual:
		m.giveBack(ctx, lease)
		m.holdBackPrivately(l)
		out = m.failed(l.err, true)
	default:
		m.fail(ctx, lease, l)
		out = m.failed(l.err, true)
	}
	settled = true
	return out
}

// giveBack releases the lease of a load that brought nothing. If it was not void, nobody has
// invalidated the old value since it was granted, however long that has taken.
func (m *miss[K, V]) giveBack(ctx context.Context, lease store.Lease) {
	asked := m.c.local.Now()
	if ok, err := m.c.release(ctx, m.f.Key, lease); ok && err == nil {
		m.trustOld(asked)
	}
}

// tag makes the entry of what was loaded, under its tags, and says whether it is valid
// still. Tags that cannot be make the load a failed one.
func (m *miss[K, V]) tag(ctx context.Context, l *loaded[V], t tagged) (valid bool) {
	c := m.c
	if l.err != nil && !l.notFound {
		return false
	}
	tags, err := c.tagsOf(m.key, l.value, l.notFound, l.took.tags)
	if err != nil {
		l.verdict = verdict{err: &LoadError{m.f.Key, err}}
		c.stats.loadErrors.Add(1)
		return false
	}
	t.tags = tags
	l.tagged, l.entry = t, c.entry(m.key, l, m.stamp)
	valid, err = c.validate(ctx, l.entry, t, true)
	if err != nil && !c.tags.voids.any(t.voids, append([]string{wholeCache}, tags...)) { // nobody can say: as if there were no store
		l.entry.Trusted = min(l.entry.Trusted, until(c.local.Now(), degradedTTL))
		if l.ttl > 0 {
			m.publish = l.entry
		}
	}
	return valid && err == nil
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
	c.tell(Event{Kind: EventUnstorable, Key: m.f.Key, Flight: m.f.ID, Err: err})
	_ = m.fillWith(ctx, lease, unstorableMark(e, l, granted), l.ttl, e) // an error is counted where it is made
}

// fillWith fills with data. If the store accepts it, e is published in local.
func (m *miss[K, V]) fillWith(ctx context.Context, lease store.Lease, data []byte, ttl time.Duration, e *local.Entry[V]) (err error) {
	c := m.c
	m.stamp = c.local.Stamp(m.f.Key) // the fill reads the value again, and arms for it
	ok, attempts := false, 0
	// Tried also while the store is taken for unreachable: all who wait depend on it. And
	// once more after a connection was cut: the lease says whether that is too late.
	err = c.remote.again(always, ctx, m.f.Key, func(ctx context.Context) error {
		attempts++
		ok, err = lease.Fill(ctx, data, ttl)
		return err
	})
	switch {
	case errors.Is(err, store.ErrTooLarge): // not applied, and the lease is still there
	case err != nil: // nobody knows whether it was applied
		c.releaseLater(ctx, m.f.Key, lease)
	case !ok && attempts > 1: // the first attempt may have been applied: local cannot know
	case !ok:
		m.refused()
	default:
		c.stats.fills.Add(1)
		c.tell(Event{Kind: EventFill, Key: m.f.Key, Flight: m.f.ID})
		e.Stamp = m.stamp
		m.publish = e
	}
	return err
}

// refused: the lease was lost, so the value is late. Whoever waited gets it; it is
// stored nowhere, and the flight does not start over.
func (m *miss[K, V]) refused() {
	m.c.stats.fillsRefused.Add(1)
	m.c.tell(Event{Kind: EventFillRefused, Key: m.f.Key, Flight: m.f.ID})
}

// loadInPlace gets a place at the origin and loads. The error is that there was
// no place; what the loader said is in loaded.
func (m *miss[K, V]) loadInPlace(ctx context.Context, alone bool) (*loaded[V], error) {
	c := m.c
	if m.batch != nil && m.inBatch {
		return m.loadInBatch(ctx, alone)
	}
	at, err := c.place(ctx, m.f.Key, m.f.ID, alone)
	if err != nil {
		return nil, err
	}
	defer at.leave()
	m.loads++
	ctx, end := c.traceLoad(ctx, m.f)
	r := load(ctx, c, at, &m.f.Node, loadOf{m.f.Key, m.f.ID, 1}, func(ctx context.Context) (V, error) { return m.load(ctx, m.key) })
	end(r.err)
	return c.loaded(m.f.Key, r.value, r.verdict, r.took), nil
}

// report is what one call of a loader brought: a value, or a map of them.
type report[T any] struct {
	value T
	verdict
	took took
}

// took is how long a load took, and what else is known of it.
type took struct {
	cost  time.Duration
	asked int64 // how long the loader wants its result to be fresh; noTTL: as the options say
	late  bool  // it has run into LoadTimeout, or into a timeout of the loader's own
	tags  []string
}

// loadOf is what a load is of: of one key, or of how many.
type loadOf struct {
	skey   string // empty for a LoadMany
	flight uint64 // 0 for a LoadMany
	keys   int
}

// load calls a loader, of one key or of many, in a goroutine of its own: one that
// panics, exits, or does not return in time takes nothing along.
func load[T any, K comparable, V any](ctx context.Context, c *Cache[K, V], at *place, node *flight.Node, of loadOf, loader func(context.Context) (T, error)) report[T] {
	in := &loading{}
	in.ttl.Store(noTTL)
	ctx = context.WithValue(context.WithValue(node.Inside(ctx), loadingKey{}, in), placeKey{c}, at)
	ctx, cancel := context.WithTimeout(ctx, c.opts.LoadTimeout)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()

	c.stats.loads.Add(1)
	start, begun := time.Now(), c.slots.Begin()
	done := make(chan report[T], 1)
	var left atomic.Bool // by the loader, or by those who wait for it: who comes second knows
	go func() {
		defer func() { // also after a Goexit
			if left.Swap(true) {
				c.slots.Returned()
			}
		}()
		sandbox(ctx, done, loader)
	}()

	var r report[T]
	select {
	case r = <-done:
	case <-ctx.Done():
		select {
		case r = <-done: // it ended in the same moment, or notices that its context has
		case <-time.After(abandonAfter):
			if left.Swap(true) {
				r = <-done // it ended in this very moment
				break
			}
			c.slots.Strayed() // before its place is given back
			c.stats.abandoned.Add(1)
			c.log.Warn("a loader did not return although its context has ended; it is left behind", "key", abbreviate(of.skey), "keys", of.keys, "load_timeout", c.opts.LoadTimeout)
			r.verdict = judge(ctx.Err())
		}
	}
	late := r.contextual && (r.timedOut || errors.Is(ctx.Err(), context.DeadlineExceeded))
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && r.contextual {
		r.err = fmt.Errorf("no answer within LoadTimeout, %v: %w", c.opts.LoadTimeout, r.err)
	}
	r.took = took{cost: time.Since(start), asked: in.ttl.Load(), late: late, tags: in.tags.get()}
	if !r.panicked && (!r.contextual || late) { // the others say nothing about the origin
		c.limited(c.slots.Report(r.err != nil && !r.notFound, begun))
	}
	c.lastCost.Store(int64(r.took.cost))
	c.tell(Event{Kind: EventLoad, Key: of.skey, Flight: of.flight, Took: r.took.cost, Err: r.err, N: of.keys})
	return r
}

// abandonAfter is what a loader has to notice that its context has ended.
const abandonAfter = 50 * time.Millisecond

// sandbox turns every way in which user code can end into a report.
func sandbox[T any](ctx context.Context, done chan<- report[T], loader func(context.Context) (T, error)) {
	r := report[T]{verdict: judge(ErrGoexit)}
	defer func() { done <- r }()
	defer func() {
		if p := recover(); p != nil {
			r = report[T]{verdict: judge(&PanicError{p, debug.Stack()})}
		}
	}()
	value, err := loader(ctx)
	r = report[T]{value: value, verdict: judge(err)}
}

// loaded is one key's part of a load: with its TTL, or with its error in the form that
// callers get.
func (c *Cache[K, V]) loaded(skey string, value V, v verdict, t took) *loaded[V] {
	l := &loaded[V]{value: value, verdict: v, took: t}
	ttl := func(def time.Duration) time.Duration {
		if t.asked != noTTL {
			def = time.Duration(t.asked)
		}
		return jittered(def, c.opts.Jitter)
	}
	switch {
	case v.err == nil:
		l.ttl = ttl(c.opts.TTL)
	case v.notFound:
		l.ttl = ttl(c.opts.NotFoundTTL)
	default:
		c.stats.loadErrors.Add(1)
		if v.panicked {
			c.stats.panics.Add(1)
			c.log.Error("a loader panicked or exited", "key", abbreviate(skey), "err", v.err)
		}
		l.err = &LoadError{Key: skey, Err: v.err}
	}
	return l
}
