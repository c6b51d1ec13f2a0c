package integration

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/faultproxy"
)

// TestWrittenWhileCutOff cuts two caches off from Redis, one made by Open and one by New,
// while a third one writes. The order, in each round:
//
//	a, b: row v in local | a, b: connection cut, and none is made anew
//	| c: v+1 committed, Invalidate, nil | a, b read
//	| c: v+2 committed, Invalidate, nil | the way is open again | a, b read
//	| c: v+3 committed, Invalidate, nil | a, b read
//
// The properties: while they are cut off, a and b answer, and what they have in local they
// may serve until Local.TTL ends, but not longer. Where Local.TTL is an hour they drop it
// when they are connected again: v, and v+1 if they have loaded that meanwhile without a
// lease, are read no more within moments. From then on pushes are heard again, for v+3. The
// test logs for how long each was read after the answer of its Invalidate.
func TestWrittenWhileCutOff(t *testing.T) {
	for _, localTTL := range []time.Duration{time.Hour, 400 * time.Millisecond} {
		t.Run(fmt.Sprintf("Local.TTL %v", localTTL), func(t *testing.T) { writtenWhileCutOff(t, localTTL) })
	}
}

func writtenWhileCutOff(t *testing.T, localTTL time.Duration) {
	w := newWorld(t, onRedis, 3, func(o *worldOptions) {
		o.Local.TTL, o.StaleOnError, o.StoreTimeout = localTTL, 0, time.Second
	})
	cutOff, c := w.members[:2], w.members[2]
	key := w.origin.add(0)
	change := func() int64 {
		version := w.origin.write(key)
		must(t, c.cache.Invalidate(t.Context(), key))
		return version
	}
	worst := map[string]time.Duration{}
	for _, way := range []faultproxy.Way{faultproxy.RST, faultproxy.FIN, faultproxy.RST} {
		for _, m := range cutOff {
			poll(t, "the row is in local", func() bool { r := m.get(key); return r.Class == "" && r.Source == onefill.SourceLocal })
		}
		for _, m := range cutOff {
			m.proxy.Refuse(true)
			m.proxy.Cut(way)
		}
		version := change()
		if localTTL < time.Second {
			seen(t, worst, "v, cut off", cutOff, key, version, localTTL)
		} else {
			for i, m := range cutOff {
				poll(t, "the store is taken for unreachable", func() bool {
					if r := m.get(key); r.Class != "" || r.Row.Version < version-1 {
						t.Errorf("cut off: cache %d read version %d, %s", i, r.Row.Version, r.Err)
					}
					return m.cache.Stats().StoreDown
				})
			}
		}
		version = change()
		for _, m := range cutOff {
			m.proxy.Refuse(false)
		}
		seen(t, worst, "v or v+1, connected again", cutOff, key, version, min(localTTL, slack()))
		w.recovered(t)
		for _, m := range cutOff {
			poll(t, "the row is in local, from the store", func() bool { r := m.get(key); return r.Row.Version == version && r.Source == onefill.SourceLocal })
		}
		seen(t, worst, "v+2, heard", cutOff, key, change(), min(localTTL, slack()))
	}
	t.Logf("the longest that each was read: %v", worst)
}

// seen reads in all caches until each has the version, and for a while after that, and
// notes for how long an older one was read; that must be within the bound.
func seen(t *testing.T, worst map[string]time.Duration, what string, members []*member, key string, version int64, bound time.Duration) {
	t.Helper()
	applied := time.Now()
	lags := make([]time.Duration, len(members))
	var reading sync.WaitGroup
	for i, m := range members {
		reading.Go(func() {
			for new := 0; new < 200; {
				r := m.get(key)
				since := r.Start.Sub(applied)
				switch {
				case r.Class != "":
					t.Errorf("%s: cache %d: %s", what, i, r.Err)
					return
				case r.Row.Version >= version:
					new++
				case new > 0:
					t.Errorf("%s: cache %d read version %d %v after Invalidate, when it had read version %d already", what, i, r.Row.Version, since, version)
					return
				case since > bound:
					t.Errorf("%s: cache %d read version %d %v after the Invalidate of version %d; the bound is %v", what, i, r.Row.Version, since, version, bound)
					return
				default:
					lags[i] = since
				}
			}
		})
	}
	reading.Wait()
	for i, lag := range lags {
		name := fmt.Sprintf("%s (via %s)", what, []storeKind{viaOpen, viaNew}[i%2])
		worst[name] = max(worst[name], lag)
	}
}
