package onefill_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// looksHeld holds the answers to looks at many keys until resume is closed.
func looksHeld(st *memstore.Store) (resume chan struct{}) {
	resume = make(chan struct{})
	st.SetFault(func(op memstore.Op) memstore.Fault {
		if op.Kind == memstore.OpGetMany {
			return memstore.Fault{ReplyHold: resume}
		}
		return memstore.Fault{}
	})
	return resume
}

// A herd of GetMany asks the store once for each key, however many callers there are. Forced:
// the first look is held until everybody else waits; half of them ask for other keys, too.
func TestGetManyHerdLooksOnce(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		warm := newCache(t, options{Store: st, Load: db.load})
		for _, key := range numbers(0, 20) {
			get(t, warm, key, "v1")
		}
		c := newCache(t, options{Store: st, Load: db.load})
		before := st.Counts()
		resume := looksHeld(st)
		var all sync.WaitGroup
		call := func(keys []string) {
			all.Go(func() {
				if rows, err := c.GetMany(bg, keys); err != nil || len(rows) != len(keys) {
					t.Errorf("%d rows, %v", len(rows), err)
				}
			})
		}
		call(numbers(0, 10))
		synctest.Wait()
		call(numbers(0, 20))
		synctest.Wait()
		for i := range 100 {
			call(numbers(0, 10+10*(i%2)))
		}
		synctest.Wait()
		close(resume)
		all.Wait()
		st.SetFault(nil)
		after := st.Counts()
		for _, op := range []memstore.Kind{memstore.OpGet, memstore.OpAcquire} {
			if n := after[op] - before[op]; n != 0 {
				t.Errorf("%d more operations of kind %v, want none", n, op)
			}
		}
		if n := after[memstore.OpGetMany]; n != 2 {
			t.Errorf("%d looks of 102 callers, want 2: of those who came first for a key", n)
		}
	})
}

// What another flight has put into local since GetMany looked there is not asked for again.
// Forced: Options.Key, which is called between that look and the table of flights, gets the key.
func TestGetManyLooksAtLocalAgain(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		warm := newCache(t, options{Store: st, Load: db.load})
		for _, key := range []string{"a", "b", "c"} {
			get(t, warm, key, "v1")
		}
		var c *onefill.Cache[string, string]
		meanwhile := false
		c = newCache(t, options{Store: st, Load: db.load, Key: func(key string) string {
			if key == "a" && meanwhile {
				meanwhile = false
				get(t, c, "a", "v1")
			}
			return key
		}})
		meanwhile = true
		if rows, err := c.GetMany(bg, []string{"a", "b", "c"}); err != nil || len(rows) != 3 {
			t.Errorf("%v, %v", rows, err)
		}
		if s := c.Stats(); s.LocalHits != 1 || s.StoreHits != 3 {
			t.Errorf("%d hits in local and %d in the store, want 1 and 3: each key is read once", s.LocalHits, s.StoreHits)
		}
	})
}

// What a look brings is trusted for Local.TTL from when the store was asked, not from when it has
// answered. Forced: the reply is held for most of that time.
func TestGetManyTrustsFromTheQuestion(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		warm := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour})
		get(t, warm, "a", "v1")
		get(t, warm, "b", "v1")
		c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour, StoreTimeout: time.Minute, WaitTimeout: time.Hour, Local: onefill.LocalOptions{TTL: 10 * time.Second}})
		resume := looksHeld(st)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if rows, err := c.GetMany(bg, []string{"a", "b"}); err != nil || len(rows) != 2 {
				t.Errorf("%v, %v", rows, err)
			}
		}()
		time.Sleep(9 * time.Second)
		close(resume)
		<-done
		st.SetFault(nil)
		get(t, c, "a", "v1")
		if s := c.Stats(); s.LocalHits != 1 {
			t.Errorf("%d hits in local, want 1", s.LocalHits)
		}
		time.Sleep(time.Second)
		get(t, c, "a", "v1")
		if s := c.Stats(); s.LocalHits != 1 || s.StoreHits != 3 {
			t.Errorf("%d hits in local and %d in the store after Local.TTL, want 1 and 3", s.LocalHits, s.StoreHits)
		}
	})
}

// One look is made also where asking for the lease is the way to read one key; only what is
// missing asks for a lease then.
func TestGetManyLooksWhereAcquireReads(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memcachedLike()
		db := newOrigin("v1", 0)
		warm := newCache(t, options{Store: st, Load: db.load})
		for _, key := range numbers(0, 15) {
			get(t, warm, key, "v1")
		}
		c := newCache(t, options{Store: st, LoadMany: (&rows{}).load})
		before := st.Counts()
		got, err := c.GetMany(bg, numbers(0, 20))
		if err != nil || len(got) != 20 || got["3"] != "v1" || got["17"] != "v17" {
			t.Fatalf("%v, %v", got, err)
		}
		after := st.Counts()
		if looks, asked := after[memstore.OpGetMany], after[memstore.OpAcquire]-before[memstore.OpAcquire]; looks != 1 || asked != 5 {
			t.Errorf("%d looks and %d questions for leases, want 1 and 5", looks, asked)
		}
	})
}

// overtaken asks for the rows a and b, which the store has read when another process
// invalidates a; this one hears it, and then the reply comes.
func overtaken(t *testing.T, st *memstore.Store, c, other *cache) (rows map[string]string) {
	t.Helper()
	resume := looksHeld(st)
	done := make(chan map[string]string, 1)
	go func() {
		rows, _ := c.GetMany(bg, []string{"a", "b"})
		done <- rows
	}()
	synctest.Wait()
	must(t, other.Invalidate(bg, "a"))
	synctest.Wait() // the push has been heard
	close(resume)
	rows = <-done
	st.SetFault(nil)
	return rows
}

// Another process changes a row while the look is under way: what was read is handed out and
// not kept. Forced: see overtaken.
func TestGetManyKeepsNothingThatHasChanged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		other := newCache(t, options{Store: st, Load: db.load})
		get(t, other, "a", "v1")
		get(t, other, "b", "v1")
		db.write("v2")
		c := newCache(t, options{Store: st, Load: db.load})
		if rows := overtaken(t, st, c, other); rows["a"] != "v1" || rows["b"] != "v1" {
			t.Errorf("who had asked before: %v", rows)
		}
		get(t, c, "a", "v2")
		get(t, c, "b", "v1")
		db.wantLoads(t, 3)
	})
}

// The same where what was read is stale and may be served: it is not kept for those who ask
// after the change. The refresh that follows has not loaded yet.
func TestGetManyKeepsNothingStaleThatHasChanged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		o := options{Store: st, TTL: time.Second, Jitter: onefill.NoJitter, StaleFor: time.Hour, Load: newOrigin("v1", 0).load}
		other := newCache(t, o)
		get(t, other, "a", "v1")
		get(t, other, "b", "v1")
		time.Sleep(2 * time.Second)
		o.Load = newOrigin("v2", time.Second).load
		c := newCache(t, o)
		if rows := overtaken(t, st, c, other); rows["a"] != "v1" || rows["b"] != "v1" {
			t.Errorf("who had asked before: %v", rows)
		}
		peek(t, c, "a", "")
		peek(t, c, "b", "v1")
	})
}

// What a key's user code does in the look is that key's affair: the others are handed out, and
// who has joined a flight gets an answer.
func TestGetManyUserCodeFailsInTheLook(t *testing.T) {
	t.Run("Weigh panics", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			st := memstore.New()
			warm := newCache(t, options{Store: st, Load: newOrigin("v1", 0).load})
			for _, key := range numbers(0, 10) {
				get(t, warm, key, "v1")
			}
			c := newCache(t, options{Store: st, Load: newOrigin("v2", 0).load, Local: onefill.LocalOptions{MaxBytes: 1 << 20},
				Weigh: func(key, _ string) int {
					if key == "3" {
						panic("no scales")
					}
					return 1
				}})
			got, err := c.GetMany(bg, numbers(0, 10))
			failed := asManyError(t, err)
			if len(got) != 9 || len(failed) != 1 || failed["3"] == nil || got["9"] != "v1" {
				t.Errorf("%v, %v", got, err)
			}
		})
	})
	// Forced: the look is held until others have joined two of the flights. With tags each key
	// goes the long way.
	for _, tags := range []bool{false, true} {
		t.Run(fmt.Sprint("the codec exits, tags ", tags), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				st := memstore.New()
				db := newOrigin("bad", 0)
				warm := newCache(t, options{Store: st, Load: db.load, Tags: tags})
				get(t, warm, "a", "bad")
				db.write("v1")
				get(t, warm, "b", "v1")
				get(t, warm, "c", "v1")
				var log bytes.Buffer
				c := newCache(t, options{Store: st, Load: db.load, Tags: tags, Codec: leaving{}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				resume := looksHeld(st)
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					_, _ = c.GetMany(bg, []string{"a", "b", "c"})
					t.Error("GetMany returned although the codec has ended its goroutine")
				}()
				synctest.Wait()
				a, b := ask(bg, c, "a"), ask(bg, c, "b")
				synctest.Wait()
				close(resume)
				<-gone
				if got := <-b; got.err != nil || got.Value != "v1" {
					t.Errorf("who joined another key: %+v", got)
				}
				if got := <-a; got.err == nil {
					t.Errorf("who joined the key: %+v", got)
				}
				st.SetFault(nil)
				synctest.Wait()
				if n := strings.Count(log.String(), "did not come back"); n != 1 {
					t.Errorf("the flight of the key has landed %d times", n)
				}
			})
		})
	}
}

// leaving is a codec that ends its goroutine on a value.
type leaving struct{ touchy }

func (leaving) Decode(data []byte) (string, error) {
	if string(data) == "bad" {
		runtime.Goexit()
	}
	return string(data), nil
}

// Rows of all kinds in one look: each is what Get makes of it.
func TestGetManyIsGetForEach(t *testing.T) {
	for name, tweak := range map[string]func(*options){
		"local": func(*options) {},
		"off":   func(o *options) { o.Local.Off = true },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				st := memstore.New()
				rowsOf := &rows{}
				o := options{Store: st, LoadMany: rowsOf.load, TTL: time.Minute, StaleFor: time.Hour, NotFoundTTL: time.Minute}
				tweak(&o)
				warm := newCache(t, o)
				if _, err := warm.GetMany(bg, []string{"old", "older", "-1"}); err != nil {
					t.Fatal(err)
				}
				must(t, warm.Expire(bg, "old", "older"))
				if _, err := warm.GetMany(bg, []string{"new", "newer"}); err != nil {
					t.Fatal(err)
				}
				c := newCache(t, o)
				before := len(rowsOf.calls)
				got, err := c.GetMany(bg, []string{"old", "new", "-1", "older", "absent", "newer", "new"})
				if err != nil || len(got) != 5 {
					t.Errorf("%v, %v", got, err)
				}
				for key, value := range got {
					if value != "v"+key {
						t.Errorf("%s = %s", key, value)
					}
				}
				s := c.Stats()
				if s.StoreHits != 3 || s.StaleServed != 2 || s.NotFound != 1 {
					t.Errorf("%d hits, %d stale, %d not found; want 3 (one of a row that does not exist), 2, 1", s.StoreHits, s.StaleServed, s.NotFound)
				}
				synctest.Wait() // the refreshes of the stale ones, and none of the others
				loaded := map[string]int{}
				for _, call := range rowsOf.calls[before:] {
					for _, key := range call {
						loaded[key]++
					}
				}
				if len(loaded) != 3 || loaded["old"] != 1 || loaded["older"] != 1 || loaded["absent"] != 1 {
					t.Errorf("loaded %v, want old, older and absent, once each", loaded)
				}
			})
		})
	}
}

func asManyError(t *testing.T, err error) map[any]error {
	t.Helper()
	many, ok := err.(*onefill.ManyError)
	if !ok {
		t.Fatalf("the error is %v", err)
	}
	return many.Errors
}

// A look that is on its way when the server is replaced reaches the new one before anything was
// replayed: its answer does not count. Forced: an Invalidate has been answered; a look is held
// before it is applied; failover to a replica without the Invalidate; the look.
func TestGetManyThatMeetsTheFailover(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour, StoreTimeout: time.Hour, WaitTimeout: 3 * time.Hour, Local: onefill.LocalOptions{Off: true}})
		get(t, c, "a", "v1")
		get(t, c, "b", "v1")
		lagging := st.Snapshot()
		db.write("v2")
		must(t, c.Invalidate(bg, "a"))
		stopped, resume := holdNext(st, memstore.OpGetMany, false)
		done := make(chan map[string]string, 1)
		go func() {
			got, err := c.GetMany(bg, []string{"a", "b"})
			if err != nil {
				t.Error(err)
			}
			done <- got
		}()
		stopped()
		st.Failover(lagging)
		resume()
		if got := <-done; got["a"] != "v2" {
			t.Errorf("began after Invalidate had returned, got %v", got)
		}
	})
}

// The mark of a row that the store cannot hold is no value: each process loads it.
func TestGetManyOfAnUnstorableRow(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		big := strings.Repeat("x", 300)
		db := newOrigin(big, 0)
		caches := fleet(t, small(st), options{Load: db.load, TTL: time.Minute})
		for _, c := range caches {
			if got, err := c.GetMany(bg, []string{"a", "b"}); err != nil || got["a"] != big || got["b"] != big {
				t.Errorf("%d rows, %v", len(got), err)
			}
		}
		db.wantLoads(t, 2*int64(len(caches)))
	})
}

// A row under a tag that was voided is not handed out by a look: local, which might know, is off.
func TestGetManyLooksAtTags(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: tagging(db), Tags: true, TTL: time.Hour, Local: onefill.LocalOptions{Off: true}})
		keys := []string{"a", "b"}
		for _, want := range []string{"v1", "v2"} {
			db.write(want)
			must(t, c.InvalidateTag(bg, "team"))
			for range 2 {
				if got, err := c.GetMany(bg, keys); err != nil || got["a"] != want || got["b"] != want {
					t.Errorf("%v, %v, want %s", got, err, want)
				}
			}
		}
		db.wantLoads(t, 4)
	})
}
