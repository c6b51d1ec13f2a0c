package storetest

import (
	"bytes"
	"fmt"

	"github.com/onefill/onefill/store"
)

// readingMany are the tests of sessions that implement store.ManyReader.
var readingMany = []test{
	{"GetManyInOrder", func(c *check) {
		// Those that are there, those that are not, and one that is asked for twice.
		many, keys := c.manyReader(600)
		want := make([][]byte, len(keys))
		for i, key := range keys {
			if i%3 == 0 {
				want[i] = c.value(key)
				c.b.set(key, want[i], long)
			}
		}
		keys, want = append(keys, keys[0], keys[1]), append(want, want[0], want[1])
		items, err := many.GetMany(c.ctx(), keys)
		if err != nil || len(items) != len(keys) {
			c.Fatalf("GetMany = %d items, %v, want %d", len(items), err, len(keys))
		}
		for i, item := range items {
			if item.Found != (want[i] != nil) || !bytes.Equal(item.Data, want[i]) {
				c.Errorf("%s = %q, %t, want %q", keys[i], item.Data, item.Found, want[i])
			}
		}
	}},
	{"GetManyOfNone", func(c *check) {
		many, _ := c.manyReader(1)
		if items, err := many.GetMany(c.ctx(), nil); err != nil || len(items) != 0 {
			c.Errorf("GetMany of no keys = %d items, %v", len(items), err)
		}
	}},
	{"GetManyTakesNoLease", func(c *check) {
		many, keys := c.manyReader(3)
		if _, err := many.GetMany(c.ctx(), keys); err != nil {
			c.Fatal(err)
		}
		for _, key := range keys {
			c.release(c.b.wins(key, long, nil))
		}
	}},
	{"GetManySeesWhatWasWritten", func(c *check) {
		// By others, since the read before: a new value, none, an older soft expiry.
		many, keys := c.manyReader(4)
		old, fresh := c.value("old"), c.value("fresh")
		for _, key := range keys {
			c.b.set(key, old, long)
		}
		read := func(when string, want ...[]byte) {
			items, err := many.GetMany(c.ctx(), keys)
			if err != nil || len(items) != len(keys) {
				c.Fatalf("%s: %d items, %v", when, len(items), err)
			}
			for i, item := range items {
				if item.Found != (want[i] != nil) || !bytes.Equal(item.Data, want[i]) {
					c.Errorf("%s: %s = %q, %t, want %q", when, keys[i], item.Data, item.Found, want[i])
				}
			}
		}
		read("at first", old, old, old, old)
		c.b.set(keys[0], fresh, long)
		c.b.invalidate(keys[1])
		c.b.expire(keys[2])
		read("after a Set, an Invalidate and an Expire", fresh, nil, c.b.get(keys[2]).Data, old)
	}},
	{"GetManyAmongForeignTypes", func(c *check) {
		// One key of another type keeps nobody from the others; it may be found or not.
		c.needs(c.h.PutForeignType != nil, "the harness has no PutForeignType")
		many, keys := c.manyReader(3)
		data := c.value("v")
		c.b.set(keys[0], data, long)
		c.h.PutForeignType(c, c.name, keys[1])
		items, err := many.GetMany(c.ctx(), keys)
		if err != nil || len(items) != len(keys) {
			c.Fatalf("GetMany = %d items, %v", len(items), err)
		}
		if !items[0].Found || !bytes.Equal(items[0].Data, data) || items[2].Found {
			c.Errorf("the others are %v and %v", items[0], items[2])
		}
		if _, err := store.Decode(items[1].Data); err == nil {
			c.Errorf("what is of another type is taken for a value: %q", items[1].Data)
		}
	}},
	{"GetManyIsTold", func(c *check) {
		// Of the next change of each key, whether it was there or not.
		c.needsPush()
		many, keys := c.manyReader(4)
		for _, key := range keys[:2] {
			c.b.set(key, c.value(key), long)
		}
		for range 2 {
			if _, err := many.GetMany(c.ctx(), keys); err != nil {
				c.Fatal(err)
			}
			c.a.heard.forget()
			c.b.invalidate(keys...)
			for _, key := range keys {
				c.a.hears(key)
			}
		}
	}},
}

// manyReader is a's session, and n keys that have one server.
func (c *check) manyReader(n int) (store.ManyReader, []string) {
	c.Helper()
	many, ok := c.a.Session.(store.ManyReader)
	c.needs(ok, "the session is no store.ManyReader")
	sharded, _ := c.a.Session.(store.Sharded)
	var keys []string
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprint("many", i)
		if sharded == nil || len(keys) == 0 || sharded.Server(key) == sharded.Server(keys[0]) {
			keys = append(keys, key)
		}
	}
	return many, keys
}
