package storetest

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/onefill/onefill/store"
)

// ttls are the odd ones: gone at once, gone soon, and there to stay.
var (
	noTTLs    = []time.Duration{0, -1, -time.Hour, math.MinInt64}
	tinyTTLs  = []time.Duration{1, time.Microsecond, time.Millisecond, time.Millisecond + 1}
	largeTTLs = []time.Duration{29 * 24 * time.Hour, 31 * 24 * time.Hour, 365 * 24 * time.Hour,
		100 * 365 * 24 * time.Hour, math.MaxInt64 - 1, math.MaxInt64}
)

var expiring = []test{
	{"ValueExpires", func(c *check) {
		ttl, start := c.h.Tick, time.Now()
		c.a.set("set", c.value("v"), ttl)
		lease := c.a.wins("fill", long, nil)
		if ok, err := lease.Fill(c.ctx(), c.value("v"), ttl); err != nil || !ok {
			c.Fatalf("Fill = %v, %v", ok, err)
		}
		for _, key := range []string{"set", "fill"} {
			c.eventually("the value expires", func() bool { return !c.b.get(key).Found })
			if after := time.Since(start); after < ttl-c.f.Granularity-2*time.Millisecond {
				c.Errorf("%s: a value with a TTL of %v was gone after %v", key, ttl, after)
			}
			c.release(c.b.wins(key, long, nil))
		}
	}},
	{"OddTTLs/Set", func(c *check) {
		c.oddTTLs(func(key string, data []byte, ttl time.Duration) { c.a.set(key, data, ttl) })
	}},
	{"OddTTLs/Fill", func(c *check) {
		c.oddTTLs(func(key string, data []byte, ttl time.Duration) {
			lease := c.a.wins(key, long, seen(c.a.get(key)))
			if ok, err := lease.Fill(c.ctx(), data, ttl); err != nil || !ok {
				c.Fatalf("Fill with ttl %d = %v, %v, want it accepted", ttl, ok, err)
			}
			c.lost(lease)
		})
	}},
	{"OddTTLs/SetVoids", func(c *check) {
		// A Set whose value is gone at once still voids the leases.
		for _, ttl := range noTTLs {
			key := fmt.Sprint(int64(ttl))
			lease := c.a.wins(key, long, nil)
			c.b.set(key, c.value("v"), ttl)
			c.lost(lease)
			c.b.absent(key)
		}
	}},
	{"OddTTLs/Lease", func(c *check) {
		short := slices.Concat(noTTLs, tinyTTLs)
		for _, ttl := range short {
			c.a.wins(fmt.Sprint(int64(ttl)), ttl, nil)
		}
		for _, ttl := range short {
			c.b.takesOver(fmt.Sprint(int64(ttl)), nil)
		}
		for _, ttl := range largeTTLs {
			key := fmt.Sprint(int64(ttl))
			lease := c.a.wins(key, ttl, nil)
			c.b.finds(store.Held, key, nil)
			if ok, err := lease.Renew(c.ctx(), ttl); err != nil || !ok {
				c.Fatalf("Renew for %v = %v, %v", ttl, ok, err)
			}
			c.b.finds(store.Held, key, nil)
			c.release(lease)
			c.release(c.b.wins(key, long, nil))
		}
	}},
	{"OddTTLs/Renew", func(c *check) {
		short := slices.Concat(noTTLs, tinyTTLs)
		for _, ttl := range short {
			lease := c.a.wins(fmt.Sprint(int64(ttl)), long, nil)
			if _, err := lease.Renew(c.ctx(), ttl); err != nil {
				c.Fatalf("Renew for %v: %v", ttl, err)
			}
		}
		for _, ttl := range short {
			c.b.takesOver(fmt.Sprint(int64(ttl)), nil)
		}
	}},
	{"OddTTLs/Fail", func(c *check) {
		for _, ttl := range largeTTLs {
			key := fmt.Sprint(int64(ttl))
			c.fail(c.a.wins(key, long, nil), []byte("down"), ttl)
			c.b.finds(store.Failed, key, nil)
			c.b.invalidate(key)
			c.release(c.b.wins(key, long, nil))
		}
	}},
	{"ExpireKeepsTheTTL", func(c *check) {
		short, stays := c.value("short"), c.value("stays")
		c.a.set("short", short, 4*c.h.Tick)
		c.a.set("stays", stays, long)
		c.b.expire("short", "stays")
		c.eventually("the expired value is gone after its TTL", func() bool { return !c.a.get("short").Found })
		if !c.a.get("stays").Found {
			c.Error("the expired value with a long TTL is gone")
		}
	}},
	{"ExpireChangesOnlyTheSoftExpiry", func(c *check) {
		data := c.valueOf("row", 7)
		c.a.set("k", data, long)
		now := time.Now()
		c.ok("Expire", c.b.Expire(c.ctx(), now, "k"))
		want, ok := store.Expired(data, now)
		if !ok || string(want) == string(data) {
			c.Fatal("store.Expired has nothing to change")
		}
		c.a.holds("k", want)
		// A later Expire finds nothing to change.
		c.ok("Expire", c.b.Expire(c.ctx(), now.Add(time.Minute), "k"))
		c.a.holds("k", want)
		// The mark of the old value is no longer the value's mark.
		c.a.finds(store.Hit, "k", store.MarkOf(data))
		c.accepts(c.a.wins("k", long, store.MarkOf(want)), c.valueOf("fresh", 7))
	}},
	{"ExpireRemovesWhatHasNoSoftExpiry", func(c *check) {
		now := time.Now()
		missing := store.Envelope{Kind: store.KindNotFound, Version: store.NewVersion(now), Created: now, SoftExpiry: now.Add(time.Hour)}
		for i, data := range [][]byte{missing.Encode(), {}, []byte("x"), []byte("1f"), make([]byte, 100)} {
			key := fmt.Sprint(i)
			c.a.set(key, data, long)
			c.b.expire(key)
			c.a.absent(key)
		}
		c.b.expire("never there")
		c.a.absent("never there")
	}},
}

// oddTTLs checks what a write with each odd TTL leaves behind, also over a value
// that was there before.
func (c *check) oddTTLs(write func(key string, data []byte, ttl time.Duration)) {
	c.Helper()
	for _, ttl := range noTTLs {
		key := fmt.Sprint(int64(ttl))
		write(key, c.value("v"), ttl)
		c.b.absent(key)
		c.a.set(key, c.value("old"), long)
		write(key, c.value("v"), ttl)
		c.b.absent(key)
	}
	for _, ttl := range largeTTLs {
		write(fmt.Sprint(int64(ttl)), c.value(ttl.String()), ttl)
	}
	for _, ttl := range tinyTTLs {
		write(fmt.Sprint(int64(ttl)), c.value("v"), ttl)
	}
	for _, ttl := range tinyTTLs {
		c.eventually("the value expires", func() bool { return !c.b.get(fmt.Sprint(int64(ttl))).Found })
	}
	c.letPass(c.h.Tick)
	for _, ttl := range largeTTLs {
		if !c.b.get(fmt.Sprint(int64(ttl))).Found {
			c.Errorf("a value with a TTL of %v is gone", ttl)
		}
	}
}
