package memstore_test

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// Everything ends at its time, to the nanosecond, and is pushed then.
func TestExpiryIsExact(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		st := memstore.New()
		a, heard := attach(t, st)
		b, _ := attach(t, st)
		set(t, b, "k", "v", time.Second)
		get(t, a, "k")
		ask(t, b, "leased", 2*time.Second)
		held := ask(t, a, "leased", time.Second)
		if held.Remaining != 2*time.Second {
			t.Errorf("%v remain, want 2s", held.Remaining)
		}

		time.Sleep(time.Second - 1)
		synctest.Wait()
		if !get(t, a, "k").Found {
			t.Error("the value is gone too early")
		}
		told(t, heard)
		time.Sleep(1)
		synctest.Wait()
		told(t, heard, "k")
		if _, found := st.Raw(name, "k"); found {
			t.Error("the value is still there")
		}

		time.Sleep(time.Second - 1)
		synctest.Wait()
		if woken(held.Watch) || ask(t, a, "leased", time.Second).State != store.Held {
			t.Error("the lease has ended too early")
		}
		time.Sleep(1)
		synctest.Wait()
		if !woken(held.Watch) || ask(t, a, "leased", time.Second).State != store.Won {
			t.Error("the lease has not ended")
		}
	})
}

// Writing a key again moves its end: the timer of the old value does nothing.
func TestRewriteMovesTheEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		st := memstore.New()
		a, heard := attach(t, st)
		b, _ := attach(t, st)
		set(t, b, "k", "v", time.Second)
		set(t, b, "k", "v", 3*time.Second)
		get(t, a, "k")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		told(t, heard)
		set(t, b, "k", "v", math.MaxInt64)
		told(t, heard, "k")
		get(t, a, "k")
		time.Sleep(100 * 365 * 24 * time.Hour)
		synctest.Wait()
		told(t, heard)
		if !get(t, a, "k").Found {
			t.Error("a value that never expires is gone")
		}
	})
}

// What has expired takes no memory, also if nobody asks for it again.
func TestExpiredIsRemoved(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		st := memstore.New()
		s, _ := attach(t, st)
		set(t, s, "value", "v", time.Second)
		ask(t, s, "lease", time.Second)
		lease := ask(t, s, "failure", time.Minute).Lease
		if ok, err := lease.Fail(t.Context(), []byte("down"), time.Second); !ok || err != nil {
			t.Fatalf("Fail = %v, %v", ok, err)
		}
		if u := st.Usage(); u != (memstore.Usage{Values: 1, Leases: 1, Failures: 1, Sessions: 1}) {
			t.Errorf("Usage = %+v", u)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if u := st.Usage(); u != (memstore.Usage{Remembered: 1, Sessions: 1}) {
			t.Errorf("a second later: %+v", u)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if u := st.Usage(); u != (memstore.Usage{Sessions: 1}) {
			t.Errorf("two seconds later: %+v", u)
		}
	})
}

// A failure blocks for its ttl and is remembered for as long again, to the nanosecond,
// whatever becomes of the leases meanwhile.
func TestFailureMemoryIsExact(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		st := memstore.New()
		s, _ := attach(t, st)
		if ok, err := ask(t, s, "k", time.Hour).Lease.Fail(t.Context(), []byte("down"), time.Minute); !ok || err != nil {
			t.Fatalf("Fail = %v, %v", ok, err)
		}
		time.Sleep(time.Minute - 1)
		if a := ask(t, s, "k", time.Hour); a.State != store.Failed || a.Remaining != 1 || string(a.Failure) != "down" {
			t.Errorf("1 ns before its end: %+v", a)
		}
		time.Sleep(1)
		wins := func(what string, ttl time.Duration) store.Answer {
			t.Helper()
			a := ask(t, s, "k", ttl)
			if a.State != store.Won || string(a.Failure) != "down" {
				t.Errorf("%s: %v, %q, want won, with the record", what, a.State, a.Failure)
			}
			return a
		}
		wins("once it blocks no more", time.Second)
		time.Sleep(time.Second)
		a := wins("after the next holder was killed", time.Hour)
		if ok, err := a.Lease.Release(t.Context()); !ok || err != nil {
			t.Errorf("Release = %v, %v", ok, err)
		}
		time.Sleep(time.Minute - time.Second - 1)
		wins("1 ns before it is forgotten", 1)
		time.Sleep(time.Millisecond) // the shortest lease
		if a := ask(t, s, "k", time.Hour); a.State != store.Won || a.Failure != nil {
			t.Errorf("after two minutes: %v, %q, want won, and nothing remembered", a.State, a.Failure)
		}
	})
}

func TestGranularity(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{Granularity: time.Second, MinLease: 2 * time.Second})
		s, _ := attach(t, st)
		set(t, s, "k", "v", time.Millisecond)
		ask(t, s, "leased", time.Millisecond)
		time.Sleep(time.Second - 1)
		if !get(t, s, "k").Found {
			t.Error("a TTL of 1 ms was not rounded up to 1 s")
		}
		time.Sleep(1)
		if get(t, s, "k").Found {
			t.Error("a TTL of 1 ms lasts longer than 1 s")
		}
		if held := ask(t, s, "leased", time.Second); held.State != store.Held || held.Remaining != time.Second {
			t.Errorf("a lease of 1 ms after 1 s: %v, %v left, want held, 1s", held.State, held.Remaining)
		}
		set(t, s, "for ever", "v", math.MaxInt64-1) // rounding must not overflow
		if !get(t, s, "for ever").Found {
			t.Error("the longest TTL but one is over at once")
		}
	})
}

// The store runs no goroutine: a bubble whose main function has ended fails
// unless every goroutine in it ends, too. Here data is left that expires later,
// a lease, a watch that nobody has stopped, and a session that is still open.
func TestNoGoroutine(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		st := memstore.New()
		s, err := st.Attach(t.Context(), store.Config{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		set(t, s, "k", "v", time.Hour)
		ask(t, s, "leased", time.Hour)
		ask(t, s, "leased", time.Hour)
		st.HoldPushes()
		st.Down()
	})
}

// The number of values is bounded; who had read a value that has to go is told.
func TestMaxValues(t *testing.T) {
	const limit = 5
	st := memstore.New(memstore.Options{MaxValues: limit})
	a, heard := attach(t, st)
	b, _ := attach(t, st)
	for i := range 4 * limit {
		key := fmt.Sprint(i)
		lease := ask(t, b, key, time.Hour).Lease // a lease is no value
		if ok, err := lease.Fill(t.Context(), []byte("v"), time.Hour); !ok || err != nil {
			t.Fatalf("Fill = %v, %v", ok, err)
		}
		if !get(t, a, key).Found {
			t.Errorf("the value stored last is the one that was removed")
		}
		if n := st.Usage().Values; n != min(i+1, limit) {
			t.Fatalf("%d values after %d fills, want at most %d", n, i+1, limit)
		}
	}
	gone := heard.take()
	if len(gone) != 3*limit {
		t.Errorf("told of %d, want %d", len(gone), 3*limit)
	}
	for _, key := range gone {
		if _, found := st.Raw(name, key); found {
			t.Errorf("told that key %s has changed, but it is there", key)
		}
	}
	// What leaves by itself makes room: nothing else has to go.
	if err := b.Invalidate(t.Context(), append(gone, "19")...); err != nil {
		t.Fatal(err)
	}
	heard.take()
	set(t, b, "one more", "v", time.Hour)
	told(t, heard)
}
