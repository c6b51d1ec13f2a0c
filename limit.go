package onefill

import (
	"context"
	"sync/atomic"
	"time"
)

// limit bounds an operation of the store by StoreTimeout.
func (r *remote) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	switch {
	case ctx.Done() != nil:
		return context.WithTimeout(ctx, r.timeout)
	case ctx == context.Background():
		return r.shared.get(), cancelNothing
	}
	return valuesOf{r.shared.get(), ctx}, cancelNothing
}

func cancelNothing() {}

// sharedLimit is the end of operations that only their timeout can end: a context for all
// that begin within a short while, since one of its own, with its timer, would be most of
// what a hit in the store allocates. They end up to a 32nd earlier than the timeout says.
type sharedLimit struct {
	timeout time.Duration
	current atomic.Pointer[oneLimit]
}

type oneLimit struct {
	context.Context
	made time.Time
	end  context.CancelFunc // its timer does it
}

const limitSlices = 32

func (l *sharedLimit) get() context.Context {
	now := time.Now()
	if c := l.current.Load(); c != nil && now.Sub(c.made) < l.timeout/limitSlices {
		return c
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.timeout)
	c := &oneLimit{ctx, now, cancel}
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
