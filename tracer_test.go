package onefill_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// trace is what a recorder has heard of: one begin, and one end.
type trace struct {
	what       string // wait, load
	ids        []uint64
	keys       []string
	background bool
	caller     any // the value under callerKey of the context
	err        error
	ended      int
}

type callerKey struct{}

// recorder is a Tracer, and an Observer that keeps the events of some kinds.
type recorder struct {
	mu     sync.Mutex
	traces []*trace
	events []onefill.Event
	panics bool
}

func (r *recorder) Observe(e onefill.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recorder) begin(ctx context.Context, what string, flights []onefill.Flight) func(error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	tr := &trace{what: what, caller: ctx.Value(callerKey{})}
	for _, f := range flights {
		tr.ids, tr.keys, tr.background = append(tr.ids, f.ID), append(tr.keys, f.Key), f.Background
		if f.Cache != "test" || f.ID == 0 {
			tr.keys = append(tr.keys, fmt.Sprintf("wrong: %+v", f))
		}
	}
	r.traces = append(r.traces, tr)
	return func(err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		tr.err, tr.ended = err, tr.ended+1
		if r.panics {
			panic("at the end")
		}
	}
}

func (r *recorder) TraceWait(ctx context.Context, flights []onefill.Flight) func(error) {
	return r.begin(ctx, "wait", flights)
}

func (r *recorder) TraceLoad(ctx context.Context, flights []onefill.Flight) (context.Context, func(error)) {
	end := r.begin(ctx, "load", flights)
	return context.WithValue(ctx, loadKey{}, "inside"), end
}

type loadKey struct{}

func (r *recorder) of(what string) (found []*trace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, tr := range r.traces {
		if tr.what == what {
			found = append(found, tr)
		}
	}
	return found
}

func (r *recorder) told(kind onefill.EventKind) (found []onefill.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e.Kind == kind {
			found = append(found, e)
		}
	}
	return found
}

// Twelve callers wait for one load: twelve waits and one load with one ID; the loader's
// context is what the tracer has made of that of the caller who began the flight.
func TestTracerFollowsAHerd(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		r := &recorder{}
		var inside any
		c := newCache(t, with(options{Name: "test", Observer: r, Load: func(ctx context.Context, k string) (string, error) {
			inside = ctx.Value(loadKey{})
			time.Sleep(50 * time.Millisecond)
			return "v1", nil
		}}, st))
		wantAll(t, herd(context.WithValue(bg, callerKey{}, "me"), 12, "k", c), "v1")
		synctest.Wait()
		waits, loads := r.of("wait"), r.of("load")
		if len(waits) != 12 || len(loads) != 1 || inside != "inside" {
			t.Fatalf("%d waits, %d loads, the loader is %v", len(waits), len(loads), inside)
		}
		for _, tr := range slices.Concat(waits, loads) {
			if tr.ids[0] != loads[0].ids[0] || tr.ended != 1 || tr.err != nil || tr.caller != "me" || tr.background || len(tr.keys) != 1 {
				t.Errorf("%+v", tr)
			}
		}
		misses := r.told(onefill.EventMiss)
		if len(misses) != 1 || misses[0].Callers != 12 || misses[0].N != 1 || misses[0].Key != "k" || misses[0].Took < 50*time.Millisecond {
			t.Errorf("miss groups: %+v", misses)
		}
	})
}

// What a call of GetMany waits for is one wait, and a LoadMany one load, of the same flights.
// The error of each is its own: the call's, and the loader's.
func TestTracerFollowsGetMany(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		r := &recorder{}
		c := newCache(t, with(options{Name: "test", Observer: r, LoadMany: func(context.Context, []string) (map[string]string, error) {
			return map[string]string{"a": "v1"}, errBroken
		}}, st))
		_, err := c.GetMany(bg, []string{"a", "b", "c"})
		var many *onefill.ManyError
		if !errors.As(err, &many) {
			t.Fatal(err)
		}
		synctest.Wait()
		waits, loads := r.of("wait"), r.of("load")
		if len(waits) != 1 || len(loads) != 1 || waits[0].err != err || loads[0].err != errBroken {
			t.Fatalf("waits %+v, loads %+v", waits, loads)
		}
		slices.Sort(waits[0].ids)
		slices.Sort(loads[0].ids)
		if len(waits[0].ids) != 3 || !slices.Equal(waits[0].ids, loads[0].ids) {
			t.Errorf("waits for %v, loads %v", waits[0].ids, loads[0].ids)
		}
		if e := r.told(onefill.EventLoad); len(e) != 1 || e[0].N != 3 {
			t.Errorf("loads told: %+v", e)
		}
	})
}

// A tracer that panics, or returns nil, changes nothing.
func TestTracerThatFails(t *testing.T) {
	for name, observer := range map[string]onefill.Observer{"ends": &recorder{panics: true}, "begins": badTracer{true}, "returns nil": badTracer{}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := newCache(t, options{Name: "test", Observer: observer, Load: newOrigin("v1", 0).load})
				get(t, c, "k", "v1")
				if _, err := c.GetMany(bg, []string{"k", "l", "m"}); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

type badTracer struct{ panics bool }

func (b badTracer) Observe(onefill.Event) {}

func (b badTracer) TraceWait(context.Context, []onefill.Flight) func(error) {
	if b.panics {
		panic("wait")
	}
	return nil
}

func (b badTracer) TraceLoad(context.Context, []onefill.Flight) (context.Context, func(error)) {
	if b.panics {
		panic("load")
	}
	return nil, nil
}

// A flight that gets no place at the origin is told of with its ID, as everything else of it; and the miss group of
// a row that does not exist says so, in the process that has asked the origin and in the one that has waited.
func TestEventsNameTheirFlight(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := &recorder{}
		c := newCache(t, options{Name: "test", Observer: r, MaxLoads: 1, WaitTimeout: 2 * time.Second, Load: newOrigin("v1", 5*time.Second).load})
		first := ask(bg, c, "slow")
		synctest.Wait()
		if _, err := c.Get(bg, "busy"); !errors.Is(err, onefill.ErrOriginBusy) {
			t.Error(err)
		}
		<-first
		synctest.Wait()
		busy, waits := r.told(onefill.EventOriginBusy), r.of("wait")
		if len(busy) != 1 || len(waits) != 2 || busy[0].Flight != waits[1].ids[0] {
			t.Errorf("busy: %+v", busy)
		}
	})
	bubble(t, func(t *testing.T) {
		st, load := memstore.New(), newOrigin("", 50*time.Millisecond)
		load.fail(fmt.Errorf("%w, says the database", onefill.ErrNotFound))
		a, b := &recorder{}, &recorder{}
		loads := newCache(t, options{Name: "test", Store: st, Observer: a, Load: load.load})
		waits := newCache(t, options{Name: "test", Store: st, Observer: b, Load: load.load})
		first := ask(bg, loads, "k")
		synctest.Wait() // it holds the lease
		<-ask(bg, waits, "k")
		<-first
		synctest.Wait()
		for name, r := range map[string]*recorder{"loads": a, "waits": b} {
			if e := r.told(onefill.EventMiss); len(e) != 1 || !errors.Is(e[0].Err, onefill.ErrNotFound) || e[0].N != 1 {
				t.Errorf("the one that %s: %+v", name, e)
			}
		}
	})
}

// A refresh is a load in the background that nobody waits for, and no miss group.
func TestTracerOfARefresh(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		r := &recorder{}
		c := newCache(t, with(options{Name: "test", Observer: r, Load: newOrigin("v1", 0).load, TTL: 10 * time.Second, StaleFor: time.Minute}, st))
		get(t, c, "k", "v1")
		time.Sleep(15 * time.Second)
		get(t, c, "k", "v1")
		synctest.Wait()
		loads := r.of("load")
		if len(loads) != 2 || loads[0].background || !loads[1].background {
			t.Errorf("loads %+v", loads)
		}
		for _, tr := range r.of("wait") {
			if tr.background || tr.ids[0] == loads[1].ids[0] {
				t.Errorf("waited for the refresh: %+v", tr)
			}
		}
		if misses := r.told(onefill.EventMiss); len(misses) != 1 {
			t.Errorf("miss groups: %+v", misses)
		}
	})
}

// The loads of a miss group: one in the process that loads and in the one that waits; two
// where the holder of the lease was lost and the one that waited loaded itself; none where the
// failure is remembered. A hit in the store is no miss.
func TestEventMissCountsLoads(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		a, b, c := &recorder{}, &recorder{}, &recorder{}
		stop := make(chan struct{})
		hang := newCache(t, options{Name: "test", Store: st, Observer: a, LeaseTTL: time.Second, LoadTimeout: time.Minute, WaitTimeout: time.Minute,
			Load: func(context.Context, string) (string, error) { <-stop; return "late", nil }})
		db := newOrigin("v1", 50*time.Millisecond)
		waits := newCache(t, options{Name: "test", Store: st, Observer: b, Load: db.load})
		later := newCache(t, options{Name: "test", Store: st, Observer: c, Load: db.load})
		go hang.Get(bg, "k")
		synctest.Wait() // it holds the lease
		go func() {
			time.Sleep(500 * time.Millisecond)
			st.DropLease("test", "k") // as an eviction would
		}()
		get(t, waits, "k", "v1")
		get(t, later, "k", "v1")
		close(stop)
		synctest.Wait()
		db.fail(errBroken)
		_, _ = waits.Get(bg, "failing")
		_, _ = later.Get(bg, "failing")
		synctest.Wait()
		for name, tt := range map[string]struct {
			r    *recorder
			want []int
		}{"holder": {a, []int{1}}, "took over": {b, []int{2, 1}}, "hit": {c, []int{0}}} {
			var got []int
			for _, e := range tt.r.told(onefill.EventMiss) {
				got = append(got, e.N)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%s: loads of the miss groups %v, want %v", name, got, tt.want)
			}
		}
	})
}

// Of hits in local one in 64 is told of, at random, from every path: about as many as stand
// for what Stats counts.
func TestEventLocalHitStandsForMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := &recorder{}
		c := newCache(t, options{Name: "test", Observer: r, Load: newOrigin("v1", 0).load})
		get(t, c, "k", "v1")
		time.Sleep(3 * time.Second)
		const n = 200_000
		for range n / 2 {
			_, _ = c.Get(bg, "k")
			_, _ = c.Fetch(bg, "k")
		}
		stood := 0
		for _, e := range r.told(onefill.EventLocalHit) {
			stood += e.N
			if e.Key != "k" || e.Age != 3*time.Second {
				t.Fatalf("%+v", e)
			}
		}
		// 3,125 are expected, with a standard deviation of 55; ten of those are allowed.
		if off := stood - n; off < -35_200 || off > 35_200 {
			t.Errorf("the hits that were told of stand for %d, and there were %d", stood, n)
		}
	})
}

// Of the keys that one GetMany finds in local each is told of as often as the others, however
// many there are: every 64th hit would be the same key's each time.
func TestEventLocalHitOfGetMany(t *testing.T) {
	for _, n := range []int{2, 16, 48, 64} {
		r := &recorder{}
		c := newCache(t, options{Name: "test", Observer: r, Load: newOrigin("v1", 0).load})
		keys := numbers(0, n)
		const each = 6400 // hits: it is to be told of 100 of them
		for range each {
			if got, err := c.GetMany(bg, keys); err != nil || len(got) != n {
				t.Fatalf("%d rows, %v", len(got), err)
			}
		}
		told := map[string]int{}
		for _, e := range r.told(onefill.EventLocalHit) {
			told[e.Key]++
		}
		for _, key := range keys {
			if told[key] < 50 || told[key] > 200 {
				t.Errorf("of %d hits of each of %d keys %d of %q were told of", each, n, told[key], key)
			}
		}
	}
}

// Observers passes on to all of them, and is a tracer if one of them is: the loader's context
// has what each of them has put into it, and what began last ends first.
func TestObservers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var order []string
		a, b := &tracing{name: "a", order: &order}, &tracing{name: "b", order: &order}
		var heard atomic.Int64 // several goroutines tell
		plain := onefill.ObserverFunc(func(e onefill.Event) { heard.Add(1) })
		var inside string
		c := newCache(t, options{Name: "test", Observer: onefill.Observers(nil, plain, a, b), Load: func(ctx context.Context, _ string) (string, error) {
			inside = fmt.Sprint(ctx.Value(nameKey("a")), ctx.Value(nameKey("b")))
			return "v1", nil
		}})
		get(t, c, "k", "v1")
		synctest.Wait()
		if inside != "a b" && inside != "ab" {
			t.Errorf("the loader's context has %q", inside)
		}
		if got := fmt.Sprint(order); got != "[a b -b -a]" {
			t.Errorf("order %s", got)
		}
		if heard.Load() == 0 {
			t.Error("the observer that traces nothing has heard nothing")
		}
	})
	if onefill.Observers() != nil || onefill.Observers(nil, nil) != nil {
		t.Error("none is not nil")
	}
	if _, ok := onefill.Observers(onefill.ObserverFunc(func(onefill.Event) {}), onefill.ObserverFunc(func(onefill.Event) {})).(onefill.Tracer); ok {
		t.Error("a tracer of none")
	}
}

// One of several observers that panics takes nothing from the others: neither events nor the
// ends of what they have begun.
func TestObserversWhenOneFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for name, fails := range map[string]onefill.Observer{"in Observe": onefill.ObserverFunc(func(onefill.Event) { panic("no") }), "in its end": &recorder{panics: true}} {
			var order []string
			var heard atomic.Int64
			first, last := &tracing{name: "a", order: &order}, onefill.ObserverFunc(func(onefill.Event) { heard.Add(1) })
			c := newCache(t, options{Name: "test", Observer: onefill.Observers(first, fails, last), Load: newOrigin("v1", 0).load})
			get(t, c, "k", "v1")
			synctest.Wait()
			if got := fmt.Sprint(order); got != "[a -a]" {
				t.Errorf("%s: what began before it has seen %s", name, got)
			}
			if heard.Load() == 0 {
				t.Errorf("%s: who comes behind it has heard nothing", name)
			}
		}
	})
}

// One of several tracers that panics when something begins takes nothing from the others: what has begun
// before it ends once, what comes behind it begins and ends once, the loader's context has what both have
// put into it, and the panic is in the log.
func TestTracersWhenOneFailsToBegin(t *testing.T) {
	for name, nest := range map[string]func(a, fails, b onefill.Observer) onefill.Observer{
		"flat": func(a, fails, b onefill.Observer) onefill.Observer { return onefill.Observers(a, fails, b) },
		"nested": func(a, fails, b onefill.Observer) onefill.Observer {
			return onefill.Observers(onefill.Observers(a, fails), b)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var log bytes.Buffer
				var order []string
				var inside any
				before, behind := &recorder{}, &tracing{name: "b", order: &order}
				c := newCache(t, options{Name: "test", Observer: nest(before, badTracer{true}, behind), Logger: slog.New(slog.NewTextHandler(&log, nil)),
					Load: func(ctx context.Context, _ string) (string, error) {
						inside = fmt.Sprint(ctx.Value(loadKey{}), ctx.Value(nameKey("b")))
						return "v1", nil
					}})
				get(t, c, "k", "v1")
				synctest.Wait()
				traces := slices.Concat(before.of("wait"), before.of("load"))
				if len(traces) != 2 {
					t.Fatalf("%d have begun", len(traces))
				}
				for _, tr := range traces {
					if tr.ended != 1 {
						t.Errorf("the %s was ended %d times", tr.what, tr.ended)
					}
				}
				if got := fmt.Sprint(order); got != "[b -b]" || inside != "inside b" && inside != "insideb" {
					t.Errorf("behind it: %s, the loader's context has %q", got, inside)
				}
				if got := log.String(); strings.Count(got, "when it began") != 2 || !strings.Contains(got, "TraceWait") || !strings.Contains(got, "TraceLoad") {
					t.Errorf("the log: %s", got)
				}
			})
		})
	}
}

type nameKey string

// tracing traces loads only.
type tracing struct {
	name  string
	order *[]string
}

func (n *tracing) Observe(onefill.Event) {}

func (n *tracing) TraceWait(context.Context, []onefill.Flight) func(error) { return nil }

func (n *tracing) TraceLoad(ctx context.Context, _ []onefill.Flight) (context.Context, func(error)) {
	*n.order = append(*n.order, n.name)
	return context.WithValue(ctx, nameKey(n.name), n.name), func(error) { *n.order = append(*n.order, "-"+n.name) }
}
