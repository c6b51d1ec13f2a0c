package otelonefill

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/metrics"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// The attributes; the package comment says what they hold.
const (
	cacheName    = attribute.Key("onefill.cache")
	fwd          = attribute.Key("onefill.fwd")
	collapsed    = attribute.Key("onefill.collapsed")
	outcome      = attribute.Key("onefill.outcome")
	flightCount  = attribute.Key("onefill.flights")
	waiterCount  = attribute.Key("onefill.waiters")
	linksDropped = attribute.Key("onefill.links_dropped")
	keyName      = attribute.Key("onefill.key")
	errorType    = attribute.Key("error.type")
)

// errorTypes are the values of error.type for outcomes that are errors.
var errorTypes = map[string]string{"error": "_OTHER", "panic": "panic", "timeout": "timeout", "left": "canceled"}

// spanKind is how spans of one sort begin.
type spanKind struct {
	name  string
	start []trace.SpanStartOption
}

// TraceWait is for the cache. A call without a trace gets no span: nobody would look at it.
func (t *Telemetry) TraceWait(ctx context.Context, flights []onefill.Flight) func(error) {
	parent := trace.SpanContextFromContext(ctx)
	if !parent.IsValid() || len(flights) == 0 {
		return nil
	}
	kind := &t.of(flights[0].Cache).wait
	_, span := t.tracer.Start(ctx, kind.name, kind.start...)
	if !span.IsRecording() {
		return nil
	}
	t.describe(span, flights)
	ids := t.spans.begin(flights, func(f *follow) { f.addWaiter(span.SpanContext(), t.opts.MaxLinks) })
	return func(err error) {
		loads, led := t.spans.endWait(ids, parent)
		dropped := max(0, len(loads)-t.opts.MaxLinks)
		for _, l := range loads[dropped:] {
			span.AddLink(trace.Link{SpanContext: l})
		}
		if len(loads) > 0 {
			span.SetAttributes(collapsed.Bool(!led))
		}
		t.end(span, metrics.WaitOutcome(ended(ctx, err)), dropped, err)
	}
}

// ended is what has ended a wait, of the error of its call: nil if an answer has, be it an error.
func ended(ctx context.Context, err error) error {
	if errors.Is(err, onefill.ErrLoadFailed) || !errors.Is(err, onefill.ErrWaitTimeout) && (ctx.Err() == nil || !errors.Is(err, ctx.Err())) {
		return nil
	}
	return err
}

// TraceLoad is for the cache.
func (t *Telemetry) TraceLoad(ctx context.Context, flights []onefill.Flight) (context.Context, func(error)) {
	if len(flights) == 0 {
		return ctx, nil
	}
	caller := trace.SpanContextFromContext(ctx)
	o := t.of(flights[0].Cache)
	kind := &o.load
	if flights[0].Background {
		kind = &o.refresh
	}
	inside, span := t.tracer.Start(ctx, kind.name, kind.start...)
	if !span.IsRecording() {
		return inside, nil
	}
	if flights[0].Background && caller.IsValid() {
		span.AddLink(trace.Link{SpanContext: caller})
	}
	t.describe(span, flights)
	ids := t.spans.begin(flights, func(f *follow) { f.load, f.caller = span.SpanContext(), caller })
	return inside, func(err error) {
		waiters, more := t.spans.endLoad(ids)
		for _, w := range waiters {
			span.AddLink(trace.Link{SpanContext: w})
		}
		span.SetAttributes(waiterCount.Int(len(waiters) + more))
		if errors.Is(err, onefill.ErrNotFound) {
			t.end(span, "not_found", more, nil)
			return
		}
		t.end(span, metrics.LoadOutcome(err), more, err)
	}
}

// describe says which keys a span is about, as far as that is allowed.
func (t *Telemetry) describe(span trace.Span, flights []onefill.Flight) {
	if len(flights) > 1 {
		span.SetAttributes(flightCount.Int(len(flights)))
		return
	}
	if key, ok := t.key(flights[0].Key); ok {
		span.SetAttributes(keyName.String(key))
	}
}

func (t *Telemetry) key(key string) (string, bool) {
	switch t.opts.Keys {
	case KeysPlain:
		return key, true
	case KeysHashed:
		sum := sha256.Sum256([]byte(key))
		return hex.EncodeToString(sum[:8]), true
	}
	return "", false
}

// end ends a span with what came of it.
func (t *Telemetry) end(span trace.Span, what string, dropped int, err error) {
	span.SetAttributes(outcome.String(what))
	if dropped > 0 {
		span.SetAttributes(linksDropped.Int(dropped))
	}
	if err != nil && !errors.Is(err, onefill.ErrNotFound) {
		kind := errorTypes[what]
		if kind == "" { // a wait that was answered, by an error
			kind = "_OTHER"
		}
		t.failed(span, kind, err)
	}
	span.End()
}

func (t *Telemetry) failed(span trace.Span, kind string, err error) {
	text := ""
	if t.opts.ErrorText {
		text = err.Error()
	}
	span.SetAttributes(errorType.String(kind))
	span.SetStatus(codes.Error, text)
}
