package invalidation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	// patience is how long a call holds on to its jobs while the store is away. It saves
	// the queue from being asked in a hot loop for jobs that nobody can do: while this call
	// waits it receives no others in its place.
	patience = 2 * time.Second

	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Second
)

func invalidate(ctx context.Context, g *group) { g.write(ctx, g.works, g.target.cache.invalidate) }

func expire(ctx context.Context, g *group) { g.write(ctx, g.works, g.target.cache.expire) }

// write writes the keys to the store, and again for a while where it is away.
func (g *group) write(ctx context.Context, works []*work, op func(context.Context, []any) error) {
	giveUp := time.Now().Add(patience)
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		// In another order each time, so that those that are left over are not always
		// the same.
		rand.Shuffle(len(works), func(i, k int) { works[i], works[k] = works[k], works[i] })
		attempt(ctx, works, op, giveUp)
		works = failedByOutage(works)
		if len(works) == 0 || !sleep(ctx, min(wait/2+rand.N(wait/2), time.Until(giveUp))) {
			return
		}
	}
}

// attempt writes the keys at once, and if that fails in halves: one key may be at fault, or
// one of several servers. After giveUp it does not divide further.
func attempt(ctx context.Context, works []*work, op func(context.Context, []any) error, giveUp time.Time) {
	keys := make([]any, len(works))
	for i, w := range works {
		keys[i] = w.key
	}
	err := guard(func() error { return op(ctx, keys) })
	if err != nil && len(works) > 1 {
		if ctx.Err() == nil && time.Now().Before(giveUp) {
			attempt(ctx, works[:len(works)/2], op, giveUp)
			attempt(ctx, works[len(works)/2:], op, giveUp)
			return
		}
		if !isOutage(err) {
			err = fmt.Errorf("%w: %w", errUndecided, err)
		}
	}
	for _, w := range works {
		w.err = err
	}
}

func failedByOutage(works []*work) (failed []*work) {
	for _, w := range works {
		if isOutage(w.err) {
			failed = append(failed, w)
		}
	}
	return failed
}

// sleep returns false if d is not positive or ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
