package watch

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/onefill/onefill"
)

// BenchmarkCache is what a Recorder adds to a hit in local and to a miss that is loaded at
// once.
func BenchmarkCache(b *testing.B) {
	load := func(context.Context, string) (string, error) { return "v", nil }
	for _, with := range []struct {
		name string
		o    onefill.Observer
	}{{"none", nil}, {"recorder", New(Options{})}} {
		c := newCache(b, with.o, onefill.Options[string, string]{Load: load, TTL: time.Hour})
		b.Run("hit/"+with.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Get(context.Background(), "k")
			}
		})
		b.Run("miss/"+with.name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				c.Get(context.Background(), strconv.Itoa(i))
			}
		})
	}
}

// BenchmarkObserve is the Recorder's part alone.
func BenchmarkObserve(b *testing.B) {
	keys := make([]string, 10_000)
	for i := range keys {
		keys[i] = "user:" + strconv.Itoa(i)
	}
	r := New(Options{})
	b.Run("hit", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r.Observe(onefill.Event{Kind: onefill.EventLocalHit, Cache: "c", Key: keys[0], N: 64})
		}
	})
	b.Run("miss", func(b *testing.B) {
		b.ReportAllocs()
		i := uint64(0)
		for b.Loop() {
			i++
			f := []onefill.Flight{{ID: i, Cache: "c", Key: keys[i%10_000]}}
			wait := r.TraceWait(context.Background(), f)
			_, load := r.TraceLoad(context.Background(), f)
			load(nil)
			r.Observe(onefill.Event{Kind: onefill.EventLoad, Cache: "c", Key: f[0].Key, Took: 1000})
			r.Observe(onefill.Event{Kind: onefill.EventMiss, Cache: "c", Key: f[0].Key, Flight: i, N: 1, Callers: 1})
			wait(nil)
		}
	})
}
