package onefill

import (
	"context"
	"sync/atomic"
	"time"
)

// limit bounds an operation of the store, which begins now, by StoreTimeout.
func (r *remote) limit(ctx context.Context, now time.Time) (context.Context, context.CancelFunc) {
	if ctx.Done() != nil {
		return context.WithTimeout(ctx, r.timeout)
	}
	shared := r.shared.get(int64(now.Sub(r.base)))
	if ctx == context.Background() {
		return shared, cancelNothing
	}
	return valuesOf{shared, ctx}, cancelNothing
}

func cancelNothing() {}

// sharedLimit is the end of what only its timeout can end: one context for all that begin
// within a short while. A context, or a timer, for each of them would be most of what a hit in
// the store costs, and much of what it costs to wait for a flight.
type sharedLimit struct {
	timeout time.Duration // of the first one of a slice; the last one has a slice less
	slice   time.Duration
	current atomic.Pointer[oneLimit]
}

type oneLimit struct {
	context.Context
	made, end int64
	cancel    context.CancelFunc // its timer does it
}

// get returns a limit for what begins now, on any clock that never goes back.
func (l *sharedLimit) get(now int64) *oneLimit {
	if c := l.current.Load(); c != nil && now-c.made < int64(l.slice) {
		return c
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.timeout)
	c := &oneLimit{ctx, now, until(now, l.timeout), cancel}
	l.current.Store(c)
	return c
}

// valuesOf is a context with the values of another one. What that one does not have is asked
// of the context, where package context finds what it needs to derive others cheaply.
type valuesOf struct {
	context.Context
	values context.Context
}

func (v valuesOf) Value(key any) any {
	if value := v.values.Value(key); value != nil {
		return value
	}
	return v.Context.Value(key)
}
