package onefill_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// The seven situations of docs/guarantees.md, in one process and, with a store,
// in three caches that share it as three processes do. integration/ runs them in
// real processes on real servers.

const loadTime = 250 * time.Millisecond

// fleet is three caches on one store, or one cache without a store.
func fleet(t testing.TB, st *memstore.Store, o options) []*cache {
	n := 3
	if st == nil {
		n = 1
	}
	caches := make([]*cache, n)
	for i := range caches {
		caches[i] = newCache(t, with(o, st))
	}
	return caches
}

func callersEach(caches []*cache) int { return 12 / len(caches) }

func TestS1AbsentKey(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", loadTime)
		caches := fleet(t, st, options{Load: db.load})
		answers := herd(bg, callersEach(caches), "k", caches...)
		wantAll(t, answers, "v1")
		db.wantLoads(t, 1)
		for _, a := range answers {
			if a.took < loadTime || a.took > loadTime+700*time.Millisecond {
				t.Errorf("a caller waited %v for a load of %v", a.took, loadTime)
			}
		}
		for _, c := range caches { // and the next Get is a hit
			get(t, c, "k", "v1")
		}
		db.wantLoads(t, 1)
	})
}

func TestS2RowDoesNotExist(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("", loadTime)
		db.fail(onefill.ErrNotFound)
		caches := fleet(t, st, options{Load: db.load})
		wantErrs(t, herd(bg, callersEach(caches), "k", caches...), onefill.ErrNotFound)
		db.wantLoads(t, 1)
		wantErrs(t, herd(bg, 2, "k", caches...), onefill.ErrNotFound)
		db.wantLoads(t, 1)
	})
}

func TestS3OriginFails(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		broken := errors.New("relation does not exist")
		db := newOrigin("", loadTime)
		db.fail(broken)
		caches := fleet(t, st, options{Load: db.load, ErrorTTL: 2 * time.Second})
		answers := herd(bg, callersEach(caches), "k", caches...)
		wantErrs(t, answers, onefill.ErrLoadFailed)
		db.wantLoads(t, 1)
		for _, a := range answers {
			if a.err.Error() != answers[0].err.Error() {
				t.Errorf("errors differ: %v and %v", a.err, answers[0].err)
			}
			if a.took > loadTime+700*time.Millisecond {
				t.Errorf("the error came after %v", a.took)
			}
		}
		// Remembered for ErrorTTL, and then forgotten.
		wantErrs(t, herd(bg, 1, "k", caches...), onefill.ErrLoadFailed)
		db.wantLoads(t, 1)
		db.fail(nil)
		db.write("v1")
		time.Sleep(3 * time.Second)
		wantAll(t, herd(bg, 1, "k", caches...), "v1")
		db.wantLoads(t, 2)
	})
}

func TestS4LoadOutlastsLease(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 3200*time.Millisecond)
		caches := fleet(t, st, options{Load: db.load, LeaseTTL: 2 * time.Second})
		wantAll(t, herd(bg, callersEach(caches), "k", caches...), "v1")
		db.wantLoads(t, 1)
	})
}

// A load reads v1 and pauses. v2 is committed and the key is invalidated, in
// another process where there is one. Then the load ends: v1 must not be stored.
func TestS5PausedLoadPublishesNothing(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", loadTime)
		o := options{Load: db.load}
		if st != nil {
			o.Local.TTL = time.Second
		}
		caches := fleet(t, st, o)
		loader, writer := caches[0], caches[len(caches)-1]
		first := make(chan answer)
		go func() {
			v, err := loader.Fetch(bg, "k")
			first <- answer{Result: v, err: err}
		}()
		time.Sleep(loadTime / 2)
		db.write("v2")
		must(t, writer.Invalidate(bg, "k"))
		if a := <-first; a.err != nil || a.Value != "v1" {
			t.Errorf("the caller who had been waiting got %q, %v", a.Value, a.err)
		}
		wantAll(t, herd(bg, 1, "k", writer), "v2")
		time.Sleep(time.Second + 1)
		wantAll(t, herd(bg, 1, "k", caches...), "v2")
		db.wantLoads(t, 2)
	})
}

func TestS6FirstCallerCancels(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", loadTime)
		caches := fleet(t, st, options{Load: db.load})
		ctx, cancel := context.WithCancel(bg)
		first := make(chan error)
		go func() {
			_, err := caches[0].Get(ctx, "k")
			first <- err
		}()
		synctest.Wait() // the first caller leads a flight whose load runs
		go func() {
			time.Sleep(loadTime / 2)
			cancel()
		}()
		wantAll(t, herd(bg, callersEach(caches), "k", caches...), "v1")
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("the first caller got %v", err)
		}
		db.wantLoads(t, 1)
	})
}

// The store is gone: loads are limited, everybody is served, and later callers do
// not pay the timeout again.
func TestS7StoreKilled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", loadTime)
		caches := fleet(t, st, options{Load: db.load, MaxLoads: 8, MaxLoadsDegraded: 2})
		st.Down()
		wantAll(t, herd(bg, 4, "k", caches...), "v1")
		db.wantLoads(t, int64(len(caches)))
		wantAll(t, herd(bg, 4, "k", caches...), "v1")
		db.wantLoads(t, int64(len(caches)))
	})
}
