package otelonefill

import (
	"context"
	"fmt"
	"maps"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/metrics"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// Cache is what a [Telemetry] reads: a *onefill.Cache of any types.
type Cache interface {
	Stats() onefill.Stats
}

// Add shows the numbers of a cache from now on, as onefill.cache=name. The name must be its
// Options.Name, under which its events come. It is an error if a cache of that name is shown
// already.
func (t *Telemetry) Add(name string, c Cache) error {
	if c == nil {
		return fmt.Errorf("otelonefill: the cache to add as %q is nil", name)
	}
	return add(t, t.shown, "cache", name, newSource(t.caches, func(context.Context) onefill.Stats { return c.Stats() }, cacheName.String(name)))
}

func add[T any](t *Telemetry, to map[string]T, what, name string, v T) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := to[name]; ok {
		return fmt.Errorf("otelonefill: a %s named %q is shown already; give each a name of its own, or Remove the other one first", what, name)
	}
	to[name] = v
	return nil
}

// Remove ends the showing of the numbers of a cache, when it is closed, say. It says whether
// there was one.
func (t *Telemetry) Remove(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.shown[name]
	delete(t.shown, name)
	next := maps.Clone(*t.known.Load())
	delete(next, name)
	t.known.Store(&next)
	return ok
}

// observed is what is made once for a cache: attributes and names cost allocations.
type observed struct {
	*recorder
	load, refresh, wait spanKind
}

// Observe records an event of a cache.
func (t *Telemetry) Observe(e onefill.Event) {
	metrics.RecordCache(e, t.of(e.Cache))
}

// of finds what was made for a cache, without a lock, or makes it.
func (t *Telemetry) of(name string) *observed {
	if o, ok := (*t.known.Load())[name]; ok {
		return o
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if o, ok := (*t.known.Load())[name]; ok {
		return o
	}
	own := cacheName.String(name)
	start := func(kvs ...attribute.KeyValue) []trace.SpanStartOption {
		return []trace.SpanStartOption{trace.WithAttributes(append(kvs, own)...)}
	}
	o := &observed{
		recorder: newRecorder(t.cacheHist, own),
		wait:     spanKind{"wait " + name, start()},
		load:     spanKind{"load " + name, start(fwd.String("miss"))},
		refresh:  spanKind{"load " + name, append(start(fwd.String("stale")), trace.WithNewRoot())},
	}
	next := maps.Clone(*t.known.Load())
	next[name] = o
	t.known.Store(&next)
	return o
}
