package measure

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill/bench/peers"
)

// herdTimeout bounds one herd, for peers that stall.
const herdTimeout = 15 * time.Second

// stampede is what one herd has shown.
type stampede struct {
	Late   []time.Duration // each caller's latency
	Failed int             // callers without the value
	Allocs float64         // a caller
}

// release lets n callers of one key go at once.
func release(ctx context.Context, c peers.Cache, key string, n int, load peers.Loader) stampede {
	ctx, cancel := context.WithTimeout(ctx, herdTimeout)
	defer cancel()
	s := stampede{Late: make([]time.Duration, n)}
	var ready, done sync.WaitGroup
	var failed atomic.Int64
	var start time.Time // written before gate is closed
	gate := make(chan struct{})
	ready.Add(n)
	done.Add(n)
	for i := range n {
		go func() {
			defer done.Done()
			ready.Done()
			<-gate
			b, err := c.Get(ctx, key, load)
			s.Late[i] = time.Since(start)
			if err != nil || len(b) != peers.ValueSize {
				failed.Add(1)
			}
		}()
	}
	ready.Wait()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start = time.Now()
	close(gate)
	done.Wait()
	runtime.ReadMemStats(&after)
	s.Failed, s.Allocs = int(failed.Load()), float64(after.Mallocs-before.Mallocs)/float64(n)
	return s
}

// percentile of sorted numbers.
func percentile(sorted []time.Duration, p float64) float64 {
	return float64(sorted[min(len(sorted)-1, int(p*float64(len(sorted))))].Microseconds()) / 1e3
}

// overhead is the callers' latency less the load's, p50 and p99 in ms.
func overhead(late []time.Duration) (p50, p99 float64) {
	slices.Sort(late)
	return percentile(late, .5), percentile(late, .99)
}

// Herds measures many callers of one process that miss the same key.
func Herds(s Sizes) *Measure {
	most := s.HerdSizes[len(s.HerdSizes)-1]
	m := &Measure{
		Name: "herd", Title: "A herd in one process",
		About: fmt.Sprintf("Callers at a barrier ask for one absent key; the load takes %v, which is subtracted. Commands are those that clients sent to Redis or memcached for a herd of %d, allocations those of a caller of that herd.", s.HerdLoad, most),
		Open:  openHerds,
	}
	for _, n := range s.HerdSizes {
		m.Compared = append(m.Compared, fmt.Sprintf("p50_%d", n), fmt.Sprintf("p99_%d", n))
		m.Columns = append(m.Columns, Column{fmt.Sprintf("p50_%d", n), fmt.Sprintf("%d callers, p50 ms", n), 2}, Column{fmt.Sprintf("p99_%d", n), "p99 ms", 2})
	}
	m.Columns = append(m.Columns, Column{"loads", "loads", 1}, Column{"commands", "commands", 1}, Column{"allocs", "allocations", 2})
	m.Anchor = "otter"
	p50, p99 := fmt.Sprintf("p50_%d", most), fmt.Sprintf("p99_%d", most)
	for _, row := range []string{"onefill, local only", "onefill"} {
		m.Targets = append(m.Targets, Target{Row: row, Column: p50, Anchor: "otter", Limit: 1}, Target{Row: row, Column: p99, Anchor: "otter", Limit: 1},
			Target{Row: row, Column: "allocs", Limit: 1.05}, Target{Row: row, Column: "loads", Limit: 1})
	}
	m.Targets = append(m.Targets, Target{Row: "onefill", Column: "commands", Limit: 4}, Target{Row: "onefill, no tracking", Column: "commands", Limit: 4})
	m.Plots = []Plot{{File: "bench-herd", Title: fmt.Sprintf("%d callers of one process: overhead, p50", most), Columns: []string{p50}, Y: "ms"}}
	return m
}

func openHerds(ctx context.Context, e *Env) ([]Row, error) {
	at, err := e.at(ctx)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, p := range e.pick(peers.Herd()) {
		rows = append(rows, Row{Name: p.Name, Peer: &p, Round: func(ctx context.Context) (Values, error) { return herdRound(ctx, e, p, at) }})
	}
	return rows, nil
}

// herdRound opens the peer for this round only: others that are open talk to the server.
func herdRound(ctx context.Context, e *Env, p peers.Peer, at peers.Servers) (Values, error) {
	c, err := p.New(at)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	keys, loads := newKeys("herd"), new(atomic.Int64)
	slow := slowly(e.Size.HerdLoad, loads)
	release(ctx, c, keys.key(), 200, slow) // opens connections, loads scripts
	if err := pause(ctx, settle); err != nil {
		return nil, err
	}
	values := Values{}
	for _, n := range e.Size.HerdSizes {
		var late []time.Duration
		loads.Store(0)
		for range e.Size.Herds {
			s := release(ctx, c, keys.key(), n, slow)
			if s.Failed > 0 {
				return nil, fmt.Errorf("%d of %d callers got no value", s.Failed, n)
			}
			for _, l := range s.Late {
				late = append(late, l-e.Size.HerdLoad)
			}
			values["allocs"] = s.Allocs
		}
		values[fmt.Sprintf("p50_%d", n)], values[fmt.Sprintf("p99_%d", n)] = overhead(late)
		values["loads"] = float64(loads.Load()) / float64(e.Size.Herds)
	}
	commands, err := countCommands(ctx, p, at, func() error {
		release(ctx, c, keys.key(), e.Size.HerdSizes[len(e.Size.HerdSizes)-1], slow)
		return nil
	})
	values["commands"] = float64(commands)
	return values, err
}

// countCommands counts what fn makes clients send, and what they send in the background
// right after.
func countCommands(ctx context.Context, p peers.Peer, at peers.Servers, fn func() error) (int, error) {
	if p.Memcached {
		before, err := memcachedCommands(ctx, at.Memcached)
		if err != nil {
			return 0, err
		}
		if err := fn(); err != nil {
			return 0, err
		}
		if err := pause(ctx, settle); err != nil {
			return 0, err
		}
		after, err := memcachedCommands(ctx, at.Memcached)
		return after - before, err
	}
	m, err := watchCommands(ctx, at.Redis)
	if err != nil {
		return 0, err
	}
	err = fn()
	if err == nil {
		err = pause(ctx, settle)
	}
	total, stopErr := m.stop(ctx)
	if err == nil {
		err = stopErr
	}
	return total, err
}
