package integration

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/faultproxy"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

// A failover that loses writes: a replica is made a primary before it has got the latest
// ones, and has what they had removed. The interleaving:
//
//	replica: REPLICAOF NO ONE | rows change; Set, Expire, Invalidate on the primary: nil
//	| all connections are cut, and made anew to the former replica | everybody reads
//
// The caches find out, repeat what they wrote lately, and from then on the old rows are
// read nowhere. Until then nothing is promised; the test says how long that was.
func TestFailoverLosesWrites(t *testing.T) {
	t.Parallel()                      // it mostly waits
	w := newWorld(t, onRedis, 2, nil) // the one is made by Open, the other by New
	replica := servertest.Redis(t, servers.RedisOptions{Args: []string{"--replicaof", "127.0.0.1", strconv.Itoa(w.server.Port())}})
	copied := adminOf(t, replica)
	writer := w.members[0]
	keys := map[string]string{"Invalidate": w.origin.add(0), "Set": w.origin.add(0), "Expire": w.origin.add(0)}
	for _, key := range keys {
		for _, m := range w.members {
			m.get(key)
		}
		poll(t, "the replica has the row", func() bool { _, found := copied.stored(w.name, key); return found })
	}

	copied.do("REPLICAOF", "NO", "ONE")
	for op, key := range keys {
		version := w.origin.write(key)
		must(t, map[string]func() error{
			"Invalidate": func() error { return writer.cache.Invalidate(t.Context(), key) },
			"Set":        func() error { return writer.cache.Set(t.Context(), key, row{Value: "v2", Version: version}) },
			"Expire":     func() error { return writer.cache.Expire(t.Context(), key) },
		}[op]())
	}
	for _, m := range w.members {
		m.proxy.SetTarget(replica.Addr())
	}
	switched := time.Now()
	for _, m := range w.members {
		m.proxy.Cut(faultproxy.RST)
	}
	must(t, w.server.Kill())

	var mu sync.Mutex // guards lags
	lags := map[string]time.Duration{}
	var done sync.WaitGroup
	for i, m := range w.members {
		for op, key := range keys {
			done.Go(func() {
				lag := (&cell{t: t, w: w}).lag(m, key, switched)
				mu.Lock()
				defer mu.Unlock()
				lags[[]string{"writer: ", "other: "}[i]+op] = lag
			})
		}
	}
	done.Wait()
	t.Logf("after the switch the old rows were read until: %v", lags)
	for who, lag := range lags {
		if lag > slack() {
			t.Errorf("%s: the old row was read %v after the switch", who, lag)
		}
	}
	for _, key := range keys {
		poll(t, "the new primary has the old row no more, or a stale one", func() bool {
			text, found := copied.stored(w.name, key)
			return !found || text == `{"Value":"v2","Version":2}`
		})
	}
	w.recovered(t)
	for _, m := range w.members {
		for _, key := range keys {
			if r := m.get(key); r.Row.Version != 2 {
				t.Errorf("afterwards: version %d, %q", r.Row.Version, r.Err)
			}
		}
	}
}
