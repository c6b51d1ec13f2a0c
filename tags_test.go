package onefill_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// tagging is a loader that puts every row under "team" and under its own key, after it
// has asked the origin.
func tagging(db *originDB) func(context.Context, string) (string, error) {
	return func(ctx context.Context, key string) (string, error) {
		row, err := db.load(ctx, key)
		onefill.SetTags(ctx, "team", "row:"+key)
		return row, err
	}
}

// tagged is a fleet whose loader tags.
func tagged(t *testing.T, st *memstore.Store, db *originDB, o options) []*cache {
	t.Helper()
	o.Load, o.Tags = tagging(db), true
	o.TTL = time.Hour
	if st != nil {
		o.Local = onefill.LocalOptions{TTL: 10 * time.Second}
	}
	return fleet(t, st, o)
}

// heard is after how long the others have heard of a change: where nothing is pushed,
// after Local.TTL.
const heard = 11 * time.Second

// Everything under a tag is gone at once, in the process that says so, and in the others
// as soon as they hear of it; what is not under it stays.
func TestInvalidateTag(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := tagged(t, st, db, options{})
		for _, k := range []string{"a", "b"} {
			wantAll(t, herd(bg, 2, k, caches...), "v1")
		}
		db.wantLoads(t, 2)
		time.Sleep(heard)
		wantAll(t, herd(bg, 2, "a", caches...), "v1")
		db.write("v2")
		must(t, caches[0].InvalidateTag(bg, "row:a"))
		get(t, caches[0], "a", "v2")
		get(t, caches[0], "b", "v1")
		time.Sleep(heard)
		wantAll(t, herd(bg, 2, "a", caches...), "v2")
		wantAll(t, herd(bg, 2, "b", caches...), "v1")
		db.wantLoads(t, 3)
		must(t, caches[len(caches)-1].InvalidateTag(bg, "other", "team"))
		time.Sleep(heard)
		for _, k := range []string{"a", "b"} {
			wantAll(t, herd(bg, 2, k, caches...), "v2")
		}
		db.wantLoads(t, 5)
	})
}

// Where the store pushes, the others hear of it at once.
func TestInvalidateTagIsPushed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		caches := tagged(t, st, db, options{})
		wantAll(t, herd(bg, 1, "k", caches...), "v1")
		synctest.Wait()
		wantAll(t, herd(bg, 1, "k", caches...), "v1")
		db.write("v2")
		must(t, caches[0].InvalidateTag(bg, "team"))
		synctest.Wait()
		wantAll(t, herd(bg, 1, "k", caches...), "v2")
	})
}

// Where the store pushes, a process hears of the invalidation of a tag that it has never read,
// and lets nobody join a load that may be under it. Forced: B's flight has read the row, and is
// still in its loader, which has named no tag yet; A commits and invalidates the tag; then a
// second caller comes to B. He gets the new row, and B's first one the old one, which is not
// kept.
func TestUnreadTagIsNotJoined(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		resume := make(chan struct{})
		held := true // by the load that is under way; written before the first load and after it
		caches := []*cache{
			newCache(t, options{Store: st, Load: tagging(db), Tags: true, TTL: time.Hour}),
			newCache(t, options{Store: st, Tags: true, TTL: time.Hour, Load: func(ctx context.Context, key string) (string, error) {
				row, err := db.load(ctx, key)
				if held {
					held = false
					<-resume
				}
				onefill.SetTags(ctx, "team")
				return row, err
			}}),
		}
		first := make(chan []answer, 1)
		go func() { first <- herd(bg, 1, "k", caches[1]) }()
		synctest.Wait()
		db.write("v2")
		must(t, caches[0].InvalidateTag(bg, "team"))
		synctest.Wait()
		second := make(chan []answer, 1)
		go func() { second <- herd(bg, 1, "k", caches[1]) }()
		synctest.Wait()
		close(resume)
		wantAll(t, <-first, "v1")
		wantAll(t, <-second, "v2")
		wantAll(t, herd(bg, 2, "k", caches...), "v2")
	})
}

// What is in local is not served while a slow store works on InvalidateTag, and what a
// flight reads in between is dropped after it. Forced: the operation is held before it is
// applied; a reader comes, who finds the value in the store, valid still, and then in
// local; it is applied.
func TestInvalidateTagVoidsTwice(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := tagged(t, st, db, options{StoreTimeout: time.Hour})[0]
		get(t, c, "k", "v1")
		stopped, resume := holdNext(st, memstore.OpVoidTags, false)
		db.write("v2")
		done := make(chan error)
		go func() { done <- c.InvalidateTag(bg, "team") }()
		stopped()
		for _, want := range []onefill.Source{onefill.SourceStore, onefill.SourceLocal} {
			if r, err := c.Fetch(bg, "k"); err != nil || r.Source != want {
				t.Errorf("%+v, %v; want it from %v", r, err, want)
			}
		}
		resume()
		must(t, <-done)
		get(t, c, "k", "v2")
	})
}

// Clear is that for the whole cache, whether tagged or not.
func TestClear(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := fleet(t, st, options{Load: db.load, Tags: true, TTL: time.Hour, StaleFor: time.Hour, Local: onefill.LocalOptions{TTL: 10 * time.Second}})
		must(t, caches[0].Set(bg, "set", "v1"))
		for i := range 20 {
			wantAll(t, herd(bg, 1, fmt.Sprint(i), caches...), "v1")
		}
		db.write("v2")
		must(t, caches[0].Clear(bg))
		peek(t, caches[0], "set", "")
		time.Sleep(heard)
		for i := range 20 {
			wantAll(t, herd(bg, 1, fmt.Sprint(i), caches...), "v2")
		}
		wantAll(t, herd(bg, 1, "set", caches...), "v2")
		db.wantLoads(t, 41)
	})
}

// A load that runs when its tag is invalidated is fenced like any other, though nobody
// knows its tags yet: those who wait get it, and it is kept nowhere. Those who come later
// do not join it. Forced: the load is paused after it has read v1; the row changes and
// the tag is invalidated, here or in another process; one more caller comes; the load
// goes on.
func TestTagOfALoadInFlight(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		for _, elsewhere := range []bool{false, true} {
			db := newOrigin("v1", 0)
			caches := tagged(t, st, db, options{})
			key := fmt.Sprint("k", elsewhere)
			resume := db.pause()
			old := ask(bg, caches[0], key)
			pending(t, old)
			db.write("v2")
			writer := caches[0]
			if elsewhere {
				writer = caches[len(caches)-1]
			}
			must(t, writer.InvalidateTag(bg, "team"))
			synctest.Wait()
			late := ask(bg, writer, key)
			synctest.Wait()
			resume()
			if a := <-old; a.err != nil || a.Value != "v1" {
				t.Errorf("who waited got %+v", a)
			}
			if a := <-late; a.err != nil || a.Value != "v2" {
				t.Errorf("who came after the invalidation got %+v", a)
			}
			synctest.Wait()
			time.Sleep(heard)
			wantAll(t, herd(bg, 1, key, caches...), "v2")
			nothingHeld(t, st)
		}
	})
}

// The same if nobody comes meanwhile: what the late load brings is not in local, where a
// stamp that was taken after the invalidation would not give it away.
func TestLateTaggedLoadIsNotKept(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := tagged(t, st, db, options{})[0]
		resume := db.pause()
		old := ask(bg, c, "k")
		pending(t, old)
		db.write("v2")
		must(t, c.InvalidateTag(bg, "team"))
		resume()
		if a := <-old; a.Value != "v1" {
			t.Errorf("who waited got %+v", a)
		}
		get(t, c, "k", "v2")
		if s := c.Stats(); st != nil && s.FillsRefused != 1 {
			t.Errorf("%d fills were refused", s.FillsRefused)
		}
	})
}

// The same for the last moment: the tag is invalidated between the load's end and its
// fill. Forced: the fill is held before it is applied.
func TestTagVoidedBeforeTheFill(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := tagged(t, st, db, options{StoreTimeout: time.Hour})
		stopped, resume := holdNext(st, memstore.OpFill, false)
		old := ask(bg, caches[0], "k")
		stopped()
		db.write("v2")
		must(t, caches[1].InvalidateTag(bg, "team"))
		resume()
		<-old
		time.Sleep(heard)
		wantAll(t, herd(bg, 1, "k", caches...), "v2")
	})
}

// A herd on a key that was never there, under tags that were never there, is one load.
func TestTaggedHerdIsOneLoad(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v", loadTime)
		wantAll(t, herd(bg, 4, "k", tagged(t, st, db, options{})...), "v")
		db.wantLoads(t, 1)
	})
}

// Invalidations of other tags void nothing.
func TestOtherTags(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v", 0)
		caches := tagged(t, st, db, options{})
		get(t, caches[0], "k", "v")
		for range 10 {
			must(t, caches[1].InvalidateTag(bg, "other"))
		}
		time.Sleep(heard)
		wantAll(t, herd(bg, 1, "k", caches...), "v")
		db.wantLoads(t, 1)
	})
}

// A record of a tag that was lost means invalid, not valid: the store cannot know any more
// whether it was voided. So does the loss of the epoch.
func TestLostTagsMeanInvalid(t *testing.T) {
	for name, lose := range map[string]func(*memstore.Store){
		"tag":        func(st *memstore.Store) { st.LoseTags("test", "team") },
		"everything": func(st *memstore.Store) { st.LoseTags("test") },
	} {
		t.Run(name, func(t *testing.T) {
			stores(t, func(t *testing.T, st *memstore.Store) {
				db := newOrigin("v1", 0)
				caches := tagged(t, st, db, options{})
				wantAll(t, herd(bg, 1, "k", caches...), "v1")
				db.write("v2")
				must(t, caches[0].InvalidateTag(bg, "team"))
				lose(st)
				time.Sleep(heard)
				wantAll(t, herd(bg, 1, "k", caches...), "v2")
				time.Sleep(heard)
				db.wantLoads(t, 2)
				wantAll(t, herd(bg, 1, "k", caches...), "v2")
				db.wantLoads(t, 2)
			})
		})
	}
}

// A failover turns the epoch back. What was loaded under the later one, before, is void
// all the same when its tag is invalidated after.
func TestTagsAfterAFailover(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := tagged(t, st, db, options{})
		early := st.Snapshot()
		for range 100 {
			must(t, caches[0].InvalidateTag(bg, "x"))
		}
		get(t, caches[0], "k", "v1")
		data, _ := st.Raw("test", "k")
		time.Sleep(2 * time.Minute) // nothing of this is replayed
		st.Failover(early)
		st.PutRaw("test", "k", data, time.Hour) // the value has come along
		db.write("v2")
		must(t, caches[0].InvalidateTag(bg, "team"))
		time.Sleep(heard)
		wantAll(t, herd(bg, 1, "k", caches...), "v2")
	})
}

// An InvalidateTag that failed in an outage, or that a failover has lost, is repeated
// before what is under the tag is served.
func TestInvalidateTagIsReplayed(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := tagged(t, st, db, options{})
		wantAll(t, herd(bg, 1, "k", caches...), "v1")
		db.write("v2")
		st.Down()
		if err := caches[0].InvalidateTag(bg, "team"); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("InvalidateTag with the store down: %v", err)
		}
		st.Up()
		get(t, caches[0], "k", "v2")
		time.Sleep(heard)
		wantAll(t, herd(bg, 1, "k", caches...), "v2")

		lagging := st.Snapshot()
		db.write("v3")
		must(t, caches[1].InvalidateTag(bg, "row:k"))
		st.Failover(lagging)
		get(t, caches[1], "k", "v3")
		time.Sleep(heard)
		wantAll(t, herd(bg, 1, "k", caches...), "v3")
	})
}

// While the store is down, what is loaded is kept in local for a moment, and an
// InvalidateTag drops it, also from loads that run.
func TestTagsWhileTheStoreIsDown(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := tagged(t, st, db, options{})[0]
		st.Down()
		get(t, c, "k", "v1")
		db.write("v2")
		_ = c.InvalidateTag(bg, "team")
		get(t, c, "k", "v2")
		resume := db.pause()
		old := ask(bg, c, "other")
		pending(t, old)
		db.write("v3")
		_ = c.InvalidateTag(bg, "team")
		resume()
		<-old
		get(t, c, "other", "v3")
	})
}

// Values that are Set have the tags of TagsOf, and so have the rows of LoadMany.
func TestTagsOf(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		rows := map[string]string{"a": "red", "b": "blue"}
		var loads atomic.Int64
		c := newCache(t, with(options{TTL: time.Hour,
			LoadMany: func(_ context.Context, keys []string) (map[string]string, error) {
				loads.Add(1)
				return rows, nil
			},
			TagsOf: func(_, v string) []string { return []string{v} }}, st))
		if _, err := c.GetMany(bg, []string{"a", "b"}); err != nil {
			t.Fatal(err)
		}
		must(t, c.Set(bg, "s", "red"))
		must(t, c.InvalidateTag(bg, "red"))
		peek(t, c, "a", "")
		peek(t, c, "b", "blue")
		peek(t, c, "s", "")
	})
}

// Absent rows can be under a tag: the row that a tag's change has brought is seen.
func TestNotFoundUnderATag(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("", 0)
		db.fail(onefill.ErrNotFound)
		caches := tagged(t, st, db, options{NotFoundTTL: time.Hour})
		wantErrs(t, herd(bg, 1, "k", caches...), onefill.ErrNotFound)
		db.fail(nil)
		db.write("v")
		must(t, caches[0].InvalidateTag(bg, "team"))
		time.Sleep(heard)
		wantAll(t, herd(bg, 1, "k", caches...), "v")
	})
}

// A value of a process that does not know of tags is a miss for one that does.
func TestTagsInARollingDeploy(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		before := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour})
		get(t, before, "k", "v1")
		after := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour, Tags: true})
		get(t, after, "k", "v1")
		db.wantLoads(t, 2)
		get(t, newCache(t, options{Store: st, Load: db.load, TTL: time.Hour}), "k", "v1")
		db.wantLoads(t, 2)
	})
}

// What is wrong with tags is an error that says so, and never a value that cannot be
// invalidated.
func TestBadTags(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		set := func(tags ...string) options {
			return with(options{Tags: true, Load: func(ctx context.Context, _ string) (string, error) {
				onefill.SetTags(ctx, tags...)
				return "v", nil
			}}, st)
		}
		many := make([]string, 65)
		for i := range many {
			many[i] = fmt.Sprint(i)
		}
		off := set("team")
		off.Tags = false
		for want, o := range map[string]options{
			"is empty": set(""), "at most 250": set(strings.Repeat("x", 251)), "at most 64": set(many...),
			"control character": set("a\x00b"), "Options.Tags is not set": off,
		} {
			c := newCache(t, o)
			if _, err := c.Get(bg, want); !errors.Is(err, onefill.ErrLoadFailed) || !strings.Contains(err.Error(), want) {
				t.Errorf("want an error with %q, got %v", want, err)
			}
		}
		c := newCache(t, off)
		for _, err := range []error{c.InvalidateTag(bg, "team"), c.Clear(bg)} {
			if err == nil || !strings.Contains(err.Error(), "Options.Tags is not set") {
				t.Errorf("without Options.Tags: %v", err)
			}
		}
		c = newCache(t, set())
		if err := c.InvalidateTag(bg, ""); err == nil || !strings.Contains(err.Error(), "is empty") {
			t.Errorf("InvalidateTag of the empty tag: %v", err)
		}
		must(t, c.InvalidateTag(bg))
		must(t, c.InvalidateTag(bg, many...))
		if err := c.InvalidateTag(bg, append(many, "")...); err == nil || !strings.Contains(err.Error(), "is empty") {
			t.Errorf("InvalidateTag of an empty tag among many: %v", err)
		}
		must(t, c.Close())
		if err := c.InvalidateTag(bg, "team"); !errors.Is(err, onefill.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// One step for 100,000 entries.
func TestTagOverManyEntries(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{MaxValues: 200_000})
		rows := map[string]string{}
		c := newCache(t, options{Store: st, TTL: time.Hour, MaxBatch: 1000, Local: onefill.LocalOptions{MaxEntries: 1000},
			LoadMany: func(_ context.Context, keys []string) (map[string]string, error) {
				for _, k := range keys {
					rows[k] = "v"
				}
				return rows, nil
			},
			TagsOf: func(_, _ string) []string { return []string{"all"} }})
		const n = 20_000
		if done, err := c.Warm(bg, numbered(n), onefill.WarmRate(1e6)); err != nil || done.Found != n {
			t.Fatalf("%+v, %v", done, err)
		}
		before := commands(st)
		must(t, c.InvalidateTag(bg, "all"))
		if d := commands(st) - before; d != 1 {
			t.Errorf("%d operations", d)
		}
		for i := 0; i < n; i += n / 10 {
			peek(t, c, fmt.Sprint("k", i), "")
		}
	})
}

// A refresh of a value whose tag is invalidated meanwhile brings nothing back. Forced: the
// refresh is paused after it has read; the tag is invalidated; it goes on.
func TestTagFencesARefresh(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := tagged(t, st, db, options{StaleFor: 2 * time.Hour})
		get(t, caches[0], "k", "v1")
		must(t, caches[0].Expire(bg, "k"))
		resume := db.pause()
		get(t, caches[0], "k", "v1") // stale
		synctest.Wait()
		db.write("v2")
		must(t, caches[0].InvalidateTag(bg, "team"))
		late := ask(bg, caches[0], "k")
		synctest.Wait()
		resume()
		if a := <-late; a.Value != "v2" {
			t.Errorf("%+v", a)
		}
		time.Sleep(heard)
		wantAll(t, herd(bg, 1, "k", caches...), "v2")
	})
}
