package onefill_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
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
