package storetest

import (
	"fmt"

	"github.com/onefill/onefill/store"
)

var strangers = []test{
	{"ForeignBytes", func(c *check) {
		c.needs(c.h.PutForeign != nil, "the harness has no PutForeign")
		for i, data := range [][]byte{{}, []byte("x"), []byte(`{"id":1}`), []byte("1f"), make([]byte, 200)} {
			c.replaces(fmt.Sprint(i), func(key string) { c.h.PutForeign(c, c.name, key, data) })
		}
	}},
	{"ForeignType", func(c *check) {
		c.needs(c.h.PutForeignType != nil, "the harness has no PutForeignType")
		c.replaces("k", func(key string) { c.h.PutForeignType(c, c.name, key) })
	}},
	{"EvictedValue", func(c *check) {
		c.needs(c.h.EvictKey != nil, "the harness has no EvictKey")
		c.a.set("k", c.value("v"), long)
		c.h.EvictKey(c, c.name, "k")
		c.a.absent("k")
		c.accepts(c.b.wins("k", long, nil), c.value("v"))
	}},
	{"EvictedValueWhileLeased", func(c *check) {
		// Whether the fill is accepted depends on where the lease lies; what is
		// stored must agree with the answer.
		c.needs(c.h.EvictKey != nil, "the harness has no EvictKey")
		old, fresh := c.value("old"), c.value("fresh")
		c.a.set("k", old, long)
		lease := c.a.wins("k", long, store.MarkOf(old))
		c.h.EvictKey(c, c.name, "k")
		ok, err := lease.Fill(c.ctx(), fresh, long)
		c.ok("Fill", err)
		if ok {
			c.b.holds("k", fresh)
		} else {
			c.b.absent("k")
		}
	}},
	{"EvictedLeaseIsFree", func(c *check) {
		c.needs(c.h.EvictLease != nil, "the harness has no EvictLease")
		c.a.wins("k", long, nil)
		c.h.EvictLease(c, c.name, "k")
		c.accepts(c.b.wins("k", long, nil), c.value("v"))
	}},
}

// replaces checks that what a stranger has put under a key is found, can be won
// by its mark, and is replaced by the fill, by Set, by Invalidate and by Expire.
func (c *check) replaces(key string, put func(key string)) {
	c.Helper()
	data := c.value("ours")

	put(key + " fill")
	item := c.a.get(key + " fill")
	if !item.Found {
		c.Fatal("Get: a miss, want a foreign value to be found")
	}
	if _, err := store.Decode(item.Data); err == nil {
		c.Fatal("Get: a foreign value decodes")
	}
	c.accepts(c.a.wins(key+" fill", long, store.MarkOf(item.Data)), data)
	c.b.holds(key+" fill", data)

	put(key + " set")
	c.a.set(key+" set", data, long)
	c.b.holds(key+" set", data)

	put(key + " invalidate")
	c.a.invalidate(key + " invalidate")
	c.b.absent(key + " invalidate")

	put(key + " expire")
	c.a.expire(key + " expire")
	c.b.absent(key + " expire")
}
