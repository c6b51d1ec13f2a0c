package promonefill

import (
	"math"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// histogram counts without a lock, and with weights: an observation may stand for many, as
// one hit in local stands for 64. The client library's own would have to be told 64 times.
type histogram struct {
	bounds  []float64 // sorted; a value is in the first bucket whose bound is not below it
	buckets []atomic.Uint64
	sum     atomic.Uint64 // bits of a float64
}

func newHistogram(bounds []float64) *histogram {
	return &histogram{bounds: bounds, buckets: make([]atomic.Uint64, len(bounds)+1)}
}

// observe counts v, n times.
func (h *histogram) observe(v float64, n int) {
	if n <= 0 || math.IsNaN(v) {
		return
	}
	i, _ := slices.BinarySearch(h.bounds, v)
	h.buckets[i].Add(uint64(n))
	for {
		old := h.sum.Load()
		if h.sum.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+v*float64(n))) {
			return
		}
	}
}

// metric is the state of this moment. The count is the sum of the buckets, so that it fits
// them whatever is observed meanwhile.
func (h *histogram) metric(d *prometheus.Desc, labels ...string) prometheus.Metric {
	upTo := make(map[float64]uint64, len(h.bounds))
	count := uint64(0)
	for i, bound := range h.bounds {
		count += h.buckets[i].Load()
		upTo[bound] = count
	}
	count += h.buckets[len(h.bounds)].Load()
	return prometheus.MustNewConstHistogram(d, count, math.Float64frombits(h.sum.Load()), upTo, labels...)
}
