package integration

import (
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
)

// Leases on memcached that are lost in the middle of a load: their owner is killed or
// paused, or the server forgets them.

// kill -9 of the loading process: its lease ends by itself, exactly one other takes
// over, everybody else is served by that one load.
func TestMemcachedKilledWhileLoading(t *testing.T) {
	t.Parallel()
	o := origin(t)
	f := onMemcached(t, 4, config{LeaseTTL: memcachedLease})
	key := o.add(t, 0)
	_, victim, storm := held(t, o, f, key)
	others := f.but(victim)
	o.exec(t, `UPDATE origin SET gate = NULL, wait = 0.25 WHERE key = $1`, key)

	victim.kill()
	killed := time.Now()
	heir := others.loader(key)
	took := heir.loading(key, 1).At.Sub(killed)
	t.Logf("process %d took over after %v", heir.index, took)
	if limit := memcachedLease + granularity; took > limit {
		t.Errorf("the load was taken over after %v, want within %v", took, limit)
	}
	for i, p := range f {
		if p != victim {
			want(t, [][]result{storm[i].wait().Results}, "", 1)
		}
	}
	o.wantLoads(t, 2, key)
}

// The interleaving:
//
//	A: lease, reads v1 | SIGSTOP ........................... SIGCONT, fill of v1
//	                   | A's lease ends; row := v2; B loads v2, fills v2 |
//
// A's callers may have v1, since they waited for it. Nobody reads it afterwards.
func TestMemcachedPausedPastItsLease(t *testing.T) {
	t.Parallel()
	o := origin(t)
	f := onMemcached(t, processes, config{LeaseTTL: memcachedLease})
	key := o.add(t, 0)
	old, paused, storm := held(t, o, f, key)
	paused.pause()
	stopped := time.Now()
	o.unset(t, key)
	o.write(t, key)
	heir := f.but(paused).loader(key)
	took := heir.loading(key, 1).At.Sub(stopped)
	for i, p := range f {
		if p != paused {
			want(t, [][]result{storm[i].wait().Results}, "", 2)
		}
	}
	t.Logf("process %d was paused, process %d took over after %v", paused.index, heir.index, took)
	if limit := memcachedLease + granularity; took > limit {
		t.Errorf("the load was taken over after %v, want within %v", took, limit)
	}
	old.open() // its answer waits in the paused process's socket
	paused.resume()
	want(t, [][]result{storm[paused.index].wait().Results}, "", 1)

	want(t, f.herd(callers, key), "", 2)
	viewOf(t, paused.cfg).wantStored(key, 2)
	o.wantLoads(t, 2, key)
	if s := paused.stats().Stats; s.FillsRefused != 1 || s.Fills != 0 {
		t.Errorf("the paused process has %d fills refused and %d accepted, want 1 and 0", s.FillsRefused, s.Fills)
	}
}

// The interleaving, once with a restart of the server and once with flush_all:
//
//	A: lease, reads v1 | the server forgets | row := v2 | B: lease, reads v2
//	| A: fill of v1 | B: fill of v2 |
//
// After a restart the server numbers its items from 1 again, and it is brought to
// give B's lease the very number that A's had, where the server gives the numbers.
// A's fill is refused all the same, and B's is not disturbed.
func TestMemcachedForgetsWhileLoading(t *testing.T) {
	forget := map[string]func(*forgetful, *testing.T){
		"restart":   (*forgetful).restart,
		"flush_all": func(s *forgetful, t *testing.T) { flushAll(t, s.server) },
	}
	for name, how := range forget {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := origin(t)
			s := &forgetful{o: o, key: o.add(t, 0)}
			s.server, s.f = ownMemcached(t, config{LeaseTTL: time.Minute})
			dialMemcached(t, s.server).count(farOn)
			a, b, key := s.f[0], s.f[1], s.key
			oldLoad := o.close(t, key)
			old := a.callers(callers, key).ready().release()
			a.loading(key, 1)

			how(s, t)
			o.write(t, key)
			newLoad := o.close(t, key)
			newer := b.callers(callers, key).ready().release()
			b.loading(key, 1)
			if name == "restart" && s.old < 2*farOn && s.number(t) != s.old {
				t.Errorf("B's lease has number %d, A's had %d: the test has not forced what it is for", s.number(t), s.old)
			}

			oldLoad.open()
			want(t, [][]result{old.wait().Results}, "", 1)
			newLoad.open()
			o.unset(t, key)
			want(t, [][]result{newer.wait().Results}, "", 2)
			want(t, s.f.herd(callers, key), "", 2)
			viewOf(t, a.cfg).wantStored(key, 2)
			o.wantLoads(t, 2, key)
			if s := a.stats().Stats; s.FillsRefused != 1 {
				t.Errorf("A's fill: %d refused, want 1", s.FillsRefused)
			}
		})
	}
}

// farOn is more items than a fleet needs to connect and to see that the store answers.
const farOn = 2000

// forgetful is a server that loses what it held, and its fleet.
type forgetful struct {
	o      *database
	server *servers.Server
	f      fleet
	key    string
	old    uint64 // number of A's lease before the restart
}

// number is that of the item of the key.
func (s *forgetful) number(t *testing.T) uint64 {
	t.Helper()
	return dialMemcached(t, s.server).number(memcachedKey(s.f[0].cfg.Name, s.key))
}

// restart returns when all processes use the new server, by themselves, as the adapter
// connects again, and when the next item that it numbers gets A's lease's number.
func (s *forgetful) restart(t *testing.T) {
	t.Helper()
	s.old = s.number(t)
	if err := s.server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.server.RestartEmpty(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range s.f {
		poll(t, "the store answers", func() bool {
			hits := p.stats().Stats.StoreHits
			s.probe(p, t)
			return p.stats().Stats.StoreHits > hits
		})
	}
	if s.old < 2*farOn { // else it is a random one, of the adapter's choice
		dialMemcached(t, s.server).count(int(s.old))
	}
}

// probe lets p read a row that another process has stored.
func (s *forgetful) probe(p *proc, t *testing.T) {
	t.Helper()
	key := s.o.add(t, 0)
	s.f.but(p)[0].get(key)
	p.get(key)
}
