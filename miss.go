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

	// replacing is set in the background: the value that is to be replaced although it
	// is, or may be, fresh.
	replacing *local.Entry[V]

	looked  bool // the store has been read, with lookErr
	lookErr error
	first   *firstAnswer // what contend begins with, if the leader has asked already
	waiting int64        // since when it waits for another process's load; 0: it has not yet

	stamp local.Stamp // taken before the store's last answer was asked for
	asked int64       // when it was taken
	// reopens counts the replacements of the store's server that were known when it was asked.
	reopens uint64
	seen    []byte // mark of the store's value that cannot be served as fresh

	// old is what may be served where the options allow stale values, from oldFrom.
	// doubted: it may have been invalidated since it was read, and counts only while the
	// store cannot be asked.
	old     *local.Entry[V]
	oldFrom Source
	doubted bool
	// confirmed: the store has shown, when it was last asked, that it holds old still.
	confirmed bool

	// offline: the store could not be asked, and stamp was taken after that.
	offline bool

	// unstorable: the store has said that it cannot hold the value.
	unstorable bool
	// failures is how many loads of the key have failed in a row before this flight's.
	failures uint64
	// heldBack: local remembers a failure, which holds back further loads.
	heldBack *local.Rare
	// loads is how many of its own the flight has waited for.
	loads int
	// failure is what the flight has brought instead of a value.
	failure error
	// publish is put into local when the flight lands, unless it was voided.
	publish *local.Entry[V]
	// again is set when the answer was a stale value: a refresh follows the landing.
	again bool
	// entry is memory for what is read where local keeps nothing.
	entry local.Entry[V]

	landed bool // whatever happens from now on

	// batch gathers the loads of one GetMany. inBatch: it still counts on this one.
	batch   *batch[K, V]
	inBatch bool
}

// taxi is the part of a flight that its leader goes himself. If it answers, the
// flight has landed without having been in the air. If not, also because the
// leader's own context has ended, takeOff goes on: nobody else is left behind.
func (m *miss[K, V]) taxi(ctx context.Context) (out outcome[V], landed bool) {
	c := m.c
	if c.remote == nil || c.lookTakes(m.f.Key) > c.opts.WaitTimeout {
		return out, false // there is nothing to look at, or to do so may take longer than the caller waits
	}
	if c.remote.session.Features().AcquireReads {
		return m.leg(ctx, m.askFirst)
	}
	return m.leg(ctx, m.look)
}

// firstAnswer is what the leader was told when it asked for the lease itself.
type firstAnswer struct {
	req store.Request
	a   store.Answer
}

// askFirst is the leader's look where asking for the lease is the cheapest way to read. An answer
// other than a value is for the flight, which goes on in the air.
func (m *miss[K, V]) askFirst(ctx context.Context) (outcome[V], bool) {
	c := m.c
	if out, ok := m.localAgain(); ok {
		return out, true
	}
	if err := m.ask(ctx); err != nil {
		return m.found(ctx, store.Item{}, err, c.moment())
	}
	req := store.Request{Token: store.NewToken(), TTL: c.opts.LeaseTTL}
	a, err := c.remote.acquire(ctx, m.f.Key, &req)
	switch {
	case err != nil:
		c.disown(context.WithoutCancel(ctx), m.f.Key, req, err)
		return m.found(ctx, store.Item{}, err, c.moment())
	case a.State == store.Hit:
		return m.found(ctx, a.Item, nil, c.moment())
	}
	m.first = &firstAnswer{req, a}
	return outcome[V]{}, false
}

// lookTakes is how long a look at the store may take: each question is tried twice at most,
// and ends within twice its StoreTimeout. A debt is paid first, by one of them or two; a
// value's tags are looked at after it.
func (c *Cache[K, V]) lookTakes(key string) time.Duration {
	questions := uint64(1)
	if _, owed := c.debts.of(debtor{name: key}); owed {
		questions++
	}
	if c.tags != nil {
		questions += 2 // theirs may be owed, too
	}
	return times(c.opts.StoreTimeout, 2*questions)
}

// takeOff starts the flight. False: the cache is closed, and the flight has
// landed with that.
func (m *miss[K, V]) takeOff(ctx context.Context) bool {
	ctx = context.WithoutCancel(ctx)
	m.c.flights.Open(m.f)
	if m.c.begin(func() { m.leg(ctx, m.fly) }) {
		return true
	}
	if first := m.first; first != nil {
		if first.a.Watch != nil {
			first.a.Watch.Stop()
		}
		if first.a.State == store.Won {
			m.c.releaseLater(ctx, m.f.Key, first.a.Lease)
		}
	}
	m.leaveBatch(ctx)
	m.land(ctx, outcome[V]{err: ErrClosed})
	return false
}

// leg runs a leg of the flight, and lands if it answers. It also lands if it panics or
// exits (a codec may, or an observer): nobody is to wait for what will not come.
func (m *miss[K, V]) leg(ctx context.Context, fn func(context.Context) (outcome[V], bool)) (out outcome[V], landed bool) {
	returned := false
	defer func() {
		if returned {
			return
		}
		err := ErrGoexit
		if r := recover(); r != nil {
			err = &PanicError{r, debug.Stack()}
		}
		m.c.log.Error("a flight did not come back", "key", abbreviate(m.f.Key), "err", err, "stack", string(debug.Stack()))
		out, landed = outcome[V]{err: &LoadError{m.f.Key, err}}, true
		if !m.landed {
			m.publish, m.again = nil, false
			m.leaveBatch(ctx)
			m.land(ctx, out)
		}
	}()
	if out, landed = fn(ctx); landed {
		m.leaveBatch(ctx)
		m.land(ctx, out)
	}
	returned = true
	return out, landed
}

// fly is the leg in the air. It always answers.
func (m *miss[K, V]) fly(ctx context.Context) (outcome[V], bool) { return m.run(ctx), true }

// land ends the flight, and starts the refresh that is to follow it.
func (m *miss[K, V]) land(ctx context.Context, out outcome[V]) {
	c := m.c
	m.landed = true
	var publish func()
	if e := m.publish; e != nil {
		publish = func() { c.put(m.key, e) }
	}
	var interim *outcome[V]
	if m.again {
		interim = &outcome[V]{entry: out.entry, source: SourceLocal}
	}
	next := c.flights.Land(m.f, out, publish, interim)
	m.tell(out)
	if m.replacing != nil && m.failure != nil {
		c.stats.refreshesFailed.Add(1)
		c.tell(Event{Kind: EventRefreshFailed, Key: m.f.Key, Flight: m.f.ID, Err: m.failure})
	}
	if next == nil {
		return
	}
	next.Extend(until(c.local.Now(), c.opts.WaitTimeout))
	c.startRefresh(ctx, &miss[K, V]{c: c, f: next, key: m.key, load: m.load,
		old: out.entry, oldFrom: out.source, replacing: out.entry, seen: m.seen, failures: m.failures}, EventRefresh)
}

// tell tells the observer of the end of a miss group. The flights of refreshes, and those
// that have found what they looked for at once, are none.
func (m *miss[K, V]) tell(out outcome[V]) {
	loads := m.loads
	if m.waiting != 0 {
		loads++
	}
	if m.replacing != nil || loads == 0 && m.failure == nil {
		return
	}
	m.c.tell(Event{Kind: EventMiss, Key: m.f.Key, Flight: m.f.ID, Took: m.f.Age(m.c.local.Now()), Err: out.failure(), N: loads, Callers: m.f.Callers()})
}

// ask is done before the store is asked: a write that it may lack is repeated, while
// the flight carries nothing, and the state of local is noted.
func (m *miss[K, V]) ask(ctx context.Context) (err error) {
	c := m.c
	m.reopens = c.debts.reopens.Load()
	if c.debts.count() > 0 {
		c.flights.SetWaiting(m.f, true)
		// Twice at most: a payment that the old server has answered pays nothing.
		for tries := 0; err == nil && tries < 2; tries++ {
			err = c.payDebt(ctx, m.f.Key)
		}
		c.flights.SetWaiting(m.f, false)
	}
	m.note(c.local.Now())
	return err
}

// note notes the state of local, before the store is asked.
func (m *miss[K, V]) note(now int64) { m.stamp, m.asked = m.c.local.Stamp(m.f.Key), now }

// replaced says whether the store's server was replaced since it was asked: then what the
// answer holds may be what an invalidation has removed, from before the replay.
func (m *miss[K, V]) replaced() bool { return m.c.debts.reopens.Load() != m.reopens }

// same says whether e is the value that is to be replaced.
func (m *miss[K, V]) same(e *local.Entry[V]) bool {
	return m.replacing != nil && m.replacing.Created == e.Created
}

// look looks at local again, and once at the store. It leaves no trace if ctx ended
// meanwhile.
func (m *miss[K, V]) look(ctx context.Context) (outcome[V], bool) {
	if out, ok := m.localAgain(); ok {
		return out, true
	}
	var item store.Item
	err := m.ask(ctx)
	if err == nil {
		item, err = m.c.remote.get(ctx, m.f.Key)
	}
	return m.found(ctx, item, err, m.c.moment())
}

// found is the second half of a look: what the store has answered.
func (m *miss[K, V]) found(ctx context.Context, item store.Item, err error, at moment) (outcome[V], bool) {
	if err != nil && ctx.Err() != nil || err == nil && m.replaced() {
		return outcome[V]{}, false
	}
	m.looked, m.lookErr = true, err
	if err != nil || !item.Found {
		return outcome[V]{}, false
	}
	out, ok := m.take(ctx, item.Data, at)
	if !ok && ctx.Err() != nil { // what could not be asked about its tags is looked at again
		m.looked, m.lookErr, m.seen, m.old = false, nil, nil, nil
	}
	return out, ok
}

// room is where an entry can be made: in the flight's own memory, as there is one at a time,
// unless local would keep that with the entry.
func (m *miss[K, V]) room() *local.Entry[V] {
	if m.c.local.Keeps() {
		return new(local.Entry[V])
	}
	return &m.entry
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
	switch {
	case m.first != nil: // contend goes on from there
	case c.remote == nil || m.replacing != nil || c.remote.session.Features().AcquireReads && !m.looked:
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
		m.old, m.oldFrom, m.doubted = e, SourceLocal, !current
	}
	if current && e.Fresh(now) && e.Has() && !m.same(e) {
		return outcome[V]{entry: e, source: SourceLocal}, true
	}
	if current || e.Doubted() { // the failure is no matter of doubt
		m.failures = max(m.failures, e.FailuresAt(now))
		if e.HeldBack(now) {
			m.heldBack = e.Rare
		}
	}
	if failure := e.FailureAt(now); failure != nil && current && m.replacing == nil && !m.c.mayConfirm(e, now) {
		out := m.failed(failure, true)
		out.source = SourceLocal
		return out, true
	}
	return outcome[V]{}, false
}

// take looks at what the store holds. It is the answer if it is fresh, or stale
// within StaleFor; if not, it is remembered as seen.
func (m *miss[K, V]) take(ctx context.Context, data []byte, at moment) (outcome[V], bool) {
	c := m.c
	m.seen, m.old, m.doubted = store.MarkOf(data), nil, false
	e, t, err := c.decode(m.room(), m.key, data, m.stamp, m.asked, at)
	now := at.local
	if err == nil && c.tags != nil {
		err = c.checkTags(ctx, e, t)
		now = c.local.Now() // it may have taken its time
	}
	switch {
	case errors.Is(err, errDoubted) || errors.Is(err, errVoided):
		return outcome[V]{}, false
	case errors.Is(err, store.ErrUnavailable): // whether its tags are valid is not known
		m.lookErr = err
		return outcome[V]{}, false
	case err != nil && ctx.Err() != nil:
		m.lookErr = err
		return outcome[V]{}, false
	case err != nil:
		c.stats.undecodable.Add(1)
		c.tell(Event{Kind: EventUndecodable, Key: m.f.Key, Flight: m.f.ID, Err: err})
		return outcome[V]{}, false
	}
	if e.IsValue() {
		m.old, m.oldFrom = e, SourceStore
	}
	fresh := now < e.Soft && !m.same(e)
	switch {
	case !e.Has(): // a mark that says that the value cannot be stored
		m.unstorable = fresh
	case fresh:
		m.publish = e
		return c.storeHit(m.f, e), true
	case m.replacing == nil && c.mayServeStale(e, now):
		if m.publish, m.again = e, true; m.heldBack != nil && now < m.heldBack.FailedUntil {
			rare := *m.heldBack
			rare.Doubted = false
			rare.Absent, rare.NotFound, rare.RowVersion, rare.Tags, rare.Weight = false, false, e.RowVersion(), e.Tags(), e.Weight()
			e.Rare, m.again = &rare, false
		}
		return outcome[V]{entry: e, source: SourceStore, stale: true}, true
	}
	return outcome[V]{}, false
}

// storeHit is the outcome of a flight that has found a fresh value in the store.
func (c *Cache[K, V]) storeHit(f *flight.Flight[outcome[V]], e *local.Entry[V]) outcome[V] {
	c.stats.storeHits.Add(1)
	if c.opts.Observer != nil { // the age is a reading of the clock
		c.tell(Event{Kind: EventStoreHit, Key: f.Key, Flight: f.ID, Age: ageOf(e)})
	}
	return outcome[V]{entry: e, source: SourceStore}
}

// contend asks for the lease until it has an answer: a value, the lease and then
// a load, a remembered failure, or the end of everybody's patience.
func (m *miss[K, V]) contend(ctx context.Context) outcome[V] {
	c := m.c
	req := store.Request{Token: store.NewToken(), TTL: c.opts.LeaseTTL}
	for attempt := 0; attempt == 0 || m.patient(); attempt++ {
		var a store.Answer
		if first := m.first; first != nil {
			req, a, m.first = first.req, first.a, nil
		} else {
			if err := m.ask(ctx); err != nil {
				return m.withoutStore(ctx, err)
			}
			req.Seen = m.seen
			var err error
			if a, err = c.remote.acquire(ctx, m.f.Key, &req); err != nil {
				c.disown(ctx, m.f.Key, req, err)
				return m.withoutStore(ctx, err)
			}
		}
		switch a.State {
		case store.Hit:
			if m.replaced() {
				continue // asks again, and pays first
			}
			if out, ok := m.take(ctx, a.Item.Data, c.moment()); ok {
				return out
			}
			if m.unstorable {
				return m.loadAlone(ctx)
			}
		case store.Won:
			m.confirmOld(a)
			if env, err := store.Decode(a.Failure); err == nil {
				m.failures = max(m.failures, env.Failures)
			}
			return m.loadLeased(ctx, a.Lease)
		case store.Failed:
			m.confirmOld(a)
			return m.sharedFailure(a)
		case store.Held:
			m.confirmOld(a)
			m.wait(ctx, a)
		default:
			return outcome[V]{err: fmt.Errorf("onefill: the store answered %v to acquire", a.State)}
		}
	}
	return m.timedOut()
}

// patient says whether anybody who joined will still wait. When nobody does, the
// flight leaves the table first, so that nobody joins it in its last moment.
func (m *miss[K, V]) patient() bool {
	c := m.c
	if c.life.Err() != nil {
		return false
	}
	if c.local.Now() < m.giveUpAt() {
		return true
	}
	c.flights.Leave(m.f)
	return c.local.Now() < m.giveUpAt()
}

// giveUpAt is when the flight stops waiting for another process's load: when nobody who
// joined waits any more, or a moment before if it can give them a stale value then.
func (m *miss[K, V]) giveUpAt() int64 {
	at := m.f.Until()
	if _, ok := m.staleOnError(true); ok {
		at -= int64(min(20*time.Millisecond, m.c.opts.WaitTimeout/10))
	}
	return at
}

// wait waits until the holder of the lease may be done, or until nobody who joined
// waits any more.
func (m *miss[K, V]) wait(ctx context.Context, a store.Answer) {
	c := m.c
	start := c.local.Now()
	if m.waiting == 0 {
		m.waiting = start
		c.stats.leaseWaits.Add(1)
	}
	left := time.Duration(m.giveUpAt() - start)
	pause := pollAfter(time.Duration(start-m.waiting), time.Duration(c.lastCost.Load()))
	var woken <-chan struct{}
	if a.Watch != nil {
		defer a.Watch.Stop()
		woken = a.Watch.C()
		// A push wakes; the end of the lease is looked at in case its push is lost.
		pause = watchFor(a.Remaining)
	}
	m.leaveBatch(ctx) // the others' load does not wait for somebody else's
	c.flights.SetWaiting(m.f, true)
	t := time.NewTimer(max(min(pause, left), 0))
	select {
	case <-woken:
	case <-t.C:
	case <-c.life.Done():
	}
	t.Stop()
	c.flights.SetWaiting(m.f, false)
	if m.old != nil && !c.local.CurrentEntry(m.old) {
		// Callers who came after the change have joined meanwhile. What the store has
		// now will be looked at as if it had not been seen.
		m.doubted, m.seen = true, nil
		if kept, _ := c.local.Kept(m.old, c.local.Now()); kept == nil {
			m.old = nil // somebody has said that it changed: that is no doubt
		}
	}
	c.tell(Event{Kind: EventLeaseWait, Key: m.f.Key, Flight: m.f.ID, Took: time.Duration(c.local.Now() - start)})
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
	m.failure = fmt.Errorf("%w: another process is still loading %q", ErrWaitTimeout, abbreviate(m.f.Key))
	return outcome[V]{err: m.failure}
}

// withoutStore is what a flight does when the store could not be asked.
func (m *miss[K, V]) withoutStore(ctx context.Context, cause error) outcome[V] {
	c := m.c
	m.stamp, m.offline = c.local.Stamp(m.f.Key), true
	// A value that is still within its time is as good as it was before the
	// connection broke, up to Local.TTL.
	if e, now, _ := c.local.Get(m.key); e != nil && e.Fresh(now) && e.IsValue() && !m.same(e) {
		return outcome[V]{entry: e, source: SourceLocal, stale: true}
	}
	if c.opts.OnStoreDown == LoadLimited {
		if out, ok := m.stillHeldBack(); ok {
			return out
		}
		return m.loadAlone(ctx)
	}
	if c.opts.OnStoreDown == StaleOnly {
		if out, ok := m.staleOnError(false); ok {
			return out
		}
	}
	m.failure = fmt.Errorf("%w: %w", ErrStoreDown, cause)
	return outcome[V]{err: m.failure}
}
