package promonefill_test

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/promonefill"
	"github.com/prometheus/client_golang/prometheus"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newCollector(t testing.TB) *promonefill.Collector {
	t.Helper()
	c, err := promonefill.New(promonefill.Options{})
	check(t, err)
	return c
}

func newQueues(t testing.TB, o promonefill.QueueOptions) *promonefill.QueueCollector {
	t.Helper()
	c, err := promonefill.NewQueues(o)
	check(t, err)
	return c
}

// newCache returns a cache that the collector observes and shows; it is closed when the test ends.
func newCache(t testing.TB, m *promonefill.Collector, o onefill.Options[string, string]) *onefill.Cache[string, string] {
	t.Helper()
	o.Observer, o.Logger = m, quiet()
	c, err := onefill.New(o)
	check(t, err)
	t.Cleanup(func() { check(t, c.Close()) })
	check(t, m.Add(o.Name, c))
	return c
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// sample is one number of a scrape; of a histogram it is the sum, and count tells the count.
type sample struct{ value, count float64 }

// scrape returns what a fresh, pedantic registry makes of collectors: by name and labels, as in
// onefill_fills_total{cache="users",outcome="stored"}.
func scrape(t testing.TB, collectors ...prometheus.Collector) map[string]sample {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	for _, c := range collectors {
		check(t, r.Register(c))
	}
	families, err := r.Gather()
	check(t, err)
	all := map[string]sample{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			slices.Sort(labels)
			name := f.GetName() + "{" + strings.Join(labels, ",") + "}"
			h := m.GetHistogram()
			all[name] = sample{m.GetCounter().GetValue() + m.GetGauge().GetValue() + h.GetSampleSum(), float64(h.GetSampleCount())}
		}
	}
	return all
}

// expect compares samples by name; a name without one is an error.
func expect(t *testing.T, got map[string]sample, want map[string]sample) {
	t.Helper()
	for name, w := range want {
		if g, ok := got[name]; !ok || g != w {
			t.Errorf("%s is %v (there: %t), want %v", name, g, ok, w)
		}
	}
}
