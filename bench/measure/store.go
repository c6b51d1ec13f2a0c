package measure

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/onefill/onefill/bench/peers"
)

// StoreHits measures reads of what is in the shared cache and not in the process.
func StoreHits(s Sizes) *Measure {
	m := &Measure{
		Name: "store-hit", Title: "A hit in the shared cache",
		About:  fmt.Sprintf("Values of %d bytes that are in Redis or memcached and not in the process; wall time per operation of all goroutines together. Peers whose in-process cache cannot be turned off (cold) read each key once, from a fresh instance. The clients alone share no load and fence nothing: they are the floor.", peers.ValueSize),
		Anchor: "rueidis Do", AnchorMemcached: "gomemcache",
		Open: openStore,
	}
	shown := s.Widths[len(s.Widths)-1]
	if slices.Contains(s.Widths, 64) {
		shown = 64
	}
	m.Plots = []Plot{{File: "bench-store-hit", Title: fmt.Sprintf("A hit in the shared cache, %d goroutines", shown), Columns: []string{fmt.Sprintf("us_%d", shown)}, Y: "µs"}}
	for _, g := range s.Widths {
		column := fmt.Sprintf("us_%d", g)
		m.Columns = append(m.Columns, Column{column, plural(g) + ", µs", 1})
		m.Compared = append(m.Compared, column)
		m.Targets = append(m.Targets, Target{Row: "onefill", Column: column, Anchor: "rueidis Do", Limit: 1.25},
			Target{Row: "onefill, no tracking", Column: column, Anchor: "rueidis Do", Limit: 1.25},
			Target{Row: "onefill on memcached", Column: column, Anchor: "gomemcache", Limit: 1})
	}
	m.Columns = append(m.Columns, Column{"allocs", "allocations", 1})
	m.Targets = append(m.Targets, Target{Row: "onefill", Column: "allocs", Limit: 6.05}, Target{Row: "onefill on memcached", Column: "allocs", Limit: 6.05})
	return m
}

func plural(g int) string {
	if g == 1 {
		return "1 goroutine"
	}
	return fmt.Sprintf("%d goroutines", g)
}

func openStore(ctx context.Context, e *Env) ([]Row, error) {
	at, err := e.at(ctx)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, p := range e.pick(peers.Store()) {
		n := e.Size.StoreKeys
		if p.Cold {
			n = e.Size.ColdKeys
		}
		keys := newKeys("store").keys(n)
		if err := fillKeys(ctx, p, at, keys); err != nil {
			return rows, fmt.Errorf("%s: %w", p.Name, err)
		}
		w := &warmStore{p: p, at: at, keys: keys}
		rows = append(rows, Row{Name: p.Name, Peer: &p, Close: w.close, Round: func(ctx context.Context) (Values, error) { return w.round(ctx, e) }})
	}
	return rows, nil
}

// warmStore reads keys that are in the store: over and over through one instance, or once
// each through a fresh one.
type warmStore struct {
	p    peers.Peer
	at   peers.Servers
	keys []string
	c    peers.Cache
}

func (w *warmStore) close() {
	if w.c != nil {
		w.c.Close()
		w.c = nil
	}
}

func (w *warmStore) open(ctx context.Context) (err error) {
	if w.p.Cold {
		w.close()
	}
	if w.c != nil {
		return nil
	}
	if w.c, err = w.p.New(w.at); err != nil {
		return err
	}
	// Connections are opened, and the first key is not read again where that matters.
	return inParallel(16, func(int) error {
		_, err := w.c.Get(ctx, w.keys[0], noLoad)
		return err
	})
}

func (w *warmStore) round(ctx context.Context, e *Env) (Values, error) {
	values := Values{}
	call := context.WithoutCancel(ctx) // with one that can be cancelled, onefill makes a context of each call: 5 allocations more
	for _, g := range e.Size.Widths {
		if err := w.open(ctx); err != nil {
			return nil, err
		}
		var next atomic.Int64
		p, err := throughput(g, 1, e.Size.Slice, func(worker, i int) error {
			n := worker + i*g
			if w.p.Cold {
				if n = int(next.Add(1)); n >= len(w.keys) {
					return errOutOfWork
				}
			}
			_, err := w.c.Get(call, w.keys[n%len(w.keys)], noLoad)
			return err
		})
		if err != nil {
			return nil, err
		}
		values[fmt.Sprintf("us_%d", g)] = p.us()
		values["allocs"] = p.allocs // of the widest: start-up counts least there
	}
	return values, nil
}
