package invalidation

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// errStillOld: the load has ended, or should have, and what is cached is still older than
// what the job is about.
var errStillOld = errors.New("not refreshed")

const (
	// loadPatience is how long the refresh of a value is waited for that is served stale
	// meanwhile.
	loadPatience = 5 * time.Second
	firstLook    = 5 * time.Millisecond
	lastLook     = 250 * time.Millisecond
)

// refresh makes the keys stale, which the store must have said yes to, and loads them.
func refresh(ctx context.Context, g *group) {
	due := g.notCached(ctx)
	g.write(ctx, due, g.target.cache.expire)
	var keys []any
	for _, w := range due {
		if w.err == nil {
			keys, w.err = append(keys, w.key), errNotReached
		}
	}
	if len(keys) == 0 {
		return
	}
	var failed map[any]error
	crash := guard(func() error { failed = g.target.cache.load(ctx, keys); return nil })
	deadline := time.Now().Add(loadPatience)
	for _, key := range keys {
		w := g.byKey[key]
		switch {
		case crash != nil:
			w.err = crash
		case failed[key] != nil:
			w.err = failed[key]
		default:
			w.err = guard(func() error { return g.isFresh(ctx, w, deadline) })
		}
	}
}

// notCached returns the works that have something to do: those whose version is not cached.
// A look that fails says nothing.
func (g *group) notCached(ctx context.Context) (due []*work) {
	for _, w := range g.works {
		var c cached
		if w.version != 0 {
			if err := guard(func() (err error) { c, err = g.target.cache.look(ctx, w.key); return err }); err != nil {
				c = cached{}
			}
		}
		if c.found && !c.stale && c.version >= w.version && w.version != 0 {
			w.err = nil
		} else {
			due = append(due, w)
		}
	}
	return due
}

// isFresh waits until what readers get is no stale value, and checks its version. A row
// that does not exist is fresh.
func (g *group) isFresh(ctx context.Context, w *work, deadline time.Time) error {
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		c, err := g.target.cache.fetch(ctx, w.key)
		switch {
		case err != nil:
			return err
		case c.stale && !sleep(ctx, min(wait, time.Until(deadline))):
			return fmt.Errorf("%w: the value is stale, its load has failed or takes longer than %v", errStillOld, loadPatience)
		case c.stale: // look again
		case c.found && c.version != 0 && c.version < w.version:
			return fmt.Errorf("%w: version %d was loaded, the job is about version %d; the loader reads from a replica that lags, perhaps", errStillOld, c.version, w.version)
		default:
			return nil
		}
	}
}
