package memcachestore

import (
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
)

// h: the server's clock ticks once a second, so a TTL of one second may be over at once.
// A failure record of one second lasts for one at least, whatever the tick's phase:
// otherwise a waiter comes by too late and loads again. Forced: records are left every
// 50 ms for more than a second, and each is looked at when its second is nearly over.
func TestFailureOutlastsTheTick(t *testing.T) {
	t.Parallel()
	server := servertest.Memcached(t, servers.MemcachedOptions{})
	r := attach(t, open(t, server.Addr()))
	const records, apart, ttl = 25, 50 * time.Millisecond, time.Second
	due := make(chan string, records)
	tick := time.NewTicker(apart)
	defer tick.Stop()
	for i := range records {
		key := string(rune('a' + i))
		lease := r.wins(key, nil)
		if ok, err := lease.Fail(r.ctx, []byte("record"), ttl); !ok || err != nil {
			t.Fatalf("Fail: %v, %v", ok, err)
		}
		time.AfterFunc(ttl-apart, func() { due <- key })
		<-tick.C
	}
	for range records {
		key := <-due
		a, err := r.Acquire(r.ctx, key, store.Request{Token: store.NewToken(), TTL: 2 * time.Second})
		if err != nil || a.State != store.Failed {
			t.Errorf("record %s: %v, %v after %v, want failed", key, a.State, err, ttl-apart)
		}
	}
}
