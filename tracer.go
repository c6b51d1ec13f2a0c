package onefill

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/onefill/onefill/internal/flight"
)

// Tracer is an [Observer] that follows loads, and the waiting for them, through contexts: as
// spans, say. An Options.Observer that has these methods is used as one.
//
// They are called, as Observe is, with no lock held, and their panics are caught. They may
// not keep or change the slice that they are given.
type Tracer interface {
	Observer
	// TraceWait is called when a call begins to wait for flights: one, or for GetMany several.
	// ctx is the call's. What it returns, which may be nil, is called when the call ends, with
	// the call's error. A call that is answered by local, or by its own first look at the store,
	// does not wait.
	TraceWait(ctx context.Context, flights []Flight) (end func(error))
	// TraceLoad is called before a loader is: for one flight, or for those of a LoadMany. ctx
	// has the values of the call that began the first of them, and no deadline. The loader gets
	// one that is derived from the context returned, which must be ctx or derived from it. end,
	// which may be nil, is called with the loader's error when the load has ended.
	TraceLoad(ctx context.Context, flights []Flight) (inside context.Context, end func(error))
}

// Flight names a flight to a [Tracer].
type Flight struct {
	// ID is unique in the process: the load of a flight, and all who wait for it, have the
	// same.
	ID         uint64
	Cache      string // Options.Name
	Key        string // as in the store, without the name
	Background bool   // a refresh: who began it does not wait for it
}

// tracers are observers some of which are tracers.
type tracers struct {
	observers
	tracers []Tracer
}

func (all tracers) TraceWait(ctx context.Context, flights []Flight) func(error) {
	var ends []func(error)
	for _, t := range all.tracers {
		ends = append(ends, begun(func() func(error) { return t.TraceWait(ctx, flights) }))
	}
	return endAll(ends)
}

func (all tracers) TraceLoad(ctx context.Context, flights []Flight) (context.Context, func(error)) {
	var ends []func(error)
	for _, t := range all.tracers {
		ends = append(ends, begun(func() func(error) {
			inside, end := t.TraceLoad(ctx, flights)
			if inside != nil {
				ctx = inside
			}
			return end
		}))
	}
	return ctx, endAll(ends)
}

// begun is what begin returns. If begin panics, that is an end that panics: those that have begun before it
// get their ends, those behind it begin, and who catches the panics of ends hears of this one.
func begun(begin func() func(error)) (end func(error)) {
	defer func() {
		if r := recover(); r != nil {
			late := fmt.Sprintf("%v, when it began\n%s", r, debug.Stack())
			end = func(error) { panic(late) }
		}
	}()
	return begin()
}

// endAll ends in the opposite order, as what has begun inside another thing ends first.
func endAll(ends []func(error)) func(error) {
	return func(err error) {
		for _, end := range ends {
			if end != nil {
				defer end(err) // also if another one panics
			}
		}
	}
}

// traceWait tells the tracer, if there is one, that a call waits.
func (c *Cache[K, V]) traceWait(ctx context.Context, fs ...*flight.Flight[outcome[V]]) (end func(error)) {
	if c.tracer == nil {
		return nop
	}
	defer func() { end = c.ending(end) }()
	defer c.survive()
	return c.tracer.TraceWait(ctx, c.named(fs))
}

// traceLoad tells the tracer, if there is one, that a loader is about to be called.
func (c *Cache[K, V]) traceLoad(ctx context.Context, fs ...*flight.Flight[outcome[V]]) (inside context.Context, end func(error)) {
	if c.tracer == nil {
		return ctx, nop
	}
	defer func() {
		if end = c.ending(end); inside == nil {
			inside = ctx
		}
	}()
	defer c.survive()
	return c.tracer.TraceLoad(ctx, c.named(fs))
}

func nop(error) {}

// ending is end, if there is one, with its panics caught.
func (c *Cache[K, V]) ending(end func(error)) func(error) {
	if end == nil {
		return nop
	}
	return func(err error) {
		defer c.survive()
		end(err)
	}
}

func (c *Cache[K, V]) named(fs []*flight.Flight[outcome[V]]) []Flight {
	named := make([]Flight, len(fs))
	for i, f := range fs {
		named[i] = Flight{ID: f.ID, Cache: c.opts.Name, Key: f.Key, Background: f.Background}
	}
	return named
}
