package memcachestore

import (
	"fmt"
	"testing"

	"github.com/onefill/onefill/store"
)

// Hits and whole lives of a key, by one caller and by many on the same connections.
func BenchmarkStore(b *testing.B) {
	r := attach(b, open(b, shared.Get(b).Addr()))
	r.set("k", envelope("0123456789012345678901234567890123456789"))
	hit := func() error { return second(r.Get(r.ctx, "k")) }
	life := func(key string) error {
		a, err := r.Acquire(r.ctx, key, store.Request{Token: store.NewToken(), TTL: long})
		if err != nil || a.State != store.Won {
			return fmt.Errorf("acquire: %v, %w", a.State, err)
		}
		if _, err := a.Lease.Fill(r.ctx, []byte("value"), long); err != nil {
			return err
		}
		return r.Invalidate(r.ctx, key)
	}
	b.Run("hit", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ok(b, hit())
		}
	})
	b.Run("hit/64 callers a core", func(b *testing.B) {
		b.ReportAllocs()
		b.SetParallelism(64)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := hit(); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("acquire, fill, invalidate", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ok(b, life("life"))
		}
	})
}
