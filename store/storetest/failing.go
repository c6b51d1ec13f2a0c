package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/onefill/onefill/store"
)

var failing = []test{
	{"FailureIsRemembered", func(c *check) {
		c.fail(c.a.wins("k", long, nil), []byte("no such host"), long)
		for _, p := range []*peer{c.a, c.b, c.peer(c.a.store)} {
			failed := p.finds(store.Failed, "k", nil)
			if string(failed.Failure) != "no such host" {
				c.Errorf("the record is %q", failed.Failure)
			}
			if failed.Remaining > long+c.f.Granularity {
				c.Errorf("a record of %v has %v left", long, failed.Remaining)
			}
			p.absent("k")
		}
	}},
	{"FailureBytes", func(c *check) {
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		envelope := store.Envelope{Kind: store.KindFailure, Payload: []byte("down")}
		records := [][]byte{{}, {0}, []byte("*"), []byte("t"), []byte("f"), []byte("\r\n"), all,
			bytes.Repeat([]byte{0xff}, 16), bytes.Repeat([]byte("long "), 1000), envelope.Encode()}
		for i, record := range records {
			key := fmt.Sprint(i)
			c.fail(c.a.wins(key, long, nil), record, long)
			if failed := c.b.finds(store.Failed, key, nil); !bytes.Equal(failed.Failure, record) {
				c.Errorf("the record of %d bytes came back as %d bytes: %.40q", len(record), len(failed.Failure), failed.Failure)
			}
		}
	}},
	{"FailureKeepsTheValue", func(c *check) {
		c.needs(c.f.FailureKeepsValue, "the store declares no FailureKeepsValue")
		old := c.value("old")
		c.a.set("k", old, long)
		c.fail(c.a.wins("k", long, store.MarkOf(old)), []byte("down"), long)
		c.b.holds("k", old)
		failed := c.b.finds(store.Failed, "k", store.MarkOf(old))
		if failed.Item.Found && string(failed.Item.Data) != string(old) {
			c.Errorf("failed with item %s", show(failed.Item))
		}
		c.b.finds(store.Hit, "k", nil) // who has not seen the value gets it
	}},
	{"FailureExpires", func(c *check) {
		old, start := c.value("old"), time.Now()
		c.a.set("stale", old, long)
		c.fail(c.a.wins("absent", long, nil), []byte("down"), c.h.Tick)
		c.fail(c.a.wins("stale", long, store.MarkOf(old)), []byte("down"), c.h.Tick)
		c.lapses("absent", nil)
		if after := time.Since(start); after < c.h.Tick-c.f.Granularity-2*time.Millisecond {
			c.Errorf("a record of %v was forgotten after %v", c.h.Tick, after)
		}
		c.lapses("stale", store.MarkOf(old))
		c.b.holds("stale", old)
	}},
	{"FailureWithoutTTL", func(c *check) {
		// A ttl of 0 or less, or too short to be measured: the lease ends, and the
		// key is not blocked for ever.
		short := slices.Concat(noTTLs, tinyTTLs)
		for i, ttl := range short {
			lease := c.a.wins(fmt.Sprint(i), long, nil)
			c.fail(lease, []byte("down"), ttl)
			c.lost(lease)
		}
		for i := range short {
			c.lapses(fmt.Sprint(i), nil)
		}
	}},
	{"FailureClearedByInvalidate", func(c *check) { c.clears(func(key string) { c.b.invalidate(key) }) }},
	{"FailureClearedByExpire", func(c *check) { c.clears(func(key string) { c.b.expire(key) }) }},
	{"FailureClearedBySet", func(c *check) {
		c.clears(func(key string) { c.b.set(key, c.value("set"), long) })
	}},
	{"FailEndsTheLease", func(c *check) {
		lease := c.a.wins("k", long, nil)
		c.fail(lease, []byte("down"), long)
		c.lost(lease)
		// What the loser tried has not touched the record.
		if failed := c.b.finds(store.Failed, "k", nil); string(failed.Failure) != "down" {
			c.Errorf("the record is %q", failed.Failure)
		}
	}},
}

// lapses waits until a failure record has stopped to block: the next caller wins.
func (c *check) lapses(key string, seen []byte) (won store.Answer) {
	c.Helper()
	c.eventually("the failure record ends", func() bool {
		c.Helper()
		won = c.b.ask(key, long, seen)
		if won.State != store.Failed && won.State != store.Won {
			c.Fatalf("Acquire(%s) = %v, want failed, then won", short(key), won.State)
		}
		return won.State == store.Won
	})
	return won
}

// clears checks that a write makes a key with a failure record free at once, on
// an absent key and on a stale value.
func (c *check) clears(write func(key string)) {
	c.Helper()
	old := c.value("old")
	c.a.set("stale", old, long)
	for _, key := range []string{"absent", "stale"} {
		c.fail(c.a.wins(key, long, seen(c.a.get(key))), []byte("down"), long)
		write(key)
		c.accepts(c.a.wins(key, long, seen(c.a.get(key))), c.value("next"))
	}
}
