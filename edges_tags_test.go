package onefill_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// A cache goes on keeping what it loads and what is Set, whatever tags were invalidated:
// as many here as local has stripes, and many times that.
func TestCacheKeepsAfterManyTags(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, with(options{Load: db.load, Tags: true, TTL: time.Hour, Local: onefill.LocalOptions{MaxEntries: 100}}, st))
		for i := range 5000 {
			must(t, c.InvalidateTag(bg, fmt.Sprint("row:", i)))
		}
		get(t, c, "k", "v1")
		get(t, c, "k", "v1")
		db.wantLoads(t, 1)
		must(t, c.Set(bg, "s", "v1"))
		peek(t, c, "s", "v1")
	})
}

// Rows of one LoadMany that have tags in common have their own tags, too, and no others.
func TestTagsOfRowsDoNotMix(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		common := make([]string, 17) // the copy of a slice of 17 strings has room for one more
		for i := range common {
			common[i] = commonTags[16-i]
		}
		c := newCache(t, with(options{TTL: time.Hour,
			LoadMany: func(ctx context.Context, keys []string) (map[string]string, error) {
				onefill.SetTags(ctx, common...)
				rows := map[string]string{}
				for _, k := range keys {
					rows[k] = "v"
				}
				return rows, nil
			},
			TagsOf: func(k, _ string) []string { return []string{"row:" + k} }}, st))
		keys := []string{"a", "b", "c", "d"}
		if _, err := c.GetMany(bg, keys); err != nil {
			t.Fatal(err)
		}
		for _, k := range keys {
			peek(t, c, k, "v")
			must(t, c.InvalidateTag(bg, "row:"+k))
			peek(t, c, k, "")
		}
	})
}

// The same for the race detector: few tags, of which a row has no more of its own.
func TestTagsOfRowsDoNotRace(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		c := newCache(t, with(options{TTL: time.Hour,
			LoadMany: func(ctx context.Context, keys []string) (map[string]string, error) {
				onefill.SetTags(ctx, "c", "b", "a")
				return map[string]string{"a": "v", "b": "v", "c": "v"}, nil
			},
			TagsOf: func(k, _ string) []string { return nil }}, st))
		if _, err := c.GetMany(bg, []string{"a", "b", "c"}); err != nil {
			t.Fatal(err)
		}
	})
}

// Local staleness after an InvalidateTag elsewhere is Local.TTL at most, where the store
// does not push: what a process knows of a tag and what it knows of a value under it do not
// add up. Forced: A reads the tag's generation, with one value; the tag is invalidated by
// B; just before Local.TTL is over, A reads another value under it from the store; and
// again just before Local.TTL is over.
func TestTagStalenessIsLocalTTL(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := tagged(t, st, db, options{})
		get(t, caches[1], "b", "v1")
		get(t, caches[0], "a", "v1")
		time.Sleep(time.Second)
		db.write("v2")
		must(t, caches[1].InvalidateTag(bg, "team"))
		time.Sleep(8 * time.Second)
		_, _ = caches[0].Get(bg, "b") // may be v1 still: 8 s
		time.Sleep(9 * time.Second)
		get(t, caches[0], "b", "v2") // 17 s after the invalidation, with a Local.TTL of 10 s
	})
}

// A load that runs when its tag is invalidated elsewhere is fenced like any other, also
// where this process has read the tag's generation a moment ago and the store does not
// push. Forced: generation read; load paused; the tag invalidated by another process; the
// load goes on.
func TestLateTaggedLoadIsNotKeptThoughTheTagIsKnown(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := fleet(t, st, options{Tags: true, TTL: time.Hour, Local: onefill.LocalOptions{TTL: 10 * time.Second},
			Load: func(ctx context.Context, key string) (string, error) {
				onefill.SetTags(ctx, "team")
				return db.load(ctx, key)
			}})
		get(t, caches[0], "a", "v1") // knows the tag
		resume := db.pause()
		old := ask(bg, caches[0], "b")
		pending(t, old)
		db.write("v2")
		must(t, caches[1].InvalidateTag(bg, "team"))
		synctest.Wait()
		resume()
		if a := <-old; a.Value != "v1" {
			t.Errorf("who waited got %+v", a)
		}
		get(t, caches[0], "b", "v2")
	})
}

// A stale value whose tag was invalidated while the flight waited for somebody else's
// load is served to nobody after Local.TTL. Forced: B has the stale value of the store and
// waits for a stranger's lease; A invalidates the tag; a caller comes 20 s later and joins;
// the load fails.
func TestInvalidatedTagIsNotServedOnError(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := tagged(t, st, db, options{StaleOnError: time.Hour, WaitTimeout: time.Minute})
		get(t, caches[0], "k", "v1")
		must(t, caches[0].Expire(bg, "k"))
		stranger, err := st.Attach(bg, store.Config{Name: "test"})
		must(t, err)
		defer stranger.Close()
		data, _ := st.Raw("test", "k")
		a, err := stranger.Acquire(bg, "k", store.Request{Token: store.NewToken(), TTL: time.Hour, Seen: store.MarkOf(data)})
		must(t, err)
		first := ask(bg, caches[1], "k")
		pending(t, first)
		time.Sleep(time.Second)
		must(t, caches[0].InvalidateTag(bg, "team"))
		time.Sleep(20 * time.Second)
		late := ask(bg, caches[1], "k")
		pending(t, late)
		if _, err := a.Lease.Fail(bg, []byte("broken"), time.Minute); err != nil {
			t.Fatal(err)
		}
		if a := <-late; a.err == nil {
			t.Errorf("20 s after the invalidation, with a Local.TTL of 10 s: %+v", a)
		}
		<-first
	})
}

// More than MaxTags tags may be invalidated at once, and each is looked at.
func TestInvalidateManyTagsLooksAtEach(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		c := newCache(t, with(options{Load: newOrigin("v", 0).load, Tags: true, TTL: time.Hour}, st))
		get(t, c, "k", "v")
		tags := make([]string, 65)
		for i := range tags {
			tags[i] = fmt.Sprint(i)
		}
		tags[64] = ""
		if err := c.InvalidateTag(bg, tags...); err == nil {
			t.Error("no error for an empty tag")
		}
		peek(t, c, "k", "v")
	})
}

// The leader's caller leaves while the tags of the store's value are looked at: nobody else
// notices, and the value is not loaded again. Forced: Generations is held; the caller
// cancels.
func TestCancelledWhileTheTagsAreLookedAt(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := tagged(t, st, db, options{StoreTimeout: time.Hour, WaitTimeout: 3 * time.Hour})
		get(t, caches[0], "k", "v1")
		stopped, resume := holdNext(st, memstore.OpGenerations, false)
		ctx, cancel := context.WithCancel(bg)
		first := ask(ctx, caches[1], "k")
		stopped()
		second := ask(bg, caches[1], "k")
		synctest.Wait()
		cancel()
		synctest.Wait()
		resume()
		<-first
		if a := <-second; a.err != nil || a.Value != "v1" {
			t.Errorf("%+v", a)
		}
		db.wantLoads(t, 1)
		if s := caches[1].Stats(); s.Undecodable != 0 {
			t.Errorf("%d undecodable", s.Undecodable)
		}
	})
}

// One connection that is cut costs no load without a lease, also when it was the tags that
// were asked about.
func TestTagQuestionsAreRepeated(t *testing.T) {
	for _, kind := range []memstore.Kind{memstore.OpEpoch, memstore.OpGenerations} {
		t.Run(string(kind), func(t *testing.T) {
			stores(t, func(t *testing.T, st *memstore.Store) {
				db := newOrigin("v1", 0)
				c := tagged(t, st, db, options{})[0]
				faultNext(st, kind, 1, memstore.Fault{Err: errors.New("cut")})
				get(t, c, "k", "v1")
				wantStored(t, st, "k", "v1")
				db.wantLoads(t, 1)
			})
		})
	}
}

// While the store does not say what the tags' generations are, what is loaded lives in local
// for a moment, as whenever the store cannot be asked.
func TestNoGenerationsCostFewLoads(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := tagged(t, st, db, options{})[0]
		st.SetFault(func(op memstore.Op) memstore.Fault {
			if op.Kind == memstore.OpGenerations {
				return memstore.Fault{Err: errors.New("down")}
			}
			return memstore.Fault{}
		})
		for range 100 { // for 10 s
			get(t, c, "k", "v1")
			time.Sleep(100 * time.Millisecond)
		}
		if n := db.loads.Load(); n > 10 {
			t.Errorf("%d loads in 10 s", n)
		}
	})
}

// Invalidations of other tags void nothing, however many there are. Without a store callers
// join no load that began before one, and so may load beside it, until the first has
// landed and is kept.
func TestOtherTagsDuringLoads(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 500*time.Millisecond)
		c := tagged(t, st, db, options{})[0]
		stop := make(chan struct{})
		var done sync.WaitGroup
		done.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
				}
				_ = c.InvalidateTag(bg, "other")
			}
		})
		var callers sync.WaitGroup
		for range 100 { // for 10 s
			callers.Go(func() { _, _ = c.Get(bg, "k") })
			time.Sleep(100 * time.Millisecond)
		}
		callers.Wait()
		close(stop)
		done.Wait()
		if n := db.loads.Load(); n > 6 {
			t.Errorf("%d loads of one key in 10 s, %d at once", n, db.most.Load())
		}
	})
}

// The inner load's tags are not the outer one's; a loader that goes on after it has
// returned adds none.
func TestNestedAndLateTags(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		late := make(chan struct{})
		var c *cache
		c = newCache(t, with(options{Tags: true, TTL: time.Hour, Load: func(ctx context.Context, key string) (string, error) {
			onefill.SetTags(ctx, "tag:"+key)
			if key == "outer" {
				_, err := c.Get(ctx, "inner")
				go func() { <-late; onefill.SetTags(ctx, "late") }()
				return "v", err
			}
			return "v", nil
		}}, st))
		get(t, c, "outer", "v")
		close(late)
		synctest.Wait()
		must(t, c.InvalidateTag(bg, "tag:inner", "late"))
		peek(t, c, "inner", "")
		peek(t, c, "outer", "v")
		must(t, c.InvalidateTag(bg, "tag:outer"))
		peek(t, c, "outer", "")
	})
}

var _ atomic.Int64

// A row's own tag, which the store has never seen, begins at the present epoch: if any tag
// was invalidated during the row's first load, it is loaded once more, and not again and again.
func TestNewTagsUnderOtherInvalidations(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 500*time.Millisecond)
		caches := tagged(t, st, db, options{})
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
				}
				_ = caches[1].InvalidateTag(bg, "other")
			}
		}()
		for i := range 20 {
			for range 5 {
				get(t, caches[0], fmt.Sprint(i), "v1")
			}
		}
		close(stop)
		time.Sleep(time.Second)
		if n := db.loads.Load(); n > 40 {
			t.Errorf("%d loads of 20 rows", n)
		}
	})
}

// The rows of one LoadMany ask for the epoch once, not each for itself.
func TestBatchAsksForTheEpochOnce(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		c := newCache(t, options{Store: st, TTL: time.Hour, Tags: true, LoadMany: func(_ context.Context, keys []string) (map[string]string, error) {
			values := map[string]string{}
			for _, k := range keys {
				values[k] = "v"
			}
			return values, nil
		}})
		if values, err := c.GetMany(bg, slices.Collect(numbered(100))); err != nil || len(values) != 100 {
			t.Fatalf("%d values, %v", len(values), err)
		}
		if n := st.Counts()[memstore.OpEpoch]; n != 1 {
			t.Errorf("the epoch was asked for %d times", n)
		}
	})
}

// A look at the store that may take longer than WaitTimeout is not the caller's own: with
// tags it is more questions. Forced: the value's answer comes late; the question for its tags
// fails late, and comes to no answer when it is tried again.
func TestSlowTagsKeepNobodyPastWaitTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		caches := tagged(t, st, newOrigin("v", 0), options{StoreTimeout: time.Second, WaitTimeout: 2200 * time.Millisecond})
		get(t, caches[0], "k", "v")
		var asked atomic.Int64
		st.SetFault(func(op memstore.Op) memstore.Fault {
			switch {
			case op.Kind == memstore.OpGet:
				return memstore.Fault{Delay: 990 * time.Millisecond}
			case op.Kind == memstore.OpGenerations && asked.Add(1) == 1:
				return memstore.Fault{Delay: 490 * time.Millisecond, Err: memstore.ErrDown}
			case op.Kind == memstore.OpGenerations:
				return memstore.Fault{Delay: time.Hour}
			}
			return memstore.Fault{}
		})
		if a := <-ask(bg, caches[1], "k"); a.took > 2200*time.Millisecond {
			t.Errorf("an answer after %v, with a WaitTimeout of 2.2 s: %+v", a.took, a)
		}
		st.SetFault(nil)
	})
}
