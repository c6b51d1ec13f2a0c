package invalidation_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/invalidation"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/memqueue"
	"github.com/onefill/onefill/store/memstore"
)

// Interleaving: the jobs of versions 2 and 1 of a row arrive in this order, one after the
// other. The late one finds a newer row cached and does nothing, not even a load.
func TestOlderVersionDoesNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, st := memqueue.New(), memstore.New()
		db := newDatabase(q)
		db.rows["ann"] = row{"new", 2}
		c := newCache(t, st, options{Load: db.load, Version: versionOf})
		startWorker(t, q, invalidation.Versioned("users", c, versionOf))
		for _, version := range []uint64{2, 1, 2} {
			refresh(t, q, "ann", version)
			after(time.Second)
			get(t, c, "ann", "new")
		}
		wantDone(t, q)
		if loads, n := db.loadsOf("ann"), writes(st); loads != 1 || n != 1 {
			t.Errorf("%d loads and %d writes, want one of each", loads, n)
		}
		refresh(t, q, "ann", 0) // about whatever is there
		after(time.Second)
		if loads := db.loadsOf("ann"); loads != 2 {
			t.Errorf("%d loads after a refresh without a version", loads)
		}
	})
}

func refresh(t *testing.T, q queue.Queue, key string, version uint64) {
	t.Helper()
	js := must(invalidation.Refresh("users", key))
	js[0].Version = version
	enqueue(t, q, js...)
}

// The loader reads from a replica that lags behind the commit: the row that it brings is
// older than the job's. The refresh is tried again until the new one is there.
func TestRefreshFromALaggingReplica(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, st := memqueue.New(), memstore.New()
		db := newDatabase(q)
		c := newCache(t, st, options{Load: db.load})
		db.rows["ann"] = row{"old", 1}
		for _, version := range []uint64{1, 2, 1} { // in one batch, the newest of them decides
			refresh(t, q, "ann", version)
		}
		w := startWorker(t, q, invalidation.Versioned("users", c, versionOf))
		synctest.Wait()
		if s := w.Stats(); s.Done != 0 || s.Retried == 0 {
			t.Fatalf("the jobs are about version 2, the replica has 1: %+v", s)
		}
		if e := q.Jobs()[0].LastError; !strings.Contains(e, "version 1 was loaded, the job is about version 2") {
			t.Errorf("the error is %q", e)
		}
		db.mu.Lock()
		db.rows["ann"] = row{"new", 2}
		db.mu.Unlock()
		after(time.Minute)
		wantDone(t, q)
		get(t, c, "ann", "new")
	})
}

// The stale value is served while the refresh loads, and the job is done when the new one
// is there, not before: interleaving: the load is held, readers are served the old value,
// the job is in hand; the load ends; the job is done.
func TestRefreshServesStaleMeanwhile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, st := memqueue.New(), memstore.New()
		db := newDatabase(q)
		c := newCache(t, st, options{Load: db.load, StaleFor: time.Hour})
		db.rows["ann"] = row{"old", 1}
		get(t, c, "ann", "old")
		loaded := make(chan struct{})
		db.setReads(func(string) (row, error) { <-loaded; return row{"new", 2}, nil })
		w := startWorker(t, q, invalidation.For("users", c))
		refresh(t, q, "ann", 2)
		after(3 * time.Second)
		get(t, c, "ann", "old")
		if s := w.Stats(); s.Done != 0 || s.InHand != 1 {
			t.Errorf("the load has not ended: %+v", s)
		}
		close(loaded)
		after(time.Second)
		get(t, c, "ann", "new")
		wantDone(t, q)
		if loads := db.loadsOf("ann"); loads != 2 {
			t.Errorf("%d loads, want 2", loads)
		}
	})
}

// An origin that fails: the job fails with its error, also where readers are served the
// stale value instead, and is done when the origin works again.
func TestRefreshWhileTheOriginFails(t *testing.T) {
	for name, o := range map[string]options{"plain": {}, "stale on error": {StaleOnError: 48 * time.Hour}, "stale": {StaleFor: 48 * time.Hour}} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				q, st := memqueue.New(), memstore.New()
				db := newDatabase(q)
				o.Load = db.load
				c := newCache(t, st, o)
				db.rows["ann"] = row{"old", 1}
				get(t, c, "ann", "old")
				db.setReads(func(string) (row, error) { return row{}, errors.New("no connection to the database") })
				w := startWorker(t, q, invalidation.For("users", c))
				refresh(t, q, "ann", 2)
				after(time.Minute)
				if s := w.Stats(); s.Done != 0 || s.Retried == 0 || s.Dead != 0 {
					t.Errorf("the origin fails: %+v", s)
				}
				db.setReads(func(string) (row, error) { return row{"new", 2}, nil })
				after(20 * time.Minute)
				wantDone(t, q)
				get(t, c, "ann", "new")
			})
		})
	}
}

// An origin without a free place is nobody's fault: the refresh is postponed.
func TestRefreshWhileTheOriginIsBusy(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, st := memqueue.New(), memstore.New()
		db := newDatabase(q)
		free := make(chan struct{})
		c := newCache(t, st, options{MaxLoads: 1, WaitTimeout: 2 * time.Second, LoadTimeout: time.Hour,
			Load: func(ctx context.Context, key string) (row, error) {
				if key == "slow" {
					<-free
				}
				return db.load(ctx, key)
			}})
		db.rows["ann"] = row{"new", 1}
		go c.Get(bg, "slow")
		after(time.Millisecond)
		w := startWorker(t, q, invalidation.For("users", c))
		refresh(t, q, "ann", 1)
		after(time.Minute)
		if s := w.Stats(); s.Postponed == 0 || s.Retried != 0 || s.Done != 0 {
			t.Errorf("no place at the origin: %+v", s)
		}
		close(free)
		after(20 * time.Second)
		wantDone(t, q)
	})
}

// Refreshes that were claimed together go to LoadMany together. A row that is gone is
// refreshed, too: it is known not to exist.
func TestRefreshInBulk(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, st := memqueue.New(), memstore.New()
		calls := 0
		c := newCache(t, st, options{LoadMany: func(_ context.Context, keys []string) (map[string]row, error) {
			calls++
			rows := make(map[string]row)
			for _, k := range keys {
				if k != "gone" {
					rows[k] = row{k, 1}
				}
			}
			return rows, nil
		}})
		enqueue(t, q, must(invalidation.Refresh("users", "ann", "bob", "gone"))...)
		startWorker(t, q, invalidation.For("users", c))
		after(time.Second)
		wantDone(t, q)
		if calls != 1 {
			t.Errorf("%d calls of LoadMany", calls)
		}
		if _, _, err := c.Peek(bg, "gone"); !errors.Is(err, onefill.ErrNotFound) {
			t.Errorf("Peek = %v", err)
		}
	})
}

// A cache without a loader cannot refresh, which the error says.
func TestRefreshWithoutALoader(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		c := newCache(t, memstore.New(), options{})
		startWorker(t, q, invalidation.For("users", c))
		refresh(t, q, "ann", 1)
		after(24 * time.Hour)
		if ls := letters(t, q); len(ls) != 1 || !strings.Contains(ls[0].LastError, "Options.Load") {
			t.Errorf("%+v", ls)
		}
	})
}
