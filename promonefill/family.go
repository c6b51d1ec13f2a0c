package promonefill

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/onefill/onefill/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// Options of a [Collector] or a [QueueCollector]. The zero value is useful.
type Options struct {
	// Buckets are the upper bounds of histograms' buckets, rising, in the metric's unit
	// (seconds, loads, calls, attempts), by the metric's name: "onefill_load_duration_seconds".
	// The default of each is in docs/metrics.md.
	Buckets map[string][]float64
}

// reading is a metric that is read from a snapshot, with its description.
type reading[S any] struct {
	*metrics.Reading[S]
	desc *prometheus.Desc
}

func readings[S any](list []metrics.Reading[S], owner ...string) (all []reading[S]) {
	for i := range list {
		all = append(all, reading[S]{&list[i], describe(&list[i].Metric, owner)})
	}
	return all
}

func describe(m *metrics.Metric, owner []string) *prometheus.Desc {
	return prometheus.NewDesc(m.PrometheusName(), m.Help, with(owner, m.Label), nil)
}

// with is owner and one more label, unless that is empty.
func with(owner []string, label string) []string {
	if label == "" {
		return owner
	}
	return append(owner[:len(owner):len(owner)], label)
}

func (r *reading[S]) collect(ch chan<- prometheus.Metric, s *S, owner ...string) {
	kind := prometheus.CounterValue
	if r.Kind == metrics.Gauge {
		kind = prometheus.GaugeValue
	}
	for i, label := range r.Values {
		if v := r.Read(s, i); !math.IsNaN(v) {
			ch <- prometheus.MustNewConstMetric(r.desc, kind, v, with(owner, label)...)
		}
	}
}

// distribution is a metric that events are recorded in, with its description.
type distribution struct {
	*metrics.Metric
	desc   *prometheus.Desc
	bounds []float64
}

func distributions(o Options, list []metrics.Metric, owner ...string) (all []distribution, err error) {
	buckets := maps.Clone(o.Buckets)
	for i := range list {
		m := &list[i]
		d := distribution{m, describe(m, owner), m.Bounds}
		if given, ok := buckets[m.PrometheusName()]; ok {
			delete(buckets, m.PrometheusName())
			if d.bounds = slices.Clone(given); len(given) == 0 || !rising(given) {
				return nil, fmt.Errorf("promonefill: Options.Buckets[%q] are %v; they must be numbers that rise", m.PrometheusName(), given)
			}
		}
		all = append(all, d)
	}
	for name := range buckets {
		return nil, fmt.Errorf("promonefill: Options.Buckets[%q] is for no histogram of this collector", name)
	}
	return all, nil
}

func rising(bounds []float64) bool {
	for i, b := range bounds {
		if math.IsNaN(b) || i > 0 && b <= bounds[i-1] {
			return false
		}
	}
	return true
}

// recorder holds the histograms of one owner: by distribution, by the value of its label.
type recorder struct{ hists [][]*histogram }

func newRecorder(ds []distribution) *recorder {
	r := &recorder{make([][]*histogram, len(ds))}
	for i, d := range ds {
		for range d.Values {
			r.hists[i] = append(r.hists[i], newHistogram(d.bounds))
		}
	}
	return r
}

// Record is for package metrics.
func (r *recorder) Record(i, label int, v float64, n int) { r.hists[i][label].observe(v, n) }

func (r *recorder) collect(ch chan<- prometheus.Metric, ds []distribution, owner ...string) {
	for i, d := range ds {
		for j, label := range d.Values {
			ch <- r.hists[i][j].metric(d.desc, with(owner, label)...)
		}
	}
}
