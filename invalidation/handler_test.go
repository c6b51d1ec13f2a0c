package invalidation_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/invalidation"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/memqueue"
	"github.com/onefill/onefill/store/memstore"
)

var kinds = map[string]maker{
	invalidation.KindInvalidate: invalidation.Invalidate[string],
	invalidation.KindExpire:     invalidation.Expire[string],
	invalidation.KindRefresh:    invalidation.Refresh[string],
}

// A row that was changed is seen by every process, also by those that hold the old value in
// local, and a worker that knows only the store does it.
func TestCommitReachesEveryProcess(t *testing.T) {
	for kind, makes := range kinds {
		t.Run(kind, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				q, st := memqueue.New(), memstore.New()
				db := newDatabase(q)
				a, b, mine := newCache(t, st, options{Load: db.load}), newCache(t, st, options{Load: db.load}), newCache(t, st, options{Load: db.load})
				startWorker(t, q, invalidation.For("users", mine))
				for i := range 3 {
					db.commit(t, makes, "ann", fmt.Sprint("Ann ", i))
					after(time.Second)
					db.wantTrue(t, a, b, mine)
				}
				wantDone(t, q)
				if loads, most := db.loadsOf("ann"), 3; loads != most {
					t.Errorf("%d loads, want %d", loads, most)
				}
			})
		})
	}
}

// A transaction that is rolled back leaves no job, one that commits late is not passed
// over: by the queue's contract. Here the job is late by an hour, and the cache has it.
func TestLateJob(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, st := memqueue.New(), memstore.New()
		db := newDatabase(q)
		c := newCache(t, st, options{Load: db.load})
		startWorker(t, q, invalidation.For("users", c))
		db.rows["ann"] = row{"old", 1}
		get(t, c, "ann", "old")
		db.rows["ann"] = row{"new", 2}
		js := must(invalidation.Invalidate("users", "ann"))
		js[0].Delay = time.Hour
		enqueue(t, q, js...)
		after(time.Hour - time.Second)
		get(t, c, "ann", "old")
		after(2 * time.Second)
		get(t, c, "ann", "new")
		wantDone(t, q)
	})
}

// The jobs of a key that were claimed together cost the store one write, and all of them
// are acknowledged by it.
func TestCoalescedByKey(t *testing.T) {
	for kind, makes := range kinds {
		t.Run(kind, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				q, st := memqueue.New(), memstore.New()
				db := newDatabase(q)
				c := newCache(t, st, options{Load: db.load})
				for i := range 90 {
					db.commit(t, makes, fmt.Sprint("user", i%3), fmt.Sprint("name", i))
				}
				w := startWorker(t, q, invalidation.For("users", c))
				after(time.Second)
				if n := writes(st); n != 3 {
					t.Errorf("%d writes of the store for 3 keys", n)
				}
				if s := w.Stats(); s.Done != 90 {
					t.Errorf("%d jobs done, want 90", s.Done)
				}
				wantDone(t, q)
				db.wantTrue(t, c)
			})
		})
	}
}

// Interleaving: the worker claims the job; the store is asked and does not answer; here the
// job must still be there; the store answers; then the job is gone. An acknowledgement
// before the answer would lose the change if the process died in between.
func TestAcknowledgedOnlyAfterTheStore(t *testing.T) {
	for kind, makes := range kinds {
		t.Run(kind, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				q, st := memqueue.New(), memstore.New()
				db := newDatabase(q)
				c := newCache(t, st, options{Load: db.load, StoreTimeout: time.Minute})
				answer := make(chan struct{})
				st.SetFault(func(op memstore.Op) memstore.Fault {
					if op.Kind == memstore.OpInvalidate || op.Kind == memstore.OpExpire {
						return memstore.Fault{ReplyHold: answer}
					}
					return memstore.Fault{}
				})
				w := startWorker(t, q, invalidation.For("users", c))
				db.commit(t, makes, "ann", "Ann")
				after(30 * time.Second)
				if left := q.Jobs(); len(left) != 1 || !left[0].Held || w.Stats().Done != 0 {
					t.Fatalf("the store has not answered, and of the job there is %+v; %+v", left, w.Stats())
				}
				close(answer)
				after(time.Second)
				wantDone(t, q)
			})
		})
	}
}

// Interleaving: a process claims, the store applies the invalidation, the process dies before
// it has acknowledged (its claim is never heard of again); meanwhile the old value is cached
// again by the reader of a replica that lags. At the end of the lease the job is delivered
// again and ends that.
func TestProcessDiesBeforeTheAck(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, st := memqueue.New(), memstore.New()
		db := newDatabase(q)
		c := newCache(t, st, options{Load: db.load})
		handlers := must(invalidation.Handlers(invalidation.For("users", newCache(t, st, options{Load: db.load}))))
		db.commit(t, kinds[invalidation.KindInvalidate], "ann", "new")
		claimed := must(q.Receive(bg, queue.Request{Max: 10, Lease: 30 * time.Second}))
		if errs := handlers[invalidation.KindInvalidate].Batch(bg, claimed); len(errs) != 1 || errs[0] != nil || writes(st) != 1 {
			t.Fatalf("the process that is to die has got %v, with %d writes", errs, writes(st))
		}
		db.setReads(func(string) (row, error) { return row{"old", 0}, nil })
		get(t, c, "ann", "old")
		db.setReads(nil)
		startWorker(t, q, invalidation.For("users", newCache(t, st, options{Load: db.load})))
		after(29 * time.Second)
		get(t, c, "ann", "old") // the lease lasts, and nobody else may touch the job
		after(2 * time.Second)
		wantDone(t, q)
		db.wantTrue(t, c)
	})
}

// The same job delivered twice, one after the other and together, does what it does once.
func TestDuplicates(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, st := memqueue.New(), memstore.New()
		db := newDatabase(q)
		c := newCache(t, st, options{Load: db.load})
		startWorker(t, q, invalidation.For("users", c))
		db.commit(t, kinds[invalidation.KindInvalidate], "ann", "new")
		js := must(invalidation.Invalidate("users", "ann"))
		for range 3 {
			enqueue(t, q, js[0], js[0])
			after(time.Second)
			db.wantTrue(t, c)
		}
		wantDone(t, q)
	})
}

// The store is away for ten minutes, in which rows go on to change. No job dies, none
// counts the outage as attempts, and soon after it every process has every row.
func TestStoreDownForAWhile(t *testing.T) {
	for kind, makes := range kinds {
		t.Run(kind, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				q, st := memqueue.New(), memstore.New()
				db := newDatabase(q)
				c, other := newCache(t, st, options{Load: db.load}), newCache(t, st, options{Load: db.load})
				// No process of the writers' is alive: what it owes the store dies with it.
				w := startWorker(t, q, invalidation.For("users", c))
				for i := range 20 {
					db.commit(t, makes, fmt.Sprint("user", i), "old")
				}
				after(time.Second)
				db.wantTrue(t, c, other)

				st.Down()
				asked := q.Counts()[memqueue.OpReceive]
				for i := range 600 {
					db.commit(t, makes, fmt.Sprint("user", i%20), fmt.Sprint("new", i))
					after(time.Second)
				}
				if left := q.Jobs(); len(left) != 600 {
					t.Errorf("%d jobs are left of 600", len(left))
				}
				for _, j := range q.Jobs() {
					if !j.Held && j.Attempts > 0 { // a claim that is under way counts
						t.Errorf("the outage counts as %d attempts", j.Attempts)
					}
				}
				if n := q.Counts()[memqueue.OpReceive] - asked; n > 10*600 {
					t.Errorf("the queue was asked %d times in ten minutes for what nobody could do", n)
				}
				st.Up()
				after(20 * time.Second) // the longest pause, and the patience of a call
				wantDone(t, q)
				db.wantTrue(t, c, other)
				if s := w.Stats(); s.Dead != 0 || s.Retried != 0 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// A store of several servers, one of which is away: the jobs of its keys wait, those of the
// others are done although they were claimed together with them.
func TestHalfOfTheStoreDown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, st := memqueue.New(), memstore.New()
		c := newCache(t, st, options{})
		var isUp atomic.Bool
		st.SetFault(func(op memstore.Op) memstore.Fault {
			if !isUp.Load() && strings.HasPrefix(op.Key, "down") {
				return memstore.Fault{Err: errors.New("no route to host")}
			}
			return memstore.Fault{}
		})
		for i := range 30 {
			enqueue(t, q, must(invalidation.Invalidate("users", fmt.Sprint("up", i), fmt.Sprint("down", i)))...)
		}
		startWorker(t, q, invalidation.For("users", c))
		after(3 * time.Second)
		left := q.Jobs()
		if len(left) != 30 {
			t.Errorf("%d jobs are left, want the 30 of the server that is down", len(left))
		}
		for _, j := range left {
			if !strings.HasPrefix(j.Key, "users:down") {
				t.Errorf("%q is left", j.Key)
			}
		}
		isUp.Store(true)
		after(20 * time.Second)
		wantDone(t, q)
	})
}

// Jobs that cannot be done end with the dead letters, with an error that says why, and take
// none of those along that were claimed with them.
func TestPoison(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, st := memqueue.New(), memstore.New()
		c := newCache(t, st, options{Key: func(k string) string {
			if k == "crash" {
				panic("no such user")
			}
			return k
		}})
		names := map[string]string{ // by payload
			`"users"`:                               `{"cache": "name", "key": ...} is expected`,
			`null`:                                  `lacks "cache" or "key"`,
			`{"cache":"users"}`:                     `lacks "cache" or "key"`,
			`{"cache":"users","key":{"id":7}}`:      "is no string",
			`{"cache":"users","key":""}`:            "empty string",
			`{"cache":"users","key":"crash"}`:       "no such user",
			`{"cache":"orders","key":7}`:            `no cache "orders", only users`,
			`{"cache":"users","bytes":"not base!"}`: "base64",
		}
		for p := range names {
			enqueue(t, q, queue.Job{Kind: invalidation.KindInvalidate, Payload: []byte(p)})
		}
		for i := range 50 {
			enqueue(t, q, must(invalidation.Invalidate("users", fmt.Sprint("good", i)))...)
		}
		w := startWorker(t, q, invalidation.For("users", c))
		synctest.Wait() // no time passes: nothing was tried twice
		if s := w.Stats(); s.Done != 50 || writes(st) != 50 {
			t.Errorf("of the good jobs %d are done, with %d writes, want 50", s.Done, writes(st))
		}
		after(24 * time.Hour)
		if left := q.Jobs(); len(left) != 0 {
			t.Errorf("%d jobs are left: %+v", len(left), left[0])
		}
		ls := letters(t, q)
		if len(ls) != len(names) {
			t.Errorf("%d letters, want %d", len(ls), len(names))
		}
		for _, l := range ls {
			if want := names[string(l.Payload)]; !strings.Contains(l.LastError, want) || want == "" {
				t.Errorf("%s died of %q, want %q", l.Payload, l.LastError, want)
			}
			tries := 20
			if p := string(l.Payload); p == "null" || p == `"users"` || p == `{"cache":"users"}` || strings.Contains(p, "base!") {
				tries = 1 // nothing makes it readable
			}
			if l.Attempts != tries {
				t.Errorf("%s had %d attempts, want %d", l.Payload, l.Attempts, tries)
			}
		}
	})
}

// A worker that is deployed after its writers: the jobs of a cache that it does not know
// are done once the next release knows it, the dead ones by a replay.
func TestUnknownCacheIsKept(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, st := memqueue.New(), memstore.New()
		users, orders := newCache(t, st, options{}), newCache(t, st, options{Name: "orders"})
		enqueue(t, q, must(invalidation.Invalidate("orders", "7"))...)
		old := startWorker(t, q, invalidation.For("users", users))
		after(24 * time.Hour)
		if err := old.Stop(bg); err != nil {
			t.Fatal(err)
		}
		enqueue(t, q, must(invalidation.Invalidate("orders", "8"))...)
		if ls := letters(t, q); len(ls) != 1 || writes(st) != 0 {
			t.Fatalf("%+v, %d writes", ls, writes(st))
		}
		startWorker(t, q, invalidation.For("users", users), invalidation.For("orders", orders))
		must(q.ReplayDead(bg, letters(t, q)[0].ID))
		after(time.Second)
		wantDone(t, q)
		if n := writes(st); n != 2 {
			t.Errorf("%d writes, want 2", n)
		}
	})
}

// A worker whose cache was closed does nothing with its jobs and loses none: somebody else
// gets them.
func TestClosedCache(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, st := memqueue.New(), memstore.New()
		db := newDatabase(q)
		closed, c := newCache(t, st, options{Load: db.load}), newCache(t, st, options{Load: db.load})
		closed.Close()
		broken := startWorker(t, q, invalidation.For("users", closed))
		db.commit(t, kinds[invalidation.KindInvalidate], "ann", "new")
		after(time.Minute)
		if s := broken.Stats(); s.Done != 0 || s.Dead != 0 || s.Retried != 0 || s.Postponed == 0 {
			t.Errorf("%+v", s)
		}
		startWorker(t, q, invalidation.For("users", c))
		after(5 * time.Minute)
		wantDone(t, q)
		if writes(st) != 1 {
			t.Errorf("%d writes", writes(st))
		}
	})
}

// Stop during an outage does not wait for the store to come back: when the call that is
// under way has lost its patience the jobs go back, uncounted.
func TestStopWhileTheStoreIsDown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, st := memqueue.New(), memstore.New()
		c := newCache(t, st, options{})
		w := startWorker(t, q, invalidation.For("users", c))
		st.Down()
		enqueue(t, q, must(invalidation.Invalidate("users", "ann", "bob"))...)
		synctest.Wait()
		start := time.Now()
		if err := w.Stop(bg); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 2500*time.Millisecond {
			t.Errorf("Stop took %v", took)
		}
		left := q.Jobs()
		if len(left) != 2 {
			t.Errorf("%d jobs are left of 2", len(left))
		}
		for _, j := range left {
			if j.Held || j.Attempts != 0 {
				t.Errorf("%+v", j)
			}
		}
	})
}

// A store that refuses, as one that is out of memory does, is an outage too.
func TestStoreThatRefuses(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, st := memqueue.New(), memstore.New()
		c := newCache(t, st, options{})
		st.SetFault(func(memstore.Op) memstore.Fault {
			return memstore.Fault{Err: errors.New("OOM command not allowed"), Refused: true}
		})
		w := startWorker(t, q, invalidation.For("users", c))
		enqueue(t, q, must(invalidation.Invalidate("users", "ann"))...)
		after(24 * time.Hour)
		if s := w.Stats(); s.Dead != 0 || s.Retried != 0 {
			t.Errorf("%+v", s)
		}
		st.SetFault(nil)
		after(20 * time.Second)
		wantDone(t, q)
	})
}

// A function of the cache's that ends its goroutine: the job is not taken for done.
func TestGoexit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		c := newCache(t, memstore.New(), options{Key: func(string) string { runtime.Goexit(); return "" }})
		w := startWorker(t, q, invalidation.For("users", c))
		enqueue(t, q, must(invalidation.Invalidate("users", "ann"))...)
		after(time.Minute)
		if s := w.Stats(); s.Done != 0 || s.Retried == 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestHandlersRefuses(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCache(t, memstore.New(), options{})
		for want, targets := range map[string][]invalidation.Target{
			"no targets":                        nil,
			`two targets are called "users"`:    {invalidation.For("users", c), invalidation.For("users", c)},
			"neither For nor Versioned":         {{}},
			`cache "a:b": the name "a:b" holds`: {invalidation.For("a:b", c)},
			`cache "users": the cache is nil`:   {invalidation.For[string, row]("users", nil)},
			`cache "": the name is empty`:       {invalidation.For("", c)},
		} {
			if _, err := invalidation.Handlers(targets...); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Handlers = %v, want %q", err, want)
			}
		}
	})
}
