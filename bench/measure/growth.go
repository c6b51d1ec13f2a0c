package measure

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/bench/peers"
)

// How onefill's costs grow: rows are sizes, columns are what is compared.

// find takes peers by name; these measures are about a few of them.
func find(all []peers.Peer, names ...string) (out []peers.Peer) {
	for _, name := range names {
		for _, p := range all {
			if p.Name == name {
				out = append(out, p)
			}
		}
	}
	return out
}

// GrowingFleet measures the commands of a herd against the number of processes.
func GrowingFleet(s Sizes) *Measure {
	who := []string{"onefill", "onefill, no tracking", "singleflight", "singleflight + SET NX + pub/sub", "rueidisaside"}
	last := strconv.Itoa(s.Processes[len(s.Processes)-1])
	m := &Measure{
		Name: "grow-processes", Title: "Commands of a herd against processes", RowHead: "processes", Rounds: 1,
		About: fmt.Sprintf("As the herd of several processes, %d callers each: Redis commands for one herd.", s.FleetSize),
		Plots: []Plot{{File: "bench-grow-processes", Title: "Redis commands of a herd against processes", Columns: who, Lines: true, X: "processes", Y: "commands", LogY: true}},
		Open: func(ctx context.Context, e *Env) ([]Row, error) {
			at, err := e.at(ctx)
			if err != nil {
				return nil, err
			}
			var rows []Row
			for _, n := range e.Size.Processes {
				rows = append(rows, Row{Name: strconv.Itoa(n), Round: func(ctx context.Context) (Values, error) {
					values := Values{}
					for _, p := range find(peers.FleetPeers(), who...) {
						v, err := fleetRound(ctx, e, p, at, n, e.Size.FleetSize, 1)
						if err != nil {
							return nil, fmt.Errorf("%s: %w", p.Name, err)
						}
						values[p.Name] = v["commands"]
					}
					return values, nil
				}})
			}
			return rows, nil
		},
	}
	for _, name := range who {
		m.Columns = append(m.Columns, Column{name, name, 0})
	}
	m.Targets = []Target{{Row: last, Column: "onefill", Limit: 5 * float64(s.Processes[len(s.Processes)-1]), Text: "at most 5 a process"}}
	return m
}

// GrowingHerd measures what a caller who waits costs.
func GrowingHerd(s Sizes) *Measure {
	most := strconv.Itoa(s.Callers[len(s.Callers)-1])
	return &Measure{
		Name: "grow-callers", Title: "What callers who wait cost", RowHead: "callers", Rounds: (s.Rounds + 1) / 2,
		About: "Callers of one process wait for the load of one key. Redis commands of the whole herd; memory (heap and stacks) for each caller, its own goroutine included, which has at least 2 KB of stack; goroutines of the cache beside those of the callers. A caller at a channel is what waiting costs without any cache.",
		Columns: []Column{{"commands", "Redis commands", 0}, {"goroutines", "goroutines beside the callers", 0}, {"allocs", "allocations a caller", 2},
			{"onefill", "onefill, bytes", 0}, {"otter", "otter, bytes", 0}, {"singleflight", "singleflight, bytes", 0}, {"channel", "at a channel, bytes", 0}},
		Targets: []Target{{Row: most, Column: "commands", Limit: 4}, {Row: most, Column: "onefill", Limit: 3 * 1024}, {Row: most, Column: "goroutines", Limit: 5}, {Row: most, Column: "allocs", Limit: 1.05}},
		Plots: []Plot{{File: "bench-grow-callers", Title: "Memory of a caller who waits", Columns: []string{"onefill", "otter", "singleflight", "channel"}, Lines: true, X: "callers", Y: "bytes", LogX: true},
			{File: "bench-grow-commands", Title: "Redis commands of a herd against callers", Columns: []string{"commands"}, Lines: true, X: "callers", Y: "commands", LogX: true}},
		Open: func(ctx context.Context, e *Env) ([]Row, error) {
			at, err := e.at(ctx)
			if err != nil {
				return nil, err
			}
			var rows []Row
			for _, n := range e.Size.Callers {
				rows = append(rows, Row{Name: strconv.Itoa(n), Round: func(ctx context.Context) (Values, error) { return waitingRound(ctx, at, n) }})
			}
			return rows, nil
		},
	}
}

func waitingRound(ctx context.Context, at peers.Servers, callers int) (Values, error) {
	gate := make(chan struct{})
	channel, err := parked(ctx, callers, func() { <-gate }, func() { close(gate) })
	if err != nil {
		return nil, err
	}
	values := Values{}
	values.weigh("channel", channel, callers)
	for _, p := range find(peers.Herd(), "otter", "singleflight", "onefill") {
		c, err := p.New(at)
		if err != nil {
			return nil, err
		}
		err = waitingIn(ctx, p, c, at, callers, values)
		c.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	return values, nil
}

// waitingIn is one peer's part. Commands, goroutines and allocations are those of the last.
func waitingIn(ctx context.Context, p peers.Peer, c peers.Cache, at peers.Servers, callers int, values Values) error {
	keys := newKeys("waiting")
	release(ctx, c, keys.key(), callers, load) // opens connections, loads scripts, makes what is kept
	commands, err := countCommands(ctx, p, at, func() error {
		key, open := keys.key(), make(chan struct{})
		blocked := func(context.Context, string) ([]byte, error) {
			<-open
			return peers.Value(), nil
		}
		inGet, err := parked(ctx, callers, func() { _, _ = c.Get(ctx, key, blocked) }, func() { close(open) })
		values.weigh(p.Name, inGet, callers)
		values["goroutines"] = inGet.beside
		return err
	})
	if err != nil {
		return err
	}
	s := release(ctx, c, keys.key(), callers, slowly(20*time.Millisecond, new(atomic.Int64)))
	if s.Failed > 0 {
		return fmt.Errorf("%d of %d callers got no value", s.Failed, callers)
	}
	values["commands"], values["allocs"] = float64(commands), s.Allocs
	return nil
}

// crowd is what goroutines cost that wait: memory of each, and goroutines beside them.
type crowd struct{ bytes, beside float64 }

// Weighable is how many are needed to see what each takes, beside what else the process does
// with its memory meanwhile. What fewer take is not measured.
const Weighable = 100

// weigh notes what each of n takes.
func (v Values) weigh(column string, c crowd, n int) {
	if n >= Weighable {
		v[column] = c.bytes
	}
}

// parked starts n goroutines that wait, looks, opens, and waits for their end.
func parked(ctx context.Context, n int, wait, open func()) (crowd, error) {
	var done sync.WaitGroup
	done.Add(n)
	memory, goroutines := footprint(), runtime.NumGoroutine()
	for range n {
		go func() {
			defer done.Done()
			wait()
		}()
	}
	err := pause(ctx, 3*settle) // until all are there
	c := crowd{float64(footprint()-memory) / float64(n), float64(runtime.NumGoroutine() - goroutines - n)}
	open()
	done.Wait()
	return c, err
}

// footprint is the memory of heap and stacks that is in use.
func footprint() int64 {
	runtime.GC()
	runtime.GC() // stacks shrink at a collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// GrowingCache measures a hit in the process against the number of entries.
func GrowingCache(s Sizes) *Measure {
	who := []string{"onefill", "otter, loader", "map, read only"}
	m := &Measure{
		Name: "grow-entries", Title: "A hit in the process against entries", RowHead: "entries", Rounds: 1,
		About: "All keys equally often, so that the more there are the more each is a miss of the processor's caches: the plain map shows how much of it that is. Medians of five slices.",
		Plots: []Plot{{File: "bench-grow-entries", Title: "A hit in the process against entries", Columns: who, Lines: true, X: "entries", Y: "ns", LogX: true}},
		Open: func(ctx context.Context, e *Env) ([]Row, error) {
			var rows []Row
			for n := 1000; n <= e.Size.GrowTo; n *= 10 {
				rows = append(rows, Row{Name: strconv.Itoa(n), Round: func(ctx context.Context) (Values, error) { return entriesRound(ctx, e, who, n) }})
			}
			return rows, nil
		},
	}
	for _, name := range who {
		m.Columns = append(m.Columns, Column{name, name + ", ns", 0})
	}
	for n := 1000; n <= s.GrowTo; n *= 10 {
		row := strconv.Itoa(n)
		m.Targets = append(m.Targets, Target{Row: row, Column: "onefill", Anchor: row, AnchorColumn: "otter, loader", Limit: 1.15})
	}
	return m
}

func entriesRound(ctx context.Context, e *Env, who []string, n int) (Values, error) {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("user:profile:%011d", i)
	}
	r := rand.New(rand.NewPCG(3, 4))
	order := make([]int32, 1<<20)
	for i := range order {
		order[i] = r.Int32N(int32(n))
	}
	values := Values{}
	for _, p := range peers.Locals() {
		if !slices.Contains(who, p.Name) || ctx.Err() != nil {
			continue
		}
		c, err := p.New(peers.Servers{}, n*12/10)
		if err != nil {
			return nil, err
		}
		for _, k := range names {
			c.Set(k, peers.Value())
		}
		runtime.GC()
		var slices []float64
		misses := 0
		for range 5 {
			p, err := throughput(1, 64, e.Size.Slice, func(_, i int) error {
				if _, ok := c.Hit(names[order[i&(len(order)-1)]]); !ok {
					misses++
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
			slices = append(slices, p.ns())
		}
		c.Close()
		if misses > n/100 {
			return nil, fmt.Errorf("%s: %d misses", p.Name, misses)
		}
		values[p.Name], _ = median(slices)
	}
	return values, ctx.Err()
}

// GrowingFlights measures hits and misses of other keys while keys are in flight.
func GrowingFlights(s Sizes) *Measure {
	least, most := strconv.Itoa(s.InFlight[0]), strconv.Itoa(s.InFlight[len(s.InFlight)-1])
	return &Measure{
		Name: "grow-flights", Title: "Hits and misses while keys are in flight", RowHead: "keys in flight", Rounds: (s.Rounds + 1) / 2,
		About:   "One process without a store, MaxLoads large enough. Each key has a caller who waits and a load that hangs; another goroutine hits one key, or misses others whose load takes no time. Memory is that of a key in flight with its caller.",
		Columns: []Column{{"hit", "a hit, ns", 0}, {"miss", "a miss, µs", 1}, {"bytes", "bytes a key", 0}, {"goroutines", "goroutines a key", 1}},
		Targets: []Target{{Row: most, Column: "hit", Anchor: least, Limit: 1.3}, {Row: most, Column: "miss", Anchor: least, Limit: 2}},
		Plots:   []Plot{{File: "bench-grow-flights", Title: "A miss while other keys are in flight", Columns: []string{"miss"}, Lines: true, X: "keys in flight", Y: "µs", LogX: true}},
		Open: func(ctx context.Context, e *Env) ([]Row, error) {
			var rows []Row
			for _, n := range e.Size.InFlight {
				rows = append(rows, Row{Name: strconv.Itoa(n), Round: func(ctx context.Context) (Values, error) { return flightsRound(ctx, e, n) }})
			}
			return rows, nil
		},
	}
}

func flightsRound(ctx context.Context, e *Env, n int) (Values, error) {
	open := make(chan struct{})
	c, err := onefill.New(onefill.Options[string, []byte]{TTL: peers.TTL, MaxLoads: n + 10, Local: onefill.LocalOptions{MaxEntries: peers.LocalEntries}, Load: load})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	blocked := func(context.Context, string) ([]byte, error) {
		<-open
		return peers.Value(), nil
	}
	keys := newKeys("flights").keys(n)
	var next atomic.Int64
	values := Values{}
	var hits, misses pace
	errs := make(chan error, 1)
	crowd, err := parked(ctx, n, func() { _, _ = c.GetOrLoad(ctx, keys[next.Add(1)-1], blocked) }, func() {
		hits, misses, err = besides(ctx, e, c)
		errs <- err
		close(open)
	})
	if err == nil {
		err = <-errs
	}
	values["hit"], values["miss"], values["goroutines"] = hits.ns(), misses.us(), 1+crowd.beside/float64(n)
	values.weigh("bytes", crowd, n)
	return values, err
}

// besides are hits and misses that have nothing to do with what else goes on.
func besides(ctx context.Context, e *Env, c *onefill.Cache[string, []byte]) (hits, misses pace, err error) {
	if _, err = c.Get(ctx, "hot"); err != nil {
		return
	}
	hits, err = throughput(1, 64, e.Size.Slice, func(int, int) error {
		_, err := c.Get(ctx, "hot")
		return err
	})
	if err != nil {
		return
	}
	fresh := newKeys("besides")
	misses, err = throughput(1, 1, e.Size.Slice, func(int, int) error {
		_, err := c.Get(ctx, fresh.key())
		return err
	})
	return
}

// ColdStarts measures how long an empty cache takes to fill, against MaxLoads.
func ColdStarts(s Sizes) *Measure {
	const none = 1 << 20
	cs := s.ColdStart
	return &Measure{
		Name: "cold-start", Title: "Recovery from an empty cache", RowHead: "MaxLoads", Rounds: (s.Rounds + 1) / 2,
		About: fmt.Sprintf("%d callers of one process each read all of %d keys, in an order of their own. The origin takes %v for a load as long as no more than %d run at once, and beyond that as a database that is overrun: longer by the 1.5th power of how many times too many they are.",
			cs.Callers, cs.Keys, cs.Load, cs.Capacity),
		Columns: []Column{{"seconds", "until everything is there, s", 2}, {"most", "most loads at once", 0}, {"loads", "loads of a key", 2}, {"p99", "p99 of a miss, ms", 0}},
		Targets: []Target{{Row: "20", Column: "most", Limit: 20}, {Row: "5", Column: "most", Limit: 5}, {Row: "20", Column: "loads", Limit: 1}},
		Plots:   []Plot{{File: "bench-cold-start", Title: "Recovery from an empty cache against MaxLoads", Columns: []string{"seconds"}, Y: "s"}},
		Open: func(ctx context.Context, e *Env) ([]Row, error) {
			var rows []Row
			for _, limit := range []int{5, 10, 20, none} {
				name := strconv.Itoa(limit)
				if limit == none {
					name = "none"
				}
				rows = append(rows, Row{Name: name, Round: func(ctx context.Context) (Values, error) { return coldStart(ctx, cs, limit) }})
			}
			return rows, nil
		},
	}
}

// overrun is an origin that gets slower when it is asked too much.
type overrun struct {
	cs                 ColdStart
	running, most, all atomic.Int64
}

func (o *overrun) load(ctx context.Context, _ string) ([]byte, error) {
	n := o.running.Add(1)
	defer o.running.Add(-1)
	o.all.Add(1)
	for m := o.most.Load(); n > m && !o.most.CompareAndSwap(m, n); m = o.most.Load() {
	}
	took := o.cs.Load
	if over := float64(n) / float64(o.cs.Capacity); over > 1 {
		took = time.Duration(float64(took) * math.Pow(over, 1.5))
	}
	if err := pause(ctx, took); err != nil {
		return nil, err
	}
	return peers.Value(), nil
}

func coldStart(ctx context.Context, cs ColdStart, limit int) (Values, error) {
	origin := &overrun{cs: cs}
	c, err := onefill.New(onefill.Options[string, []byte]{TTL: peers.TTL, MaxLoads: limit, MaxLoadsDegraded: min(limit, 5), WaitTimeout: 5 * time.Minute,
		LoadTimeout: time.Minute, Local: onefill.LocalOptions{MaxEntries: 2 * cs.Keys}, Load: origin.load})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	keys := newKeys("cold").keys(cs.Keys)
	errs, waited := make(chan error, cs.Callers), make([][]time.Duration, cs.Callers)
	start := time.Now()
	for caller := range cs.Callers {
		go func() { errs <- walk(ctx, c, keys, uint64(caller), &waited[caller]) }()
	}
	for range cs.Callers {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		return nil, err
	}
	took := time.Since(start)
	all := slices.Concat(waited...)
	slices.Sort(all)
	return Values{"seconds": took.Seconds(), "most": float64(origin.most.Load()), "loads": float64(origin.all.Load()) / float64(cs.Keys), "p99": percentile(all, .99)}, nil
}

// walk reads all keys in an order of its own, and notes how long each miss took.
func walk(ctx context.Context, c *onefill.Cache[string, []byte], keys []string, seed uint64, waited *[]time.Duration) error {
	for _, i := range rand.New(rand.NewPCG(5, seed)).Perm(len(keys)) {
		r, err := c.Fetch(ctx, keys[i])
		if err != nil {
			return err
		}
		if r.Source != onefill.SourceLocal {
			*waited = append(*waited, r.Waited)
		}
	}
	return nil
}
