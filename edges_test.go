package onefill_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// What a reader with fresh eyes found: each of these failed once.

// A stale value is served while its refresh runs also where local does not have it.
// Forced: local is off, the refresh's load hangs, a second reader comes.
func TestStaleForWithoutLocal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		o := options{Load: db.load, TTL: time.Second, Jitter: onefill.NoJitter, StaleFor: time.Hour, Local: onefill.LocalOptions{Off: true}}
		c := newCache(t, with(o, st))
		get(t, c, "k", "v1")
		time.Sleep(2 * time.Second)
		db.takes = 10 * time.Second
		a := <-ask(bg, c, "k")
		if a.took > time.Second || !a.Stale {
			t.Errorf("the first reader waited %v, stale %v", a.took, a.Stale)
		}
		synctest.Wait()
		a = <-ask(bg, c, "k")
		if a.took > time.Second {
			t.Errorf("second reader waited %v though StaleFor allows a stale value (stale=%v err=%v)", a.took, a.Stale, a.err)
		}
		time.Sleep(db.takes)
	})
}

// The same where local has lost it: the push connection breaks while the refresh hangs.
// The store has the stale value still, so the reader looks there.
func TestStaleForAfterABreak(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		o := options{Load: db.load, TTL: time.Second, Jitter: onefill.NoJitter, StaleFor: time.Hour}
		a, b := newCache(t, with(o, st)), newCache(t, with(o, st))
		get(t, a, "k", "v1")
		time.Sleep(2 * time.Second)
		db.takes = 10 * time.Second
		get(t, b, "k", "v1") // stale; refresh begins in b
		synctest.Wait()
		st.LosePushes() // local is gone; the value in the store is still stale within StaleFor
		x := <-ask(bg, b, "k")
		if x.took > time.Second || !x.Stale {
			t.Errorf("the reader after the break waited %v, stale %v, %v", x.took, x.Stale, x.err)
		}
		y := <-ask(bg, b, "k")
		if y.took > time.Second || !y.Stale {
			t.Errorf("the next reader waited %v, stale %v, %v", y.took, y.Stale, y.err)
		}
		time.Sleep(2 * db.takes)
	})
}

// StaleOnError serves nothing that was invalidated, to callers who came after, also with
// local off. Forced: B has seen the stale value and waits for A's load; C invalidates; a
// caller joins B's flight, which wins the lease; the load fails.
func TestInvalidatedIsNotServedOnErrorWithoutLocal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		caches := fleet(t, st, options{Load: db.load, TTL: time.Second, Jitter: onefill.NoJitter, StaleOnError: time.Hour, Local: onefill.LocalOptions{Off: true}})
		get(t, caches[0], "k", "v1")
		time.Sleep(2 * time.Second)
		db.fail(errBroken)
		resume := db.pause()
		a := ask(bg, caches[0], "k")
		pending(t, a)
		b1 := ask(bg, caches[1], "k")
		pending(t, b1)
		must(t, caches[2].Invalidate(bg, "k"))
		b2 := ask(bg, caches[1], "k")
		pending(t, b2)
		resume()
		<-a
		<-b1
		if a := <-b2; !errors.Is(a.err, errBroken) {
			t.Errorf("a caller who came after the invalidation got %q, %v", a.Value, a.err)
		}
	})
}

// A flight that could not ask the store is armed by nothing: it is joined for Local.TTL
// at most, although the store pushes. Forced: two failed reads, a load that pauses with
// the old row, an invalidation elsewhere, a caller long after it.
func TestUnarmedFlightIsNotJoinedForLong(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		o := options{Load: db.load, TTL: time.Minute, Local: onefill.LocalOptions{TTL: time.Second}}
		a, b := newCache(t, with(o, st)), newCache(t, with(o, st))
		faultNext(st, memstore.OpGet, 2, memstore.Fault{Err: errors.New("cut")}) // one op and its repetition
		resume := db.pause()
		first := ask(bg, b, "k")
		pending(t, first)
		time.Sleep(100 * time.Millisecond)
		pending(t, first) // has read v1 from the database, without the store
		db.write("v2")
		must(t, a.Invalidate(bg, "k"))
		time.Sleep(10 * time.Second) // ten times Local.TTL; the store is well all the time
		second := ask(bg, b, "k")
		pending(t, second)
		resume()
		x, y := <-first, <-second
		if y.Value != "v2" {
			t.Errorf("10 s after Invalidate returned a new caller got %q (coalesced %v), Local.TTL is 1 s; first %q", y.Value, y.Coalesced, x.Value)
		}
	})
}

// What was loaded without the store may be as old as the load's beginning.
// Forced as above; the caller comes after the load's end.
func TestDegradedEntryCountsFromTheLoadsStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		o := options{Load: db.load, TTL: time.Minute, Local: onefill.LocalOptions{TTL: 5 * time.Second}}
		a, b := newCache(t, with(o, st)), newCache(t, with(o, st))
		faultNext(st, memstore.OpGet, 2, memstore.Fault{Err: errors.New("cut")})
		resume := db.pause()
		first := ask(bg, b, "k")
		time.Sleep(100 * time.Millisecond)
		pending(t, first)
		db.write("v2")
		must(t, a.Invalidate(bg, "k"))
		time.Sleep(20 * time.Second)
		resume()
		<-first
		time.Sleep(time.Second)
		if r, err := b.Fetch(bg, "k"); r.Value != "v2" {
			t.Errorf("21 s after Invalidate local answers %q (source %v, stale %v, err %v), Local.TTL is 5 s", r.Value, r.Source, r.Stale, err)
		}
	})
}

// Parallel nested loads share their outer load's place in turns.
func TestNestedGetManyWithOnePlace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var c *cache
		c = newCache(t, options{MaxLoads: 1, Load: func(ctx context.Context, key string) (string, error) {
			if key == "outer" {
				m, err := c.GetMany(ctx, []string{"a", "b"})
				return m["a"] + m["b"], err
			}
			time.Sleep(time.Millisecond)
			return key, nil
		}})
		x := <-ask(bg, c, "outer")
		if x.err != nil || x.took > time.Second {
			t.Errorf("%q %v after %v", x.Value, x.err, x.took)
		}
	})
}

// A place is found again through another cache's load.
func TestNestedThroughAnotherCacheWithOnePlace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var a, b *cache
		a = newCache(t, options{MaxLoads: 1, Load: func(ctx context.Context, key string) (string, error) {
			if key == "outer" {
				return b.Get(ctx, "mid")
			}
			return key, nil
		}})
		b = newCache(t, options{Load: func(ctx context.Context, key string) (string, error) { return a.Get(ctx, "inner") }})
		x := <-ask(bg, a, "outer")
		if x.err != nil || x.took > time.Second {
			t.Errorf("%q %v after %v", x.Value, x.err, x.took)
		}
	})
}

// A refresh that a loader's Get sets off does not run on that load's place: the load
// does not wait for it.
func TestRefreshSetOffByALoader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var c *cache
		var running, most atomic.Int64
		c = newCache(t, options{MaxLoads: 1, TTL: time.Second, Jitter: onefill.NoJitter, StaleFor: time.Hour, Load: func(ctx context.Context, key string) (string, error) {
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer running.Add(-1)
			if key == "outer" {
				for _, k := range []string{"a"} {
					c.Get(ctx, k) // stale: answered at once
				}
			}
			time.Sleep(100 * time.Millisecond) // asks the origin
			return key, nil
		}})
		get(t, c, "a", "a")
		time.Sleep(2 * time.Second)
		get(t, c, "outer", "outer")
		time.Sleep(time.Second)
		if most.Load() > 1 {
			t.Errorf("%d loads at once, MaxLoads is 1", most.Load())
		}
	})
}

type exitCodec struct{ on *atomic.Bool }

func (exitCodec) Name() string                    { return "x" }
func (exitCodec) Encode(v string) ([]byte, error) { return []byte(v), nil }
func (c exitCodec) Decode(d []byte) (string, error) {
	if c.on.CompareAndSwap(true, false) {
		runtime.Goexit()
	}
	return string(d), nil
}

// A codec that exits the goroutine, which is the reader's own, leaves no flight behind.
func TestGoexitInTheCodec(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		var on atomic.Bool
		caches := fleet(t, st, options{Load: newOrigin("v1", 0).load, Codec: exitCodec{&on}, WaitTimeout: 10 * time.Second})
		get(t, caches[0], "k", "v1")
		on.Store(true)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = caches[1].Get(bg, "k")
			t.Error("Get returned")
		}()
		<-done
		get(t, caches[1], "k", "v1")
	})
}

// An acquire is applied, and its answer comes after StoreTimeout: the lease is given
// back, and the fleet does not wait for its end.
func TestLateAcquireReply(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", time.Millisecond)
		o := options{Load: db.load, TTL: time.Minute}
		a, b := newCache(t, with(o, st)), newCache(t, with(o, st))
		faultNext(st, memstore.OpAcquire, 1, memstore.Fault{ReplyDelay: 300 * time.Millisecond}) // one hiccup
		get(t, a, "k", "v1")
		x := <-ask(bg, b, "k")
		if x.err != nil || x.took > time.Second {
			t.Errorf("after one late reply the other process waited %v for a lease that nobody holds", x.took)
		}
	})
}

// A renewal that hangs does not delay the answer of a load that has ended.
func TestHungRenewalDelaysNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 1001*time.Millisecond)
		c := newCache(t, with(options{Load: db.load, LeaseTTL: 3 * time.Second, StoreTimeout: 2 * time.Second}, st))
		faultNext(st, memstore.OpRenew, 1, memstore.Fault{Delay: time.Hour})
		if a := <-ask(bg, c, "k"); a.err != nil || a.took > db.takes+10*time.Millisecond {
			t.Errorf("%v after %v, the load took %v", a.err, a.took, db.takes)
		}
	})
}

// A store that answers but grants no lease (it is full, say) protects nothing: loads
// are limited as if it were away.
func TestRefusedLeasesLimitLoads(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", time.Second)
		c := newCache(t, with(options{Load: db.load, MaxLoads: 64, MaxLoadsDegraded: 8}, st))
		st.SetFault(func(op memstore.Op) memstore.Fault {
			if op.Kind == memstore.OpAcquire {
				return memstore.Fault{Err: errors.New("OOM"), Refused: true}
			}
			return memstore.Fault{}
		})
		all := make(chan answer, 64)
		for i := range cap(all) {
			go func() { all <- <-ask(bg, c, fmt.Sprint(i)) }()
		}
		for range cap(all) {
			wantAll(t, []answer{<-all}, "v1")
		}
		if n := db.most.Load(); n != 8 {
			t.Errorf("%d loads at once, MaxLoadsDegraded is 8", n)
		}
	})
}

// nilErr is an error whose methods do not survive being called on a nil pointer.
type nilErr struct{ cause error }

func (e *nilErr) Error() string { return "x" }
func (e *nilErr) Unwrap() error { return e.cause }

// A loader returns a typed nil as its error, of one key or of many, and in a batch
// whose load is called by a flight that has left it: an error for everybody, and no
// goroutine of ours dies of it. Forced: the read of b is slow, so b leaves last.
func TestErrorThatPanics(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		var none *nilErr
		many := func(context.Context, []string) (map[string]string, error) { return nil, none }
		c := newCache(t, with(options{LoadMany: many}, st))
		if st != nil {
			get(t, newCache(t, with(options{Load: newOrigin("b", 0).load}, st)), "b", "b")
			st.SetFault(func(op memstore.Op) memstore.Fault {
				if (op.Kind == memstore.OpGet || op.Kind == memstore.OpAcquire) && op.Key == "b" {
					return memstore.Fault{Delay: 100 * time.Millisecond}
				}
				return memstore.Fault{}
			})
		}
		_, err := c.GetMany(bg, []string{"a", "b"})
		var many2 *onefill.ManyError
		var p *onefill.PanicError
		if !errors.As(err, &many2) || !errors.As(many2.Errors["a"], &p) {
			t.Errorf("GetMany: %v", err)
		}
		if _, err := c.Get(bg, "c"); !errors.As(err, &p) {
			t.Errorf("Get: %v", err)
		}
	})
}

// A caller joins a flight in the moment in which its patience ends: he gets a flight
// that waits for him, not the timeout of the others. Forced: B waits for a lease that a
// stranger holds; its first caller's WaitTimeout and the second one's call fall together.
func TestJoinInTheLastMoment(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		c := newCache(t, with(options{Load: newOrigin("v1", 0).load, WaitTimeout: time.Second}, st))
		stranger(t, st, "k", 1500*time.Millisecond)
		first := ask(bg, c, "k")
		for range 50 { // around the moment
			time.Sleep(21 * time.Millisecond)
			synctest.Wait()
			go func() {
				if a := <-ask(bg, c, "k"); a.err != nil && a.took < time.Second {
					t.Errorf("a caller got %v after %v", a.err, a.took)
				}
			}()
		}
		if a := <-first; !errors.Is(a.err, onefill.ErrWaitTimeout) {
			t.Errorf("the first caller got %q, %v", a.Value, a.err)
		}
		time.Sleep(3 * time.Second)
	})
}

// The same for loads that are nested in such loads. Forced: every acquire is refused, and
// each of 8 outer loads asks for 8 keys at once.
func TestRefusedLeasesLimitNestedLoads(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v", time.Second)
		var c *cache
		c = newCache(t, with(options{MaxLoads: 64, MaxLoadsDegraded: 8, Load: func(ctx context.Context, key string) (string, error) {
			if key[0] != 'o' {
				return db.load(ctx, key)
			}
			keys := make([]string, 8)
			for i := range keys {
				keys[i] = fmt.Sprint(key[1:], ".", i)
			}
			rows, err := c.GetMany(ctx, keys)
			return fmt.Sprint(len(rows)), err
		}}, st))
		st.SetFault(func(op memstore.Op) memstore.Fault {
			if op.Kind == memstore.OpAcquire {
				return memstore.Fault{Err: errors.New("OOM"), Refused: true}
			}
			return memstore.Fault{}
		})
		all := make(chan answer, 8)
		for i := range cap(all) {
			go func() { all <- <-ask(bg, c, fmt.Sprint("o", i)) }()
		}
		for range cap(all) {
			wantAll(t, []answer{<-all}, "8")
		}
		if n := db.most.Load(); n != 8 {
			t.Errorf("%d loads at once, MaxLoadsDegraded is 8", n)
		}
	})
}

// Options.Key panics for one key of several: the flight of the key before it, which this
// call leads already, flies all the same.
func TestKeyPanicsInGetMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCache(t, options{Load: func(context.Context, string) (string, error) { return "v", nil },
			WaitTimeout: time.Second,
			Key: func(k string) string {
				if k == "bad" {
					panic("key")
				}
				return k
			}})
		func() {
			defer func() { t.Log("recovered", recover()) }()
			c.GetMany(bg, []string{"good", "bad"})
		}()
		v, err := c.Get(bg, "good")
		t.Log(v, err)
		if err != nil {
			t.Errorf("key is dead: %v", err)
		}
	})
}

// A load asks for many, inside of it; a Clone panics, and the load survives that. It does not
// wait for the others any more: one of them, which does wait for it, is no cycle.
func TestClonePanicsInANestedGetMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		armed := false
		o := options{WaitTimeout: time.Second, Clone: func(v string) string {
			if armed && v == "bad" {
				panic("clone")
			}
			return v
		}}
		var c *cache
		o.Load = func(ctx context.Context, key string) (string, error) {
			if key == "inner" {
				return c.Get(ctx, "outer")
			}
			func() {
				defer func() {
					if recover() == nil {
						t.Error("no panic")
					}
				}()
				c.GetMany(ctx, []string{"inner", "bad"})
			}()
			time.Sleep(100 * time.Millisecond) // inner has come to wait
			return "v", nil
		}
		c = newCache(t, o)
		must(t, c.Set(bg, "bad", "bad"))
		armed = true
		outer := ask(bg, c, "outer")
		synctest.Wait()
		inner := ask(bg, c, "inner")
		for _, a := range []answer{<-outer, <-inner} {
			if a.err != nil || a.Value != "v" {
				t.Errorf("got %q, %v", a.Value, a.err)
			}
		}
	})
}

// The same with Options.Clone, at a hit in local.
func TestClonePanicsInGetMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		set := false
		c := newCache(t, options{Load: func(context.Context, string) (string, error) { return "v", nil },
			WaitTimeout: time.Second,
			Clone: func(k string) string {
				if k == "bad" && set {
					panic("clone")
				}
				return k
			}})
		must(t, c.Set(bg, "b", "bad"))
		set = true
		func() {
			defer func() { t.Log("recovered", recover()) }()
			c.GetMany(bg, []string{"good", "b"})
		}()
		v, err := c.Get(bg, "good")
		if err != nil {
			t.Errorf("key is dead: %q %v", v, err)
		}
	})
}

// Close comes while GetMany sends its flights off one by one: those that are refused leave
// the batch, so that the others do not wait for them. Forced by closing as soon as most of
// them are counted.
func TestCloseInTheMiddleOfABatch(t *testing.T) {
	for i := range 30 {
		c, err := onefill.New(options{
			WaitTimeout: time.Second,
			LoadMany: func(_ context.Context, keys []string) (map[string]string, error) {
				return map[string]string{}, nil
			}, MaxBatch: 10000})
		must(t, err)
		keys := make([]string, 500)
		for i := range keys {
			keys[i] = fmt.Sprint(i)
		}
		done := make(chan error, 1)
		go func() { _, err := c.GetMany(bg, keys); done <- err }()
		for c.InFlight() < 400+i/4 {
			runtime.Gosched()
			if len(done) > 0 {
				break
			}
		}
		start := time.Now()
		cerr := c.Close()
		if cerr != nil {
			t.Fatalf("round %d: Close after %v: %v; in flight for ever: %d", i, time.Since(start), cerr, c.InFlight())
		}
		<-done
	}
}

// An observer exits the goroutine when it hears of a refresh: the refresh flies.
func TestObserverExitsAtARefresh(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var once atomic.Bool
		o := newOrigin("v", time.Millisecond)
		c := newCache(t, options{Load: o.load, WaitTimeout: time.Second, TTL: time.Second, Jitter: onefill.NoJitter, StaleFor: time.Hour,
			Observer: onefill.ObserverFunc(func(e onefill.Event) {
				if e.Kind == onefill.EventRefresh && once.CompareAndSwap(false, true) {
					runtime.Goexit()
				}
			})})
		get(t, c, "k", "v")
		o.write("w")
		time.Sleep(2 * time.Second)
		done := make(chan bool)
		go func() { defer close(done); c.Get(bg, "k") }()
		<-done
		for range 3 {
			time.Sleep(10 * time.Second)
			c.Get(bg, "k")
		}
		time.Sleep(time.Second)
		get(t, c, "k", "w")
	})
}

// The store cannot push. A has seen the stale value and waits for a stranger's load; B
// invalidates; A wins the lease, and its load fails. The old value is not served, as the
// store's answer did not show it any more: not to who came after, nor from local later.
func TestOldValueIsNotRevived(t *testing.T) {
	for _, o := range []memstore.Options{{NoPush: true}, {NoPush: true, AcquireReads: true, ForgetsToken: true}, {}} {
		t.Run(fmt.Sprint(o), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				st := memstore.New(o)
				db := newOrigin("old", time.Millisecond)
				opt := options{Load: db.load, Store: st, TTL: 10 * time.Second, Jitter: onefill.NoJitter, StaleOnError: time.Hour,
					Local: onefill.LocalOptions{TTL: time.Second}, WaitTimeout: 20 * time.Second, LoadTimeout: 19 * time.Second, LeaseTTL: 30 * time.Second}
				a := newCache(t, opt)
				b := newCache(t, opt)
				get(t, a, "k", "old")
				time.Sleep(12 * time.Second)
				// another process refreshes
				s, err := st.Attach(bg, store.Config{Name: "test"})
				must(t, err)
				defer s.Close()
				item, err := s.Get(bg, "k")
				must(t, err)
				ans, err := s.Acquire(bg, "k", store.Request{Token: store.NewToken(), TTL: 30 * time.Second, Seen: store.MarkOf(item.Data)})
				must(t, err)
				if ans.State != store.Won {
					t.Fatal(ans.State)
				}
				first := ask(bg, a, "k") // Held
				pending(t, first)
				time.Sleep(2 * time.Second)
				db.fail(errors.New("db"))
				resume := db.pause()
				must(t, b.Invalidate(bg, "k"))
				time.Sleep(50 * time.Millisecond)
				// someone who comes after the invalidation
				second := ask(bg, a, "k")
				time.Sleep(3 * time.Second)
				resume()
				x := <-second
				if x.err == nil {
					t.Errorf("second, who came 50 ms after Invalidate: %q stale=%t err=%v coalesced=%t", x.Value, x.Stale, x.err, x.Coalesced)
				}
				y := <-first
				t.Logf("first: %q %v", y.Value, y.err)
				time.Sleep(500 * time.Millisecond)
				r, err := a.Fetch(bg, "k")
				if err == nil {
					t.Errorf("a third, 3.5 s after Invalidate (Local.TTL 1 s): %q stale=%t", r.Value, r.Stale)
				}
			})
		})
	}
}

// A look at the store that hangs does not keep its caller beyond WaitTimeout, though
// StoreTimeout is longer.
func TestWaitTimeoutBelowStoreTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v", time.Millisecond)
		c := newCache(t, options{Load: db.load, Store: st, StoreTimeout: 2 * time.Second, WaitTimeout: 100 * time.Millisecond})
		hold := make(chan struct{})
		st.SetFault(func(op memstore.Op) memstore.Fault {
			if op.Kind == memstore.OpGet {
				return memstore.Fault{Hold: hold}
			}
			return memstore.Fault{}
		})
		x := <-ask(bg, c, "k")
		if x.took > 150*time.Millisecond {
			t.Errorf("WaitTimeout 100 ms, took %v, %v", x.took, x.err)
		}
		close(hold)
	})
}

type shardedStore struct{ *memstore.Store }
type shardedSession struct{ store.Session }

func (s shardedStore) Attach(ctx context.Context, cfg store.Config) (store.Session, error) {
	x, err := s.Store.Attach(ctx, cfg)
	return shardedSession{x}, err
}
func (s shardedSession) Server(key string) string { return key[:1] }

// One of two servers is down: keys of the other are loaded under leases, at full speed.
func TestOneServerDownLimitsItsOwnKeysOnly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{NoPush: true})
		db := newOrigin("v", time.Second)
		c := newCache(t, options{Load: db.load, Store: shardedStore{st}, MaxLoads: 64, MaxLoadsDegraded: 1, WaitTimeout: 10 * time.Second, LoadTimeout: 5 * time.Second})
		st.SetFault(func(op memstore.Op) memstore.Fault {
			if op.Key != "" && op.Key[0] == 'x' {
				return memstore.Fault{Err: memstore.ErrDown}
			}
			return memstore.Fault{}
		})
		for i := range 3 {
			c.Get(bg, fmt.Sprint("x", i))
		}
		var ch []<-chan answer
		for i := range 20 {
			ch = append(ch, ask(bg, c, fmt.Sprint("a", i)))
		}
		busy := 0
		var most time.Duration
		for _, x := range ch {
			a := <-x
			if a.err != nil {
				busy++
			}
			most = max(most, a.took)
		}
		if busy > 0 || most > 2*time.Second {
			t.Errorf("keys of the server that is up: %d of 20 failed, slowest %v", busy, most)
		}
		st.SetFault(nil)
	})
}

// Others' operations have opened the breaker while a load ran, and the store is back: the
// fill is tried all the same, and the fleet does not wait for the lease's end.
func TestFillIsTriedWhileTheBreakerIsOpen(t *testing.T) {
	for _, push := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			st := memstore.New(memstore.Options{NoPush: !push})
			db := newOrigin("v", 500*time.Millisecond)
			opt := options{Load: db.load, Store: st, LeaseTTL: 20 * time.Second}
			a, b := newCache(t, opt), newCache(t, opt)
			x := ask(bg, a, "k")
			time.Sleep(200 * time.Millisecond)
			st.Down()
			for range 7 { // others' operations open the breaker
				a.Peek(bg, "other")
				time.Sleep(42 * time.Millisecond)
			}
			st.Up() // 500 ms: the next probe is due later
			y := ask(bg, b, "k")
			p := <-x
			q := <-y
			t.Logf("push %t: a %q %v after %v; fills %d", push, p.Value, p.err, p.took, a.Stats().Fills)
			if q.took > 2*time.Second {
				t.Errorf("push %t: the other process waited %v (%q, %v), loads %d", push, q.took, q.Value, q.err, db.loads.Load())
			}
		})
	}
}

// Fill and release both fall into a short outage: the release is repeated.
func TestReleaseIsRepeated(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v", 500*time.Millisecond)
		opt := options{Load: db.load, Store: st, LeaseTTL: 20 * time.Second}
		a, b := newCache(t, opt), newCache(t, opt)
		x := ask(bg, a, "k")
		time.Sleep(450 * time.Millisecond)
		st.Down()
		<-x
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		st.Up()
		q := <-ask(bg, b, "k")
		if q.took > 2*time.Second {
			t.Errorf("the other process waited %v (%q, %v)", q.took, q.Value, q.err)
		}
	})
}

// StaleOnError gives those whose patience ends the old value, and not now and then
// ErrWaitTimeout.
func TestStaleAtTheEndOfPatience(t *testing.T) {
	stale, timeout := 0, 0
	for range 20 {
		bubble(t, func(t *testing.T) {
			st := memstore.New()
			db := newOrigin("old", time.Millisecond)
			a := newCache(t, options{Load: db.load, Store: st, TTL: 10 * time.Second, Jitter: onefill.NoJitter, StaleOnError: time.Hour, WaitTimeout: 3 * time.Second})
			get(t, a, "k", "old")
			time.Sleep(12 * time.Second)
			s, err := st.Attach(bg, store.Config{Name: "test"})
			must(t, err)
			defer s.Close()
			item, _ := s.Get(bg, "k")
			if ans, err := s.Acquire(bg, "k", store.Request{Token: store.NewToken(), TTL: 30 * time.Second, Seen: store.MarkOf(item.Data)}); err != nil || ans.State != store.Won {
				t.Fatal(ans.State, err)
			}
			x := <-ask(bg, a, "k")
			if x.err == nil {
				stale++
			} else {
				timeout++
			}
		})
	}
	if timeout > 0 {
		t.Errorf("%d callers got the old value, %d ErrWaitTimeout", stale, timeout)
	}
}

// What an ignored error leaves behind: a store that is a nil pointer.
func TestNilStore(t *testing.T) {
	var none *memstore.Store
	_, err := onefill.New(options{Name: "n", Store: none})
	if err == nil || !strings.Contains(err.Error(), "Store is a nil *memstore.Store") {
		t.Errorf("New: %v", err)
	}
}

// Who polls comes by late: the failure of a long load reaches every process that waited,
// though ErrorTTL is shorter than a waiter's pause.
func TestFailureReachesThoseWhoPoll(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("", 5*time.Second)
		db.fail(errBroken)
		caches := fleet(t, st, options{Load: db.load, ErrorTTL: 10 * time.Millisecond})
		wantErrs(t, herd(bg, 4, "k", caches...), onefill.ErrLoadFailed)
		db.wantLoads(t, 1)
	})
}

// A connection is cut in the moment of a fill. It is tried once more: if the first attempt
// was not applied, the value is stored all the same; if it was, the second is refused, and
// the store has the value. Either way there is no second load.
func TestFillIsTriedTwice(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		for key, fault := range map[string]memstore.Fault{"not applied": {Err: memstore.ErrDown}, "applied": {LoseReply: true}} {
			db := newOrigin("v1", 0)
			caches := fleet(t, st, options{Load: db.load, TTL: time.Hour})
			faultNext(st, memstore.OpFill, 1, fault)
			wantAll(t, herd(bg, 2, key, caches[0]), "v1")
			wantStored(t, st, key, "v1")
			nothingHeld(t, st)
			wantAll(t, herd(bg, 2, key, caches...), "v1")
			db.wantLoads(t, 1)
			if s := caches[0].Stats(); s.FillsRefused != 0 {
				t.Errorf("%s: %d fills are said to be refused", key, s.FillsRefused)
			}
		}
	})
}

// Invalidate of several keys, one of which is too long for the store: that is an error, and
// none is touched.
func TestTooLongKeyAmongOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{MaxKeyBytes: 10})
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: db.load, TTL: time.Hour})
		get(t, c, "k", "v1")
		before := commands(st)
		err := c.Invalidate(bg, "a key that is too long", "k")
		time.Sleep(10 * time.Second)
		if !errors.Is(err, store.ErrTooLarge) || commands(st) != before || c.Stats().ReplaysWaiting != 0 {
			t.Errorf("Invalidate: %v; %d operations", err, commands(st)-before)
		}
		peek(t, c, "k", "v1")
	})
}
