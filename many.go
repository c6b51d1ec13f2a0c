package onefill

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"

	"github.com/onefill/onefill/internal/flight"
	"github.com/onefill/onefill/internal/local"
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
	defer g.waited() // also if a Key or a Clone panics, which the load around may survive
	g.board(ctx, keys)
	end := g.traced(ctx)
	for _, s := range g.seats {
		if s.landed {
			g.add(s.key, s.f.Result())
			continue
		}
		out, err := c.wait(ctx, waiting[V]{f: s.f, patience: g.patience, many: true}) // WaitTimeout is for the whole call
		if err != nil {
			g.failed(s.key, err)
			continue
		}
		g.add(s.key, out)
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
		if !s.landed {
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
	// What follows is nil as long as local has answered everything.
	patience *oneLimit // how long it waits
	call     flight.Call[outcome[V]]
	parent   *flight.Node              // the load that the call is inside of, if any
	room     []flight.Room[outcome[V]] // for the flights that it may still come to lead
	seats    []seat[K, V]              // never moves
	leads    int                       // of the seats
	errs     map[any]error
	inside   []func() // to call when the loads that this call is inside of wait no more
}

// board answers from local what it can, and joins or leads a flight for the rest.
func (g *gathering[K, V]) board(ctx context.Context, keys []K) {
	c := g.c
	asked := make(map[K]struct{}, len(keys))
	defer g.takeOff(ctx) // also if a Key or a Clone panics: who leads must fly
	for i, key := range keys {
		if _, twice := asked[key]; twice {
			continue
		}
		asked[key] = struct{}{}
		if out, ok := c.fromLocal(ctx, key, c.loadOne, g.sight(key)); ok {
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
		if g.seats == nil {
			g.prepare(ctx, len(keys)-i)
		}
		g.take(key, skey)
	}
	g.look(ctx)
}

// sight is a look at local, if anything can be there.
func (g *gathering[K, V]) sight(key K) local.Sight[V] {
	if !g.c.local.Keeps() {
		return local.Sight[V]{At: g.start} // for less than a reading of the clock
	}
	there, _ := g.c.local.Look(key)
	return there
}

// prepare makes room for as many seats as may be needed.
func (g *gathering[K, V]) prepare(ctx context.Context, most int) {
	g.patience = g.c.patience.get(g.start)
	g.call = g.c.call(g.start, g.patience.end)
	g.parent = flight.From(ctx)
	g.room = make([]flight.Room[outcome[V]], most)
	g.seats = make([]seat[K, V], 0, most)
}

// take takes a seat in the key's flight.
func (g *gathering[K, V]) take(key K, skey string) {
	c := g.c
	g.call.Room = &g.room[0]
	f, leads := c.flights.Join(skey, g.call)
	if leads {
		g.room = g.room[1:]
		g.leads++
	} else if out, ok := c.interim(f); ok {
		g.add(key, out)
		return
	} else {
		c.stats.coalesced.Add(1)
	}
	if err := g.waitFor(f); err != nil { // not of one that has only begun
		g.failed(key, err)
		return
	}
	g.seats = append(g.seats, seat[K, V]{key: key, f: f, leads: leads})
}

// takeOff sends the flights off that have not landed yet. One that cannot has landed then,
// with ErrClosed.
func (g *gathering[K, V]) takeOff(ctx context.Context) {
	var rest []*miss[K, V]
	for i := range g.seats {
		if s := &g.seats[i]; s.leads && !s.landed {
			rest = append(rest, s.miss(g.c))
		}
	}
	if g.c.opts.LoadMany != nil && len(rest) > 1 {
		b := &batch[K, V]{c: g.c, coming: len(rest)}
		for _, m := range rest {
			m.batch, m.inBatch = b, true
		}
	}
	for _, m := range rest {
		m.takeOff(ctx)
	}
}

func (g *gathering[K, V]) waitFor(f *flight.Flight[outcome[V]]) error {
	if g.parent == nil {
		return nil
	}
	done, ok := g.parent.WaitFor(&f.Node)
	if !ok {
		return cycle(f.Key)
	}
	g.inside = append(g.inside, done)
	return nil
}

// waited is the opposite of waitFor, for all of them.
func (g *gathering[K, V]) waited() {
	for _, done := range g.inside {
		done()
	}
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
	at, err := b.c.place(ctx, full[0].f.Key, full[0].f.ID, alone)
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

// loadOne is what GetMany loads one key with: LoadMany, where there is one.
func (o *Options[K, V]) loadOne() LoadFunc[K, V] {
	many := o.LoadMany
	if many == nil {
		return o.Load
	}
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
