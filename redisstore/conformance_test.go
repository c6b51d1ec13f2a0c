package redisstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/storetest"
)

// TestConformance runs the suite for every way to make a store, each on a Redis of
// its own, since the suite restarts, freezes and cuts it.
func TestConformance(t *testing.T) {
	forEach(t, func(t *testing.T, v variant) {
		t.Parallel()
		server := servertest.Redis(t, servers.RedisOptions{})
		storetest.Run(t, harness(v, server))
	})
}

func harness(v variant, server *servers.Server) storetest.Harness {
	// The suite's own view of the server: a plain connection per use, which stays
	// out of the counts of what it does.
	say := func(t testing.TB, command ...string) string {
		t.Helper()
		return sayTo(t, server.Addr(), command...)
	}
	value := func(name, key string) string { return valueKey(sessionPrefix(name), key) }
	return storetest.Harness{
		New:  func(t testing.TB) store.Store { return v.on(t, server.URL()) },
		Tick: 60 * time.Millisecond,
		RestartEmpty: func(t testing.TB) {
			ok(t, server.RestartEmpty(context.Background()))
		},
		RestartKeeping: func(t testing.TB) {
			ok(t, server.Restart(context.Background()))
		},
		Break: func(t testing.TB) { say(t, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") },
		Block: func(t testing.TB) func() {
			ok(t, server.Pause())
			return func() { ok(t, server.Continue()) }
		},
		Commands: func(t testing.TB) int64 { return commandCount(t, say(t, "INFO", "commandstats")) },
		PutForeign: func(t testing.TB, name, key string, data []byte) {
			say(t, "SET", value(name, key), string(data))
		},
		PutForeignType: func(t testing.TB, name, key string) {
			say(t, "DEL", value(name, key))
			say(t, "LPUSH", value(name, key), "x")
		},
		EvictKey:   func(t testing.TB, name, key string) { say(t, "DEL", value(name, key)) },
		EvictLease: func(t testing.TB, name, key string) { say(t, "DEL", leaseKey(value(name, key))) },
		LoseTag:    func(t testing.TB, name, tag string) { say(t, "DEL", tagPrefix(name)+tag) },
		LoseEpoch:  func(t testing.TB, name string) { say(t, "DEL", epochKey(name)) },
	}
}

// commandCount adds up what stores ask for: reads, scripts, and the reads in scripts,
// which grow with them. The suite's own questions are none of these.
func commandCount(t testing.TB, stats string) int64 {
	t.Helper()
	var n int64
	for line := range strings.Lines(stats) {
		for _, command := range []string{"get", "evalsha", "eval"} {
			if rest, found := strings.CutPrefix(line, "cmdstat_"+command+":calls="); found {
				var calls int64
				for _, digit := range rest[:strings.IndexByte(rest, ',')] {
					calls = 10*calls + int64(digit-'0')
				}
				n += calls
			}
		}
	}
	return n
}
