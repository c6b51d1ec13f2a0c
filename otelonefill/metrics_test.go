package otelonefill_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/metrics"
	"github.com/onefill/onefill/otelonefill"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// Twelve callers of an absent key in three processes, at one moment; the load returns when all
// wait. Each process's numbers are those of its cache, and each has had a miss group that waited
// for the one load.
func TestMetricsOfAHerd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ps, cs := processes(t)
		var herd sync.WaitGroup
		for i := range 12 {
			herd.Go(func() {
				if v, err := cs[i%3].Get(t.Context(), "ada"); v != "Ada" || err != nil {
					t.Errorf("Get: %q, %v", v, err)
				}
			})
		}
		herd.Wait()
		synctest.Wait()
		sum := map[string]sample{}
		for i, p := range ps {
			s, got := cs[i].Stats(), p.collect(t)
			for _, r := range metrics.Caches() {
				for j, label := range r.Values {
					id := r.Name + "{onefill.cache=users}"
					if r.Label != "" {
						id = fmt.Sprintf("%s{onefill.cache=users,onefill.%s=%s}", r.Name, r.Label, label)
					}
					expect(t, got, map[string]sample{id: {value: r.Read(&s, j)}})
				}
			}
			for name, v := range got {
				sum[name] = sample{sum[name].value + v.value, sum[name].count + v.count}
			}
		}
		expect(t, sum, map[string]sample{
			"onefill.loads{onefill.cache=users}":                            {value: 1},
			"onefill.collapsed{onefill.cache=users}":                        {value: 9},
			"onefill.lease.waits{onefill.cache=users}":                      {value: 2},
			"onefill.fills{onefill.cache=users,onefill.outcome=stored}":     {value: 1},
			"onefill.load.duration{onefill.cache=users,onefill.outcome=ok}": {.1, 1},
			"onefill.miss.loads{onefill.cache=users}":                       {3, 3},
			"onefill.miss.callers{onefill.cache=users}":                     {12, 3},
		})
		if n := sum["onefill.wait.duration{onefill.cache=users,onefill.outcome=answered}"].count; n != 12 {
			t.Errorf("%d waits", n)
		}
	})
}

type fixed onefill.Stats

func (f *fixed) Stats() onefill.Stats { return onefill.Stats(*f) }

// All counters and gauges are there from Add on, at 0; what is collected has the names, the units,
// the kinds and the buckets of the list.
func TestInstruments(t *testing.T) {
	p := newProgram(t, otelonefill.Options{})
	if got := p.collect(t); len(got) != 0 {
		t.Errorf("without a cache: %v", got)
	}
	check(t, p.Add("users", &fixed{}))
	want := 0
	for _, r := range metrics.Caches() {
		want += len(r.Values)
	}
	got := p.collect(t)
	if len(got) != want {
		t.Errorf("%d numbers, want %d", len(got), want)
	}
	for name, v := range got {
		if v != (sample{}) {
			t.Errorf("%s starts at %v", name, v)
		}
	}

	p.Observe(onefill.Event{Kind: onefill.EventMiss, Cache: "users", N: 4, Callers: 2, Took: time.Second})
	var all metricdata.ResourceMetrics
	check(t, p.reader.Collect(t.Context(), &all))
	seen := map[string]metricdata.Metrics{}
	for _, m := range all.ScopeMetrics[0].Metrics {
		seen[m.Name] = m
	}
	for _, r := range metrics.Caches() {
		m := seen[r.Name]
		sum, isSum := m.Data.(metricdata.Sum[int64])
		if m.Unit != r.Unit || m.Description != r.Help || isSum != (r.Kind == metrics.Counter) || isSum && !sum.IsMonotonic {
			t.Errorf("%s: collected as %+v", r.Name, m)
		}
	}
	h := seen["onefill.miss.loads"].Data.(metricdata.Histogram[float64]).DataPoints[0]
	if fmt.Sprint(h.Bounds, h.BucketCounts) != "[0 1 2 3 5 10] [0 0 0 0 1 0 0]" {
		t.Errorf("buckets %v %v", h.Bounds, h.BucketCounts)
	}
}

func TestAdd(t *testing.T) {
	p := newProgram(t, otelonefill.Options{})
	check(t, p.Add("users", &fixed{Loads: 1}))
	for _, err := range []error{p.Add("users", &fixed{}), p.AddWorker("jobs", nil), p.AddQueue("jobs", nil), p.Add("orders", nil)} {
		if err == nil || !strings.Contains(err.Error(), "is shown already") && !strings.Contains(err.Error(), "is nil") {
			t.Error(err)
		}
	}
	if !p.Remove("users") || p.Remove("users") || len(p.collect(t)) != 0 {
		t.Error("Remove does not remove, or does not tell")
	}
	check(t, p.Add("users", &fixed{Loads: 2}))
	expect(t, p.collect(t), map[string]sample{"onefill.loads{onefill.cache=users}": {value: 2}})
}

func TestOptions(t *testing.T) {
	for _, o := range []otelonefill.Options{{MaxLinks: -1}, {Every: -1}, {Timeout: -1}, {Keys: 7}} {
		if _, err := otelonefill.New(o); err == nil || !strings.Contains(err.Error(), "Options.") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	tel, err := otelonefill.New(otelonefill.Options{}) // on the global providers, which do nothing
	check(t, err)
	c, err := onefill.New(options{Name: "users", Observer: tel, Load: func(context.Context, string) (string, error) { return "Ada", nil }})
	check(t, err)
	_, err = c.Get(t.Context(), "ada")
	check(t, errors.Join(err, tel.Add("users", c), c.Close(), tel.Close()))
}

// After Close nobody is asked any more.
func TestClose(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	tel, err := otelonefill.New(otelonefill.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	check(t, err)
	check(t, tel.Add("users", &fixed{}))
	check(t, tel.Close())
	var all metricdata.ResourceMetrics
	check(t, reader.Collect(t.Context(), &all))
	if len(all.ScopeMetrics) != 0 {
		t.Errorf("collected %v", all.ScopeMetrics)
	}
}

// A hit gains no allocation, with an SDK that samples everything. (Of a hit in 64 the core tells;
// what is made for it is less than one in 64 hits.)
func TestHitAllocatesNothing(t *testing.T) {
	p := newProgram(t, otelonefill.Options{})
	c := p.newCache(t, options{Name: "users", Load: func(context.Context, string) (string, error) { return "Ada", nil }})
	ctx, span := p.tracer.Start(t.Context(), "GET")
	defer span.End()
	get := func() {
		if _, err := c.Get(ctx, "ada"); err != nil {
			t.Error(err)
		}
	}
	get()
	if n := testing.AllocsPerRun(6400, get); n != 0 {
		t.Errorf("a hit: %v allocations", n)
	}
}
