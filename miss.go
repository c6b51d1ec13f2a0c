package onefill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/onefill/onefill/internal/flight"
	"github.com/onefill/onefill/internal/local"
	"github.com/onefill/onefill/store"
)

// miss is the work of one flight: local again, the store, the lease, the load,
// the fill; its steps are those of docs/guarantees.md. The first look at the store
// is its leader's own (taxi), as most flights end there. From then on it runs in a
// goroutine of its own, on a context that no caller can cancel (fly).
type miss[K comparable, V any] struct {
	c    *Cache[K, V]
	f    *flight.Flight[outcome[V]]
	key  K
	load LoadFunc[K, V]

	// refreshing is set in the background: the Created of the value that is to be
	// replaced although it is, or may be, fresh.
	refreshing int64

	looked  bool // the store has been read, with lookErr
	lookErr error
	waiting int64 // since when it waits for another process's load; 0: it has not yet

	token store.Token     // of this flight, over all its attempts
	stamp local.Stamp     // taken before the store's last answer was asked for
	seen  []byte          // mark of the store's value that cannot be served as fresh
	old   *local.Entry[V] // what may be served where the options allow stale values
	// doubted: old may have been invalidated since it was read. It counts only while
	// the store cannot be asked.
	doubted bool
	// unstorable: the store has said that it cannot hold the value.
	unstorable bool
	// publish is put into local when the flight lands, unless it was voided.
	publish *local.Entry[V]
	// again is set when the answer was a stale value: a refresh follows the landing,
	// under the lease if it has been won already.
	again bool
	lease store.Lease

	// batch gathers the loads of one GetMany. inBatch: it still counts on this one.
	batch   *batch[K, V]
	inBatch bool
}

// taxi is the part of a flight that its leader goes himself. If it answers, the
// flight has landed without having been in the air. If not, also because the
// leader's own context has ended, takeOff goes on: nobody else is left behind.
func (m *miss[K, V]) taxi(ctx context.Context) (out outcome[V], landed bool) {
	if m.c.remote == nil || m.c.remote.session.Features().AcquireReads {
		return out, false
	}
	defer func() {
		if r := recover(); r != nil {
			m.panicked(r)
			out, landed = outcome[V]{err: &LoadError{m.f.Key, &PanicError{r, debug.Stack()}}}, true
			m.c.flights.Land(m.f, out, nil)
		}
	}()
	if out, landed = m.look(ctx); landed {
		m.land(ctx, out)
	}
	return out, landed
}

// panicked reports an error in our own code, or in a store's.
func (m *miss[K, V]) panicked(r any) {
	m.c.log.Error("a flight panicked", "key", abbreviate(m.f.Key), "panic", r, "stack", string(debug.Stack()))
}

// look looks at local again, and once at the store. It leaves no trace if ctx ended
// meanwhile.
func (m *miss[K, V]) look(ctx context.Context) (outcome[V], bool) {
	if out, ok := m.localAgain(); ok {
		return out, true
	}
	m.stamp = m.c.local.Stamp(m.f.Key)
	item, err := m.c.remote.get(ctx, m.f.Key)
	if err != nil && ctx.Err() != nil {
		return outcome[V]{}, false
	}
	m.looked, m.lookErr = true, err
	if err != nil || !item.Found {
		return outcome[V]{}, false
	}
	return m.take(item.Data)
}

// takeOff starts the flight. False: the cache is closed, and the flight has
// landed with that.
func (m *miss[K, V]) takeOff(ctx context.Context) bool {
	ctx = context.WithoutCancel(ctx)
	m.c.flights.Open(m.f)
	if m.c.begin(func() { m.fly(ctx) }) {
		return true
	}
	m.c.flights.Land(m.f, outcome[V]{err: ErrClosed}, nil)
	return false
}

// fly runs the flight and lands it, whatever happens: an error in our own code
// must not leave callers waiting.
func (m *miss[K, V]) fly(ctx context.Context) {
	out := outcome[V]{err: errors.New("onefill: the flight ended without a result")}
	defer func() {
		if r := recover(); r != nil {
			m.panicked(r)
			out, m.publish = outcome[V]{err: &LoadError{m.f.Key, &PanicError{r, debug.Stack()}}}, nil
			m.leaveBatch(ctx)
		}
		m.land(ctx, out)
	}()
	out = m.run(ctx)
	m.leaveBatch(ctx)
}

func (m *miss[K, V]) land(ctx context.Context, out outcome[V]) {
	var publish func()
	if e := m.publish; e != nil {
		publish = func() { m.c.put(m.key, e) }
	}
	m.c.flights.Land(m.f, out, publish)
	if m.again {
		m.c.refreshAs(ctx, &miss[K, V]{c: m.c, key: m.key, load: m.load, old: out.entry,
			refreshing: out.entry.Created, seen: m.seen, lease: m.lease}, EventRefresh)
	}
}

// put stores an entry in local, unless a newer row is there. It runs under the
// lock of the key's flights, so that nothing of this key comes in between.
func (c *Cache[K, V]) put(key K, e *local.Entry[V]) {
	if v := e.RowVersion(); v != 0 {
		if there, _, _ := c.local.Get(key); there != nil && there.RowVersion() > v {
			return
		}
	}
	c.local.Put(key, e)
}

func (m *miss[K, V]) run(ctx context.Context) outcome[V] {
	c := m.c
	if m.lease != nil {
		m.stamp = c.local.Stamp(m.f.Key)
		return m.loadLeased(ctx, m.lease)
	}
	switch {
	case c.remote == nil || m.refreshing != 0 || c.remote.session.Features().AcquireReads:
		if out, ok := m.localAgain(); ok {
			return out
		}
	case !m.looked:
		if out, ok := m.look(ctx); ok {
			return out
		}
	}
	switch {
	case c.remote == nil || m.unstorable:
		return m.loadAlone(ctx)
	case m.lookErr != nil:
		return m.withoutStore(ctx, m.lookErr)
	}
	return m.contend(ctx)
}

// localAgain looks at local once more: between the caller's look and the flight's
// start another flight may have landed.
func (m *miss[K, V]) localAgain() (outcome[V], bool) {
	e, now, current := m.c.local.Get(m.key)
	if e == nil {
		return outcome[V]{}, false
	}
	if e.IsValue() {
		m.old, m.doubted = e, !current
	}
	if current && now < e.Fresh && e.Has() && e.Created != m.refreshing {
		return outcome[V]{entry: e, source: SourceLocal}, true
	}
	if failure := e.FailureAt(now); failure != nil && current && m.refreshing == 0 {
		out := m.failed(failure, true)
		out.source = SourceLocal
		return out, true
	}
	return outcome[V]{}, false
}

// take looks at what the store holds. It is the answer if it is fresh, or stale
// within StaleFor; if not, it is remembered as seen.
func (m *miss[K, V]) take(data []byte) (outcome[V], bool) {
	c := m.c
	m.seen, m.old, m.doubted = store.MarkOf(data), nil, false
	e, err := c.decode(data, m.stamp)
	if err != nil {
		c.stats.undecodable.Add(1)
		c.tell(Event{Kind: EventUndecodable, Key: m.f.Key, Err: err})
		return outcome[V]{}, false
	}
	if e.IsValue() {
		m.old = e
	}
	now := c.local.Now()
	fresh := now < e.Soft && e.Created != m.refreshing
	switch {
	case !e.Has(): // a mark that says that the value cannot be stored
		m.unstorable = fresh
	case fresh:
		c.stats.storeHits.Add(1)
		c.tell(Event{Kind: EventStoreHit, Key: m.f.Key, Age: time.Since(time.UnixMicro(e.Created))})
		m.publish = e
		return outcome[V]{entry: e, source: SourceStore}, true
	case m.refreshing == 0 && c.mayServeStale(e, now):
		m.publish, m.again = e, true
		return outcome[V]{entry: e, source: SourceStore, stale: true}, true
	}
	return outcome[V]{}, false
}

// contend asks for the lease until it has an answer: a value, the lease and then
// a load, a remembered failure, or the end of everybody's patience.
func (m *miss[K, V]) contend(ctx context.Context) outcome[V] {
	c := m.c
	m.token = store.NewToken()
	for attempt := 0; attempt == 0 || c.local.Now() < m.f.Until(); attempt++ {
		m.stamp = c.local.Stamp(m.f.Key)
		a, err := c.remote.acquire(ctx, m.f.Key, store.Request{Token: m.token, TTL: c.opts.LeaseTTL, Seen: m.seen})
		if err != nil {
			return m.withoutStore(ctx, err)
		}
		if out, ok := m.takeStale(ctx, a); ok {
			return out
		}
		switch a.State {
		case store.Hit:
			if out, ok := m.take(a.Item.Data); ok {
				return out
			}
			if m.unstorable {
				return m.loadAlone(ctx)
			}
		case store.Won:
			return m.loadLeased(ctx, a.Lease)
		case store.Failed:
			return m.sharedFailure(a)
		case store.Held:
			if !m.wait(ctx, a) {
				return m.timedOut()
			}
		default:
			return outcome[V]{err: fmt.Errorf("onefill: the store answered %v to acquire", a.State)}
		}
	}
	return m.timedOut()
}

// takeStale looks at the value that came along with an answer other than a hit, in
// stores that read and lease in one step. Within StaleFor it is the answer, at
// once; a lease that came with it goes to the refresh.
func (m *miss[K, V]) takeStale(ctx context.Context, a store.Answer) (outcome[V], bool) {
	if a.State == store.Hit || !a.Item.Found || store.SameMark(m.seen, a.Item.Data) {
		return outcome[V]{}, false
	}
	e, err := m.c.decode(a.Item.Data, m.stamp)
	if err != nil || !e.IsValue() {
		return outcome[V]{}, false
	}
	m.old, m.doubted = e, false
	if m.refreshing != 0 || !m.c.mayServeStale(e, m.c.local.Now()) {
		return outcome[V]{}, false
	}
	if a.Watch != nil {
		a.Watch.Stop()
	}
	m.publish, m.again, m.lease = e, a.State == store.Won, a.Lease
	return outcome[V]{entry: e, source: SourceStore, stale: true}, true
}

// wait waits until the holder of the lease may be done. False: nobody who joined
// would still be there.
func (m *miss[K, V]) wait(ctx context.Context, a store.Answer) bool {
	c := m.c
	start := c.local.Now()
	if m.waiting == 0 {
		m.waiting = start
		c.stats.leaseWaits.Add(1)
	}
	left := time.Duration(m.f.Until() - start)
	pause := pollAfter(time.Duration(start-m.waiting), time.Duration(c.lastCost.Load()))
	var woken <-chan struct{}
	if a.Watch != nil {
		defer a.Watch.Stop()
		woken = a.Watch.C()
		// A push wakes; the end of the lease is looked at in case its push is lost.
		pause = watchFor(a.Remaining)
	}
	if left <= 0 {
		return false
	}
	m.leaveBatch(ctx) // the others' load does not wait for somebody else's
	c.flights.SetWaiting(m.f, true)
	t := time.NewTimer(min(pause, left))
	select {
	case <-woken:
	case <-t.C:
	case <-c.life.Done():
	}
	t.Stop()
	c.flights.SetWaiting(m.f, false)
	if m.old != nil && !c.local.Current(m.old.Stamp) {
		// Callers who came after the change have joined meanwhile. What the store has
		// now will be looked at as if it had not been seen.
		m.doubted, m.seen = true, nil
	}
	c.tell(Event{Kind: EventLeaseWait, Key: m.f.Key, Took: time.Duration(c.local.Now() - start)})
	return c.life.Err() == nil && c.local.Now() < m.f.Until()
}

// Waiting for another process's load where the store cannot push: each pause is an
// eighth to a quarter of the time waited so far, at random. So the pauses grow
// exponentially, the waiters of a fleet spread out, the answer is late by a few
// per cent of the load's time, and the number of questions grows with its logarithm.
// The first pause is guided by what a load of this cache has cost, as far as known.
const (
	pollFloor   = 10 * time.Millisecond
	pollCeiling = 500 * time.Millisecond
)

func pollAfter(waited, cost time.Duration) time.Duration {
	if waited == 0 {
		waited = 2 * cost // a quarter to half of the load: it may have begun some time ago
	}
	least := min(max(waited/8, pollFloor), pollCeiling/2)
	return least + time.Duration(rand.Int64N(int64(least)))
}

// watchFor is how long a watch is trusted: until the lease ends, and a little, as
// the server tells of expiries late.
func watchFor(remaining time.Duration) time.Duration {
	const late, most = 100 * time.Millisecond, 2 * time.Second
	if remaining <= 0 {
		return most
	}
	return min(remaining+late, most)
}

// timedOut is the end of a flight that waited as long as anybody wanted it to.
func (m *miss[K, V]) timedOut() outcome[V] {
	if out, ok := m.staleOnError(true); ok {
		return out
	}
	if m.c.life.Err() != nil {
		return outcome[V]{err: ErrClosed}
	}
	return outcome[V]{err: fmt.Errorf("%w: another process is still loading %q", ErrWaitTimeout, abbreviate(m.f.Key))}
}

// sharedFailure answers with the failure that another load has left, or with the
// old value where that is allowed, and remembers it in this process too.
func (m *miss[K, V]) sharedFailure(a store.Answer) outcome[V] {
	c := m.c
	c.stats.sharedFailures.Add(1)
	text := "the failure's record could not be read"
	if env, err := store.Decode(a.Failure); err == nil {
		text = string(env.Payload)
	}
	err := &LoadError{Key: m.f.Key, Err: remoteFailure(text)}
	m.rememberFailure(err, min(or(a.Remaining, c.opts.ErrorTTL), c.opts.ErrorTTL))
	return m.failed(err, true)
}

// failed is the outcome of a load that brought nothing.
func (m *miss[K, V]) failed(err error, reachable bool) outcome[V] {
	if out, ok := m.staleOnError(reachable); ok {
		return out
	}
	return outcome[V]{err: err, source: SourceLoad}
}

// staleOnError is the old value, if StaleOnError allows it. A local one whose
// Local.TTL has ended counts only while the store cannot be asked: otherwise the
// store has just said that it has nothing, perhaps because of an invalidation. So
// does one that is doubted.
func (m *miss[K, V]) staleOnError(reachable bool) (outcome[V], bool) {
	c := m.c
	if m.old == nil {
		return outcome[V]{}, false
	}
	now := c.local.Now()
	if !c.mayServeOnError(m.old, now) || reachable && (m.doubted || now >= m.old.Trusted) {
		return outcome[V]{}, false
	}
	return outcome[V]{entry: m.old, source: SourceLocal, stale: true}, true
}

// rememberFailure makes local answer with err for ttl, without losing the value
// that it may still serve.
func (m *miss[K, V]) rememberFailure(err error, ttl time.Duration) {
	e := &local.Entry[V]{Stamp: m.stamp, Rare: &local.Rare{Absent: true}, Trusted: m.c.local.Now()}
	if m.old != nil && m.c.local.Current(m.old.Stamp) {
		kept := *m.old
		e = &kept
		e.Rare = &local.Rare{RowVersion: kept.RowVersion()}
	}
	e.Rare.Failure, e.Rare.FailedUntil = err, until(m.c.local.Now(), ttl)
	m.publish = e
}

// withoutStore is what a flight does when the store could not be asked.
func (m *miss[K, V]) withoutStore(ctx context.Context, cause error) outcome[V] {
	c := m.c
	m.stamp = c.local.Stamp(m.f.Key)
	// A value that is still within its time is as good as it was before the
	// connection broke, up to Local.TTL.
	if e, now, _ := c.local.Get(m.key); e != nil && now < e.Fresh && e.IsValue() && e.Created != m.refreshing {
		return outcome[V]{entry: e, source: SourceLocal, stale: true}
	}
	if c.opts.OnStoreDown == LoadLimited {
		return m.loadAlone(ctx)
	}
	if c.opts.OnStoreDown == StaleOnly {
		if out, ok := m.staleOnError(false); ok {
			return out
		}
	}
	return outcome[V]{err: fmt.Errorf("%w: %w", ErrStoreDown, cause)}
}
