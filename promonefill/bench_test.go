package promonefill_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/onefill/onefill"
)

// observers are what the benchmarks compare.
func observers(b *testing.B, run func(b *testing.B, c *onefill.Cache[string, string])) {
	for name, o := range map[string]onefill.Observer{"none": nil, "promonefill": newCollector(b)} {
		b.Run(name, func(b *testing.B) {
			c, err := onefill.New(options{Name: "users", Observer: o, Logger: quiet(), Load: func(_ context.Context, key string) (string, error) { return key, nil }})
			check(b, err)
			b.Cleanup(func() { c.Close() })
			b.ReportAllocs()
			run(b, c)
		})
	}
}

func BenchmarkHit(b *testing.B) {
	observers(b, func(b *testing.B, c *onefill.Cache[string, string]) {
		ctx := b.Context()
		for b.Loop() {
			if _, err := c.Get(ctx, "ada"); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkMiss(b *testing.B) {
	observers(b, func(b *testing.B, c *onefill.Cache[string, string]) {
		ctx, i := b.Context(), 0
		for b.Loop() {
			i++
			if _, err := c.Get(ctx, strconv.Itoa(i)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// A scrape of one cache: what Prometheus costs every 15 s.
func BenchmarkScrape(b *testing.B) {
	m := newCollector(b)
	check(b, m.Add("users", &fixed{}))
	b.ReportAllocs()
	for b.Loop() {
		scrape(b, m)
	}
}
