package otelonefill

import (
	"context"
	"errors"
	"maps"
	"math"

	"github.com/onefill/onefill/metrics"
	"github.com/onefill/onefill/queue"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

type workerStats = queue.WorkerStats

// reading is a metric that is read from a snapshot, with its instrument.
type reading[S any] struct {
	*metrics.Reading[S]
	instrument metric.Observable
	observe    func(o metric.Observer, v float64, with metric.MeasurementOption)
}

type readings[S any] []reading[S]

// distribution is a metric that events are recorded in, with its instrument.
type distribution struct {
	*metrics.Metric
	metric.Float64Histogram
}

func (t *Telemetry) instruments(m metric.Meter) (err error) {
	var all []metric.Observable
	t.caches, all = observables(m, metrics.Caches(), all, &err)
	t.workers, all = observables(m, metrics.Workers(), all, &err)
	t.backends, all = observables(m, metrics.Backends(), all, &err)
	t.cacheHist = histograms(m, metrics.CacheHistograms(), &err)
	t.queueHist = histograms(m, metrics.QueueHistograms(), &err)
	if err != nil {
		return err
	}
	t.collecting, err = m.RegisterCallback(t.collect, all...)
	return err
}

func observables[S any](m metric.Meter, list []metrics.Reading[S], all []metric.Observable, failed *error) (readings[S], []metric.Observable) {
	var rs readings[S]
	for i := range list {
		r, err := observable(m, &list[i])
		*failed = errors.Join(*failed, err)
		rs, all = append(rs, r), append(all, r.instrument)
	}
	return rs, all
}

func observable[S any](m metric.Meter, r *metrics.Reading[S]) (reading[S], error) {
	unit, help := metric.WithUnit(r.Unit), metric.WithDescription(r.Help)
	if r.Kind == metrics.Gauge && r.Unit == "s" {
		in, err := m.Float64ObservableGauge(r.Name, unit, help)
		return reading[S]{r, in, func(o metric.Observer, v float64, with metric.MeasurementOption) { o.ObserveFloat64(in, v, with) }}, err
	}
	var in metric.Int64Observable
	var err error
	if r.Kind == metrics.Gauge {
		in, err = m.Int64ObservableGauge(r.Name, unit, help)
	} else {
		in, err = m.Int64ObservableCounter(r.Name, unit, help)
	}
	return reading[S]{r, in, func(o metric.Observer, v float64, with metric.MeasurementOption) { o.ObserveInt64(in, int64(v), with) }}, err
}

func histograms(m metric.Meter, list []metrics.Metric, failed *error) (ds []distribution) {
	for i := range list {
		l := &list[i]
		h, err := m.Float64Histogram(l.Name, metric.WithUnit(l.Unit), metric.WithDescription(l.Help), metric.WithExplicitBucketBoundaries(l.Bounds...))
		*failed = errors.Join(*failed, err)
		ds = append(ds, distribution{l, h})
	}
	return ds
}

// source is a cache, a worker or a queue with the attributes of its numbers, made once.
type source[S any] struct {
	get  func(context.Context) S
	with [][]metric.MeasurementOption // by reading, by value of its label
}

func newSource[S any](rs readings[S], get func(context.Context) S, owner ...attribute.KeyValue) *source[S] {
	s := &source[S]{get: get}
	for _, r := range rs {
		s.with = append(s.with, attributes(r.Label, r.Values, owner))
	}
	return s
}

// attributes are those of each value of a label.
func attributes(label string, values []string, owner []attribute.KeyValue) (all []metric.MeasurementOption) {
	for _, v := range values {
		kvs := owner[:len(owner):len(owner)]
		if label != "" {
			kvs = append(kvs, attribute.String("onefill."+label, v))
		}
		if label == "outcome" && errorTypes[v] != "" {
			kvs = append(kvs, errorType.String(errorTypes[v]))
		}
		all = append(all, metric.WithAttributeSet(attribute.NewSet(kvs...)))
	}
	return all
}

func (s *source[S]) observe(ctx context.Context, o metric.Observer, rs readings[S]) {
	now := s.get(ctx)
	for i, r := range rs {
		for j := range r.Values {
			if v := r.Read(&now, j); !math.IsNaN(v) {
				r.observe(o, v, s.with[i][j])
			}
		}
	}
}

// collect is called by the SDK. The queues, each of which may take Timeout, come last: a
// collection that is given up then has had everything else.
func (t *Telemetry) collect(ctx context.Context, o metric.Observer) error {
	t.mu.Lock()
	caches, workers, queues := maps.Clone(t.shown), maps.Clone(t.working), maps.Clone(t.queues)
	t.mu.Unlock()
	for _, s := range caches {
		s.observe(ctx, o, t.caches)
	}
	for _, s := range workers {
		s.observe(ctx, o, t.workers)
	}
	for _, s := range answered(ctx, queues) {
		s.observe(ctx, o, t.backends)
	}
	return nil
}

// answered asks all queues at once.
func answered(ctx context.Context, queues map[string]*source[metrics.Backend]) (all []*source[metrics.Backend]) {
	got := make(chan *source[metrics.Backend])
	for _, s := range queues {
		go func() {
			b := s.get(ctx)
			got <- &source[metrics.Backend]{get: func(context.Context) metrics.Backend { return b }, with: s.with}
		}()
	}
	for range queues {
		all = append(all, <-got)
	}
	return all
}

// recorder records events of one owner, with attributes that were made once.
type recorder struct {
	hists []distribution
	with  [][][]metric.RecordOption // by histogram, by value of its label
}

func newRecorder(ds []distribution, owner ...attribute.KeyValue) *recorder {
	r := &recorder{hists: ds}
	for _, d := range ds {
		var with [][]metric.RecordOption
		for _, o := range attributes(d.Label, d.Values, owner) {
			with = append(with, []metric.RecordOption{o})
		}
		r.with = append(r.with, with)
	}
	return r
}

// Record is for package metrics. An observation that stands for many is recorded once: the API
// knows no weights, and 64 records would cost each hit as much as one.
func (r *recorder) Record(i, label int, v float64, _ int) {
	r.hists[i].Record(context.Background(), v, r.with[i][label]...)
}
