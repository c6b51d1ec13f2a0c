package memcachestore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/storetest"
)

// TestConformance runs the suite on a memcached of its own, since the suite restarts
// and freezes it.
func TestConformance(t *testing.T) {
	t.Parallel()
	server := servertest.Memcached(t, servers.MemcachedOptions{})
	storetest.Run(t, harness(server))
}

func harness(server *servers.Server) storetest.Harness {
	item := func(t testing.TB, name, key string) string {
		item, _, err := itemKey(sha, name, key)
		ok(t, err)
		return item
	}
	evict := func(t testing.TB, name, key string) { remove(t, server, item(t, name, key)) }
	return storetest.Harness{
		New:  func(t testing.TB) store.Store { return open(t, server.Addr()) },
		Tick: 2 * time.Second,
		RestartEmpty: func(t testing.TB) {
			ok(t, server.RestartEmpty(context.Background()))
		},
		Block: func(t testing.TB) func() {
			ok(t, server.Pause())
			return func() { ok(t, server.Continue()) }
		},
		Commands: func(t testing.TB) int64 { return asked(t, server.Addr()) },
		PutForeign: func(t testing.TB, name, key string, data []byte) {
			got := dialWire(t, server.Addr()).say("set %s 0 0 %d\r\n%s", item(t, name, key), len(data), data)
			if got != "STORED" {
				t.Fatal(fmt.Errorf("set: %s", got))
			}
		},
		// An item is bytes, so there is no PutForeignType. Value and lease are one item.
		EvictKey:   evict,
		EvictLease: evict,
		LoseTag:    func(t testing.TB, name, tag string) { remove(t, server, tagKey(sha, name, tag)) },
		LoseEpoch:  func(t testing.TB, name string) { remove(t, server, epochPrefix+name) },
	}
}

func remove(t testing.TB, server *servers.Server, item string) {
	t.Helper()
	if got := dialWire(t, server.Addr()).say("md %s", item); got != "HD" {
		t.Fatalf("nothing to remove under %q: %s", item, got)
	}
}
