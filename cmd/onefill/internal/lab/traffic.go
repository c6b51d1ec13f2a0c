package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// traffic is the load of an outage scenario, as one process makes it.
type traffic struct {
	Keys      int           `json:"keys"`       // see trafficKey
	PerSecond float64       `json:"per_second"` // calls, begun at even intervals whatever becomes of them
	Timeout   time.Duration `json:"timeout_ns"` // bound on a call
	// Connections to the origin, and how long a load waits for one. A load that gets
	// none has failed: so does the pool of an application.
	Connections int           `json:"connections"`
	Patience    time.Duration `json:"patience_ns"`
}

// trafficKey is the i-th key of a cell's traffic.
func trafficKey(cell string, i int) string { return fmt.Sprintf("%s-%d", cell, i) }

// pooled puts a pool of connections, and the queue for them, before the origin.
func pooled(ask load, connections int, patience time.Duration) load {
	free := make(chan struct{}, connections)
	return func(ctx context.Context, key string) (string, error) {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case free <- struct{}{}:
		case <-timer.C:
			return "", fmt.Errorf("no connection to the database was free within %v", patience)
		case <-ctx.Done():
			return "", ctx.Err()
		}
		defer func() { <-free }()
		return ask(ctx, key)
	}
}

// generator makes the traffic of one process.
type generator struct {
	cell    *workerCell
	traffic traffic
	stop    chan struct{}
	ended   sync.WaitGroup // the clock, and all calls

	mu    sync.Mutex // guards calls
	calls []Call
}

// generate starts the traffic and returns.
func (cell *workerCell) generate(ctx context.Context, t traffic) *generator {
	g := &generator{cell: cell, traffic: t, stop: make(chan struct{})}
	g.ended.Go(func() { g.run(ctx) })
	return g
}

// run begins calls at even intervals. If the process was held up it begins those
// that are due at once, so their number does not depend on the answers.
func (g *generator) run(ctx context.Context) {
	interval := time.Duration(float64(time.Second) / g.traffic.PerSecond)
	// The same keys in the same order in every mode.
	dice := rand.New(rand.NewPCG(1, uint64(g.cell.process)))
	begin := time.Now()
	for n := 0; ; n++ {
		timer := time.NewTimer(time.Until(begin.Add(time.Duration(n) * interval)))
		select {
		case <-timer.C:
		case <-g.stop:
			timer.Stop()
			return
		}
		key := trafficKey(g.cell.key, dice.IntN(g.traffic.Keys))
		g.ended.Go(func() { g.call(ctx, n, key) })
	}
}

func (g *generator) call(ctx context.Context, n int, key string) {
	ctx, cancel := context.WithTimeout(ctx, g.traffic.Timeout)
	defer cancel()
	c := g.cell.call(ctx, n, phaseTraffic, key)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls = append(g.calls, c)
}

// halt ends the traffic and returns the calls, when all have their answers.
func (g *generator) halt() []Call {
	close(g.stop)
	g.ended.Wait()
	return g.calls
}

// since returns the calls that began at or after a moment and have ended.
func (g *generator) since(us int64) []Call {
	g.mu.Lock()
	defer g.mu.Unlock()
	var recent []Call
	for _, c := range g.calls {
		if c.StartUS >= us {
			recent = append(recent, c)
		}
	}
	return recent
}

// fill makes the store hold, before the traffic, the keys of which this process
// fills a share. Their ends lie at even distances over one TTL, as in a cache that has
// been in use for long; the first ends when the traffic has begun.
func (cell *workerCell) fill(ctx context.Context, keys, share, of int) error {
	var errs []error
	for i := share; i < keys; i += of {
		ttl := fillTakes + cell.ttl*time.Duration(i)/time.Duration(keys)
		_, err := cell.reader.Get(withTTL(ctx, ttl), trafficKey(cell.key, i))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// fillTakes is about what there is between the filling of a key and the traffic.
const fillTakes = 200 * time.Millisecond

type ttlKey struct{}

// withTTL makes what is loaded with the context live for ttl instead of as the
// cell's setup says.
func withTTL(ctx context.Context, ttl time.Duration) context.Context {
	return context.WithValue(ctx, ttlKey{}, ttl)
}

func ttlOf(ctx context.Context, otherwise time.Duration) time.Duration {
	if ttl, ok := ctx.Value(ttlKey{}).(time.Duration); ok {
		return ttl
	}
	return otherwise
}
