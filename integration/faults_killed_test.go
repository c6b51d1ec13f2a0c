package integration

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// S7 in the large: the store is killed under callers. Three caches, 20 callers each, 30
// rows whose TTL is short, so that everything has to be loaded again and again.
//
//   - Everybody is served, before and after.
//   - While the store is taken for down, MaxLoadsDegraded loads at a time run in each
//     cache; MaxLoads is never passed.
//   - With StaleFor those who wait at all wait for StoreTimeout and a load at most (p99),
//     and stale values are served.
//   - Without it, who waits for a load waits in a queue as well: 30 rows, two at a time,
//     are 15 loads' time when all have ended at once.
func TestKilledUnderCallers(t *testing.T) {
	for _, on := range bothStores {
		for _, staleFor := range []time.Duration{worldTTL, 0} {
			name := map[bool]string{true: "with StaleFor", false: "without"}[staleFor > 0]
			t.Run(on+", "+name, func(t *testing.T) { killedUnderCallers(t, on, staleFor) })
		}
	}
}

const (
	killedRows = 30
	killedLoad = 5 * time.Millisecond
	killedFor  = 1200 * time.Millisecond
)

func killedUnderCallers(t *testing.T, on string, staleFor time.Duration) {
	w := newWorld(t, on, 3, func(o *worldOptions) {
		o.TTL, o.StaleFor, o.StaleOnError = 150*time.Millisecond, staleFor, staleFor
		o.StoreTimeout = 250 * time.Millisecond
	})
	keys := w.origin.addMany(killedRows, killedLoad)
	stop := traffic(w, 20, keys)
	poll(t, "everything has been loaded again", func() bool { return w.origin.loads(keys...) >= 2*killedRows })
	must(t, w.server.Kill())
	killed := time.Now()
	poll(t, "all take the store for down", func() bool {
		for _, m := range w.members {
			if !m.cache.Stats().StoreDown {
				return false
			}
		}
		return true
	})
	t.Logf("the store was taken for down %v after the kill", time.Since(killed))
	wantPeak(t, w, w.opts.MaxLoads)
	lasting(t, killedFor-time.Since(killed))
	all := stop()
	wantPeak(t, w, w.opts.MaxLoadsDegraded)

	limit := w.opts.StoreTimeout + killedLoad
	if staleFor == 0 {
		limit += time.Duration((killedRows-1)/w.opts.MaxLoadsDegraded) * killedLoad // the queue
	}
	if stale := wantServed(t, all, killed, limit); staleFor > 0 && stale == 0 {
		t.Error("no stale value was served")
	}

	must(t, w.server.RestartEmpty(t.Context()))
	w.recovered(t)
	for _, results := range herd(w.members, 2*killedRows, keys...) {
		for _, r := range results {
			if r.Class != "" {
				t.Errorf("after the restart: %s", r.Err)
			}
		}
	}
}

// traffic lets n callers of each cache Get one key after another, until the returned
// function is called, which gives what they got.
func traffic(w *world, n int, keys []string) (stop func() []result) {
	var mu sync.Mutex // guards all
	var all []result
	var done sync.WaitGroup
	over := make(chan struct{})
	for _, m := range w.members {
		for range n {
			done.Go(func() {
				tick := time.NewTicker(2 * time.Millisecond)
				defer tick.Stop()
				for {
					r := m.get(keys[rand.IntN(len(keys))])
					mu.Lock()
					all = append(all, r)
					mu.Unlock()
					select {
					case <-tick.C:
					case <-over:
						return
					}
				}
			})
		}
	}
	return func() []result {
		close(over)
		done.Wait()
		return all
	}
}

// wantPeak looks at the most loads at once in each cache since it was last called.
func wantPeak(t *testing.T, w *world, limit int) {
	t.Helper()
	for i, m := range w.members {
		if peak := m.loads.peak(); peak > limit {
			t.Errorf("cache %d had %d loads at once, want at most %d", i, peak, limit)
		}
	}
}

// wantServed wants everybody to have got the row, and who had to wait after the kill to
// have waited no longer than limit (p99). It returns how many got a stale row.
func wantServed(t *testing.T, all []result, killed time.Time, limit time.Duration) (stale int) {
	t.Helper()
	var later, waited []result
	for _, r := range all {
		if r.Class != "" || r.Row.Version != 1 {
			t.Errorf("a caller got version %d, %q", r.Row.Version, r.Err)
		}
		if r.end().After(killed) {
			later = append(later, r)
			if r.Took > time.Millisecond {
				waited = append(waited, r)
			}
		}
		if r.Stale && r.Start.After(killed) {
			stale++
		}
	}
	waited = append(waited, later[len(later)-1]) // so that there is one
	p99 := percentile(took(waited), 99)
	if p99 > limit+margin() {
		t.Errorf("p99 of those who waited is %v, want %v at most", p99, limit)
	}
	t.Logf("%d Gets, %d after the kill (p99 %v), %d of them stale; %d waited: p50 %v, p99 %v, longest %v", len(all), len(later),
		percentile(took(later), 99), stale, len(waited), percentile(took(waited), 50), p99, percentile(took(waited), 100))
	return stale
}
