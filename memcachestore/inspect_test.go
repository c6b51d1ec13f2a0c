package memcachestore

import (
	"testing"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
)

// To look makes no item, not even the empty ones with which a reader of a tag's generation,
// or of an absent key, begins.
func TestInspectMakesNothing(t *testing.T) {
	t.Parallel()
	addr := servertest.Memcached(t, servers.MemcachedOptions{}).Addr()
	w := dialWire(t, addr)
	a := attach(t, openWith(t, Options{Addrs: []string{addr}, Conns: 1})) // a connection writes when it is made
	in := a.Session.(store.Inspector)
	before := w.stats()
	if h, err := in.Inspect(background(t), "absent"); err != nil || h.Item.Found || h.Lease.ID != "" {
		t.Errorf("%+v, %v", h, err)
	}
	if s, err := in.InspectTags(background(t), "t", "u"); err != nil || s.Epoch != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	after := w.stats()
	for _, name := range []string{"total_items", "cmd_set", "cmd_touch"} {
		if before[name] != after[name] {
			t.Errorf("%s was %s and is %s", name, before[name], after[name])
		}
	}
}
