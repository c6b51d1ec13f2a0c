package integration

import (
	"testing"
	"time"
)

// Processes that are killed or paused while they hold a lease.

// kill -9 of the loading process: its lease ends by itself, exactly one other takes
// over, everybody else is served by that one load.
func TestKilledWhileLoading(t *testing.T) {
	eachStore(t, func(t *testing.T, cfg config) {
		t.Parallel() // it mostly waits
		o := origin(t)
		cfg.LeaseTTL = time.Second
		f := startFleet(t, 4, cfg)
		key := o.add(t, 0)
		o.close(t, key)
		storm := f.storm(callers, key)
		victim := f.loader(key)
		others := f.but(victim)
		for _, p := range others {
			p.waiting(1)
		}
		o.exec(t, `UPDATE origin SET gate = NULL, wait = 0.25 WHERE key = $1`, key)

		victim.kill()
		killed := time.Now()
		heir := others.loader(key)
		took := heir.loading(key, 1).At.Sub(killed)
		t.Logf("process %d took over after %v", heir.index, took)
		if limit := cfg.LeaseTTL + time.Second; took > limit {
			t.Errorf("the load was taken over after %v, want within LeaseTTL + 1s = %v", took, limit)
		}
		for i, p := range f {
			if p != victim {
				want(t, [][]result{storm[i].wait().Results}, "", 1)
			}
		}
		o.wantLoads(t, 2, key)
	})
}

// The interleaving:
//
//	A: lease, reads v1 | SIGSTOP ........................... SIGCONT, fill of v1
//	                   | A's lease ends; row := v2; B loads v2, fills v2 |
//
// A's callers may have v1, since they waited for it. Nobody reads it afterwards.
func TestPausedPastItsLease(t *testing.T) {
	eachStore(t, func(t *testing.T, cfg config) {
		t.Parallel() // it mostly waits
		o := origin(t)
		cfg.LeaseTTL = 600 * time.Millisecond
		f := startFleet(t, processes, cfg)
		key := o.add(t, 0)
		old := o.close(t, key)
		storm := f.storm(callers, key)
		paused := f.loader(key)
		others := f.but(paused)
		for _, p := range others {
			p.waiting(1)
		}
		paused.pause()
		o.unset(t, key)
		o.write(t, key)
		heir := others.loader(key)
		for i, p := range f {
			if p != paused {
				want(t, [][]result{storm[i].wait().Results}, "", 2)
			}
		}
		t.Logf("process %d was paused, process %d took over", paused.index, heir.index)
		old.open() // its answer waits in the paused process's socket
		paused.resume()
		want(t, [][]result{storm[paused.index].wait().Results}, "", 1)

		want(t, f.herd(callers, key), "", 2)
		adminOf(t, sharedRedis.Get(t)).wantStored(paused.cfg.Name, key, 2)
		o.wantLoads(t, 2, key)
		if s := paused.stats().Stats; s.FillsRefused != 1 || s.Fills != 0 {
			t.Errorf("the paused process has %d fills refused and %d accepted, want 1 and 0", s.FillsRefused, s.Fills)
		}
	})
}
