package integration

import (
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

// What happens to Redis, short of its death, while a load runs and others wait
// for it.

// held makes one process load key behind a gate and lets all others wait for it.
func held(t *testing.T, o *database, f fleet, key string) (loads *gate, loader *proc, storm []*pending) {
	t.Helper()
	loads = o.close(t, key)
	storm = f.storm(callers, key)
	loader = f.loader(key)
	for _, p := range f.but(loader) {
		p.waiting(1)
	}
	return loads, loader, storm
}

// ownRedis is a fleet on a Redis that nothing else uses.
func ownRedis(t *testing.T, cfg config) (*servers.Server, fleet) {
	t.Helper()
	server := servertest.Redis(t, servers.RedisOptions{})
	cfg.Redis = server.URL()
	return server, startFleet(t, processes, cfg)
}

// The connections of all processes are cut while they wait: the waiters come back and
// wait for the same load.
func TestConnectionsCutWhileWaiting(t *testing.T) {
	eachStore(t, func(t *testing.T, cfg config) {
		o := origin(t)
		server, f := ownRedis(t, cfg)
		admin := adminOf(t, server)
		key := o.add(t, 0)
		load, _, storm := held(t, o, f, key)
		// Both waiters ask for the lease again before the load may end.
		asked := admin.count("evalsha")
		cut := time.Now()
		admin.cutAll()
		poll(t, "the waiters ask again", func() bool { return admin.count("evalsha") >= asked+processes-1 })
		took := time.Since(cut)
		t.Logf("the waiters asked again after %v", took)
		if cfg.Store != noTracking && took > slack() {
			t.Errorf("the waiters noticed the cut after %v", took)
		}
		load.open()
		want(t, f.wait(storm), "", 1)
		o.wantLoads(t, 1, key)
		want(t, f.herd(callers, key), "", 1)
		o.wantLoads(t, 1, key)
	})
}

// SCRIPT FLUSH between the lease and the fill: the fill brings its script along.
func TestScriptFlushWhileLoading(t *testing.T) {
	eachStore(t, func(t *testing.T, cfg config) {
		o := origin(t)
		server, f := ownRedis(t, cfg)
		key := o.add(t, 0)
		load, loader, storm := held(t, o, f, key)
		admin := adminOf(t, server)
		admin.do("SCRIPT", "FLUSH")
		load.open()
		want(t, f.wait(storm), "", 1)
		admin.wantStored(loader.cfg.Name, key, 1)
		if s := loader.stats().Stats; s.Fills != 1 {
			t.Errorf("%d fills were accepted, want 1", s.Fills)
		}
		admin.do("SCRIPT", "FLUSH")
		f[0].must(request{Op: opInvalidate, Keys: []string{key}})
		f[1].must(request{Op: opInvalidate, Keys: []string{key}})
		want(t, f.herd(callers, key), "", 1)
		o.wantLoads(t, 2, key)
	})
}

// FLUSHALL takes the lease away. The interleaving:
//
//	A: lease, reads v1 ................................ fill of v1
//	          | FLUSHALL; row := v2; B: lease, reads v2 | ........ fill of v2
//
// A's token is not the lease's, so its fill is refused, although there is no value yet.
func TestFlushWhileLoading(t *testing.T) {
	eachStore(t, func(t *testing.T, cfg config) {
		o := origin(t)
		server, f := ownRedis(t, cfg)
		key := o.add(t, 0)
		first, loader, storm := held(t, o, f, key)
		second := o.close(t, key)
		o.write(t, key)
		admin := adminOf(t, server)
		admin.do("FLUSHALL")
		heir := f.but(loader).loader(key)

		first.open()
		want(t, [][]result{storm[loader.index].wait().Results}, "", 1)
		if version, found := admin.stored(loader.cfg.Name, key); found {
			t.Errorf("the store took the old fill: %s", version)
		}
		second.open()
		for i, p := range f {
			if p != loader {
				want(t, [][]result{storm[i].wait().Results}, "", 2)
			}
		}
		want(t, f.herd(callers, key), "", 2)
		admin.wantStored(loader.cfg.Name, key, 2)
		o.wantLoads(t, 2, key)
		t.Logf("process %d loaded, process %d took over", loader.index, heir.index)
	})
}

// FLUSHALL, and nobody takes over before the fill comes: an absent lease refuses too.
func TestFlushLeavesNoLease(t *testing.T) {
	o := origin(t)
	server, f := ownRedis(t, config{LeaseTTL: time.Minute})
	key := o.add(t, 0)
	load := o.close(t, key)
	waiting := f[0].callers(callers, key).ready().release()
	f[0].loading(key, 1)
	admin := adminOf(t, server)
	admin.do("FLUSHALL")
	o.unset(t, key)
	o.write(t, key)
	load.open()
	want(t, [][]result{waiting.wait().Results}, "", 1)
	if version, found := admin.stored(f[0].cfg.Name, key); found {
		t.Errorf("the store took a fill without a lease: %s", version)
	}
	want(t, f.herd(callers, key), "", 2)
	o.wantLoads(t, 2, key)
}
