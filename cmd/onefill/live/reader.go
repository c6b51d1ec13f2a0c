package live

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
	"github.com/onefill/onefill/store"
)

// reader is the cache of one process, in one of the modes.
type reader interface {
	Get(ctx context.Context, key string) (recipe.Answer, error)
	// Expire makes the value old, as if its time were over.
	Expire(ctx context.Context, key string) error
	// Clear leaves nothing of key, lock included.
	Clear(ctx context.Context, key string) error
	Close() error
}

// What the page does not let anybody choose.
const (
	storeTimeout = 250 * time.Millisecond
	// patience is how long a caller waits at most, in every mode.
	patience     = 15 * time.Second
	staleOnError = time.Minute
	maxLoads     = 64
	// maxLoadsDegraded is small, so that it is seen.
	maxLoadsDegraded = 2
)

// recipeReader is a mode without onefill.
type recipeReader struct {
	recipe interface {
		Get(ctx context.Context, key string) (recipe.Answer, error)
		Invalidate(ctx context.Context, key string) error
	}
	store recipe.Store
	lock  func(key string) string
}

func (r *recipeReader) Get(ctx context.Context, key string) (recipe.Answer, error) {
	return r.recipe.Get(ctx, key)
}

// Expire deletes: to these modes an expired value and none are the same.
func (r *recipeReader) Expire(ctx context.Context, key string) error {
	return r.recipe.Invalidate(ctx, key)
}

func (r *recipeReader) Clear(ctx context.Context, key string) error {
	_, err := r.store.Delete(ctx, r.lock(key))
	return errors.Join(err, r.recipe.Invalidate(ctx, key))
}

func (r *recipeReader) Close() error {
	r.store.Close()
	return nil
}

func openRecipe(ctx context.Context, mode string, process int, a *arm, s Settings) (reader, error) {
	plain, err := a.backend.plain(ctx)
	if err != nil {
		return nil, err
	}
	prefix := a.backend.prefix() + mode + ":"
	lock := func(key string) string { return prefix + key + ":lock" }
	plain = recipe.Bounded{Store: &watchedStore{Store: plain, arm: a, process: process}, Timeout: storeTimeout}
	naive := recipe.Naive{Store: plain, Config: recipe.Config{
		Load:    func(ctx context.Context, _ string) (string, error) { return a.database.query(ctx, process) },
		TTL:     func(context.Context) time.Duration { return jittered(s) },
		Lease:   s.lease(),
		Key:     func(key string) string { return prefix + key },
		LockKey: lock,
	}}
	r := &recipeReader{store: plain, lock: lock}
	switch mode {
	case ModeNaive:
		r.recipe = &naive
	case ModeLocal:
		r.recipe = &recipe.Local{Naive: naive}
	case ModeLock:
		r.recipe = &recipe.Lock{Naive: naive}
	default:
		plain.Close()
		return nil, fmt.Errorf("unknown mode %q", mode)
	}
	return r, nil
}

// jittered is the TTL that a recipe stores with: onefill does the same to its own.
func jittered(s Settings) time.Duration {
	return s.ttl() + time.Duration(rand.Float64()*s.jitter()*float64(s.ttl()))
}

// onefillReader is the mode onefill.
type onefillReader struct {
	cache *onefill.Cache[string, string]
	close func()
}

func openOnefill(process int, a *arm, s Settings) (reader, error) {
	shared, closeStore, err := a.backend.shared()
	if err != nil {
		return nil, err
	}
	cache, err := onefill.New(onefill.Options[string, string]{
		Name:     a.backend.name(),
		Load:     func(ctx context.Context, _ string) (string, error) { return a.database.query(ctx, process) },
		TTL:      s.ttl(),
		Jitter:   s.jitter(),
		LeaseTTL: s.lease(),
		Store:    &watchedShared{Store: shared, arm: a, process: process},

		StaleOnError: staleOnError, StoreTimeout: storeTimeout,
		WaitTimeout: patience, LoadTimeout: 4 * patience,
		MaxLoads: maxLoads, MaxLoadsDegraded: maxLoadsDegraded,
		Local:    onefill.LocalOptions{MaxEntries: 100},
		Observer: onefill.ObserverFunc(a.observe),
		Logger:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		closeStore()
		return nil, err
	}
	return &onefillReader{cache: cache, close: closeStore}, nil
}

func (r *onefillReader) Get(ctx context.Context, key string) (recipe.Answer, error) {
	got, err := r.cache.Fetch(ctx, key)
	a := recipe.Answer{Payload: got.Value, Stale: got.Stale, Coalesced: got.Coalesced}
	if err == nil {
		a.Source = got.Source.String()
	}
	return a, err
}

func (r *onefillReader) Expire(ctx context.Context, key string) error {
	return r.cache.Expire(ctx, key)
}

func (r *onefillReader) Clear(ctx context.Context, key string) error {
	return r.cache.Invalidate(ctx, key)
}

func (r *onefillReader) Close() error {
	err := r.cache.Close()
	r.close()
	return err
}

// watchedStore notes who holds the recipe's lock.
type watchedStore struct {
	recipe.Store
	arm     *arm
	process int
}

func (w *watchedStore) Add(ctx context.Context, key, value string, ttl time.Duration) (bool, error) {
	ok, err := w.Store.Add(ctx, key, value, ttl)
	if ok {
		w.arm.locked(key, w.process, ttl)
	}
	return ok, err
}

func (w *watchedStore) Delete(ctx context.Context, key string) (bool, error) {
	found, err := w.Store.Delete(ctx, key)
	if err == nil {
		w.arm.unlocked(key)
	}
	return found, err
}

// watchedShared is a store that notes who holds onefill's lease.
type watchedShared struct {
	store.Store
	arm     *arm
	process int
}

func (w *watchedShared) Attach(ctx context.Context, cfg store.Config) (store.Session, error) {
	session, err := w.Store.Attach(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &watchedSession{Session: session, shared: w}, nil
}

type watchedSession struct {
	store.Session
	shared *watchedShared
}

func (w *watchedSession) Acquire(ctx context.Context, key string, req store.Request) (store.Answer, error) {
	got, err := w.Session.Acquire(ctx, key, req)
	if err == nil && got.State == store.Won {
		rec := w.shared.arm.rec
		got.Lease = &watchedLease{Lease: got.Lease, rec: rec, bar: rec.beginLease(w.shared.process, req.TTL)}
	}
	return got, err
}

type watchedLease struct {
	store.Lease
	rec *recorder
	bar *bar
}

func (l *watchedLease) Fill(ctx context.Context, data []byte, ttl time.Duration) (bool, error) {
	defer l.rec.endLease(l.bar)
	return l.Lease.Fill(ctx, data, ttl)
}

func (l *watchedLease) Fail(ctx context.Context, record []byte, ttl time.Duration) (bool, error) {
	defer l.rec.endLease(l.bar)
	return l.Lease.Fail(ctx, record, ttl)
}

func (l *watchedLease) Release(ctx context.Context) (bool, error) {
	defer l.rec.endLease(l.bar)
	return l.Lease.Release(ctx)
}

func (l *watchedLease) Renew(ctx context.Context, ttl time.Duration) (bool, error) {
	ok, err := l.Lease.Renew(ctx, ttl)
	switch {
	case ok:
		l.rec.renewLease(l.bar, ttl)
	case err == nil:
		l.rec.endLease(l.bar)
	}
	return ok, err
}
