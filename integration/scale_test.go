package integration

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/redisstore"
)

// TestScaleFleet compares what docs/scale.md computes with what a fleet does: twenty caches,
// each with a connection of its own, ask one Redis for keys by Zipf's law, at moments that
// do not depend on the answers, while some of them are invalidated by the same law. Redis counts the
// commands and the entries of the tracking table, the connections the pushes. Each
// figure is within 15 % of the computed one, in one of three rounds; with the race detector
// one smaller fleet is looked at, within 30 %.
//
// The order: the fleet runs for longer than a TTL | counters are read | it runs on |
// counters are read again, and compared.
func TestScaleFleet(t *testing.T) {
	base := plan{processes: 20, rate: 30, keys: 150, skew: 1, writes: 9, ttl: 1.5 * meanJitter, localTTL: 0.4, load: 0.02, pushes: true}
	if raceEnabled {
		// A cache is ten times slower, and what is to be compared would be how busy it is.
		base.rate, base.keys, base.writes = base.rate/3, base.keys/3, base.writes/3
	}
	long, calm := base, base
	long.localTTL, long.writes = long.ttl, 1
	calm.pushes, calm.writes, calm.localTTL = false, 0, 0.2
	for _, c := range []struct {
		name string
		plan plan
	}{
		{"Local.TTL is shorter than TTL", base},
		{"Local.TTL is TTL, few writes", long},
		{"no pushes", calm},
	} {
		t.Run(c.name, func(t *testing.T) {
			if raceEnabled && c.plan != base {
				t.Skip("with the race detector one fleet is as much as a busy machine can do")
			}
			t.Parallel() // they wait most of the time
			compareFleet(t, c.plan)
		})
	}
}

// meanJitter: a TTL is longer by up to a tenth.
const meanJitter = 1.05

// compareFleet lets a fleet run, and counts. A round in which the machine had no time for it
// says nothing about the formulas, so the best of a few has to be right.
func compareFleet(t *testing.T, p plan) {
	const rounds = 3
	tolerance := 0.15
	if raceEnabled {
		tolerance = 0.3 // there is less to count, and it is late
	}
	var wrong []string
	for range rounds {
		if wrong = runFleet(t, p, tolerance); len(wrong) == 0 {
			return
		}
	}
	t.Errorf("in each of %d rounds something was more than %.0f %% off; in the last one:\n%s", rounds, 100*tolerance, strings.Join(wrong, "\n"))
}

// runFleet returns what differs.
func runFleet(t *testing.T, p plan, tolerance float64) (wrong []string) {
	const warmUp, measured = 2500 * time.Millisecond, 6 * time.Second
	server := pageRedis(t)
	admin := adminOf(t, server)
	f := newScaleFleet(t, server, p)
	defer f.stop()
	f.start()
	f.runFor(warmUp)
	recording, before, begin := record(t, server), f.counters(), time.Now()
	f.runFor(measured)
	sent, after := recording.stop(), f.counters()
	took := time.Since(begin).Seconds()
	pairs := admin.info("stats", "tracking_total_items")

	commands := map[string]float64{}
	for _, each := range sent {
		for _, name := range each {
			commands[name]++
		}
	}
	within := func(what string, counted, computed float64) {
		line := fmt.Sprintf("%-28s %9.4g counted, %9.4g computed: %+.1f %%", what, counted, computed, 100*(counted/computed-1))
		t.Log(line)
		if math.Abs(counted/computed-1) > tolerance {
			wrong = append(wrong, line)
		}
	}
	d := p.demand()
	requests := after.requests - before.requests
	within("requests", requests/took, d.requests)
	within("hits in local", (after.local-before.local)/requests, d.localHits)
	within("GET", commands["GET"]/took, d.gets)
	within("EVALSHA", commands["EVALSHA"]/took, d.acquires+d.loads+d.invalidates)
	within("loads", (after.loads-before.loads)/took, d.loads)
	if p.pushes {
		within("EXISTS", commands["EXISTS"]/took, d.loads+d.invalidates)
		within("pushes", (after.pushes-before.pushes)/took, d.pushes)
		within("pairs in the tracking table", pairs, d.trackedPairs)
	}
	return wrong
}

// scaleFleet is a plan that runs.
type scaleFleet struct {
	t      *testing.T
	plan   plan
	caches []*onefill.Cache[string, string]
	shares []float64 // by rank: of it and all before it
	heard  atomic.Int64
	asked  atomic.Int64
	life   context.Context // of the fleet's goroutines
	end    context.CancelFunc
	users  sync.WaitGroup
	room   chan struct{} // a token for each call under way: a fleet that cannot keep up ends all the same
}

func newScaleFleet(t *testing.T, server *servers.Server, p plan) *scaleFleet {
	t.Helper()
	f := &scaleFleet{t: t, plan: p, room: make(chan struct{}, 500)}
	f.life, f.end = context.WithCancel(context.Background())
	t.Cleanup(f.stop)
	sum := 0.0
	for rank := 1; rank <= p.keys; rank++ {
		sum += p.zipf(rank, rank)
		f.shares = append(f.shares, sum)
	}
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	for range p.processes {
		cache, err := onefill.New(onefill.Options[string, string]{
			Name: "scale", Store: f.store(server), TTL: seconds(p.ttl / meanJitter),
			Local: onefill.LocalOptions{TTL: seconds(p.localTTL)}, StoreTimeout: patience / 3,
			Logger: slog.New(slog.DiscardHandler),
			Load: func(ctx context.Context, _ string) (string, error) {
				wait(ctx, seconds(p.load))
				return strings.Repeat("x", 1000), nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cache.Close() })
		f.caches = append(f.caches, cache)
	}
	return f
}

func (f *scaleFleet) store(server *servers.Server) *redisstore.Store {
	if f.plan.pushes {
		return tracked(f.t, server, &f.heard)
	}
	st, err := redisstore.Open(server.URL(), redisstore.NoTracking())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { st.Close() })
	return st
}

// wait is the time that a load takes, and that passes between two requests.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// start lets each process ask, and writers write, at random moments.
func (f *scaleFleet) start() {
	for i, cache := range f.caches {
		f.atRate(uint64(i), f.plan.rate, func(key string) error {
			f.asked.Add(1)
			_, err := cache.Get(f.life, key)
			return err
		})
		f.atRate(uint64(1000+i), f.plan.writes/float64(f.plan.processes), func(key string) error { return cache.Invalidate(f.life, key) })
	}
}

// atRate does something at moments of a Poisson process, whether what it did before has
// ended or not; a moment that the machine was too busy for is made up for.
func (f *scaleFleet) atRate(seed uint64, rate float64, do func(key string) error) {
	if rate == 0 {
		return
	}
	random := rand.New(rand.NewPCG(seed, 1))
	f.users.Go(func() {
		for next := time.Now(); f.life.Err() == nil; {
			next = next.Add(time.Duration(random.ExpFloat64() / rate * float64(time.Second)))
			wait(f.life, time.Until(next))
			key := fmt.Sprint("k", sort.SearchFloat64s(f.shares, random.Float64()*f.shares[len(f.shares)-1]))
			select {
			case f.room <- struct{}{}:
			case <-f.life.Done():
				return
			}
			f.users.Go(func() {
				defer func() { <-f.room }()
				if err := do(key); err != nil && f.life.Err() == nil {
					f.t.Errorf("%s: %v", key, err)
				}
			})
		}
	})
}

func (f *scaleFleet) runFor(d time.Duration) { wait(f.life, d) }

func (f *scaleFleet) stop() {
	f.end()
	f.users.Wait()
}

type scaleCounters struct{ requests, local, loads, pushes float64 }

func (f *scaleFleet) counters() (c scaleCounters) {
	for _, cache := range f.caches {
		s := cache.Stats()
		c.local += float64(s.LocalHits)
		c.loads += float64(s.Loads)
	}
	c.requests, c.pushes = float64(f.asked.Load()), float64(f.heard.Load())
	return c
}
