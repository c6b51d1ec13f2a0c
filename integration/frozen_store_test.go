package integration

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// margin is what a busy machine may add to a time that is otherwise exact: less than
// slack, for tests whose point is the time, and which run alone.
func margin() time.Duration {
	if raceEnabled {
		return 400 * time.Millisecond
	}
	return 150 * time.Millisecond
}

// percentile is the time below which p per cent lie.
func percentile(took []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(took))
	return sorted[(len(sorted)*p+99)/100-1]
}

// took are the times of Gets.
func took(results []result) []time.Duration {
	all := make([]time.Duration, len(results))
	for i, r := range results {
		all[i] = r.Took
	}
	return all
}

// A frozen store costs the first callers StoreTimeout: one operation that is not
// answered, then their load. From the third on it counts as down (three failures in a
// row over 100 ms at least), and nobody waits for it but one probe every 250 ms.
// What is in local costs nothing from the beginning to the end.
func TestFrozenStoreCostsOneTimeout(t *testing.T) {
	for _, on := range bothStores {
		t.Run(on, func(t *testing.T) {
			w := newWorld(t, on, 1, func(o *worldOptions) {
				o.StoreTimeout, o.Local.TTL, o.MaxLoadsDegraded = 250*time.Millisecond, worldTTL, 8
			})
			m := w.members[0]
			cached := w.origin.add(0)
			m.get(cached)
			pause(t, w.server)
			firstAnswers(t, m)
			laterAnswers(t, m)
			hits := make([]result, 1000)
			for i := range hits {
				hits[i] = m.get(cached)
			}
			p99 := percentile(took(hits), 99)
			if p99 > 5*time.Millisecond {
				t.Errorf("hits in local took %v (p99)", p99)
			}
			t.Logf("hits in local took %v (p99)", p99)

			resume(t, w.server)
			thawed := time.Now()
			w.recovered(t)
			if back := time.Since(thawed); back > probeEvery+slack() {
				t.Errorf("the store was back %v after the thaw", back)
			}
		})
	}
}

const (
	frozenLoad = 50 * time.Millisecond
	probeEvery = 250 * time.Millisecond
)

// firstAnswers are those until the store is taken for down: one that nothing answers is enough.
func firstAnswers(t *testing.T, m *member) {
	t.Helper()
	var first []time.Duration
	limit := m.w.opts.StoreTimeout + frozenLoad + margin()
	for !m.cache.Stats().StoreDown && len(first) < 10 {
		r := m.get(m.w.origin.add(frozenLoad))
		first = append(first, r.Took)
		if r.Class != "" || r.Row.Version != 1 || r.Took > limit {
			t.Errorf("answer %d: version %d, %q, after %v; want version 1 within %v", len(first), r.Row.Version, r.Err, r.Took, limit)
		}
	}
	if n := len(first); n != 1 {
		t.Errorf("it took %d answers to take the store for down, want 1", n)
	}
	t.Logf("a load takes %v, StoreTimeout is %v: the first answers took %v", frozenLoad, m.w.opts.StoreTimeout, first)
}

// laterAnswers are those while the store is taken for down.
func laterAnswers(t *testing.T, m *member) {
	t.Helper()
	const outage = 1500 * time.Millisecond
	later := throng(m, 8, outage, func() string { return m.w.origin.add(frozenLoad) })
	probes, slow := int(outage/probeEvery)+1, 0
	limit := m.w.opts.StoreTimeout + frozenLoad + margin()
	for _, r := range later {
		if r.Class != "" || r.Row.Version != 1 || r.Took > limit {
			t.Errorf("while it is down: version %d, %q, after %v; want version 1 within %v", r.Row.Version, r.Err, r.Took, limit)
		}
		if r.Took >= m.w.opts.StoreTimeout {
			slow++
		}
	}
	if slow > probes {
		t.Errorf("%d of %d answers waited for the store while it was down, want at most one for each of %d probes", slow, len(later), probes)
	}
	t.Logf("later ones took %v (median), %v (p99); %d of %d waited for a probe", percentile(took(later), 50), percentile(took(later), 99), slow, len(later))
}

// Connections that are gone without a word: nobody resets them, so the store itself has
// to find out, and connects anew. rueidis takes about twelve seconds for that, memcachestore
// StallTimeout, three. Callers wait for StoreTimeout at most all the while.
func TestHalfOpenConnectionsAreGivenUp(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, on := range bothStores {
		t.Run(on, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, on, 2, func(o *worldOptions) { o.StoreTimeout = 250 * time.Millisecond })
			for _, m := range w.members { // the one is made by Open, the other by New
				m.get(w.origin.add(0))
				m.proxy.HalfOpen()
			}
			start := time.Now()
			for i, m := range w.members {
				most := time.Duration(0)
				back := pollFor(patience, func() bool {
					r := m.get(w.origin.add(0))
					if r.Class != "" {
						t.Errorf("cache %d: %s", i, r.Err)
					}
					most = max(most, r.Took)
					return time.Since(start) > time.Second && m.cache.Set(t.Context(), "probe", row{Value: "probe", Version: 1}) == nil
				})
				if took := time.Since(start); !back || took > 20*time.Second {
					t.Errorf("cache %d has its store back after %v: %v", i, took, back)
				}
				if limit := w.opts.StoreTimeout*5/2 + slack(); most > limit {
					t.Errorf("cache %d: a Get took %v, want %v at most", i, most, limit)
				}
				t.Logf("cache %d has its store back after %v; the longest Get took %v", i, time.Since(start), most)
			}
		})
	}
}

// throng lets n callers Get for a while, each one key after another.
func throng(m *member, n int, d time.Duration, key func() string) (all []result) {
	var mu sync.Mutex // guards all
	var done sync.WaitGroup
	end := time.Now().Add(d)
	for range n {
		done.Go(func() {
			for time.Now().Before(end) {
				r := m.get(key())
				mu.Lock()
				all = append(all, r)
				mu.Unlock()
			}
		})
	}
	done.Wait()
	return all
}
