package onefill

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

// WarmOption changes how [Cache.Warm] goes about it.
type WarmOption func(*warmOptions)

type warmOptions struct {
	rate     int
	progress func(Warmed)
}

// DefaultWarmRate is how many keys per second Warm asks for at most.
const DefaultWarmRate = 1000

// WarmRate sets how many keys per second are asked for at most. Default 1,000.
func WarmRate(keysPerSecond int) WarmOption { return func(o *warmOptions) { o.rate = keysPerSecond } }

// WarmProgress is called after every batch with what has been done so far, from the
// goroutine that called Warm.
func WarmProgress(tell func(Warmed)) WarmOption {
	return func(o *warmOptions) { o.progress = tell }
}

// Warmed is what Warm has done.
type Warmed struct {
	Keys   int // that were asked for
	Found  int // that have a value now
	Absent int // whose row does not exist
	Failed int // that could not be loaded
}

// Warm fills a cold cache: it asks for the keys, at most MaxBatch at a time and at most
// [WarmRate] per second, as GetMany does, so what is cached costs no load, what another
// process loads is not loaded again, and MaxLoads holds. Keys that fail are passed over;
// if there are any, the error says how many and why the first of them did. It ends early,
// with the context's error, when ctx does, and with ErrClosed.
func (c *Cache[K, V]) Warm(ctx context.Context, keys iter.Seq[K], options ...WarmOption) (done Warmed, err error) {
	o := warmOptions{rate: DefaultWarmRate}
	for _, set := range options {
		set(&o)
	}
	if o.rate <= 0 {
		return done, fmt.Errorf("onefill: Warm: the rate is %d keys per second; it must be positive", o.rate)
	}
	var first error
	size := min(c.opts.MaxBatch, max(1, o.rate/10)) // ten batches a second at least, so that the rate is even
	next := c.local.Now()
	for batch := range inBatches(keys, size) {
		if err := c.pace(ctx, next); err != nil {
			return done, err
		}
		next = max(next, c.local.Now()) + int64(time.Second)*int64(len(batch))/int64(o.rate)
		values, err := c.GetMany(ctx, batch)
		var many *ManyError
		switch {
		case errors.As(err, &many):
			for _, failure := range many.Errors {
				if first == nil {
					first = failure
				}
			}
			done.Failed += len(many.Errors)
		case err != nil:
			return done, err
		}
		done.Keys += len(batch)
		done.Found += len(values)
		done.Absent = done.Keys - done.Found - done.Failed
		if o.progress != nil {
			o.progress(done)
		}
		if err := ctx.Err(); err != nil {
			return done, err
		}
	}
	if first != nil {
		first = fmt.Errorf("onefill: Warm: %d of %d keys failed, one of them: %w", done.Failed, done.Keys, first)
	}
	return done, first
}

// pace waits until the moment at.
func (c *Cache[K, V]) pace(ctx context.Context, at int64) error {
	t := time.NewTimer(time.Duration(at - c.local.Now()))
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	case <-c.closing:
		return ErrClosed
	}
}

// inBatches cuts keys into slices of at most size, without those that a slice has
// already.
func inBatches[K comparable](keys iter.Seq[K], size int) iter.Seq[[]K] {
	return func(yield func([]K) bool) {
		batch, there := make([]K, 0, size), make(map[K]struct{}, size)
		for key := range keys {
			if _, twice := there[key]; twice {
				continue
			}
			batch, there[key] = append(batch, key), struct{}{}
			if len(batch) == size {
				if !yield(batch) {
					return
				}
				batch = make([]K, 0, size)
				clear(there)
			}
		}
		if len(batch) > 0 {
			yield(batch)
		}
	}
}
