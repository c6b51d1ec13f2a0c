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
