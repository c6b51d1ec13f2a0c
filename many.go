package onefill

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"

	"github.com/onefill/onefill/internal/flight"
	"github.com/onefill/onefill/store"
)

// GetMany is Get for many keys at once. Rows that do not exist are left out of the
// map. If keys failed, the error is a *ManyError with the error of each, and the
// map holds the others. Keys given twice are asked for once.
//
// It shares flights with Get, so a key that is in flight is not loaded again. What
// has to be loaded goes to Options.LoadMany, at most MaxBatch keys at a time, or to
// Load, key by key, in parallel.
func (c *Cache[K, V]) GetMany(ctx context.Context, keys []K) (map[K]V, error) {
	if c.closed.Load() {
		return nil, ErrClosed
	}
	if c.opts.Load == nil {
		return nil, errors.New("onefill: GetMany: there is no loader: set Options.LoadMany or Options.Load")
	}
	g := &gathering[K, V]{c: c, values: make(map[K]V, len(keys)), start: c.local.Now()}
	g.board(ctx, keys)
	end := g.traced(ctx)
	for _, s := range g.seats {
		if s.landed() {
			g.add(s.key, s.f.Result())
			continue
		}
		if err := c.await(ctx, s.f, g.patience); err != nil { // WaitTimeout is for the whole call
			g.failed(s.key, err)
			continue
		}
		g.add(s.key, s.f.Result())
	}
	for _, done := range g.inside {
		done()
	}
	err := error(nil)
	if len(g.errs) > 0 {
		err = &ManyError{Errors: g.errs}
	}
	end(err)
	return g.values, err
}

// traced tells a tracer of the flights that the call waits for.
func (g *gathering[K, V]) traced(ctx context.Context) (end func(error)) {
	if g.c.tracer == nil {
		return nop
	}
	var fs []*flight.Flight[outcome[V]]
	for _, s := range g.seats {
		if !s.landed() {
			fs = append(fs, s.f)
		}
	}
	if len(fs) == 0 {
		return nop
	}
	return g.c.traceWait(ctx, fs...)
}

// gathering is one call of GetMany.
type gathering[K comparable, V any] struct {
	c      *Cache[K, V]
	values map[K]V
	start  int64
	// patience is how long it waits; nil as long as local has answered everything.
	patience *oneLimit
	errs     map[any]error
	seats    []seat[K, V]
	inside   []func() // to call when the loads that this call is inside of wait no more
}

type seat[K comparable, V any] struct {
	key K
	f   *flight.Flight[outcome[V]]
	m   *miss[K, V] // of a flight that this call leads, or nil
}

// passenger is the memory of one key's flight.
type passenger[K comparable, V any] struct {
	miss   miss[K, V]
	flight flight.Room[outcome[V]]
}

// landed says that this call itself has landed the flight.
func (s *seat[K, V]) landed() bool { return s.m != nil && s.m.grounded }

// board answers from local what it can, and joins or leads a flight for the rest.
func (g *gathering[K, V]) board(ctx context.Context, keys []K) {
	c := g.c
	asked := make(map[K]struct{}, len(keys))
	var leading []*miss[K, V]
	var room []passenger[K, V] // for all that may miss from the first one on
	defer func() {             // also if a Key or a Clone panics: who leads must fly
		for _, m := range leading {
			if !m.grounded {
				m.takeOff(ctx) // if it cannot, it has landed with ErrClosed
			}
		}
	}()
	for i, key := range keys {
		if _, twice := asked[key]; twice {
			continue
		}
		asked[key] = struct{}{}
		out, _, ok := c.fromLocal(ctx, key, c.opts.Load)
		if ok {
			g.add(key, out)
			continue
		}
		skey, err := c.storeKey(key)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			g.failed(key, err)
			continue
		}
		if room == nil {
			g.patience = c.patience.get(g.start)
			room = make([]passenger[K, V], len(keys)-i)
			leading, g.seats = make([]*miss[K, V], 0, len(room)), make([]seat[K, V], 0, len(room))
		}
		call := c.call(g.start, g.patience.end)
		call.Room = &room[0].flight
		f, leads := c.flights.Join(skey, call)
		var m *miss[K, V]
		if leads {
			m, room = &room[0].miss, room[1:]
			*m = miss[K, V]{c: c, f: f, key: key, load: c.opts.Load}
			leading = append(leading, m)
		} else if out, ok := c.interim(f); ok {
			g.add(key, out)
			continue
		} else {
			c.stats.coalesced.Add(1)
		}
		if err := g.waitFor(ctx, f); err != nil {
			g.failed(key, err)
			continue
		}
		g.seats = append(g.seats, seat[K, V]{key, f, m})
	}
	rest := c.taxiMany(ctx, leading)
	if c.opts.LoadMany != nil && len(rest) > 1 {
		b := &batch[K, V]{c: c, coming: len(rest)}
		for _, m := range rest {
			m.batch, m.inBatch = b, true
		}
	}
}

// taxiMany is taxi for the flights that a call leads: it looks at the store once for all of
// them, where the store can do that. It returns those that have to take off.
func (c *Cache[K, V]) taxiMany(ctx context.Context, leading []*miss[K, V]) (rest []*miss[K, V]) {
	if len(leading) < 2 || c.remote == nil || c.remote.many == nil || c.remote.session.Features().AcquireReads ||
		c.debts.count() > 0 || leading[0].lookTakes() > c.opts.WaitTimeout {
		return leading
	}
	for _, m := range leading {
		if _, m.grounded = m.leg(ctx, func(context.Context) (outcome[V], bool) { return m.localAgain() }); !m.grounded {
			rest = append(rest, m)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	keys, now := make([]string, len(rest)), c.local.Now()
	for i, m := range rest {
		keys[i] = m.f.Key
		m.reopens = c.debts.reopens.Load()
		m.note(now)
	}
	items, errOf := c.remote.getMany(ctx, keys)
	c.learnTags(ctx, items)
	at := c.moment()
	left := rest[:0]
	for i, m := range rest {
		if _, m.grounded = m.leg(ctx, func(ctx context.Context) (outcome[V], bool) { return m.found(ctx, itemAt(items, i), errOf(i), at) }); !m.grounded {
			left = append(left, m)
		}
	}
	return left
}

func (g *gathering[K, V]) waitFor(ctx context.Context, f *flight.Flight[outcome[V]]) error {
	parent := flight.From(ctx)
	if parent == nil {
		return nil
	}
	done, ok := parent.WaitFor(&f.Node)
	if !ok {
		return cycle(f.Key)
	}
	g.inside = append(g.inside, done)
	return nil
}

func (g *gathering[K, V]) add(key K, out outcome[V]) {
	v, err := g.c.value(key, out)
	switch {
	case err == nil:
		g.values[key] = v
	case !errors.Is(err, ErrNotFound):
		g.failed(key, err)
	}
}

func (g *gathering[K, V]) failed(key K, err error) {
	if g.errs == nil {
		g.errs = make(map[any]error)
	}
	g.errs[key] = err
}

// batch turns the loads of one GetMany's flights into few calls of LoadMany. Each
// flight goes its own way through store and lease; those that come to load wait
// here until every other one has come too, has landed otherwise, or waits for
// somebody else's load. A flight that comes later loads alone.
type batch[K comparable, V any] struct {
	c      *Cache[K, V]
	mu     sync.Mutex     // leaf: nothing is called under it
	coming int            // guarded by mu: flights that may still come
	here   []ticket[K, V] // guarded by mu: flights that have come

	begin    sync.Once
	begun    tagged // by begin, with beginErr
	beginErr error
}

type ticket[K comparable, V any] struct {
	key    K
	f      *flight.Flight[outcome[V]]
	alone  bool // the flight has no lease although there is a store
	answer chan batchAnswer[V]
}

type batchAnswer[V any] struct {
	l   *loaded[V]
	err error // no place at the origin
}

// loadInBatch waits for the batch's load and returns this flight's part of it.
func (m *miss[K, V]) loadInBatch(ctx context.Context, alone bool) (*loaded[V], error) {
	t := ticket[K, V]{m.key, m.f, alone, make(chan batchAnswer[V], 1)}
	m.inBatch = false
	if full := m.batch.arrive(&t); full != nil {
		m.batch.load(ctx, full)
	}
	a := <-t.answer
	if a.l != nil {
		m.loads++
	}
	return a.l, a.err
}

// beginTagged is the cache's, before a load under a lease. The flights of a batch, whose
// load begins when all of them have come here, ask once: what one has read is not too young
// for the others.
func (m *miss[K, V]) beginTagged(ctx context.Context) (tagged, error) {
	if !m.inBatch {
		return m.c.beginTagged(ctx, true)
	}
	b := m.batch
	b.begin.Do(func() { b.begun, b.beginErr = b.c.beginTagged(ctx, true) })
	return b.begun, b.beginErr
}

// leaveBatch tells the others not to wait for this flight.
func (m *miss[K, V]) leaveBatch(ctx context.Context) {
	if !m.inBatch {
		return
	}
	m.inBatch = false
	if full := m.batch.arrive(nil); full != nil {
		go m.batch.load(ctx, full) // ends with the flights of full, which Close waits for
	}
}

// arrive counts a flight in, with its ticket if it loads, and returns the flights
// to load for if it is the last one or the batch is full.
func (b *batch[K, V]) arrive(t *ticket[K, V]) []ticket[K, V] {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.coming--
	if t != nil {
		b.here = append(b.here, *t)
	}
	if b.coming > 0 && len(b.here) < b.c.opts.MaxBatch {
		return nil
	}
	full := b.here
	b.here = nil
	return full
}

// load calls LoadMany for the flights of full, which all wait for it.
func (b *batch[K, V]) load(ctx context.Context, full []ticket[K, V]) {
	answers := make([]batchAnswer[V], len(full))
	defer func() { // whatever went wrong here, nobody waits for ever
		if r := recover(); r != nil {
			b.c.log.Error("a batch panicked", "panic", r, "stack", string(debug.Stack()))
		}
		for i, t := range full {
			if answers[i].l == nil && answers[i].err == nil {
				answers[i].err = errors.New("onefill: the batch ended without a result")
			}
			t.answer <- answers[i]
		}
	}()
	var node flight.Node
	keys, fs, alone := make([]K, len(full)), make([]*flight.Flight[outcome[V]], len(full)), false
	for i, t := range full {
		keys[i], fs[i], alone = t.key, t.f, alone || t.alone
		if done, ok := t.f.Node.WaitFor(&node); ok {
			defer done()
		}
	}
	at, err := b.c.place(ctx, full[0].f.Key, alone)
	if err != nil {
		for i := range answers {
			answers[i].err = err
		}
		return
	}
	defer at.leave()
	ctx, end := b.c.traceLoad(ctx, fs...)
	r := load(ctx, b.c, at, &node, loadOf{keys: len(keys)}, func(ctx context.Context) (map[K]V, error) { return b.c.opts.LoadMany(ctx, keys) })
	end(r.err)
	for i, t := range full {
		answers[i].l = b.c.share(t, r)
	}
}

// share is one key's part of what LoadMany returned.
func (c *Cache[K, V]) share(t ticket[K, V], r report[map[K]V]) *loaded[V] {
	v, there := r.value[t.key]
	switch {
	case there:
		r.verdict = verdict{}
	case r.err == nil:
		r.verdict = judge(ErrNotFound)
	}
	return c.loaded(t.f.Key, v, r.verdict, r.took)
}

// loadOne is LoadMany as a loader of one key.
func loadOne[K comparable, V any](many func(context.Context, []K) (map[K]V, error)) LoadFunc[K, V] {
	return func(ctx context.Context, key K) (v V, err error) {
		rows, err := many(ctx, []K{key})
		if v, ok := rows[key]; ok {
			return v, nil
		}
		if err == nil {
			err = ErrNotFound
		}
		return v, err
	}
}

// itemAt is an item of many, if there are any.
func itemAt(items []store.Item, i int) store.Item {
	if items == nil {
		return store.Item{}
	}
	return items[i]
}
