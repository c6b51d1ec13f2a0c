package otelonefill_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/otelonefill"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// observers are what the benchmarks compare: no observer, this one without an SDK, with an SDK
// that samples nothing, and with one that samples everything and throws it away.
func observers(b *testing.B, run func(b *testing.B, o onefill.Observer, tracer trace.Tracer)) {
	b.Run("none", func(b *testing.B) { run(b, nil, nil) })
	b.Run("no-sdk", func(b *testing.B) {
		tel, err := otelonefill.New(otelonefill.Options{})
		check(b, err)
		run(b, tel, nil)
	})
	for name, sampler := range map[string]sdktrace.Sampler{"unsampled": sdktrace.NeverSample(), "sampled": sdktrace.AlwaysSample()} {
		b.Run(name, func(b *testing.B) {
			provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler), sdktrace.WithSpanProcessor(discard{}))
			tel, err := otelonefill.New(otelonefill.Options{
				TracerProvider: provider,
				MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())),
			})
			check(b, err)
			run(b, tel, provider.Tracer("caller"))
		})
	}
}

type discard struct{}

func (discard) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (discard) OnEnd(sdktrace.ReadOnlySpan)                     {}
func (discard) Shutdown(context.Context) error                  { return nil }
func (discard) ForceFlush(context.Context) error                { return nil }

func benchCache(b *testing.B, o onefill.Observer, tracer trace.Tracer) (*onefill.Cache[string, string], context.Context) {
	c, err := onefill.New(options{Name: "users", Observer: o, Logger: quiet(), Load: func(_ context.Context, key string) (string, error) { return key, nil }})
	check(b, err)
	b.Cleanup(func() { c.Close() })
	ctx := b.Context()
	if tracer != nil {
		var span trace.Span
		ctx, span = tracer.Start(ctx, "GET")
		b.Cleanup(func() { span.End() })
	}
	return c, ctx
}

func BenchmarkHit(b *testing.B) {
	observers(b, func(b *testing.B, o onefill.Observer, tracer trace.Tracer) {
		c, ctx := benchCache(b, o, tracer)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Get(ctx, "ada"); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkMiss(b *testing.B) {
	observers(b, func(b *testing.B, o onefill.Observer, tracer trace.Tracer) {
		c, ctx := benchCache(b, o, tracer)
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			i++
			if _, err := c.Get(ctx, strconv.Itoa(i)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
