package invalidation

import (
	"context"
	"errors"
	"fmt"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/store"
)

// Target is a cache that jobs are applied to. [For] and [Versioned] make one.
type Target struct {
	name  string
	cache adapter
	err   error
}

// For names the cache for jobs. Name it as Options.Name does, unless there is a reason not to:
// [Invalidate] and its kin must be given the same name.
func For[K comparable, V any](name string, cache *onefill.Cache[K, V]) Target {
	return Versioned(name, cache, nil)
}

// Versioned is [For] with what returns the row's own version of a value, as Options.Version
// does: then the Version of refresh jobs is heeded.
func Versioned[K comparable, V any](name string, cache *onefill.Cache[K, V], version func(V) uint64) Target {
	t := Target{name: name, cache: &typed[K, V]{cache, version}, err: store.ValidName(name)}
	if cache == nil {
		t.err = errors.Join(t.err, errors.New("the cache is nil: what made it has returned an error, perhaps"))
	}
	if t.err != nil {
		t.err = fmt.Errorf("invalidation: cache %q: %w", name, t.err)
	}
	return t
}

// Name returns the name that jobs call the cache by.
func (t Target) Name() string { return t.name }

// adapter is a cache whose types are not known. The keys are its own, in interfaces.
type adapter interface {
	decode(p payload) (key any, err error)
	invalidate(ctx context.Context, keys []any) error
	expire(ctx context.Context, keys []any) error
	// load loads keys, of which some may be stale now, and returns an error for each that
	// has one.
	load(ctx context.Context, keys []any) map[any]error
	// look says what the cache has of a key, and loads nothing.
	look(ctx context.Context, key any) (cached, error)
	// fetch says what a reader gets.
	fetch(ctx context.Context, key any) (cached, error)
}

// cached is what a cache has of a key, as far as a refresh asks.
type cached struct {
	found, stale bool
	version      uint64 // 0: none, or not known
}

// typed is the adapter of a cache.
type typed[K comparable, V any] struct {
	cache   *onefill.Cache[K, V]
	version func(V) uint64 // may be nil
}

func (t *typed[K, V]) decode(p payload) (any, error) {
	key, err := decodeKey[K](p)
	return key, err
}

func (t *typed[K, V]) invalidate(ctx context.Context, keys []any) error {
	return t.cache.Invalidate(ctx, own[K](keys)...)
}

func (t *typed[K, V]) expire(ctx context.Context, keys []any) error {
	return t.cache.Expire(ctx, own[K](keys)...)
}

func (t *typed[K, V]) load(ctx context.Context, keys []any) map[any]error {
	_, err := t.cache.GetMany(ctx, own[K](keys))
	if err == nil {
		return nil
	}
	var many *onefill.ManyError
	if errors.As(err, &many) {
		return many.Errors
	}
	all := make(map[any]error, len(keys))
	for _, key := range keys {
		all[key] = err
	}
	return all
}

func (t *typed[K, V]) look(ctx context.Context, key any) (cached, error) {
	r, found, err := t.cache.Peek(ctx, key.(K))
	if err != nil || !found {
		return cached{}, err
	}
	return t.state(r), nil
}

func (t *typed[K, V]) fetch(ctx context.Context, key any) (cached, error) {
	r, err := t.cache.Fetch(ctx, key.(K))
	if errors.Is(err, onefill.ErrNotFound) { // a row that does not exist has no version
		return cached{}, nil
	}
	if err != nil {
		return cached{}, err
	}
	return t.state(r), nil
}

func (t *typed[K, V]) state(r onefill.Result[V]) cached {
	c := cached{found: true, stale: r.Stale}
	if t.version != nil {
		c.version = t.version(r.Value)
	}
	return c
}

func own[K comparable](keys []any) []K {
	ks := make([]K, len(keys))
	for i, key := range keys {
		ks[i] = key.(K)
	}
	return ks
}

// Handlers returns the handlers of the kinds of this package, for
// [queue.WorkerOptions].Handlers; add handlers of your own to the map. They are batch
// handlers: what one Receive has brought is applied with one call of the store for each
// cache, where nothing fails. It fails if there is no target, if two have one name, and if
// one is not as it must be.
func Handlers(targets ...Target) (map[string]queue.Handler, error) {
	if len(targets) == 0 {
		return nil, errors.New("invalidation.Handlers: there are no targets")
	}
	h := &handler{targets: make(map[string]*Target, len(targets))}
	for _, t := range targets {
		if t.err != nil {
			return nil, t.err
		}
		if t.cache == nil {
			return nil, errors.New("invalidation.Handlers: a Target that neither For nor Versioned has made")
		}
		if h.targets[t.name] != nil {
			return nil, fmt.Errorf("invalidation.Handlers: two targets are called %q", t.name)
		}
		h.targets[t.name] = &t
	}
	return map[string]queue.Handler{
		KindInvalidate: {Batch: h.batch(invalidate)},
		KindExpire:     {Batch: h.batch(expire)},
		KindRefresh:    {Batch: h.batch(refresh)},
	}, nil
}
