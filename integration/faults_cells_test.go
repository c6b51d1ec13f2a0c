package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill"
)

// The columns of the table of faults: what is guaranteed, and how it is tested under
// any fault.

// cell is one fault against one guarantee. Faults of the network strike a, or a and b;
// c is never struck by them.
type cell struct {
	t       *testing.T
	w       *world
	f       *fault
	a, b, c *member
}

type guarantee struct {
	number int
	name   string
	how    string // for docs/faults.md
	test   func(*cell)
}

var guarantees = []guarantee{
	{1, "one load", "Callers of one cache miss a key, then callers of another one, while the load is held; a sudden fault strikes while they wait. " +
		"Everybody is served. The cell says by how many loads at most.", (*cell).oneLoad},
	{2, "nothing late is published", "A load has read the row; the fault strikes; the row is changed and invalidated elsewhere (before a fault of the server); the load returns, and its fill goes through the fault. " +
		"Those who waited have the old row. When all is well again the store has it not, and no cache returns it beyond Local.TTL.", (*cell).nothingLate},
	{3, "every wait is bounded", "Get, GetMany, Peek, Set, Invalidate and Expire, of cached and absent keys, twice, at the same time. " +
		"Each returns within its bound: the operations of the store that it needs, each StoreTimeout, and its load. No zero value comes with a nil error. Then the keys work.", (*cell).bounded},
	{4, "cancellation is private", "Some of the callers who wait for a load are cancelled, or have deadlines that end while the store is asked. They return at once; the others get the value of the one load.", (*cell).private},
	{5, "an error is not a miss", "The origin fails, and the store has a stale value. Callers get that or the error, never ErrNotFound, and each cache loads once at most. When all is well the stale value is still there, and the next load replaces it.", (*cell).errorIsNoMiss},
	{6, "the origin is bounded", "40 callers miss 24 keys in one cache, MaxLoads is 8, MaxLoadsDegraded 2. Everybody is served, and again when all is well. The cell says how many loads run at once at most.", (*cell).originBounded},
	{7, "Invalidate tells the truth", "Rows are changed, and then Invalidate, Set and Expire are called through the fault. What returned nil is found applied in the store afterwards. An error may mean anything, but where the store answers another attempt goes through.", (*cell).truth},
	{8, "local staleness is a number", "Two caches have a row in local; the fault strikes them; a third changes it and invalidates. Counted from its nil, they return the old row for Local.TTL (500 ms) at most, and never again later.", (*cell).staleness},
}

// settled lets a fault be noticed, by a Get of another key. A cache that hears that its
// connection is lost lets nobody join the flights that it has in the air, so a herd that
// came in that very moment would be two; and a fill in that moment would be lost.
func (c *cell) settled(s *strike) *strike {
	c.t.Helper()
	if c.f.reply == "" {
		for _, m := range s.members {
			c.served([][]result{{m.get(c.w.origin.add(0))}}, 1)
		}
	}
	return s
}

// served wants rows of one version and no error.
func (c *cell) served(all [][]result, version int64) {
	c.t.Helper()
	for _, results := range all {
		for _, r := range results {
			if r.Class != "" || r.Row.Version != version {
				c.t.Errorf("a caller got version %d, %q; want version %d", r.Row.Version, r.Err, version)
			}
		}
	}
}

func (c *cell) oneLoad() {
	key := c.w.origin.add(0)
	var s *strike
	during := c.f.sudden && c.f.reply == ""
	if !during {
		s = c.settled(c.w.strike(c.t, c.f, c.a, c.b))
	}
	release := c.w.origin.hold(key)
	defer release()
	waits := c.b.cache.Stats().LeaseWaits
	first := storming([]*member{c.a}, 8, key)
	poll(c.t, "the load runs", func() bool { return c.w.origin.loads(key) == 1 })
	second := storming([]*member{c.b}, 8, key)
	poll(c.t, "the other cache waits, or loads", func() bool {
		return c.b.cache.Stats().LeaseWaits > waits || c.w.origin.loads(key) == 2
	})
	if during {
		s = c.settled(c.w.strike(c.t, c.f, c.a, c.b))
	}
	release()
	c.served(first(), 1)
	c.served(second(), 1)
	s.wantLost()
	if n := c.w.origin.loads(key); n > c.f.loadsAtMost(c.w.on) {
		c.t.Errorf("%d loads, want at most %d", n, c.f.loadsAtMost(c.w.on))
	}
	s.heal()
}

func (c *cell) nothingLate() {
	key := c.w.origin.add(0)
	var s *strike
	strike := func(now bool) {
		if now {
			s = c.w.strike(c.t, c.f, c.a)
		}
	}
	strike(c.f.reply == "acquire")
	release := c.w.origin.hold(key)
	defer release()
	old := storming([]*member{c.a}, 4, key)
	poll(c.t, "the load has read the row", func() bool { return c.w.origin.loads(key) == 1 })
	c.w.origin.letPass(key)
	strike(!c.f.server && c.f.reply != "acquire")
	c.w.origin.write(key)
	if err := c.c.cache.Invalidate(c.t.Context(), key); err != nil {
		c.t.Fatalf("the store answers this cache, and Invalidate fails: %v", err)
	}
	strike(c.f.server)
	release()
	c.served(old(), 1)
	s.wantLost()
	c.wantNew(s, key)
}

// wantNew ends the fault, and wants version 2 of the key everywhere, for good.
func (c *cell) wantNew(s *strike, key string) {
	c.t.Helper()
	s.heal()
	c.a.idle(c.t)
	for range 2 {
		if version, _ := c.w.view.stored(c.t, key); version == 1 {
			c.t.Error("the store holds the old row")
		}
		for i, m := range c.w.members {
			if !pollFor(c.w.opts.Local.TTL+slack(), func() bool { return m.get(key).Row.Version == 2 }) {
				c.t.Errorf("cache %d goes on returning the old row: %+v", i, m.get(key))
			}
		}
	}
	for i, m := range c.w.members {
		if r := m.get(key); r.Row.Version != 2 {
			c.t.Errorf("cache %d returns version %d, %q, after it had returned version 2", i, r.Row.Version, r.Err)
		}
	}
}

// operation is one call, which must return within limit.
type operation struct {
	name  string
	limit time.Duration
	do    func() error
}

func (c *cell) bounded() {
	rows := boundedRows{cached: c.w.origin.add(0), there: c.w.origin.add(0), absent: c.w.origin.addMany(6, boundedLoad), written: c.w.origin.addMany(3, 0)}
	for _, key := range append(rows.written, rows.cached) {
		c.a.get(key)
	}
	c.c.get(rows.there)
	s := c.w.strike(c.t, c.f, c.a, c.b)
	for range 2 {
		var all sync.WaitGroup
		for _, op := range c.operations(rows) {
			all.Go(func() {
				start := time.Now()
				if err := op.do(); err != nil {
					c.t.Errorf("%s: %v", op.name, err)
				}
				if took := time.Since(start); took > op.limit {
					c.t.Errorf("%s took %v, want %v at most", op.name, took, op.limit)
				}
			})
		}
		all.Wait()
	}
	s.heal()
	for _, m := range c.w.members {
		for _, key := range append(rows.written, rows.cached, rows.there, rows.absent[0]) {
			c.served([][]result{{m.get(key)}}, 1)
		}
	}
}

const boundedLoad = 20 * time.Millisecond

// boundedRows are rows that a cache has in local, that only the store has, that nobody
// has, and that are to be written.
type boundedRows struct {
	cached, there   string
	absent, written []string
}

func (c *cell) operations(rows boundedRows) (all []operation) {
	ctx, cache, timeout := context.Background(), c.a.cache, c.w.opts.StoreTimeout
	once := timeout + slack()
	twice := timeout*3/2 + 10*time.Millisecond
	// A look, an acquire, a load that waits for others, a fill.
	get := 2*twice + 4*boundedLoad + once
	for _, key := range append([]string{rows.cached, rows.there}, rows.absent[:4]...) {
		all = append(all, operation{"Get", get, func() error {
			v, err := cache.Get(ctx, key)
			if err == nil && v.Version == 0 {
				return errors.New("a zero value and a nil error")
			}
			return err
		}})
	}
	many := rows.absent[2:]
	return append(all,
		operation{"GetMany", get, func() error {
			got, err := cache.GetMany(ctx, many)
			if err == nil && len(got) != len(many) {
				return fmt.Errorf("%d of %d rows and a nil error", len(got), len(many))
			}
			return err
		}},
		operation{"Peek", once + timeout, func() error {
			_, _, err := cache.Peek(ctx, rows.there)
			return tolerate(err)
		}},
		operation{"Set", once, func() error { return tolerate(cache.Set(ctx, rows.written[0], row{Value: "v1", Version: 1})) }},
		operation{"Invalidate", once, func() error { return tolerate(cache.Invalidate(ctx, rows.written[1])) }},
		operation{"Expire", once, func() error { return tolerate(cache.Expire(ctx, rows.written[2])) }},
	)
}

// tolerate lets a store be in trouble: an operation that needs it may say so.
func tolerate(err error) error {
	var e *onefill.StoreError
	if errors.As(err, &e) {
		return nil
	}
	return err
}

func (c *cell) private() {
	o, m := c.w.origin, c.a
	held, asked := o.add(0), o.add(0)
	release := o.hold(held)
	defer release()
	var s *strike
	during := c.f.sudden && c.f.reply == ""
	if !during {
		s = c.settled(c.w.strike(c.t, c.f, c.a, c.b))
	}
	// Two are cancelled while the load runs, the rest waits on.
	leave, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	left := calling(m, leave, 2, held)
	stay := calling(m, context.Background(), 2, held)
	// And while the store is asked: the deadline is over before any answer can come, if
	// none comes.
	hurry, done := context.WithTimeout(c.t.Context(), c.f.timeout/4)
	defer done()
	hurried := calling(m, hurry, 2, asked)
	patient := calling(m, context.Background(), 2, asked)
	poll(c.t, "the load runs", func() bool { return o.loads(held) == 1 })
	if during {
		s = c.w.strike(c.t, c.f, c.a, c.b)
	}
	cancel()
	cancelled := time.Now()
	for _, r := range left() {
		if late := r.end().Sub(cancelled); r.Class != "canceled" || late > slack() {
			c.t.Errorf("a caller that was cancelled got %q, %v later", r.Err, late)
		}
	}
	release()
	c.served([][]result{stay(), patient()}, 1)
	for _, r := range hurried() {
		if limit := c.f.timeout/4 + slack(); r.Class != "" && r.Class != "deadline" || r.Took > limit {
			c.t.Errorf("a caller with a deadline of %v got %q after %v", c.f.timeout/4, r.Err, r.Took)
		}
	}
	if n := o.loads(held); n != 1 {
		c.t.Errorf("%d loads in one cache, want 1", n)
	}
	if n := o.loads(asked); n != 1 {
		c.t.Errorf("%d loads of the other key in one cache, want 1", n)
	}
	s.wantLost()
	s.heal()
}

// calling lets n callers Get under one context; the returned function waits for them.
func calling(m *member, ctx context.Context, n int, key string) func() []result {
	results := make([]result, n)
	var done sync.WaitGroup
	for i := range n {
		done.Go(func() { results[i] = m.getBy(ctx, key) })
	}
	return func() []result {
		done.Wait()
		return results
	}
}

func (c *cell) errorIsNoMiss() {
	key := c.w.origin.add(0)
	c.served([][]result{{c.c.get(key)}}, 1)
	must(c.t, c.c.cache.Expire(c.t.Context(), key))
	c.w.origin.change(key, func(r *memRow) { r.fails = true })
	loads := c.w.origin.loads(key)
	s := c.settled(c.w.strike(c.t, c.f, c.a, c.b))
	stale, failed := 0, 0
	for _, results := range herd([]*member{c.a, c.b}, 8, key) {
		for _, r := range results {
			switch {
			case r.Class == "" && r.Stale && r.Row.Version == 1:
				stale++
			case r.Class == "load failed":
				failed++
			default:
				c.t.Errorf("a caller got version %d, stale: %v, %q; want the stale value or the origin's error", r.Row.Version, r.Stale, r.Err)
			}
		}
	}
	if n, most := c.w.origin.loads(key)-loads, max(2, c.f.loadsAtMost(c.w.on)); n > most || n < 1 {
		c.t.Errorf("%d loads by two caches, want from 1 to %d", n, most)
	}
	if c.f.loadsAtMost(c.w.on) == 1 && failed > 0 {
		c.t.Errorf("%d callers got the error although the store has a stale value and answers", failed)
	}
	s.heal()
	if version, fresh := c.w.view.stored(c.t, key); !c.f.forgets && (version != 1 || fresh) {
		c.t.Errorf("the store holds version %d (fresh: %v), want the stale version 1", version, fresh)
	}
	c.w.origin.change(key, func(r *memRow) { r.fails = false })
	c.w.origin.write(key)
	for _, m := range []*member{c.a, c.b} {
		poll(c.t, "the origin is asked again", func() bool { r := m.get(key); return r.Row.Version == 2 && !r.Stale })
	}
	c.t.Logf("%d callers got the stale value, %d the error", stale, failed)
}

func (c *cell) originBounded() {
	const keys, callers, load = 24, 40, 20 * time.Millisecond
	s := c.w.strike(c.t, c.f, c.a)
	c.a.loads.peak()
	absent := c.w.origin.addMany(keys, load)
	c.served(herd([]*member{c.a}, callers, absent...), 1)
	limit := c.f.loadsAtOnce(c.w.opts)
	peak := c.a.loads.peak()
	if peak > limit {
		c.t.Errorf("%d loads at once, want at most %d", peak, limit)
	}
	if n := c.w.origin.loads(absent...); n < keys || n > callers {
		c.t.Errorf("%d loads of %d keys by %d callers", n, keys, callers)
	}
	s.wantLost()
	s.heal()
	c.a.loads.peak()
	c.served(herd([]*member{c.a}, callers, c.w.origin.addMany(keys, load)...), 1)
	after := c.a.loads.peak()
	if after > c.w.opts.MaxLoads {
		c.t.Errorf("%d loads at once afterwards, want at most %d", after, c.w.opts.MaxLoads)
	}
	c.t.Logf("%d loads at once, %d afterwards", peak, after)
}

// told is a write, and what became of it.
type told struct {
	name  string
	do    func() error
	keys  []string
	err   error
	again bool // it has failed before
}

func (c *cell) truth() {
	keys := c.w.origin.addMany(5, 0)
	for _, key := range keys {
		c.served([][]result{{c.a.get(key)}}, 1)
		c.w.origin.write(key)
	}
	ctx, cache := context.Background(), c.a.cache
	writes := []*told{
		{name: "Invalidate", keys: keys[:1], do: func() error { return cache.Invalidate(ctx, keys[0]) }},
		{name: "Invalidate of two", keys: keys[1:3], do: func() error { return cache.Invalidate(ctx, keys[1], keys[2]) }},
		{name: "Set", keys: keys[3:4], do: func() error { return cache.Set(ctx, keys[3], row{Value: "v2", Version: 2}) }},
		{name: "Expire", keys: keys[4:], do: func() error { return cache.Expire(ctx, keys[4]) }},
	}
	s := c.w.strike(c.t, c.f, c.a, c.b)
	for i, w := range writes {
		if i > 0 && c.f.sudden && c.f.reply == "" && !c.f.server {
			s = c.w.strike(c.t, c.f, c.a, c.b)
		}
		w.err = w.do()
		if w.again = w.err != nil && c.f.answers && c.f.reply == ""; w.again {
			// Over new connections it goes through: each of the old ones may fail it once.
			pollFor(patience, func() bool { w.err = w.do(); return w.err == nil })
			if w.err != nil {
				c.t.Errorf("%s: the store answers, and it goes on failing: %v", w.name, w.err)
			}
		}
	}
	s.wantLost()
	s.heal()
	for _, w := range writes {
		for _, key := range w.keys {
			c.wantTrue(w, key)
		}
		c.t.Logf("%s: %v", w.name, w.err)
	}
}

// wantTrue wants a write that returned nil to have been applied.
func (c *cell) wantTrue(w *told, key string) {
	c.t.Helper()
	version, fresh := c.w.view.stored(c.t, key)
	applied := version == 0 || version == 2
	switch w.name {
	case "Expire":
		applied = applied || !fresh
	case "Set": // one that failed before is repeated in the background, as an Invalidate
		applied = version == 2 || version == 0 && (w.again || c.f.forgets)
	}
	if w.err == nil && !applied {
		c.t.Errorf("%s returned nil, and the store holds version %d (fresh: %v)", w.name, version, fresh)
	}
	if c.f.reply == "invalidate" && w.name == "Invalidate" && version != 0 {
		c.t.Errorf("the reply was lost after Invalidate was applied, and the store holds version %d", version)
	}
}

func (c *cell) staleness() {
	key := c.w.origin.add(0)
	c.served([][]result{{c.a.get(key), c.b.get(key), c.c.get(key)}}, 1)
	s := c.w.strike(c.t, c.f, c.a, c.b)
	c.w.origin.write(key)
	writer := c.c
	if c.f.reply == "invalidate" {
		writer = c.a
	}
	if c.f.server {
		writer.cache.Invalidate(c.t.Context(), key) // whatever it says
		s.heal()
	}
	poll(c.t, "Invalidate is applied", func() bool { return writer.cache.Invalidate(c.t.Context(), key) == nil })
	applied := time.Now()
	var lags [2]time.Duration
	var done sync.WaitGroup
	readers := []*member{c.a, c.b}
	if c.f.reply != "" {
		readers = readers[:1] // who misses the reply must be the one who asks
	}
	for i, m := range readers {
		done.Go(func() { lags[i] = c.lag(m, key, applied) })
	}
	done.Wait()
	// No slack: what is measured is when a read began, and local looks at the clock later.
	if most := c.w.opts.Local.TTL; lags[0] > most || lags[1] > most {
		c.t.Errorf("the old row was returned %v and %v after Invalidate had returned nil, Local.TTL is %v", lags[0], lags[1], c.w.opts.Local.TTL)
	}
	c.t.Logf("the old row was returned until %v and %v after Invalidate had returned nil", lags[0], lags[1])
	s.wantLost()
	c.wantNew(s, key)
}

// lag reads until the new row comes, and says how long after the moment a read that
// returned the old one began.
func (c *cell) lag(m *member, key string, since time.Time) (lag time.Duration) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for time.Since(since) < patience {
		r := m.get(key)
		switch {
		case r.Class != "":
			c.t.Errorf("a reader got: %s", r.Err)
		case r.Row.Version == 2:
			return lag
		default:
			lag = max(lag, r.Start.Sub(since))
		}
		<-tick.C
	}
	return patience
}
