package otelonefill_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/otelonefill"
	"github.com/onefill/onefill/store/memstore"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

type options = onefill.Options[string, string]

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// program is a process with an SDK that keeps everything in memory.
type program struct {
	*otelonefill.Telemetry
	spans  *tracetest.SpanRecorder
	reader *sdkmetric.ManualReader
	tracer trace.Tracer // the program's own
}

// newProgram makes one whose Telemetry knows of no flight any more when the test ends.
func newProgram(t testing.TB, o otelonefill.Options, sdk ...sdktrace.TracerProviderOption) *program {
	t.Helper()
	p := &program{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	provider := sdktrace.NewTracerProvider(append(sdk, sdktrace.WithSpanProcessor(p.spans))...)
	o.TracerProvider = provider
	o.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(p.reader))
	p.tracer = provider.Tracer("test")
	tel, err := otelonefill.New(o)
	check(t, err)
	p.Telemetry = tel
	t.Cleanup(func() {
		check(t, tel.Close())
		if n := tel.Followed(); n != 0 {
			t.Errorf("%d flights are followed still", n)
		}
		if n := len(p.spans.Started()) - len(p.spans.Ended()); n != 0 {
			t.Errorf("%d spans have not ended", n)
		}
	})
	return p
}

// newCache returns a cache that the program observes and shows; it is closed when the test ends.
func (p *program) newCache(t testing.TB, o options) *onefill.Cache[string, string] {
	t.Helper()
	o.Observer, o.Logger = p.Telemetry, quiet()
	c, err := onefill.New(o)
	check(t, err)
	t.Cleanup(func() { check(t, c.Close()) })
	check(t, p.Add(o.Name, c))
	return c
}

// processes are three, with a cache each on one store; a load takes 100 ms.
func processes(t testing.TB) (ps []*program, cs []*onefill.Cache[string, string]) {
	t.Helper()
	st := memstore.New()
	for range 3 {
		p := newProgram(t, otelonefill.Options{})
		ps = append(ps, p)
		cs = append(cs, p.newCache(t, options{Name: "users", Store: st, Load: slowly(100 * time.Millisecond)}))
	}
	return ps, cs
}

// slowly is a loader that takes its time: in a bubble until nobody else can go on.
func slowly(takes time.Duration) func(context.Context, string) (string, error) {
	return func(context.Context, string) (string, error) {
		bubble.After(takes)
		return "Ada", nil
	}
}

// named are the spans of a name that have ended.
func (p *program) named(name string) (spans []sdktrace.ReadOnlySpan) {
	for _, s := range p.spans.Ended() {
		if s.Name() == name {
			spans = append(spans, s)
		}
	}
	return spans
}

// one is the only span of a name.
func (p *program) one(t testing.TB, name string) sdktrace.ReadOnlySpan {
	t.Helper()
	spans := p.named(name)
	if len(spans) != 1 {
		t.Fatalf("%d spans named %q, want 1", len(spans), name)
	}
	return spans[0]
}

func attr(s sdktrace.ReadOnlySpan, key string) string {
	for _, a := range s.Attributes() {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return ""
}

// linked says whether a span has a link to another.
func linked(from, to sdktrace.ReadOnlySpan) bool {
	for _, l := range from.Links() {
		if l.SpanContext.Equal(to.SpanContext()) {
			return true
		}
	}
	return false
}

// sample is one number; of a histogram, the sum and the count.
type sample struct {
	value float64
	count uint64
}

// collect asks for the metrics: by name and attributes, as in
// onefill.fills{onefill.cache=users,onefill.outcome=stored}.
func (p *program) collect(t testing.TB) map[string]sample {
	t.Helper()
	var all metricdata.ResourceMetrics
	check(t, p.reader.Collect(t.Context(), &all))
	got := map[string]sample{}
	put := func(name string, set attribute.Set, value float64, count uint64) {
		var labels []string
		for _, a := range set.ToSlice() {
			labels = append(labels, fmt.Sprintf("%s=%s", a.Key, a.Value.String()))
		}
		got[name+"{"+strings.Join(labels, ",")+"}"] = sample{value, count}
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, point := range d.DataPoints {
					put(m.Name, point.Attributes, float64(point.Value), 0)
				}
			case metricdata.Gauge[int64]:
				for _, point := range d.DataPoints {
					put(m.Name, point.Attributes, float64(point.Value), 0)
				}
			case metricdata.Gauge[float64]:
				for _, point := range d.DataPoints {
					put(m.Name, point.Attributes, point.Value, 0)
				}
			case metricdata.Histogram[float64]:
				for _, point := range d.DataPoints {
					put(m.Name, point.Attributes, point.Sum, point.Count)
				}
			default:
				t.Errorf("%s is a %T", m.Name, d)
			}
		}
	}
	return got
}

func expect(t *testing.T, got, want map[string]sample) {
	t.Helper()
	for name, w := range want {
		if g, ok := got[name]; !ok || g != w {
			t.Errorf("%s is %v (there: %t), want %v", name, g, ok, w)
		}
	}
}
