package measure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/onefill/onefill/bench/peers"
)

const batch = 100

// ManyHits measures reads of many keys in one call.
func ManyHits(s Sizes) *Measure {
	return &Measure{
		Name: "many", Title: fmt.Sprintf("%d keys in one call", batch),
		About:   fmt.Sprintf("All in the shared cache, none in the process; wall time per call of %d keys. go-redis/cache, gocache and rueidisaside have no such call.", batch),
		Columns: []Column{{"us_1", "1 goroutine, µs", 0}, {"us_8", "8 goroutines, µs", 0}, {"allocs", "allocations", 0}},
		Anchor:  "rueidis Do", AnchorMemcached: "gomemcache", Compared: []string{"us_1", "us_8"},
		Targets: []Target{
			{Row: "onefill", Column: "us_1", Anchor: "rueidis Do", Limit: 1.3}, {Row: "onefill", Column: "us_8", Anchor: "rueidis Do", Limit: 1.3},
			{Row: "onefill, no tracking", Column: "us_1", Anchor: "rueidis Do", Limit: 1.3}, {Row: "onefill, no tracking", Column: "us_8", Anchor: "rueidis Do", Limit: 1.3},
			{Row: "onefill on memcached", Column: "us_1", Anchor: "gomemcache", Limit: 1.3}, {Row: "onefill on memcached", Column: "us_8", Anchor: "gomemcache", Limit: 1.3},
		},
		Plots: []Plot{{File: "bench-many", Title: fmt.Sprintf("%d keys in one call, 8 goroutines", batch), Columns: []string{"us_8"}, Y: "µs"}},
		Open:  openMany,
	}
}

func openMany(ctx context.Context, e *Env) ([]Row, error) {
	at, err := e.at(ctx)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, p := range e.pick(peers.Many()) {
		sets := make([][]string, e.Size.ManyCalls)
		for i := range sets {
			sets[i] = newKeys("many").keys(batch)
		}
		w := &manyStore{p: p, at: at, sets: sets}
		if err := w.fill(ctx); err != nil {
			return rows, fmt.Errorf("%s: %w", p.Name, err)
		}
		rows = append(rows, Row{Name: p.Name, Peer: &p, Close: w.close, Round: func(ctx context.Context) (Values, error) { return w.round(ctx, e) }})
	}
	return rows, nil
}

type manyStore struct {
	p    peers.Peer
	at   peers.Servers
	sets [][]string
	c    peers.ManyCache
}

// fill writes through bulk loads where the peer has them: some have other keys there.
func (w *manyStore) fill(ctx context.Context) error {
	if w.p.OneLoad == peers.NoScope { // a client alone has none
		return fillKeys(ctx, w.p, w.at, slices.Concat(w.sets...))
	}
	return fill(w.p, w.at, func(c peers.Cache, loads *atomic.Int64) error {
		many, ok := c.(peers.ManyCache)
		if !ok {
			return errors.New("it cannot read many keys in one call")
		}
		for _, keys := range w.sets {
			if _, err := many.GetMany(ctx, keys, counted(loads)); err != nil {
				return err
			}
		}
		return pause(ctx, settle)
	})
}

func (w *manyStore) open() error {
	c, err := w.p.New(w.at)
	if err != nil {
		return err
	}
	many, ok := c.(peers.ManyCache)
	if !ok {
		c.Close()
		return fmt.Errorf("%s cannot read many keys in one call", w.p.Name)
	}
	w.c = many
	return nil
}

func (w *manyStore) close() {
	if w.c != nil {
		w.c.Close()
		w.c = nil
	}
}

func (w *manyStore) round(ctx context.Context, e *Env) (Values, error) {
	values, call := Values{}, context.WithoutCancel(ctx) // as for one key
	for _, g := range []int{1, 8} {
		if w.c == nil || w.p.Cold {
			w.close()
			if err := w.open(); err != nil {
				return nil, err
			}
		}
		var next atomic.Int64
		p, err := throughput(g, 1, 2*e.Size.Slice, func(int, int) error {
			n := int(next.Add(1)) - 1
			if w.p.Cold && n >= len(w.sets) {
				return errOutOfWork
			}
			got, err := w.c.GetMany(call, w.sets[n%len(w.sets)], noLoadMany)
			if err == nil && len(got) != batch {
				err = fmt.Errorf("got %d of %d keys", len(got), batch)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		values[fmt.Sprintf("us_%d", g)], values["allocs"] = p.us(), p.allocs
	}
	return values, nil
}
