package local

import (
	"errors"
	"fmt"
	"math"
	"math/rand"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/bubble"
)

func newCache(t *testing.T, o Options) *Cache[string, string] {
	t.Helper()
	if o.MaxEntries == 0 {
		o.MaxEntries = 1000
	}
	c := New[string, string](o)
	t.Cleanup(c.Close)
	return c
}

// entry is a value that is fresh for ttl.
func entry(c *Cache[string, string], v string, ttl time.Duration, stamp Stamp) *Entry[string] {
	until := c.Now() + int64(ttl)
	return &Entry[string]{Value: v, Soft: until, Trusted: math.MaxInt64, Stamp: stamp}
}

// state is what a look at k says: "", "value" (current) or "value?" (not current).
func state(c *Cache[string, string], k string) string {
	e, _, current := c.Get(k)
	switch {
	case e == nil:
		return ""
	case current:
		return e.Value
	}
	return e.Value + "?"
}

// hit is what the hot path gets of k.
func hit(c *Cache[string, string], k string) (string, bool) {
	if s, ok := c.Look(k); ok {
		return s.Entry.Value, true
	}
	return "", false
}

func want(t *testing.T, c *Cache[string, string], k, want string) {
	t.Helper()
	if got := state(c, k); got != want {
		t.Errorf("Get(%q) is %q, want %q", k, got, want)
	}
	v, ok := hit(c, k)
	if hit := want != "" && want[len(want)-1] != '?'; ok != hit || hit && v != want {
		t.Errorf("the hit of %q = %q, %t; Get says %q", k, v, ok, want)
	}
}

// A push makes what was read before it unservable, wherever it falls: after the put,
// between the stamp and the put; and nothing that was read after it.
func TestPushes(t *testing.T) {
	for _, grace := range []time.Duration{0, time.Hour} {
		c := newCache(t, Options{Shared: true, Grace: grace})
		c.Put("k", entry(c, "old", time.Hour, c.Stamp("k")))
		want(t, c, "k", "old")
		c.Pushed("k")
		want(t, c, "k", "")

		before := c.Stamp("k")
		c.Pushed("k")
		if c.Current(before) {
			t.Error("a stamp from before a push is current")
		}
		c.Put("k", entry(c, "late", time.Hour, before))
		want(t, c, "k", "")

		after := c.Stamp("k")
		c.Put("k", entry(c, "new", time.Hour, after))
		c.Put("k", entry(c, "late", time.Hour, before)) // must not replace the current one
		want(t, c, "k", "new")
	}
}

// A push on one key leaves others alone, but for the few of its stripe.
func TestPushesAreStriped(t *testing.T) {
	c := newCache(t, Options{Shared: true, MaxEntries: 10_000})
	const n = 5000
	for i := range n {
		k := fmt.Sprint("k", i)
		c.Put(k, entry(c, "v", time.Hour, c.Stamp(k)))
	}
	c.Pushed("k0")
	dropped := 0
	for i := range n {
		if state(c, fmt.Sprint("k", i)) == "" {
			dropped++
		}
	}
	if state(c, "k0") != "" || dropped > 20 {
		t.Errorf("a push dropped %d of %d keys, its own: %q", dropped, n, state(c, "k0"))
	}
}

// A break makes every entry doubtful, and the end of the break makes it unservable;
// what is read after the break is current, and what is read after its end stays.
func TestBreaks(t *testing.T) {
	c := newCache(t, Options{Shared: true})
	c.Put("before", entry(c, "v", time.Hour, c.Stamp("before")))
	c.Broken()
	want(t, c, "before", "v?")
	c.Put("during", entry(c, "v", time.Hour, c.Stamp("during")))
	want(t, c, "during", "v")
	stamp := c.Stamp("across")
	c.Mended()
	want(t, c, "before", "")
	want(t, c, "during", "")
	c.Put("across", entry(c, "v", time.Hour, stamp))
	want(t, c, "across", "")
	c.Put("after", entry(c, "v", time.Hour, c.Stamp("after")))
	want(t, c, "after", "v")
	c.Broken()
	want(t, c, "after", "v?")
	c.Broken()
	c.Mended()
	want(t, c, "after", "")
}

// A cache that is not shared hears nothing, and one stripe is enough.
func TestNotShared(t *testing.T) {
	c := newCache(t, Options{})
	c.Put("k", entry(c, "v", time.Hour, c.Stamp("k")))
	c.Pushed("k")
	want(t, c, "k", "v")
	c.Drop("k")
	want(t, c, "k", "")
}

// A cache without entries keeps nothing and panics at nothing.
func TestOff(t *testing.T) {
	c := New[string, string](Options{Shared: true})
	c.Put("k", entry(c, "v", time.Hour, c.Stamp("k")))
	want(t, c, "k", "")
	c.Drop("k")
	c.Pushed("k")
	c.Broken()
	c.Mended()
	if c.Len() != 0 || c.Now() <= 0 {
		t.Error("an empty cache is not empty")
	}
	c.Close()
}

// An entry is kept for Grace after its soft expiry, and a failure as long as it is
// remembered; it is a hit as long as it is fresh. The longest durations are never.
func TestExpiry(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, grace := range []time.Duration{0, time.Minute} {
			c := newCache(t, Options{Grace: grace})
			c.Put("k", entry(c, "v", time.Second, c.Stamp("k")))
			now := c.Now()
			c.Put("trusted", &Entry[string]{Value: "v", Soft: now + int64(time.Hour), Trusted: now + int64(time.Second)})
			c.Put("failure", &Entry[string]{Rare: &Rare{Absent: true, Failure: errors.New("x"), FailedUntil: now + int64(time.Second)}})
			c.Put("never", &Entry[string]{Value: "v", Soft: math.MaxInt64, Trusted: math.MaxInt64})
			c.Put("gone", &Entry[string]{Value: "v"})
			time.Sleep(time.Second - 1)
			want(t, c, "k", "v")
			want(t, c, "trusted", "v")
			want(t, c, "never", "v")
			if e, now, _ := c.Get("failure"); e == nil || e.FailureAt(now) == nil || e.Has() || e.IsValue() || e.Plain() {
				t.Errorf("the failure: %+v", e)
			}
			time.Sleep(1)
			for _, k := range []string{"k", "trusted", "failure", "gone"} {
				if v, ok := hit(c, k); ok {
					t.Errorf("grace %v: %s is still a hit: %q", grace, k, v)
				}
			}
			if e, now, current := c.Get("k"); (e != nil) != (grace > 0) || e != nil && (e.Fresh(now) || !current) {
				t.Errorf("grace %v: after the soft expiry: %+v, %t", grace, e, current)
			}
			if e, now, _ := c.Get("failure"); e != nil && e.FailureAt(now) != nil {
				t.Error("the failure is still remembered")
			}
			time.Sleep(grace)
			if e, _, _ := c.Get("k"); e != nil {
				t.Errorf("kept for more than the grace of %v", grace)
			}
			time.Sleep(100 * 365 * 24 * time.Hour)
			want(t, c, "never", "v")
		}
	})
}

// The kinds of entries: what Has, IsValue, Plain and RowVersion say.
func TestKindsOfEntries(t *testing.T) {
	for name, tt := range map[string]struct {
		e                 Entry[string]
		has, value, plain bool
	}{
		"value":               {Entry[string]{}, true, true, true},
		"value with version":  {Entry[string]{Rare: &Rare{RowVersion: 7}}, true, true, true},
		"value after failure": {Entry[string]{Rare: &Rare{Failure: errors.New("x")}}, true, true, false},
		"not found":           {Entry[string]{Rare: &Rare{NotFound: true}}, true, false, false},
		"failure":             {Entry[string]{Rare: &Rare{Absent: true, Failure: errors.New("x")}}, false, false, false},
	} {
		if tt.e.Has() != tt.has || tt.e.IsValue() != tt.value || tt.e.Plain() != tt.plain {
			t.Errorf("%s: Has %t, IsValue %t, Plain %t", name, tt.e.Has(), tt.e.IsValue(), tt.e.Plain())
		}
	}
	if v := (&Entry[string]{Rare: &Rare{RowVersion: 7}}).RowVersion(); v != 7 {
		t.Errorf("row version %d", v)
	}
}

// A model of the rule, over random operations on a few keys: an entry is current if
// and only if neither a push on its stripe nor a break has come since its stamp was
// taken, and is given at all only if no push and no mending has. Stripes are 256 for
// 20 keys, so neighbours are told apart by their stripe number.
func TestStampProperties(t *testing.T) {
	type known struct {
		value          string
		pushes, breaks int
	}
	for seed := range 50 {
		rnd := rand.New(rand.NewSource(int64(seed)))
		c := newCache(t, Options{Shared: true})
		pushes, breaks, floor := map[uint32]int{}, 0, 0
		there := map[string]known{}
		for step := range 2000 {
			k := fmt.Sprint(rnd.Intn(20))
			stamp := c.Stamp(k)
			switch rnd.Intn(8) {
			case 0, 1, 2:
				v := fmt.Sprint(step)
				taken := known{v, pushes[stamp.stripe], breaks}
				if rnd.Intn(3) == 0 { // something is heard between the stamp and the put
					c.Pushed(k)
					pushes[stamp.stripe]++
				}
				c.Put(k, entry(c, v, time.Hour, stamp))
				if taken.pushes == pushes[stamp.stripe] {
					there[k] = taken
				}
			case 3:
				c.Pushed(k)
				pushes[stamp.stripe]++
			case 4:
				if rnd.Intn(10) == 0 {
					c.Broken()
					breaks++
				}
			case 5:
				if rnd.Intn(10) == 0 {
					c.Mended()
					breaks++
					floor = breaks
				}
			case 6:
				c.Drop(k)
				delete(there, k)
			}
			e, ok := there[k]
			expect := ""
			switch {
			case !ok || e.pushes != pushes[stamp.stripe] || e.breaks < floor:
			case e.breaks == breaks:
				expect = e.value
			default:
				expect = e.value + "?"
			}
			if got := state(c, k); got != expect {
				t.Fatalf("seed %d, step %d: Get(%s) is %q, want %q", seed, step, k, got, expect)
			}
		}
	}
}

// What is more than a value is no hit: a row that does not exist, a failure, beside a value or
// alone, a value one of whose tags was voided. Nor is what can be served no more.
func TestWhatIsNoHit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCache(t, Options{Shared: true})
		put := func(k string, rare *Rare, trusted int64) {
			e := entry(c, "v", time.Hour, c.Stamp(k))
			e.Rare, e.Trusted = rare, trusted
			c.Put(k, e)
		}
		later := c.Now() + int64(time.Hour)
		put("versioned", &Rare{RowVersion: 1}, later)
		tag := "tag"
		for c.Together(tag, "tagged") { // else a push on it is one on the key
			tag += "'"
		}
		put("tagged", &Rare{Tags: []Stamp{c.Stamp(tag)}}, later)
		for _, k := range []string{"versioned", "tagged"} {
			want(t, c, k, "v")
		}
		c.Pushed(tag)
		put("absent", &Rare{NotFound: true}, later)
		put("failed", &Rare{Failure: errors.New("no"), FailedUntil: later}, later)
		put("only failed", &Rare{Absent: true, Failure: errors.New("no"), FailedUntil: later}, later)
		put("untrusted", nil, c.Now())
		for _, k := range []string{"tagged", "absent", "failed", "only failed", "untrusted"} {
			if v, ok := hit(c, k); ok {
				t.Errorf("%q is a hit: %q", k, v)
			}
		}
		for _, k := range []string{"tagged", "untrusted"} {
			if got := state(c, k); got != "" {
				t.Errorf("%q can be served: %q", k, got)
			}
		}
	})
}

// Two are told at once that the store is back, as one operation ends the outage and another one
// is the first to be answered after the break. One raises the counter of breaks, the other one
// raises it again and sets the floor, and then the first one sets it: what was read between the
// two would be there still. No order can be forced here, but it came in some 20,000 rounds.
func TestMendedTogether(t *testing.T) {
	c := newCache(t, Options{Shared: true})
	for round := range 40_000 {
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 20 {
					c.Mended()
				}
			})
		}
		all.Wait()
		if floor, breaks := c.floor.Load(), c.breaks.Load(); floor != breaks {
			t.Fatalf("round %d: after break %d the floor is %d", round, breaks, floor)
		}
	}
}
