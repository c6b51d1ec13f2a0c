package invalidation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/onefill/onefill/queue"
)

// handler applies jobs to its targets.
type handler struct {
	targets map[string]*Target
}

// group are the jobs of one call that are about one cache, by key.
type group struct {
	target *Target
	works  []*work
	byKey  map[any]*work
}

// work is what has to be done about one key, for all its jobs.
type work struct {
	key     any
	jobs    []int  // their places in the call
	version uint64 // the highest of the jobs, 0 if one of them has none
	// err is nil only when the store has said yes: whatever ends the work before, a panic or a
	// runtime.Goexit of the cache's own functions too, leaves an error.
	err error
}

var errNotReached = errors.New("it was not come to")

// batch makes the batch handler that does apply.
func (h *handler) batch(apply func(ctx context.Context, g *group)) func(context.Context, []queue.Delivery) []error {
	return func(ctx context.Context, ds []queue.Delivery) []error {
		errs := make([]error, len(ds))
		groups := make(map[string]*group)
		for i, d := range ds {
			errs[i] = h.sort(groups, i, d)
		}
		var all sync.WaitGroup
		for _, g := range groups { // at once: a store that is down holds no other up
			all.Go(func() { apply(ctx, g) })
		}
		all.Wait()
		for _, g := range groups {
			for _, w := range g.works {
				for _, i := range w.jobs {
					errs[i] = verdict(ctx, g.target.name, w, ds[i])
				}
			}
		}
		return errs
	}
}

// sort puts a job to those of its cache and key.
func (h *handler) sort(groups map[string]*group, i int, d queue.Delivery) error {
	var p payload
	if err := json.Unmarshal(d.Payload, &p); err != nil {
		return queue.PermanentError(fmt.Errorf(`the payload %s cannot be read, {"cache": "name", "key": ...} is expected: %w`, abbreviate(string(d.Payload)), err))
	}
	if p.Cache == "" || p.Key == nil && p.Bytes == nil {
		return queue.PermanentError(fmt.Errorf(`the payload %s lacks "cache" or "key"`, abbreviate(string(d.Payload))))
	}
	t := h.targets[p.Cache]
	if t == nil {
		return fmt.Errorf("this worker has no cache %s, only %s; give it to invalidation.Handlers",
			abbreviate(p.Cache), strings.Join(slices.Sorted(maps.Keys(h.targets)), ", "))
	}
	key, err := t.cache.decode(p)
	if err != nil {
		return fmt.Errorf("cache %q: %w", p.Cache, err)
	}
	g := groups[p.Cache]
	if g == nil {
		g = &group{target: t, byKey: make(map[any]*work)}
		groups[p.Cache] = g
	}
	w := g.byKey[key]
	if w == nil {
		w = &work{key: key, version: d.Version, err: errNotReached}
		g.byKey[key] = w
		g.works = append(g.works, w)
	}
	w.jobs = append(w.jobs, i)
	if d.Version == 0 || w.version == 0 {
		w.version = 0
	} else {
		w.version = max(w.version, d.Version)
	}
	return nil
}
