package onefill_test

import (
	"context"
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/onefill/onefill"
)

func zipf(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("user:profile:%08d", i)
	}
	z := rand.NewZipf(rand.New(rand.NewSource(1)), 1.01, 1, uint64(n-1))
	seq := make([]string, 1<<18)
	for i := range seq {
		seq[i] = names[z.Uint64()]
	}
	return seq
}

// BenchmarkLocalHit sets a hit in local beside otter with a loader, the anchor.
func BenchmarkLocalHit(b *testing.B) {
	const keys = 100_000
	seq := zipf(keys)
	value := make([]byte, 100)
	load := func(context.Context, string) ([]byte, error) { return value, nil }
	ctx := context.Background()

	o := otter.Must(&otter.Options[string, []byte]{MaximumSize: 2 * keys, ExpiryCalculator: otter.ExpiryWriting[string, []byte](time.Hour)})
	defer o.StopAllGoroutines()
	loader := otter.LoaderFunc[string, []byte](load)
	c, err := onefill.New(onefill.Options[string, []byte]{Load: load, TTL: time.Hour, Local: onefill.LocalOptions{MaxEntries: 2 * keys}})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	for name, get := range map[string]func(string){
		"otter":   func(k string) { o.Get(ctx, k, loader) },
		"onefill": func(k string) { c.Get(ctx, k) },
	} {
		for _, k := range seq {
			get(k)
		}
		b.Run(name+"/serial", func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				get(seq[i&(len(seq)-1)])
				i++
			}
		})
		b.Run(name+"/parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				i := rand.Intn(len(seq))
				for pb.Next() {
					get(seq[i&(len(seq)-1)])
					i++
				}
			})
		})
	}
}
