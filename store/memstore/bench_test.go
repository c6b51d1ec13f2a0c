package memstore_test

import (
	"testing"
	"time"

	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

func BenchmarkGet(b *testing.B) {
	ctx := b.Context()
	s, err := memstore.New().Attach(ctx, store.Config{Name: name})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := s.Set(ctx, "k", make([]byte, 256), time.Hour); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if item, err := s.Get(ctx, "k"); err != nil || !item.Found {
			b.Fatal(item.Found, err)
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	ctx := b.Context()
	s, err := memstore.New().Attach(ctx, store.Config{Name: name})
	if err != nil {
		b.Fatal(err)
	}
	data := make([]byte, 256)
	b.ReportAllocs()
	for b.Loop() {
		answer, err := s.Acquire(ctx, "k", store.Request{Token: store.NewToken(), TTL: time.Second})
		if err != nil || answer.State != store.Won {
			b.Fatal(answer.State, err)
		}
		if ok, err := answer.Lease.Fill(ctx, data, time.Hour); err != nil || !ok {
			b.Fatal(ok, err)
		}
		if err := s.Invalidate(ctx, "k"); err != nil {
			b.Fatal(err)
		}
	}
}
