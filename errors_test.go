package onefill_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// Negatives and errors: an error is not a miss, a timeout is not "does not exist",
// and neither deletes or replaces anything.

// A timeout cached as "does not exist" (dCache 860), or cached at all. Each context
// error, returned plain or wrapped or with a value, is forgotten at once.
func TestContextErrorsAreNotRemembered(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		for _, failure := range []error{context.Canceled, context.DeadlineExceeded,
			fmt.Errorf("dial: %w", context.DeadlineExceeded)} {
			db := newOrigin("v1", 0)
			db.fail(failure)
			caches := fleet(t, st, options{Load: db.load, ErrorTTL: time.Hour, NotFoundTTL: time.Hour})
			key := failure.Error()
			a := herd(bg, 1, key, caches[0])
			wantErrs(t, a, failure)
			if errors.Is(a[0].err, onefill.ErrNotFound) {
				t.Errorf("%v is taken for not found", a[0].err)
			}
			nothingHeld(t, st)
			db.fail(nil)
			wantAll(t, herd(bg, 1, key, caches...), "v1")
			db.wantLoads(t, 2)
		}
	})
}

// An insert does not clear the negative entry (go-zero 1672).
func TestWritesClearNotFound(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		for name, insert := range map[string]func(*cache, string) error{
			"Set":        func(c *cache, k string) error { return c.Set(bg, k, "v1") },
			"Invalidate": func(c *cache, k string) error { return c.Invalidate(bg, k) },
			"Expire":     func(c *cache, k string) error { return c.Expire(bg, k) },
		} {
			db := newOrigin("v1", 0)
			db.fail(onefill.ErrNotFound)
			o := options{Load: db.load, NotFoundTTL: time.Hour, StaleFor: time.Hour, StaleOnError: time.Hour}
			if st != nil {
				o.Local.TTL = time.Second
			}
			caches := fleet(t, st, o)
			for _, c := range caches {
				wantErrs(t, herd(bg, 2, name, c), onefill.ErrNotFound)
				if _, ok, err := c.Peek(bg, name); ok || !errors.Is(err, onefill.ErrNotFound) {
					t.Errorf("a peek at a row that does not exist: %t, %v", ok, err)
				}
			}
			db.wantLoads(t, 1)
			db.fail(nil)
			must(t, insert(caches[0], name))
			get(t, caches[0], name, "v1")
			time.Sleep(time.Second) // Local.TTL, where nothing is pushed
			wantAll(t, herd(bg, 1, name, caches...), "v1")
		}
	})
}

// A not-found mark is never served stale, and ends with NotFoundTTL.
func TestNotFoundEnds(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		db.fail(fmt.Errorf("users: %w", onefill.ErrNotFound))
		caches := fleet(t, st, options{Load: db.load, NotFoundTTL: 2 * time.Second, Jitter: onefill.NoJitter, StaleFor: time.Hour, StaleOnError: time.Hour})
		wantErrs(t, herd(bg, 1, "k", caches...), onefill.ErrNotFound)
		time.Sleep(1900 * time.Millisecond)
		wantErrs(t, herd(bg, 1, "k", caches...), onefill.ErrNotFound)
		db.wantLoads(t, 1)
		db.fail(nil)
		time.Sleep(time.Second)
		wantAll(t, herd(bg, 1, "k", caches...), "v1")
		db.wantLoads(t, 2)
	})
}

// An origin error was taken for an invalid value and the key deleted: a feedback
// loop of hours (Facebook, 2010-09-23). Here a failed load leaves the store's bytes
// as they are, whatever the options.
func TestFailedLoadDeletesNothing(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		for _, grace := range []time.Duration{0, time.Hour} {
			key := grace.String()
			db := newOrigin("v1", 10*time.Millisecond)
			caches := fleet(t, st, options{Load: db.load, TTL: time.Minute, StaleOnError: grace, EarlyRefresh: 1e15})
			wantAll(t, herd(bg, 1, key, caches...), "v1")
			before, _ := st.Raw("test", key)
			db.fail(errBroken)
			for _, failure := range []error{errBroken, context.DeadlineExceeded} {
				db.fail(failure)
				for _, c := range caches { // each hit is due for an early refresh, which fails
					get(t, c, key, "v1")
					time.Sleep(2 * time.Second)
				}
			}
			if db.loads.Load() < 3 {
				t.Errorf("%d loads: the test forced nothing", db.loads.Load())
			}
			if after, _ := st.Raw("test", key); !bytes.Equal(before, after) {
				t.Errorf("a failed load changed the stored bytes from %q to %q", before, after)
			}
		}
	})
}

// StaleOnError serves the old value for its window, in all processes, and asks the
// origin less and less often; afterwards the failure is what callers get.
func TestStaleOnError(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		caches := fleet(t, st, options{Load: db.load, TTL: 10 * time.Second, Jitter: onefill.NoJitter, StaleOnError: time.Minute, ErrorTTL: 5 * time.Second})
		wantAll(t, herd(bg, 1, "k", caches...), "v1")
		time.Sleep(11 * time.Second)
		db.fail(errBroken)
		for second := range 45 {
			for _, a := range herd(bg, 3, "k", caches...) {
				if a.err != nil || a.Value != "v1" || !a.Stale || a.Age < 10*time.Second {
					t.Fatalf("after %d s: %+v", second, a)
				}
			}
			time.Sleep(time.Second)
		}
		// At 11, 16, 26 and 46 s, with jitter and what the stores' clocks add: it backs off.
		if n := db.loads.Load() - 1; n < 3 || n > 5 {
			t.Errorf("%d loads in 45 s with an ErrorTTL of 5 s", n)
		}
		time.Sleep(20 * time.Second)
		wantErrs(t, herd(bg, 1, "k", caches...), onefill.ErrLoadFailed)
		db.fail(nil)
		db.write("v2")
		time.Sleep(25 * time.Second) // four times ErrorTTL, and a little
		wantAll(t, herd(bg, 1, "k", caches...), "v2")
	})
}

// Errors are typed, name the key, and read the same in the process that had the
// failure and in the others.
func TestLoadErrors(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("", loadTime)
		db.fail(fmt.Errorf("query users: %w", errBroken))
		caches := fleet(t, st, options{Load: db.load})
		own := 0
		for _, a := range herd(bg, 3, "k", caches...) {
			var le *onefill.LoadError
			if !errors.As(a.err, &le) || le.Key != "k" || le.Err.Error() != "query users: broken" {
				t.Errorf("%#v", a.err)
			}
			if want := `onefill: loading "k": query users: broken`; a.err.Error() != want {
				t.Errorf("%q, want %q", a.err, want)
			}
			if a.Value != "" || a.Source != 0 || a.Age != 0 {
				t.Errorf("a result beside an error: %+v", a)
			}
			if errors.Is(a.err, errBroken) {
				own++
			}
		}
		if own != 3 {
			t.Errorf("%d callers got the error itself, want the 3 of the process that loaded", own)
		}
	})
}

// A long message is cut in the store, not in the process that had it.
func TestLongErrorMessage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		long := errors.New(strings.Repeat("x", 10_000))
		db := newOrigin("", 0)
		db.fail(long)
		caches := fleet(t, st, options{Load: db.load})
		wantErrs(t, herd(bg, 1, "k", caches[0]), long)
		_, err := caches[1].Get(bg, "k")
		if n := len(err.Error()); !errors.Is(err, onefill.ErrLoadFailed) || n < 1000 || n > 2000 {
			t.Errorf("%d bytes of message elsewhere", n)
		}
		db.wantLoads(t, 1)
	})
}

// A remembered failure is cleared by whoever writes the key.
func TestWritesClearFailures(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		for name, write := range map[string]func(*cache, string) error{
			"Set":        func(c *cache, k string) error { return c.Set(bg, k, "v1") },
			"Invalidate": func(c *cache, k string) error { return c.Invalidate(bg, k) },
			"Expire":     func(c *cache, k string) error { return c.Expire(bg, k) },
		} {
			db := newOrigin("v1", 0)
			db.fail(errBroken)
			c := newCache(t, with(options{Load: db.load, ErrorTTL: time.Hour}, st))
			wantErrs(t, herd(bg, 1, name, c), errBroken)
			db.fail(nil)
			must(t, write(c, name))
			get(t, c, name, "v1")
		}
	})
}

// The origin is bounded (G6): never more than MaxLoads at once; who gets no place in
// time gets a stale value or ErrOriginBusy, and no lease is left behind.
func TestOriginBusy(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, with(options{Load: db.load, MaxLoads: 3, WaitTimeout: 4 * time.Second, TTL: time.Second,
			StaleOnError: time.Hour, LoadTimeout: time.Minute, Local: onefill.LocalOptions{TTL: time.Hour}}, st))
		get(t, c, "stale", "v1")
		time.Sleep(2 * time.Second)
		resume := db.pause()
		var running []<-chan answer
		for i := range 3 {
			running = append(running, ask(bg, c, fmt.Sprint("slow", i)))
		}
		synctest.Wait()
		busy, stale := ask(bg, c, "busy"), ask(bg, c, "stale")
		if a := <-busy; !errors.Is(a.err, onefill.ErrOriginBusy) || a.took != 2*time.Second {
			t.Errorf("%v after %v", a.err, a.took)
		}
		if a := <-stale; a.err != nil || a.Value != "v1" || !a.Stale {
			t.Errorf("%+v", a)
		}
		if n := db.running.Load(); n != 3 {
			t.Errorf("%d loads run", n)
		}
		if st != nil && st.Usage().Leases != 3 {
			t.Errorf("%+v; the busy ones must have given their leases back", st.Usage())
		}
		resume()
		for _, a := range running {
			wantAll(t, []answer{<-a}, "v1")
		}
		get(t, c, "busy", "v1")
		if s := c.Stats(); s.OriginBusy != 2 {
			t.Errorf("%d were busy, want 2", s.OriginBusy)
		}
	})
}

// OnStoreDown: what happens to a miss, and to what local holds.
func TestOnStoreDown(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		for _, tt := range []struct {
			policy        onefill.StoreDownPolicy
			absent, stale string // values, or empty for ErrStoreDown
		}{
			{onefill.LoadLimited, "v2", "v2"},
			{onefill.StaleOnly, "", "v1"},
			{onefill.Fail, "", ""},
		} {
			db := newOrigin("v1", 0)
			c := newCache(t, with(options{Name: fmt.Sprint("policy", tt.policy), Load: db.load, OnStoreDown: tt.policy,
				TTL: 10 * time.Second, Jitter: onefill.NoJitter, StaleOnError: time.Hour}, st))
			get(t, c, "stale", "v1")
			time.Sleep(9 * time.Second)
			get(t, c, "fresh", "v1")
			time.Sleep(2 * time.Second)
			st.Down()
			db.write("v2")
			get(t, c, "fresh", "v1")
			for key, want := range map[string]string{"absent": tt.absent, "stale": tt.stale} {
				v, err := c.Get(bg, key)
				if v != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, onefill.ErrStoreDown) {
					t.Errorf("policy %d, %s: %q, %v; want %q", tt.policy, key, v, err, want)
				}
			}
			st.Up()
			time.Sleep(10 * time.Second)
		}
	})
}

// A *ManyError is each of its errors, and says which keys failed, of many a few.
func TestManyError(t *testing.T) {
	err := error(&onefill.ManyError{Errors: map[any]error{
		1: onefill.ErrOriginBusy, 2: &onefill.LoadError{Key: "2", Err: errBroken}, 3: context.Canceled, 4: errBroken,
	}})
	for _, want := range []error{onefill.ErrOriginBusy, onefill.ErrLoadFailed, errBroken, context.Canceled} {
		if !errors.Is(err, want) {
			t.Errorf("%v is not %v", err, want)
		}
	}
	if errors.Is(err, onefill.ErrNotFound) {
		t.Error("it is an error that it does not hold")
	}
	if s := err.Error(); !strings.Contains(s, "4 keys failed") || !strings.HasSuffix(s, "...") || !strings.Contains(s, "1: ") {
		t.Errorf("%q", s)
	}
}

// A store that answers, but refuses to write (OOM), is no outage: hits and loads go
// on, fills fail and are counted.
func TestStoreThatRefuses(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, with(options{Load: db.load}, st))
		oom := errors.New("OOM command not allowed")
		st.SetFault(func(op memstore.Op) memstore.Fault {
			if op.Kind == memstore.OpFill || op.Kind == memstore.OpSet {
				return memstore.Fault{Err: oom, Refused: true}
			}
			return memstore.Fault{}
		})
		for i := range 10 {
			get(t, c, fmt.Sprint("k", i), "v1")
		}
		if err := c.Set(bg, "k", "v"); !errors.Is(err, oom) {
			t.Errorf("Set: %v", err)
		}
		synctest.Wait()
		if s := c.Stats(); s.StoreDown || s.StoreErrors != 11 || s.Fills != 0 {
			t.Errorf("%+v", s)
		}
		nothingHeld(t, st)
	})
}

// An observer hears what happened, by kind, and of the right cache; the log has what
// an operator should see.
func TestEventsAreTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		heard := make(map[onefill.EventKind]int)
		done := make(chan onefill.Event, 1000)
		var log bytes.Buffer
		c := newCache(t, options{Store: st, Load: db.load, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Observer: onefill.ObserverFunc(func(e onefill.Event) { done <- e })})
		get(t, c, "k", "v1")
		db.fail(errBroken)
		_, _ = c.Get(bg, "failing")
		st.PutRaw("test", "garbage", []byte("garbage"), time.Minute)
		_, _ = c.Get(bg, "garbage")
		st.Down()
		for range 4 {
			_ = c.Invalidate(bg, "k")
			time.Sleep(40 * time.Millisecond)
		}
		st.Up()
		must(t, c.Invalidate(bg, "k"))
		synctest.Wait() // some events are told by the flight, after its callers have their answer
		close(done)
		for e := range done {
			if e.Cache != "test" || strings.HasPrefix(e.Kind.String(), "EventKind(") {
				t.Errorf("%+v", e)
			}
			heard[e.Kind]++
		}
		for kind, want := range map[onefill.EventKind]int{
			onefill.EventLoad: 3, onefill.EventFill: 1,
			onefill.EventStoreDown: 1, onefill.EventStoreUp: 1,
		} {
			if heard[kind] != want {
				t.Errorf("%v was told %d times, want %d", kind, heard[kind], want)
			}
		}
		if heard[onefill.EventStoreError] < 4 { // and those of the replays
			t.Errorf("store error was told %d times, for 4 that failed", heard[onefill.EventStoreError])
		}
		if heard[onefill.EventUndecodable] == 0 {
			t.Error("the unreadable entry was not told")
		}
		if !strings.Contains(log.String(), "cache=test") || !strings.Contains(log.String(), "unreachable") {
			t.Errorf("the log: %s", log.String())
		}
	})
}

// A caller that missed just before a failing flight landed leads the next flight,
// which finds the failure in local: also then StaleOnError allows the old value.
// Forced by a caller that is held in Options.Key between its miss and its flight.
func TestStaleOnErrorInTheMomentOfTheFailure(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		there, hold := make(chan struct{}), make(chan struct{})
		armed := make(chan bool, 1)
		c := newCache(t, with(options{Load: db.load, TTL: time.Second, Jitter: onefill.NoJitter, StaleOnError: time.Hour, ErrorTTL: time.Minute,
			Local: onefill.LocalOptions{TTL: time.Hour}, Key: func(k string) string {
				select {
				case <-armed:
					close(there)
					<-hold
				default:
				}
				return k
			}}, st))
		get(t, c, "k", "v1")
		time.Sleep(2 * time.Second)
		db.fail(errBroken)
		armed <- true
		late := ask(bg, c, "k")
		<-there
		get(t, c, "k", "v1") // its load fails
		close(hold)
		wantAll(t, []answer{<-late}, "v1")
		db.wantLoads(t, 2)
	})
}
