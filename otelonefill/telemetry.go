package otelonefill

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/metrics"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Keys says how spans name keys.
type Keys uint8

// How spans name keys.
const (
	KeysHidden Keys = iota // not at all
	KeysHashed             // 16 hexadecimal digits of SHA-256: the same for the same key. Short keys can be guessed
	KeysPlain              // as they are
)

// Options of a [Telemetry]. The zero value is useful.
type Options struct {
	// MeterProvider makes the instruments. Default otel.GetMeterProvider().
	MeterProvider metric.MeterProvider
	// TracerProvider makes the spans. Default otel.GetTracerProvider().
	TracerProvider trace.TracerProvider
	// Keys says whether spans name keys. Default KeysHidden.
	Keys Keys
	// ErrorText puts the texts of errors into spans. They may name keys, and whatever the
	// loader's errors say.
	ErrorText bool
	// MaxLinks is the most links of one span; the span says how many were left out. Default
	// 100. More than the SDK's limit, 128 by its default, are dropped by the SDK.
	MaxLinks int
	// Every and Timeout are for AddQueue: how old the numbers of a queue's backend may be
	// (default 15 s), and how long a collection may wait for them (default 2 s).
	Every, Timeout time.Duration
}

// Telemetry is an onefill.Observer, and an onefill.Tracer. It is safe for concurrent use.
type Telemetry struct {
	opts   Options
	tracer trace.Tracer
	spans  followed

	caches               readings[onefill.Stats]
	workers              readings[workerStats]
	backends             readings[metrics.Backend]
	cacheHist, queueHist []distribution
	collecting           metric.Registration

	mu        sync.Mutex // guards the maps, by name, and changes of known; nothing blocks under it
	shown     map[string]*source[onefill.Stats]
	working   map[string]*source[workerStats]
	queues    map[string]*source[metrics.Backend]
	observers map[string]*kinds
	known     atomic.Pointer[map[string]*observed]
}

var _ onefill.Tracer = (*Telemetry)(nil)

const scope = "github.com/onefill/onefill/otelonefill"

// New makes a Telemetry. Its error names the option that is wrong, or the instrument that
// could not be made.
func New(o Options) (*Telemetry, error) {
	if o.MaxLinks < 0 || o.Every < 0 || o.Timeout < 0 {
		return nil, fmt.Errorf("otelonefill: Options.MaxLinks %d, Every %v and Timeout %v must not be negative", o.MaxLinks, o.Every, o.Timeout)
	}
	if o.Keys > KeysPlain {
		return nil, fmt.Errorf("otelonefill: Options.Keys is %d; there are KeysHidden, KeysHashed and KeysPlain", o.Keys)
	}
	if o.MaxLinks == 0 {
		o.MaxLinks = 100
	}
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	t := &Telemetry{
		opts:      o,
		tracer:    o.TracerProvider.Tracer(scope),
		spans:     followed{flights: map[uint64]*follow{}, maxLinks: o.MaxLinks},
		shown:     map[string]*source[onefill.Stats]{},
		working:   map[string]*source[workerStats]{},
		queues:    map[string]*source[metrics.Backend]{},
		observers: map[string]*kinds{},
	}
	t.known.Store(&map[string]*observed{})
	if err := t.instruments(o.MeterProvider.Meter(scope)); err != nil {
		return nil, fmt.Errorf("otelonefill: %w", err)
	}
	return t, nil
}

// Close ends the metrics: the SDK does not ask any more. Spans and histograms go on for the
// caches that have this Observer still.
func (t *Telemetry) Close() error { return t.collecting.Unregister() }
