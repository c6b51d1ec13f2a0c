package integration

import (
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
)

// Redis frozen, killed, and back again.

// outageConfig has short times, so that an outage is noticed and survived quickly.
func outageConfig(kind storeKind) config {
	cfg := config{Store: kind, LeaseTTL: time.Second, StoreTimeout: 250 * time.Millisecond, MaxLoads: 16, MaxLoadsDegraded: 2}
	if kind == noTracking {
		cfg.LocalTTL = 500 * time.Millisecond // nothing else ends what local holds
	}
	return cfg
}

// A freeze in the middle of a herd: one process loads, the others wait for its lease.
// Everybody is served: the loading process after its load and the two operations that
// it tries in vain, the others when the lease's time is over, one operation in vain,
// and a load of their own.
func TestFrozenWhileWaiting(t *testing.T) {
	for _, kind := range []storeKind{viaOpen, viaNew, noTracking} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel() // it mostly waits
			o := origin(t)
			cfg := outageConfig(kind)
			server, f := ownRedis(t, cfg)
			key := o.add(t, 0)
			load, loader, storm := held(t, o, f, key)
			o.unset(t, key)
			o.exec(t, `UPDATE origin SET wait = 0.25 WHERE key = $1`, key)
			pause(t, server)
			frozen := time.Now()
			load.open()
			all := f.wait(storm)
			want(t, all, "", 1)
			for i, results := range all {
				limit := cfg.LeaseTTL + 2*cfg.StoreTimeout + loadTime + slack()
				if f[i] == loader {
					limit = 2*cfg.StoreTimeout + slack()
				}
				for _, r := range results {
					if took := r.end().Sub(frozen); took > limit {
						t.Errorf("process %d served a caller %v after the freeze, want at most %v", i, took, limit)
					}
				}
			}
			if n := o.loads(t, key); n > processes {
				t.Errorf("%d loads, want at most one for each of %d processes", n, processes)
			}
			t.Logf("all served %v after the freeze, %d loads", longestAfter(frozen, all), o.loads(t, key))
			resume(t, server)
			converge(t, o, f, key)
		})
	}
}

func longestAfter(start time.Time, all [][]result) (most time.Duration) {
	for _, results := range all {
		for _, r := range results {
			most = max(most, r.end().Sub(start))
		}
	}
	return most
}

func pause(t *testing.T, s *servers.Server) {
	t.Helper()
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Continue() })
}

func resume(t *testing.T, s *servers.Server) {
	t.Helper()
	if err := s.Continue(); err != nil {
		t.Fatal(err)
	}
}

// converge commits a new version of each key, invalidates it as often as it takes, and
// waits until every process returns it; then no process may return an older one.
func converge(t *testing.T, o *database, f fleet, keys ...string) {
	t.Helper()
	for _, key := range keys {
		version := o.write(t, key)
		poll(t, "Invalidate is applied", func() bool {
			return f[0].do(request{Op: opInvalidate, Keys: []string{key}}).Err == ""
		})
		for _, p := range f {
			p.must(request{Op: opUntil, Keys: []string{key}, Row: row{Version: version}})
		}
		want(t, f.herd(callers, key), "", version)
	}
}

// down makes every process take the store for unreachable, by Gets of keys that
// nobody else uses.
func (f fleet) down(o *database) {
	for _, p := range f {
		p.t.Helper()
		for range 5 {
			if r := p.get(o.add(p.t, 0)); r.Class != "" {
				p.t.Errorf("process %d: %s", p.index, r.Err)
			}
		}
		p.poll("the store is down", func(m message) bool { return m.Stats.StoreDown })
	}
}

// Once a process has noticed the freeze nobody waits for Redis any more, and the
// origin gets MaxLoadsDegraded loads at a time from each process, however many keys
// are missed. After the thaw nothing that was cached before is trusted: row x was
// changed meanwhile, and nobody heard of it.
func TestFrozenThenThawed(t *testing.T) {
	o := origin(t)
	cfg := outageConfig("")
	cfg.TTL = time.Hour
	server, f := ownRedis(t, cfg)
	x := o.add(t, 0)
	want(t, f.herd(callers, x), "", 1) // in every local cache
	pause(t, server)
	f.down(o)
	for _, p := range f {
		p.stats() // the peak begins anew
	}

	absent := o.addMany(t, 10, 50*time.Millisecond)
	got := f.herd(40, absent...)
	want(t, got, "", 1)
	for i, p := range f {
		if peak := p.stats().Peak; peak > cfg.MaxLoadsDegraded {
			t.Errorf("process %d had %d loads at once, want at most %d", i, peak, cfg.MaxLoadsDegraded)
		}
	}
	if n := o.loads(t, absent...); n > processes*len(absent) {
		t.Errorf("%d loads of %d keys in %d processes", n, len(absent), processes)
	}
	// Ten loads of 50 ms, two at a time.
	if took := longest(got); took > 5*50*time.Millisecond+cfg.StoreTimeout+slack() {
		t.Errorf("the last of the herd was served after %v", took)
	}
	t.Logf("the herd on %d keys was served within %v, %d loads", len(absent), longest(got), o.loads(t, absent...))

	version := o.write(t, x)
	if m := f[0].do(request{Op: opInvalidate, Keys: []string{x}}); m.Err == "" {
		t.Error("Invalidate returned nil although Redis was frozen")
	}
	resume(t, server)
	poll(t, "Invalidate is applied", func() bool {
		return f[0].do(request{Op: opInvalidate, Keys: []string{x}}).Err == ""
	})
	for i, p := range f {
		seen := p.must(request{Op: opUntil, Keys: []string{x}, Row: row{Version: version}}).Results
		t.Logf("process %d had version %d of x %v after the thaw's Invalidate", i, version, seen[len(seen)-1].end().Sub(seen[0].Start))
	}
	for _, p := range f {
		poll(t, "the store is up", func() bool { p.get(o.add(t, 0)); return !p.stats().Stats.StoreDown })
	}
	converge(t, o, f, append(absent, x)...)
	oneLoad(t, o, f)
}

// oneLoad says that all is well again: a herd on a new key loads once.
func oneLoad(t *testing.T, o *database, f fleet) {
	t.Helper()
	key := o.add(t, loadTime)
	want(t, f.herd(callers, key), "", 1)
	o.wantLoads(t, 1, key)
}

// S7: Redis is killed. Twelve callers are served with at most one load in each
// process, and the next twelve from what these have loaded. What was in local stays.
func TestKilledRedis(t *testing.T) {
	for _, kind := range []storeKind{viaOpen, viaNew, noTracking} {
		t.Run(string(kind), func(t *testing.T) {
			o := origin(t)
			cfg := outageConfig(kind)
			server, f := ownRedis(t, cfg)
			warm, key := o.add(t, 0), o.add(t, 0)
			want(t, f.herd(callers, warm), "", 1)
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
			got := f.herd(callers, key)
			want(t, got, "", 1)
			want(t, f.herd(callers, key), "", 1)
			if n := o.loads(t, key); n > processes {
				t.Errorf("%d loads, want at most one for each of %d processes", n, processes)
			}
			if took := longest(got); took > cfg.StoreTimeout+slack() {
				t.Errorf("the last caller was served after %v", took)
			}
			want(t, f.herd(callers, warm), "", 1)
			if n := o.loads(t, warm); n > 1+processes {
				t.Errorf("%d loads of a key that was cached, want at most %d", n, 1+processes)
			}
			t.Logf("served within %v; %d loads of the absent key, %d of the cached one", longest(got), o.loads(t, key), o.loads(t, warm))

			if err := server.RestartEmpty(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, p := range f {
				poll(t, "the store is up", func() bool { p.get(o.add(t, 0)); return !p.stats().Stats.StoreDown })
			}
			converge(t, o, f, key, warm)
			oneLoad(t, o, f)
		})
	}
}

// A restart without the data takes the lease along, so the fill that comes after it is
// refused: who invalidated the key in the meantime cannot be known.
func TestRestartedEmptyWhileLoading(t *testing.T) {
	for _, kind := range []storeKind{viaOpen, viaNew} {
		t.Run(string(kind), func(t *testing.T) {
			o := origin(t)
			server, f := ownRedis(t, config{Store: kind, LeaseTTL: time.Minute})
			key := o.add(t, 0)
			load := o.close(t, key)
			waiting := f[0].callers(callers, key).ready().release()
			f[0].loading(key, 1)
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := server.RestartEmpty(t.Context()); err != nil {
				t.Fatal(err)
			}
			o.unset(t, key)
			o.write(t, key)
			load.open()
			want(t, [][]result{waiting.wait().Results}, "", 1)
			want(t, f.herd(callers, key), "", 2)
			adminOf(t, server).wantStored(f[0].cfg.Name, key, 2)
			o.wantLoads(t, 2, key)
		})
	}
}

// A clean restart keeps values and leases: what was cached is found again, and the
// load that was under way fills.
func TestRestartedWithDataWhileLoading(t *testing.T) {
	for _, kind := range []storeKind{viaOpen, viaNew} {
		t.Run(string(kind), func(t *testing.T) {
			o := origin(t)
			server, f := ownRedis(t, config{Store: kind, LeaseTTL: time.Minute})
			warm, key := o.add(t, 0), o.add(t, 0)
			want(t, f.herd(callers, warm), "", 1)
			load := o.close(t, key)
			waiting := f[0].callers(callers, key).ready().release()
			f[0].loading(key, 1)
			if err := server.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			load.open()
			want(t, [][]result{waiting.wait().Results}, "", 1)
			want(t, f.herd(callers, key), "", 1)
			want(t, f.herd(callers, warm), "", 1)
			o.wantLoads(t, 1, warm)
			o.wantLoads(t, 1, key)
			adminOf(t, server).wantStored(f[0].cfg.Name, key, 1)
			converge(t, o, f, warm, key)
		})
	}
}
