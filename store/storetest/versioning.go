package storetest

import (
	"fmt"
	"math"

	"github.com/onefill/onefill/store"
)

// olderNewer are pairs of row versions. Servers that compare them as signed
// numbers or as floating-point ones get some of them wrong.
var olderNewer = [][2]uint64{
	{1, 2}, {255, 256}, {9, 10}, {1<<53 - 1, 1 << 53}, {1 << 53, 1<<53 + 1}, {1, 1 << 63},
	{1<<63 - 1, 1 << 63}, {1 << 63, 1<<63 + 1}, {math.MaxUint64 - 1, math.MaxUint64},
	{0x0a, 0x0d}, {0x00ff, 0x2500},
}

var versioning = []test{
	{"OlderRowIsNotSet", func(c *check) {
		for _, v := range olderNewer {
			key := fmt.Sprint(v)
			newer := c.valueOf("newer", v[1])
			c.a.set(key, c.valueOf("older", v[0]), long)
			c.a.set(key, newer, long)
			stored, err := c.b.Set(c.ctx(), key, c.valueOf("older", v[0]), long)
			c.ok("Set", err)
			if stored {
				c.Errorf("row version %d has replaced %d", v[0], v[1])
			}
			c.a.holds(key, newer)
		}
	}},
	{"SameRowVersionIsSet", func(c *check) {
		c.a.set("k", c.valueOf("one", 7), long)
		again := c.valueOf("two", 7)
		c.b.set("k", again, long)
		c.a.holds("k", again)
	}},
	{"RefusedSetVoidsLeases", func(c *check) {
		newer := c.valueOf("newer", 2)
		c.a.set("k", newer, long)
		lease := c.a.wins("k", long, store.MarkOf(newer))
		stored, err := c.b.Set(c.ctx(), "k", c.valueOf("older", 1), long)
		c.ok("Set", err)
		if stored {
			c.Fatal("an older row has replaced a newer one")
		}
		c.lost(lease)
		c.a.holds("k", newer)
	}},
	{"OlderRowIsNotFilled", func(c *check) {
		for _, v := range olderNewer {
			key := fmt.Sprint(v)
			newer := c.valueOf("newer", v[1])
			c.a.set(key, newer, long)
			lease := c.a.wins(key, long, store.MarkOf(newer))
			c.refuses(lease, c.valueOf("older", v[0]))
			c.b.holds(key, newer)
			// Refused means that the lease is gone: nobody waits for its end.
			c.lost(lease)
			newest := c.valueOf("newest", v[1])
			c.accepts(c.b.wins(key, long, store.MarkOf(newer)), newest)
			c.a.holds(key, newest)
		}
	}},
	{"NoRowVersionIsNeverOlder", func(c *check) {
		// The mark of a row that was deleted has no version, and replaces the row.
		newer, mark := c.valueOf("newer", 2), c.valueOf("deleted", 0)
		c.a.set("set", newer, long)
		c.b.set("set", mark, long)
		c.a.holds("set", mark)
		c.a.set("fill", newer, long)
		c.accepts(c.b.wins("fill", long, store.MarkOf(newer)), mark)
		c.a.holds("fill", mark)
	}},
	{"OlderRowAfterInvalidate", func(c *check) {
		// Where no newer value is, an older one is no older one.
		c.a.set("set", c.valueOf("newer", 2), long)
		c.a.set("fill", c.valueOf("newer", 2), long)
		c.b.invalidate("set", "fill")
		older := c.valueOf("older", 1)
		c.a.set("set", older, long)
		c.a.holds("set", older)
		c.accepts(c.a.wins("fill", long, nil), older)
		c.a.holds("fill", older)
	}},
	{"RowVersionSurvivesExpire", func(c *check) {
		c.a.set("k", c.valueOf("newer", 2), long)
		c.b.expire("k")
		stored, err := c.b.Set(c.ctx(), "k", c.valueOf("older", 1), long)
		c.ok("Set", err)
		if stored {
			c.Error("an older row has replaced a newer one whose soft expiry has passed")
		}
	}},
	{"ForeignBytesHaveNoRowVersion", func(c *check) {
		// Bytes that are no envelope are never newer, whatever lies at that offset.
		foreign := make([]byte, 100)
		for i := range foreign {
			foreign[i] = 0xff
		}
		c.a.set("k", foreign, long)
		data := c.valueOf("v", 1)
		c.b.set("k", data, long)
		c.a.holds("k", data)
	}},
}
