package memstore_test

import (
	"os"
	"testing"
	"time"

	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
	"github.com/onefill/onefill/store/storetest"
)

// TestConformance runs the suite on the whole store and on stores that act as
// servers that can do less.
func TestConformance(t *testing.T) {
	for _, config := range []struct {
		name    string
		options memstore.Options
		tick    time.Duration
	}{
		{"full", memstore.Options{}, 20 * time.Millisecond},
		{"like memcached", memstore.Options{
			NoPush: true, AcquireReads: true, ForgetsToken: true,
			Granularity: 50 * time.Millisecond, MinLease: 100 * time.Millisecond,
			MaxKeyBytes: 250, MaxValueBytes: 1 << 16,
		}, 100 * time.Millisecond},
	} {
		t.Run(config.name, func(t *testing.T) {
			storetest.Run(t, harness(memstore.New(config.options), config.tick))
		})
	}
}

// harness gives every hook, so that nothing but undeclared features is skipped.
func harness(st *memstore.Store, tick time.Duration) storetest.Harness {
	return storetest.Harness{
		New:          func(testing.TB) store.Store { return st },
		Tick:         tick,
		Patience:     patience,
		RestartEmpty: func(testing.TB) { st.Down(); st.Flush(); st.Up() },
		RestartKeeping: func(testing.TB) {
			st.Down()
			st.Up()
		},
		Break: func(testing.TB) { st.LosePushes() },
		Block: func(testing.TB) func() {
			hold := make(chan struct{})
			st.SetFault(func(memstore.Op) memstore.Fault { return memstore.Fault{Hold: hold} })
			return func() { close(hold); st.SetFault(nil) }
		},
		Commands: func(testing.TB) int64 {
			sum := 0
			for _, n := range st.Counts() {
				sum += n
			}
			return int64(sum)
		},
		PutForeign: func(_ testing.TB, name, key string, data []byte) {
			st.PutRaw(name, key, data, time.Hour)
		},
		PutForeignType: func(_ testing.TB, name, key string) {
			st.PutRaw(name, key, nil, time.Hour) // nothing that could be read
		},
		EvictKey:   func(_ testing.TB, name, key string) { st.Evict(name, key) },
		EvictLease: func(_ testing.TB, name, key string) { st.DropLease(name, key) },
		LoseTag:    func(_ testing.TB, name, tag string) { st.LoseTags(name, tag) },
		LoseEpoch:  func(_ testing.TB, name string) { st.LoseTags(name) },
	}
}

// patience is zero for the suite's default. ONEFILL_TEST_PATIENCE shortens it for
// those who break the store on purpose and wait for tests to fail.
var patience, _ = time.ParseDuration(os.Getenv("ONEFILL_TEST_PATIENCE"))
