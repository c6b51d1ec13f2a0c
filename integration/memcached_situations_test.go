package integration

import (
	"slices"
	"testing"
	"time"
)

// The situations S1 to S6 on memcached, as in situations_test.go; S4 with whole
// seconds.

func TestMemcachedS1AbsentKey(t *testing.T) {
	t.Parallel() // most of these tests wait
	o := origin(t)
	f := onMemcached(t, processes, config{})
	key := o.add(t, loadTime)
	want(t, f.herd(callers, key), "", 1)
	want(t, f.herd(callers, key), "", 1)
	o.wantLoads(t, 1, key)
	viewOf(t, f[0].cfg).wantStored(key, 1)
}

func TestMemcachedS2RowDoesNotExist(t *testing.T) {
	t.Parallel()
	o := origin(t)
	f := onMemcached(t, processes, config{})
	key := o.add(t, loadTime)
	o.exec(t, `UPDATE origin SET value = NULL WHERE key = $1`, key)
	want(t, f.herd(callers, key), "not found", 0)
	want(t, f.herd(callers, key), "not found", 0) // it is remembered
	o.wantLoads(t, 1, key)
}

// S3: the failure reaches all twelve in the time of one load.
func TestMemcachedS3OriginFails(t *testing.T) {
	t.Parallel()
	o := origin(t)
	f := onMemcached(t, processes, config{})
	key := o.add(t, loadTime)
	o.exec(t, `UPDATE origin SET fails = true WHERE key = $1`, key)
	got := f.herd(callers, key)
	want(t, got, "load failed", 0)
	o.wantLoads(t, 1, key)
	if took := longest(got); took > loadTime+slack() {
		t.Errorf("the last caller had the error after %v, want it after one load of %v", took, loadTime)
	}
}

// S4: the load outlasts its lease, which is renewed meanwhile.
func TestMemcachedS4LoadOutlastsLease(t *testing.T) {
	t.Parallel()
	const load = memcachedLease * 8 / 5
	o := origin(t)
	f := onMemcached(t, processes, config{LeaseTTL: memcachedLease})
	key := o.add(t, load)
	got := f.herd(callers, key)
	want(t, got, "", 1)
	o.wantLoads(t, 1, key)
	if took := longest(got); took > load+slack() {
		t.Errorf("the last caller was served after %v", took)
	}
}

// S5, the interleaving:
//
//	A: miss, lease, reads v1 ........................ gate opens, fill of v1
//	                  B: row := v2, Invalidate; B and C: Get, one loads v2 and fills
//
// A's callers, who waited already, may have v1. Nobody else ever sees it.
func TestMemcachedS5OldLoadPublishesLate(t *testing.T) {
	t.Parallel()
	o := origin(t)
	f := onMemcached(t, processes, config{})
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
	viewOf(t, a.cfg).wantStored(key, 2)
	o.wantLoads(t, 2, key)
	if s := a.stats().Stats; s.FillsRefused != 1 {
		t.Errorf("the old load's fill: %d refused, want 1", s.FillsRefused)
	}
}

// S6, the order: the first caller's load has begun | the eleven others wait | the
// first caller leaves | the load ends.
func TestMemcachedS6FirstCallerCancels(t *testing.T) {
	t.Parallel()
	o := origin(t)
	// A flight may be joined for Local.TTL where nobody is told of changes, so the
	// others must come within it.
	f := onMemcached(t, processes, config{LocalTTL: patience})
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
}

// memcached tells nobody of changes, so other processes hear of one when Local.TTL
// ends. It is a bound that is used: a process may keep the old row for about that long.
func TestMemcachedLocalStaleness(t *testing.T) {
	const localTTL = 300 * time.Millisecond
	for _, op := range []opKind{opInvalidate, opSet} {
		t.Run(string(op), func(t *testing.T) {
			t.Parallel()
			f := onMemcached(t, processes, config{TTL: time.Hour, LocalTTL: localTTL})
			delays := spread(t, f, op, 4)
			slices.Sort(delays)
			t.Logf("seen elsewhere after: median %v, longest %v", delays[len(delays)/2], delays[len(delays)-1])
			if longest := delays[len(delays)-1]; longest > localTTL+slack() {
				t.Errorf("a change was seen elsewhere after %v, Local.TTL is %v", longest, localTTL)
			}
			if delays[len(delays)-1] == 0 {
				t.Error("everybody had every change at once: did local serve at all?")
			}
		})
	}
}
