package metrics

import (
	"math"
	"strings"
)

// Kind is how the numbers of a metric are to be understood.
type Kind uint8

// The kinds of metrics.
const (
	Counter   Kind = iota + 1 // only grows
	Gauge                     // of this moment
	Histogram                 // a distribution
)

func (k Kind) String() string {
	return [...]string{"Kind(0)", "counter", "gauge", "histogram"}[k]
}

// Metric is one metric. Those of this package are not to be changed.
type Metric struct {
	Kind Kind
	Name string // "onefill.load.duration"
	Unit string // in UCUM: "s", "By", "{load}"
	Help string // one sentence
	// Label tells several numbers of one metric apart, by its Values, which are all that
	// there are. Without a Label, Values holds one empty string.
	Label  string
	Values []string
	// Bounds are the upper bounds of a Histogram's buckets.
	Bounds []float64
}

// PrometheusName is the name as Prometheus wants it: with underscores, the unit spelled out,
// and _total after a Counter.
func (m *Metric) PrometheusName() string {
	name := strings.ReplaceAll(m.Name, ".", "_")
	switch m.Unit {
	case "s":
		name += "_seconds"
	case "By":
		name += "_bytes"
	}
	if m.Kind == Counter {
		name += "_total"
	}
	return name
}

// Reading is a Metric with how it is read from a snapshot.
type Reading[S any] struct {
	Metric
	reads []func(*S) float64 // one for each of Values
}

// Read returns the number for Values[i]. It is NaN if nobody can tell.
func (r *Reading[S]) Read(s *S, i int) float64 { return r.reads[i](s) }

// number is what a snapshot counts in.
type number interface {
	~int | ~int64 | ~uint64
}

func reading[S any, N number](kind Kind, name, unit, help string, of func(*S) N) Reading[S] {
	return Reading[S]{Metric{Kind: kind, Name: name, Unit: unit, Help: help, Values: []string{""}}, []func(*S) float64{number64(of)}}
}

func counter[S any, N number](name, unit, help string, of func(*S) N) Reading[S] {
	return reading(Counter, name, unit, help, of)
}

func gauge[S any, N number](name, unit, help string, of func(*S) N) Reading[S] {
	return reading(Gauge, name, unit, help, of)
}

// by makes a metric without numbers one with a label; and adds its values.
func by[S any](kind Kind, name, unit, help, label string) Reading[S] {
	return Reading[S]{Metric: Metric{Kind: kind, Name: name, Unit: unit, Help: help, Label: label}}
}

func and[S any, N number](r Reading[S], value string, of func(*S) N) Reading[S] {
	r.Values, r.reads = append(r.Values, value), append(r.reads, number64(of))
	return r
}

// number64 takes a negative number for one that nobody can tell, as queue.Stats does.
func number64[S any, N number](of func(*S) N) func(*S) float64 {
	return func(s *S) float64 {
		if n := of(s); n >= 0 {
			return float64(n)
		}
		return math.NaN()
	}
}

// histogram makes one, with the values of its label, if it has one.
func histogram(name, unit, help string, bounds []float64, label string, values ...string) Metric {
	if label == "" {
		values = []string{""}
	}
	return Metric{Kind: Histogram, Name: name, Unit: unit, Help: help, Label: label, Values: values, Bounds: bounds}
}

// The buckets. Those of durations go from a fast row to the longest wait that somebody bears,
// those of ages and of lags from what nobody minds to what somebody must explain.
var (
	durations     = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	ages          = []float64{1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 86400, 7 * 86400, 30 * 86400}
	lags          = []float64{.01, .05, .1, .5, 1, 5, 15, 60, 300, 900, 3600, 86400}
	loadCounts    = []float64{0, 1, 2, 3, 5, 10}
	callerCounts  = []float64{1, 2, 5, 10, 50, 100, 1000}
	attemptCounts = []float64{1, 2, 3, 5, 10, 20, 50}
)
