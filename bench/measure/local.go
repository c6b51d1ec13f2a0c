package measure

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"

	"github.com/onefill/onefill/bench/peers"
)

// LocalHits measures reads of what is in the process.
func LocalHits(s Sizes) *Measure {
	return &Measure{
		Name: "local-hit", Title: "A hit in the process",
		About: fmt.Sprintf("%d keys of %d bytes, in the order of a Zipf distribution (1.01) over a random permutation; serial is one goroutine, parallel one for each of the %d CPUs.",
			s.LocalKeys, peers.ValueSize, runtime.GOMAXPROCS(0)),
		Columns: []Column{{"serial", "serial, ns", 0}, {"parallel", "parallel, ns", 0}, {"allocs", "allocations", 2}},
		Anchor:  "otter, loader", Compared: []string{"serial", "parallel"},
		Targets: []Target{
			{Row: "onefill", Column: "serial", Anchor: "otter, loader", Limit: 1.15},
			{Row: "onefill", Column: "parallel", Anchor: "otter, loader", Limit: 1.15},
			{Row: "onefill with a store", Column: "serial", Anchor: "otter, loader", Limit: 1.15},
			{Row: "onefill", Column: "allocs", Limit: 0.005},
			{Row: "onefill with a store", Column: "allocs", Limit: 0.005},
		},
		Plots: []Plot{{File: "bench-local-hit", Title: "A hit in the process, one goroutine", Columns: []string{"serial"}, Y: "ns"}},
		Open:  openLocal,
	}
}

func openLocal(ctx context.Context, e *Env) ([]Row, error) {
	at, err := e.at(ctx)
	if err != nil {
		return nil, err
	}
	names, order := zipfOrder(e.Size.LocalKeys)
	var rows []Row
	for _, p := range peers.Locals() {
		if p.PolicyOnly || !e.wants(p.Name) {
			continue
		}
		c, err := p.New(at, 2*len(names))
		if err != nil {
			return rows, fmt.Errorf("%s: %w", p.Name, err)
		}
		fillLocal(p, c, names, func(int) []byte { return peers.Value() })
		rows = append(rows, Row{Name: p.Name, How: p.How, Close: c.Close, Round: func(context.Context) (Values, error) { return localRound(e, c, order) }})
	}
	return rows, nil
}

// fillLocal stores names, in parallel where each is a round trip.
func fillLocal(p peers.LocalPeer, c peers.Local, names []string, value func(i int) []byte) {
	set := func(i int) error {
		c.Set(names[i], value(i))
		return nil
	}
	if p.Shared {
		_ = inParallel(len(names), set) // set does not fail: what is not there shows as a miss
		return
	}
	for i := range names {
		_ = set(i)
	}
}

// zipfOrder are n names, and an order in which to read them whose length is a power of two.
func zipfOrder(n int) (names, order []string) {
	names = make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("user:profile:%08d", i)
	}
	r := rand.New(rand.NewPCG(1, 2))
	z, perm := rand.NewZipf(r, 1.01, 1, uint64(n-1)), r.Perm(n)
	order = make([]string, 1<<20)
	for i := range order {
		order[i] = names[perm[z.Uint64()]]
	}
	return names, order
}

func localRound(e *Env, c peers.Local, order []string) (Values, error) {
	read := func(w, i int) error {
		k := order[(w*524_287+i)&(len(order)-1)]
		if v, ok := c.Hit(k); !ok || len(v) != peers.ValueSize {
			return fmt.Errorf("%q: a miss, or a wrong value", k)
		}
		return nil
	}
	serial, err := throughput(1, 64, e.Size.Slice, read)
	if err != nil {
		return nil, err
	}
	parallel, err := throughput(runtime.GOMAXPROCS(0), 64, e.Size.Slice, read)
	if err != nil {
		return nil, err
	}
	return Values{"serial": serial.ns(), "parallel": parallel.ns(), "allocs": serial.allocs}, nil
}
