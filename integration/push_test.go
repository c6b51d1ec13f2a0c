package integration

import (
	"slices"
	"testing"
	"time"
)

// What is written in one process reaches the local caches of the others: by a push
// where the server tracks, else when Local.TTL ends.

func TestPushedInvalidation(t *testing.T) {
	for _, kind := range []storeKind{viaOpen, viaNew} {
		for _, op := range []opKind{opInvalidate, opSet} {
			t.Run(string(op)+" via "+string(kind), func(t *testing.T) {
				f := startFleet(t, processes, config{Store: kind, TTL: time.Hour, LocalTTL: time.Hour})
				delays := spread(t, f, op, 20)
				slices.Sort(delays)
				t.Logf("seen elsewhere after: median %v, longest %v", delays[len(delays)/2], delays[len(delays)-1])
				if longest := delays[len(delays)-1]; longest > slack() {
					t.Errorf("a change was seen elsewhere after %v", longest)
				}
			})
		}
	}
}

// spread writes a row rounds times and tells the first process each time. It returns
// how long after its answer the others still had the old row: 0 if they had the new
// one at the first look.
func spread(t *testing.T, f fleet, op opKind, rounds int) (delays []time.Duration) {
	t.Helper()
	o := origin(t)
	key := o.add(t, 0)
	want(t, f.herd(callers, key), "", 1)
	for range rounds {
		want(t, f.herd(1, key), "", o.version(t, key)) // in every local cache
		version := o.write(t, key)
		following := make([]*pending, 0, len(f))
		for _, p := range f[1:] {
			following = append(following, p.begin(request{Op: opUntil, Keys: []string{key}, Row: row{Version: version}}))
		}
		m := f[0].must(request{Op: op, Keys: []string{key}, Row: row{Value: "set", Version: version}})
		if r := f[0].get(key); r.Row.Version != version {
			t.Errorf("the writer itself read version %d after its %s of %d", r.Row.Version, op, version)
		}
		for _, r := range following {
			got := r.wait()
			if got.Err != "" {
				t.Fatal(got.Err)
			}
			last := got.Results[len(got.Results)-1]
			delays = append(delays, max(0, last.end().Sub(m.At)))
		}
	}
	return delays
}

func (d *database) version(t testing.TB, key string) (version int64) {
	t.Helper()
	if err := d.pool.QueryRow(t.Context(), `SELECT version FROM origin WHERE key = $1`, key).Scan(&version); err != nil {
		t.Fatal(err)
	}
	return version
}

// Without tracking the bound is Local.TTL. It is a bound that is used: a process may
// keep the old row for about that long.
func TestPolledInvalidation(t *testing.T) {
	const localTTL = 300 * time.Millisecond
	for _, op := range []opKind{opInvalidate, opSet} {
		t.Run(string(op), func(t *testing.T) {
			f := startFleet(t, processes, config{Store: noTracking, TTL: time.Hour, LocalTTL: localTTL})
			delays := spread(t, f, op, 4)
			slices.Sort(delays)
			t.Logf("seen elsewhere after: median %v, longest %v", delays[len(delays)/2], delays[len(delays)-1])
			if longest := delays[len(delays)-1]; longest > localTTL+slack() {
				t.Errorf("a change was seen elsewhere after %v, Local.TTL is %v", longest, localTTL)
			}
			if delays[len(delays)-1] == 0 {
				t.Error("everybody had every change at once: does this test without tracking track?")
			}
		})
	}
}

// The push connection is cut, so the next change goes unheard: what local holds must
// not be served as before. The order: cut, then the writer's Invalidate over its new
// connection, then the Gets of the others.
func TestPushConnectionCut(t *testing.T) {
	for _, kind := range []storeKind{viaOpen, viaNew} {
		t.Run(string(kind), func(t *testing.T) {
			o := origin(t)
			server, f := ownRedis(t, config{Store: kind, TTL: time.Hour, LocalTTL: time.Hour})
			key := o.add(t, 0)
			admin := adminOf(t, server)
			for range 5 {
				want(t, f.herd(callers, key), "", o.version(t, key))
				admin.cutAll()
				version := o.write(t, key)
				poll(t, "Invalidate is applied", func() bool {
					return f[0].do(request{Op: opInvalidate, Keys: []string{key}}).Err == ""
				})
				applied := time.Now()
				for i, p := range f {
					seen := p.must(request{Op: opUntil, Keys: []string{key}, Row: row{Version: version}}).Results
					if took := seen[len(seen)-1].end().Sub(applied); took > slack() {
						t.Errorf("process %d had the old row for %v", i, took)
					}
				}
			}
		})
	}
}
