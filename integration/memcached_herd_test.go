package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

// mostPolls bounds what a waiting process may ask during loadTime. It waits between
// two questions for an eighth of the time waited so far, and for 10 ms, at least: at
// most 8 times up to 80 ms, then ln(250/80)/ln(9/8) = 10 times, the first question,
// the last, which finds the value, and 2 for a load that takes longer than it should.
const mostPolls = 8 + 10 + 1 + 1 + 2

// Four processes with a hundred callers each: one load; the winner asks memcached
// twice, once for value and lease and once to fill; the waiters ask now and then.
func TestMemcachedHerdAcrossProcesses(t *testing.T) {
	t.Parallel()
	const procs, each, rounds = 4, 100, 3
	o := origin(t)
	server := sharedMemcached.Get(t)
	cfg := config{Memcached: []string{server.Addr()}, LeaseTTL: 5 * time.Second}
	for range procs {
		cfg.Taps = append(cfg.Taps, newTap(t, server.Addr()))
	}
	f := startFleet(t, procs, cfg)
	f.herd(each, o.add(t, 0)) // connections are warm
	for range rounds {
		key := o.add(t, loadTime)
		got := f.herd(each, key)
		want(t, got, "", 1)
		o.wantLoads(t, 1, key)
		winner, load := f.loader(key), f.loader(key).loadOf(key)
		p50, p99 := beyond(load, got)
		total, polls := 0, []int{}
		for i, p := range f {
			asked := cfg.Taps[i].about(memcachedKey(p.cfg.Name, key))
			total += len(asked)
			if p == winner {
				if !slices.Equal(asked, []string{"mg", "ms"}) {
					t.Errorf("the winner has asked %v, want one mg and one ms", asked)
				}
				continue
			}
			polls = append(polls, len(asked))
			if len(asked) < 2 || len(asked) > mostPolls {
				t.Errorf("a waiting process has asked %d times, want 2 to %d: %v", len(asked), mostPolls, asked)
			}
		}
		t.Logf("load %v; beyond it p50 %v, p99 %v; %d commands: 2 of the winner, %v of the waiting processes (limit %d)",
			load, p50, p99, total, polls, mostPolls)
	}
}

// One of three servers is killed under load. Its keys are loaded, without leases and
// a few at a time; those of the others are served from the store as before, and keep
// their leases. The server comes back, empty, and is used again.
func TestMemcachedOneOfThreeKilled(t *testing.T) {
	t.Parallel()
	o := origin(t)
	s := startSharded(t, o)
	kept := s.keys(40, 0)
	want(t, s.f.herd(len(kept), kept...), "", 1)
	o.wantLoads(t, len(kept), kept...)

	// The order: loads of all servers' keys have begun and hold leases | the kill.
	absent := s.keys(40, 100*time.Millisecond)
	storm := s.f.storm(len(absent), absent...)
	s.f.loader(s.of(absent, true)[0])
	s.f.loader(s.of(absent, false)[0])
	if err := s.victim.Kill(); err != nil {
		t.Fatal(err)
	}
	want(t, s.f.wait(storm), "", 1)
	o.wantLoads(t, len(s.of(absent, false)), s.of(absent, false)...)
	if dead := s.of(absent, true); o.loads(t, dead...) > processes*len(dead) {
		t.Errorf("%d loads of %d keys of the dead server in %d processes", o.loads(t, dead...), len(dead), processes)
	}

	s.servesTheLiving(append(kept, absent...))
	if err := s.victim.RestartEmpty(t.Context()); err != nil {
		t.Fatal(err)
	}
	dead, living := s.of(kept, true), s.of(kept, false)
	for _, p := range s.f {
		poll(t, "the store is up", func() bool { p.get(dead[0]); return !p.stats().Stats.StoreDown })
	}
	converge(t, o, s.f, dead[0], living[0])
	key := s.of(s.keys(40, loadTime), true)[0]
	want(t, s.f.herd(callers, key), "", 1)
	o.wantLoads(t, 1, key)
}

// sharded is a fleet on three servers, one of which will be killed.
type sharded struct {
	t      *testing.T
	o      *database
	f      fleet
	view   *storeView
	victim *servers.Server
}

func startSharded(t *testing.T, o *database) *sharded {
	t.Helper()
	cfg := outageConfig("")
	cfg.LeaseTTL, cfg.TTL, cfg.LocalTTL = memcachedLease, time.Hour, 50*time.Millisecond
	cfg.Name = fmt.Sprintf("sharded-%d", serial.Add(1))
	s := &sharded{t: t, o: o}
	for range 3 {
		s.victim = servertest.Memcached(t, servers.MemcachedOptions{})
		cfg.Memcached = append(cfg.Memcached, s.victim.Addr())
	}
	s.view = viewOf(t, cfg)
	s.f = startFleet(t, processes, cfg)
	return s
}

// keys makes rows whose keys lie on all three servers.
func (s *sharded) keys(n int, wait time.Duration) []string {
	s.t.Helper()
	all, on := s.o.addMany(s.t, n, wait), map[string]int{}
	for _, key := range all {
		on[s.view.server(key)]++
	}
	if len(on) != 3 {
		s.t.Fatalf("%d keys lie on %d of 3 servers: %v", n, len(on), on)
	}
	return all
}

// of are those of the keys that lie on the victim, or on the others.
func (s *sharded) of(keys []string, victims bool) (some []string) {
	for _, key := range keys {
		if (s.view.server(key) == s.victim.Addr()) == victims {
			some = append(some, key)
		}
	}
	return some
}

// servesTheLiving asks for all keys again and again while a server is down, and known
// to be. Nothing is loaded but what lay there, and that a few at a time.
func (s *sharded) servesTheLiving(keys []string) {
	s.t.Helper()
	const rounds = 5
	living := s.of(keys, false)
	for _, p := range s.f {
		p.poll("a server is down", func(m message) bool {
			p.get(s.of(keys, true)[0])
			return m.Stats.StoreDown
		})
		p.stats() // the peak begins anew
	}
	before, fromStore := s.o.loads(s.t, living...), make([]int, processes)
	for range rounds {
		for i, results := range s.f.herd(len(keys), keys...) {
			want(s.t, [][]result{results}, "", 1)
			for _, r := range results {
				if r.Source == onefill.SourceStore && !r.Stale {
					fromStore[i]++
				}
			}
		}
	}
	if n := s.o.loads(s.t, living...) - before; n != 0 {
		s.t.Errorf("%d loads of %d keys whose servers are alive, want none", n, len(living))
	}
	for i, p := range s.f {
		if fromStore[i] < len(living) {
			s.t.Errorf("process %d was served from the store %d times, want at least once for each of %d keys", i, fromStore[i], len(living))
		}
		if peak, most := p.stats().Peak, p.cfg.MaxLoadsDegraded; peak > most {
			s.t.Errorf("process %d had %d loads at once, want at most %d", i, peak, most)
		}
	}
	s.t.Logf("%d rounds over %d keys, %d of them alive: %v answers from the store", rounds, len(keys), len(living), fromStore)
}
