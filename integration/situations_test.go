package integration

import (
	"testing"
	"time"
)

// The situations S1 to S6 of the acceptance table, in three real processes: 12
// callers, 4 in each, at one barrier; a load takes 250 ms. PostgreSQL counts.

const (
	processes = 3
	callers   = 4 // of each process
	loadTime  = 250 * time.Millisecond
)

// eachStore runs a test with every way to make a store.
func eachStore(t *testing.T, test func(t *testing.T, cfg config)) {
	for _, kind := range []storeKind{viaOpen, viaNew, noTracking} {
		t.Run(string(kind), func(t *testing.T) { test(t, config{Store: kind}) })
	}
}

// want says what every caller must have got.
func want(t *testing.T, all [][]result, class string, version int64) {
	t.Helper()
	for i, results := range all {
		for _, r := range results {
			if r.Class != class || class == "" && r.Row.Version != version {
				t.Errorf("a caller of process %d got version %d, error %q (%s); want version %d, error %q",
					i, r.Row.Version, r.Class, r.Err, version, class)
			}
		}
	}
}

// longest is the time that the slowest caller took.
func longest(all [][]result) (most time.Duration) {
	for _, results := range all {
		for _, r := range results {
			most = max(most, r.Took)
		}
	}
	return most
}

// slack is what scheduling may add to a duration on a busy machine.
func slack() time.Duration {
	if raceEnabled {
		return 2 * time.Second
	}
	return time.Second
}

// TestNaive checks the measuring: cache-aside without onefill loads as often as
// there are callers. If this fails the barrier is none, and the figures of the other
// tests mean nothing.
func TestNaive(t *testing.T) {
	o := origin(t)
	f := startFleet(t, processes, config{Naive: true})
	key := o.add(t, loadTime)
	want(t, f.herd(callers, key), "", 1)
	o.wantLoads(t, processes*callers, key)
}

func TestS1AbsentKey(t *testing.T) {
	eachStore(t, func(t *testing.T, cfg config) {
		o := origin(t)
		f := startFleet(t, processes, cfg)
		key := o.add(t, loadTime)
		want(t, f.herd(callers, key), "", 1)
		o.wantLoads(t, 1, key)
	})
}

func TestS2RowDoesNotExist(t *testing.T) {
	eachStore(t, func(t *testing.T, cfg config) {
		o := origin(t)
		f := startFleet(t, processes, cfg)
		key := o.add(t, loadTime)
		o.exec(t, `UPDATE origin SET value = NULL WHERE key = $1`, key)
		want(t, f.herd(callers, key), "not found", 0)
		want(t, f.herd(callers, key), "not found", 0) // it is remembered
		o.wantLoads(t, 1, key)
	})
}

// S3: the failure reaches all twelve in the time of one load, not one after another.
func TestS3OriginFails(t *testing.T) {
	eachStore(t, func(t *testing.T, cfg config) {
		o := origin(t)
		f := startFleet(t, processes, cfg)
		key := o.add(t, loadTime)
		o.exec(t, `UPDATE origin SET fails = true WHERE key = $1`, key)
		got := f.herd(callers, key)
		want(t, got, "load failed", 0)
		o.wantLoads(t, 1, key)
		if took := longest(got); took > loadTime+slack() {
			t.Errorf("the last caller had the error after %v, want it after one load of %v", took, loadTime)
		}
	})
}

// S4: the load outlasts its lease, which is renewed meanwhile.
func TestS4LoadOutlastsLease(t *testing.T) {
	eachStore(t, func(t *testing.T, cfg config) {
		t.Parallel() // it mostly waits
		o := origin(t)
		cfg.LeaseTTL = time.Second
		f := startFleet(t, processes, cfg)
		key := o.add(t, 1600*time.Millisecond)
		got := f.herd(callers, key)
		want(t, got, "", 1)
		o.wantLoads(t, 1, key)
		if took := longest(got); took > 1600*time.Millisecond+slack() {
			t.Errorf("the last caller was served after %v", took)
		}
	})
}

// S5, the interleaving:
//
//	A: miss, lease, reads v1 ........................ gate opens, fill of v1
//	                  B: row := v2, Invalidate, Get: loads and fills v2
//
// A's callers, who waited already, may have v1. Nobody else ever sees it.
func TestS5OldLoadPublishesLate(t *testing.T) {
	eachStore(t, func(t *testing.T, cfg config) {
		o := origin(t)
		f := startFleet(t, processes, cfg)
		key := o.add(t, 0)
		a, b := f[0], f[1]
		old := o.close(t, key)
		waiting := a.callers(callers, key).ready().release()
		a.loading(key, 1)

		o.write(t, key)
		o.unset(t, key)
		b.must(request{Op: opInvalidate, Keys: []string{key}})
		want(t, f[1:].herd(callers, key), "", 2)

		old.open()
		want(t, [][]result{waiting.wait().Results}, "", 1)
		want(t, f.herd(callers, key), "", 2)
		adminOf(t, sharedRedis.Get(t)).wantStored(a.cfg.Name, key, 2)
		o.wantLoads(t, 2, key)
		if s := a.stats().Stats; s.FillsRefused != 1 {
			t.Errorf("the old load's fill: %d refused, want 1", s.FillsRefused)
		}
	})
}

// S6: the caller who started the load leaves in the middle of it. The order is
// forced: its load has begun, then the eleven others wait, then it leaves, and only
// then the load may end.
func TestS6FirstCallerCancels(t *testing.T) {
	eachStore(t, func(t *testing.T, cfg config) {
		o := origin(t)
		f := startFleet(t, processes, cfg)
		key := o.add(t, 0)
		load := o.close(t, key)
		first := f[0].callers(1, key).ready().release()
		f[0].loading(key, 1)

		others := []*pending{f[0].callers(callers-1, key), f[1].callers(callers, key), f[2].callers(callers, key)}
		for _, r := range others {
			r.ready().release()
		}
		f[0].poll("the others have joined", func(m message) bool { return m.Stats.Coalesced == callers-1 })
		for _, p := range f[1:] {
			p.waiting(1)
		}

		first.cancel()
		want(t, [][]result{first.wait().Results}, "canceled", 0)
		load.open()
		want(t, f.wait(others), "", 1)
		want(t, f.herd(callers, key), "", 1)
		o.wantLoads(t, 1, key)
	})
}
