package integration

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// TestOverlappingSets lets four processes with 25 goroutines each ask for sets of 50 rows
// out of 200, in random orders, so that nearly every row is wanted by nearly every
// process at once and the sets' flights, leases and batches cross each other in every
// way. The barrier opens for all when all stand at it; what follows is up to chance, and
// there are four rounds. The properties, each by the origin's count or each answer:
//
//   - Every row is loaded once in the whole fleet, whatever the sets' orders.
//   - Nobody waits for ever: no set waits for a row whose holder waits for one of its own.
//     All have their answers within the time of a few batches.
//   - Everybody gets all rows of the set, none else, and the same rows.
func TestOverlappingSets(t *testing.T) {
	const procs, each, size, of, batch = 4, 25, 50, 200, 20 * time.Millisecond
	for _, bulk := range []bool{true, false} {
		name := map[bool]string{true: "LoadMany", false: "Load"}[bulk]
		t.Run(name, func(t *testing.T) {
			o, random := origin(t), seeded(t)
			// On a machine that is so busy that the store takes StoreTimeout to answer, loads go
			// on without leases; that is not what is tested here.
			f := startFleet(t, procs, config{Bulk: bulk, LeaseTTL: 5 * time.Second, StoreTimeout: patience / 3})
			for range 4 {
				keys := o.addMany(t, of, batch)
				asked := make([]*pending, procs)
				for i, p := range f {
					asked[i] = p.begin(request{Op: opSets, Sets: randomSets(random, keys, each, size)})
				}
				for _, r := range asked {
					r.ready()
				}
				for _, r := range asked {
					r.release()
				}
				rows, longest := 0, time.Duration(0)
				for i, r := range asked {
					for _, got := range r.wait().Many {
						longest = max(longest, got.Took)
						rows += wantSet(t, i, got)
					}
				}
				t.Logf("%d rows in %d sets, of %d; the longest set took %v; the origin counted %d loads",
					rows, procs*each, len(keys), longest, o.loads(t, keys...))
				for _, key := range keys {
					if n := o.loads(t, key); n > 1 {
						t.Errorf("%q was loaded %d times", key, n)
					}
				}
				o.wantLoads(t, of, keys...) // 100 sets of 50: a row that is in none of them is not to be expected
				if limit := 5*time.Second + slack(); longest > limit {
					t.Errorf("a set took %v, want %v at most", longest, limit)
				}
			}
			for i, p := range f {
				if s := p.stats().Stats; s.LeasesLost > 0 || s.WaitTimeouts > 0 || s.StoreErrors > 0 {
					t.Errorf("process %d: %d leases were lost, %d waits timed out, %d operations of the store failed", i, s.LeasesLost, s.WaitTimeouts, s.StoreErrors)
				}
			}
		})
	}
}

// randomSets are n sets of some of the keys, each in an order of its own.
func randomSets(random *rand.Rand, keys []string, n, size int) [][]string {
	sets := make([][]string, n)
	for i := range sets {
		all := slices.Clone(keys)
		random.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
		sets[i] = all[:size]
	}
	return sets
}

// wantSet wants the rows that were asked for, and says how many there are.
func wantSet(t *testing.T, process int, got many) int {
	t.Helper()
	if got.Err != "" {
		t.Errorf("process %d: %s", process, got.Err)
	}
	for _, key := range got.Keys {
		if r, ok := got.Rows[key]; !ok || r != (row{"v1", 1}) {
			t.Errorf("process %d: %q is %+v (there: %v)", process, key, r, ok)
		}
	}
	if len(got.Rows) != len(got.Keys) {
		t.Errorf("process %d: %d rows for %d keys", process, len(got.Rows), len(got.Keys))
	}
	return len(got.Rows)
}

// many is what one GetMany got.
type many struct {
	Keys []string
	Rows map[string]row
	Err  string
	Took time.Duration
}

// getSets lets a goroutine for each set stand at a barrier and GetMany.
func (c *child) getSets(ctx context.Context, r request, t *task) []many {
	all := make([]many, len(r.Sets))
	var ready, done sync.WaitGroup
	for i, keys := range r.Sets {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-t.start
			begin := time.Now()
			rows, err := c.cache.GetMany(ctx, keys)
			all[i] = many{Keys: keys, Rows: rows, Took: time.Since(begin)}
			if err != nil {
				all[i].Err = err.Error()
			}
		})
	}
	ready.Wait()
	c.send(message{Event: evReady, ID: r.ID})
	done.Wait()
	return all
}

// loadMany counts itself in the rows and reads them, in one committed statement. Then it
// takes the time of the slowest.
func (s *source) loadMany(ctx context.Context, keys []string) (map[string]row, error) {
	s.enter()
	defer s.leave()
	found, err := s.pool.Query(ctx, `UPDATE origin SET loads = loads + 1 WHERE key = any($1)
		RETURNING key, value, version, wait`, slices.Sorted(slices.Values(keys)))
	if err != nil {
		return nil, err
	}
	defer found.Close()
	all, wait := map[string]row{}, 0.0
	for found.Next() {
		var key string
		var r row
		var w float64
		if err := found.Scan(&key, &r.Value, &r.Version, &w); err != nil {
			return nil, err
		}
		all[key], wait = r, max(wait, w)
	}
	if err := found.Err(); err != nil {
		return nil, err
	}
	found.Close()
	_, err = s.pool.Exec(ctx, `SELECT pg_sleep($1)`, wait)
	return all, err
}
