package storetest

import (
	"time"

	"github.com/onefill/onefill/store"
)

// remembering has a test for each thing that may happen to the record of a failure
// after it has stopped to block: for as long again it is there for the next winner.
var remembering = []test{
	{"FailureIsRememberedForAsLongAgain", func(c *check) {
		for _, stale := range []bool{false, true} {
			c.remembers(stale, []byte("no such host"), func(won store.Answer, key string, seen []byte) {
				// The lease is one like others, and who waits for it learns nothing of
				// the failure.
				c.b.finds(store.Held, key, seen)
				c.accepts(won.Lease, c.value("new"))
			})
		}
	}},
	{"RememberedBytes", func(c *check) {
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		for _, record := range [][]byte{{0}, []byte("t"), []byte("f12:x"), []byte("12:"), all} {
			c.remembers(false, record, func(won store.Answer, _ string, _ []byte) { c.release(won.Lease) })
		}
	}},
	{"FailuresInARowAreCounted", func(c *check) {
		// Each failure's record is the one that the next winner gets.
		c.longer(2*c.h.Tick, func(key string, ttl time.Duration) bool {
			lease := c.a.wins(key, long, nil)
			for _, record := range []string{"1 failure", "2 failures", "3 failures"} {
				start := time.Now()
				c.fail(lease, []byte(record), ttl)
				won := c.lapses(key, nil)
				if time.Since(start) > 2*ttl-c.f.Granularity {
					return false
				}
				if string(won.Failure) != record {
					c.Fatalf("after %q the winner gets %q", record, won.Failure)
				}
				lease = won.Lease
			}
			return true
		})
	}},
	{"MemoryOfAFailureEnds", func(c *check) {
		c.fail(c.a.wins("k", long, nil), []byte("down"), c.h.Tick)
		c.letPass(2*c.h.Tick + 2*c.f.Granularity)
		if won := c.b.finds(store.Won, "k", nil); len(won.Failure) > 0 {
			c.Errorf("a record of %v is still there after twice that and more: %q", c.h.Tick, won.Failure)
		}
	}},
	{"FailureForgottenByInvalidate", func(c *check) { c.forgets(func(key string) { c.b.invalidate(key) }) }},
	{"FailureForgottenByExpire", func(c *check) { c.forgets(func(key string) { c.b.expire(key) }) }},
	{"FailureForgottenBySet", func(c *check) {
		c.forgets(func(key string) { c.b.set(key, c.value("set"), long) })
	}},
	{"FailureForgottenByFill", func(c *check) {
		c.longer(2*c.h.Tick, func(key string, ttl time.Duration) bool {
			start := time.Now()
			c.fail(c.a.wins(key, long, nil), []byte("down"), ttl)
			data := c.value("v")
			c.accepts(c.lapses(key, nil).Lease, data)
			won := c.b.finds(store.Won, key, store.MarkOf(data))
			if len(won.Failure) > 0 {
				c.Fatalf("after a fill the winner gets the record of a failure: %q", won.Failure)
			}
			return time.Since(start) < 2*ttl-c.f.Granularity
		})
	}},
	{"FailureForgottenByFillOfAnOlderRow", func(c *check) {
		// The stored value is newer than what was loaded: the fill is refused, and
		// the key is as free as after any other.
		newer := c.valueOf("newer", 2)
		c.a.set("k", newer, long)
		c.longer(2*c.h.Tick, func(_ string, ttl time.Duration) bool {
			start := time.Now()
			c.fail(c.a.wins("k", long, store.MarkOf(newer)), []byte("down"), ttl)
			c.refuses(c.lapses("k", store.MarkOf(newer)).Lease, c.valueOf("older", 1))
			won := c.b.finds(store.Won, "k", store.MarkOf(newer))
			if len(won.Failure) > 0 {
				c.Fatalf("after a fill the winner gets the record of a failure: %q", won.Failure)
			}
			c.release(won.Lease)
			return time.Since(start) < 2*ttl-c.f.Granularity
		})
	}},
	{"ReleaseIsNoSuccess", func(c *check) {
		// A store may go on remembering after a release, and after an attempt that is
		// repeated; what it hands out is the record, or nothing.
		token := store.NewToken()
		c.remembers(false, []byte("down"), func(won store.Answer, key string, _ []byte) {
			c.release(won.Lease)
			for range 2 {
				answer := c.b.askAs(token, key, long, nil)
				if !c.f.KeepsToken && answer.State == store.Held {
					return
				}
				if answer.State != store.Won {
					c.Fatalf("after a release: %v, want won", answer.State)
				}
				switch string(answer.Failure) {
				case "down":
				case "":
					c.Log("the store does not remember the failure after that: allowed, but backing off starts over")
				default:
					c.Fatalf("the record came back as %q", answer.Failure)
				}
			}
		})
	}},
}

// remembers fails a load, waits until the record has stopped to block, and checks
// that whoever wins then gets it. The rest of the test goes on with the winner.
func (c *check) remembers(stale bool, record []byte, next func(won store.Answer, key string, seen []byte)) {
	c.Helper()
	c.longer(2*c.h.Tick, func(key string, ttl time.Duration) bool {
		c.Helper()
		var mark []byte
		if stale {
			key += " stale"
			old := c.value("old")
			c.a.set(key, old, long)
			mark = store.MarkOf(old)
		}
		start := time.Now()
		c.fail(c.a.wins(key, long, mark), record, ttl)
		won := c.lapses(key, mark)
		if time.Since(start) > 2*ttl-c.f.Granularity {
			c.release(won.Lease) // a test that comes back to this key must find it free
			return false
		}
		if string(won.Failure) != string(record) {
			c.Fatalf("%v after a failure that blocks for %v the winner gets %q, want %q", time.Since(start), ttl, won.Failure, record)
		}
		next(won, key, mark)
		return true
	})
}

// forgets checks that a write makes the next winner know of no failure, on an absent
// key and on a stale value.
func (c *check) forgets(write func(key string)) {
	c.Helper()
	old := c.value("old")
	c.a.set("stale", old, long)
	for _, key := range []string{"absent", "stale"} {
		c.fail(c.a.wins(key, long, seen(c.a.get(key))), []byte("down"), long)
		write(key)
		if won := c.b.finds(store.Won, key, seen(c.b.get(key))); len(won.Failure) > 0 {
			c.Errorf("%s key: the winner gets the record of a failure before the write: %q", key, won.Failure)
		}
	}
}
