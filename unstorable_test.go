package onefill_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// small is a store whose server takes no more than 200 bytes, also where the cache
// would allow more.
func small(st *memstore.Store) *memstore.Store {
	if st == nil {
		return nil
	}
	return memstore.New(memstore.Options{MaxValueBytes: 200})
}

// A value that is too large for the store is served and kept in local. The others do
// not load it one after the other: the second process to come does not wait for a
// lease, and neither does the third.
func TestUnstorableIsNotLoadedInSeries(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		big := strings.Repeat("x", 300)
		db := newOrigin(big, loadTime)
		caches := fleet(t, small(st), options{Load: db.load, TTL: time.Minute, Local: onefill.LocalOptions{TTL: time.Minute}})
		start := time.Now()
		wantAll(t, herd(bg, 4, "k", caches...), big)
		if took := time.Since(start); took > 2*loadTime+100*time.Millisecond {
			t.Errorf("took %v for loads of %v", took, loadTime)
		}
		db.wantLoads(t, int64(len(caches))) // one each, and then local has it
		wantAll(t, herd(bg, 4, "k", caches...), big)
		db.wantLoads(t, int64(len(caches)))
		if n := caches[0].Stats().Unstorable + caches[1].Stats().Unstorable + caches[2].Stats().Unstorable; n != 1 {
			t.Errorf("%d values were found unstorable, want 1: the others know from the mark", n)
		}
		for _, c := range caches {
			if r, ok, err := c.Peek(bg, "other"); ok || err != nil {
				t.Errorf("Peek: %+v, %v", r, err)
			}
		}
	})
}

// The mark is no value: who has not loaded sees nothing in it, and when the row
// changes it goes like a value. Forced: the row shrinks and is invalidated by one
// process; another one, which has loaded the large one beside the mark, hears of it.
func TestUnstorableThenStorable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		db := newOrigin(strings.Repeat("x", 300), loadTime)
		caches := fleet(t, small(memstore.New()), options{Load: db.load})
		wantAll(t, herd(bg, 1, "k", caches[:2]...), strings.Repeat("x", 300))
		if r, ok, err := caches[2].Peek(bg, "k"); ok || err != nil {
			t.Errorf("Peek at the mark: %+v, %v, %v", r, ok, err)
		}
		db.write("small")
		must(t, caches[0].Invalidate(bg, "k"))
		loads := db.loads.Load()
		wantAll(t, herd(bg, 3, "k", caches...), "small")
		db.wantLoads(t, loads+1)
	})
}

// A load beside the mark that is overtaken by an invalidation is not kept. Forced: the
// load reads the old row and pauses; another process invalidates; the load ends.
func TestUnstorableIsFencedByPushes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		db := newOrigin(strings.Repeat("x", 300), loadTime)
		caches := fleet(t, small(memstore.New()), options{Load: db.load})
		get(t, caches[0], "k", strings.Repeat("x", 300))
		resume := db.pause()
		late := ask(bg, caches[1], "k")
		pending(t, late)
		db.paused.Store(nil)
		db.write(strings.Repeat("y", 300))
		must(t, caches[0].Invalidate(bg, "k"))
		resume()
		wantAll(t, []answer{<-late}, strings.Repeat("x", 300))
		synctest.Wait()
		get(t, caches[1], "k", strings.Repeat("y", 300))
	})
}

// A Set that does not fit is an error, and what was cached before is gone, as it is
// older than what the caller has.
func TestSetOfAnUnstorableValue(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("row", 0)
		caches := fleet(t, small(st), options{Load: db.load})
		get(t, caches[0], "k", "row")
		db.write("newer")
		err := caches[0].Set(bg, "k", strings.Repeat("x", 300))
		if !errors.Is(err, store.ErrTooLarge) || !strings.Contains(err.Error(), "MaxValueBytes") {
			t.Errorf("Set: %v", err)
		}
		for _, c := range caches {
			get(t, c, "k", "newer")
		}
	})
}

// A mark stands for its row: one of an older version does not replace a newer row.
// Forced: the store has version 5; a replica that lags gives a large version 4.
func TestUnstorableOlderRow(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("5:small", 0)
		o := options{Load: db.load, Version: rowVersion, TTL: time.Second, Jitter: onefill.NoJitter, StaleOnError: time.Hour}
		caches := fleet(t, small(st), o)
		get(t, caches[0], "k", "5:small")
		time.Sleep(3 * time.Second)
		db.write("4:" + strings.Repeat("x", 300))
		_, err := caches[1].Get(bg, "k")
		must(t, err)
		db.fail(errBroken)
		time.Sleep(10 * time.Second)
		get(t, caches[2], "k", "5:small") // stale, but newer than the mark's row
	})
}
