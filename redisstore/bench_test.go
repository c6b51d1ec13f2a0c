package redisstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// BenchmarkGet compares a hit with rueidis' own GET of the same key, alone and with
// many goroutines on one connection.
func BenchmarkGet(b *testing.B) {
	url := shared.Get(b).URL()
	s := opened(b, url)
	b.Cleanup(func() { s.Close() })
	a := attach(b, s, "bench")
	a.set("key", string(make([]byte, 256)))
	full := valueKey(sessionPrefix("bench"), "key")
	option := rueidis.MustParseURL(url)
	option.PipelineMultiplex, option.ClientTrackingOptions = -1, trackingOptions
	option.OnInvalidations = func([]rueidis.RedisMessage) {}
	plain := must(rueidis.NewClient(option))(b)
	b.Cleanup(plain.Close)
	ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
	b.Cleanup(cancel)

	ways := []struct {
		name string
		get  func() error
	}{
		{"rueidis", func() error {
			return plain.Do(ctx, plain.B().Get().Key(full).Build()).Error()
		}},
		{"redisstore", func() error {
			_, err := a.Get(ctx, "key")
			return err
		}},
	}
	for _, parallel := range []int{1, 64} {
		for _, way := range ways {
			b.Run(fmt.Sprintf("%s/goroutines=%d", way.name, parallel), func(b *testing.B) {
				b.ReportAllocs()
				if parallel == 1 {
					for b.Loop() {
						ok(b, way.get())
					}
					return
				}
				b.SetParallelism(parallel / 2)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if err := way.get(); err != nil {
							b.Error(err)
						}
					}
				})
			})
		}
	}
}

// BenchmarkLoad is what a miss costs: acquire and fill.
func BenchmarkLoad(b *testing.B) {
	s := opened(b, shared.Get(b).URL())
	b.Cleanup(func() { s.Close() })
	a := attach(b, s, unique(b))
	data := make([]byte, 256)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		key := fmt.Sprint(i)
		must(a.win(key).Fill(a.ctx, data, time.Minute))(b)
	}
}
