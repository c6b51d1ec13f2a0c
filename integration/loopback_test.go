package integration

import (
	"log/slog"
	"testing"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/servers"
)

// loopback makes caches of one name in the test's process, each with a store and a client
// of its own straight on the server, and rows in memory: for what is measured.
func loopback(t *testing.T, server *servers.Server, n int, change func(*worldOptions)) (*rows, []*onefill.Cache[string, row]) {
	t.Helper()
	o := &rows{byKey: map[string]*memRow{}}
	opts := worldOptions{
		Name: "loopback-" + o.add(0), Load: o.load, TTL: worldTTL, StoreTimeout: patience / 3,
		Local: onefill.LocalOptions{TTL: worldTTL}, Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&opts)
	}
	caches := make([]*onefill.Cache[string, row], n)
	for i := range caches {
		st, done, err := openStore(server.URL(), []storeKind{viaOpen, viaNew}[i%2])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := done(); err != nil {
				t.Errorf("closing the store of cache %d: %v", i, err)
			}
		})
		opts.Store = st
		if caches[i], err = onefill.New(opts); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := caches[i].Close(); err != nil {
				t.Errorf("cache %d: %v", i, err)
			}
		})
	}
	return o, caches
}
