package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/onefill/onefill/store"
)

// keys that have broken other caches.
func oddKeys() []string {
	return []string{
		"", "k", "k:l", "k}", "k}:l", "{k}", "{k}:l", "}{", "{", "}", "k:f", ":l", "K", "k ", " k",
		"a b", "a\r\nb", "a\nb", "a\x00b", "a\x00", "\x00", "a\tb", "\x7f", "ключ", "鍵", "🔑", "\xff\xfe", "*", "?", "[k]", "k*", "%s", "a/b", "a\\b",
		"1", "01", "-1", "k\r\nset x 0 0 1\r\ny", "c2Fs", "YWJj", "a-b", "a_b",
		strings.Repeat("x", 250), strings.Repeat("x", 251), strings.Repeat("x", 250) + "y", strings.Repeat("x", 5000), strings.Repeat("x", 5001),
		strings.Repeat("é", 125), strings.Repeat(" ", 250),
	}
}

// values that have broken other caches.
func (c *check) oddValues() map[string][]byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	values := map[string][]byte{
		"empty": {}, "NUL": {0}, "one byte": {'x'}, "star": []byte("*"), "CR LF": []byte("\r\n"), "END": []byte("END\r\n"),
		"all bytes": all, "nil text": []byte("nil"), "like a token": make([]byte, 16), "like a lease": append([]byte("t"), make([]byte, 16)...),
		"like a failure": []byte("fdown"), "like an envelope": []byte("1f"), "a number": []byte("42"),
		"envelope": c.value("v"), "empty envelope": c.value(""), "16 KiB": bytes.Repeat(all, 64),
	}
	if size := 1 << 20; c.f.MaxValueBytes == 0 || c.f.MaxValueBytes >= size {
		values["1 MiB"] = bytes.Repeat(all, size/len(all))
	} else {
		values["the largest"] = bytes.Repeat([]byte{'x'}, c.f.MaxValueBytes)
	}
	return values
}

var contents = []test{
	{"OddValues", func(c *check) {
		for name, data := range c.oddValues() {
			c.a.set("set "+name, data, long)
			c.b.holds("set "+name, data)
			c.accepts(c.a.wins("fill "+name, long, nil), data)
			c.b.holds("fill "+name, data)
			hit := c.b.finds(store.Hit, "fill "+name, nil)
			if !bytes.Equal(hit.Item.Data, data) {
				c.Errorf("%s: a hit with %s", name, show(hit.Item))
			}
			// The value's mark replaces it, like any value's.
			c.release(c.b.wins("fill "+name, long, store.MarkOf(data)))
		}
	}},
	{"OddKeys", func(c *check) {
		// Each key is a key of its own: for values, for leases, for Invalidate.
		keys := c.allowed(oddKeys())
		leases := make([]store.Lease, len(keys))
		for i, key := range keys {
			leases[i] = c.a.wins(key, long, nil)
		}
		values := make([][]byte, len(keys))
		for i, key := range keys {
			values[i] = c.value(fmt.Sprint(i))
			c.b.absent(key)
			c.b.finds(store.Held, key, nil)
			c.accepts(leases[i], values[i])
		}
		for i, key := range keys {
			c.b.holds(key, values[i])
		}
		for i, key := range keys {
			c.b.invalidate(key)
			c.a.absent(key)
			for j := i + 1; j < len(keys); j++ {
				c.a.holds(keys[j], values[j])
			}
		}
	}},
	{"OddKeysAreTold", func(c *check) {
		c.needsPush()
		for _, key := range c.allowed(oddKeys()) {
			c.a.get(key)
			c.b.set(key, c.value("v"), long)
			c.a.hears(key)
		}
	}},
	{"BytesAreCopied", func(c *check) {
		// Neither what was given nor what was got is the stored value itself.
		given := c.value("given")
		want := bytes.Clone(given)
		c.a.set("k", given, long)
		scribble(given)
		c.a.holds("k", want)
		scribble(c.a.get("k").Data)
		c.a.holds("k", want)
		scribble(c.a.finds(store.Hit, "k", nil).Item.Data)
		c.a.holds("k", want)

		given = bytes.Clone(want)
		c.accepts(c.a.wins("fill", long, nil), given)
		scribble(given)
		c.a.holds("fill", want)

		record := []byte("record")
		c.fail(c.a.wins("fail", long, nil), record, long)
		scribble(record)
		scribble(c.a.finds(store.Failed, "fail", nil).Failure)
		if failed := c.a.finds(store.Failed, "fail", nil); string(failed.Failure) != "record" {
			c.Errorf("the record became %q", failed.Failure)
		}
	}},
	{"TooLargeValue", func(c *check) {
		limit := c.f.MaxValueBytes
		c.needs(limit > 0, "the store declares no MaxValueBytes")
		old := c.value("old")
		c.a.set("k", old, long)
		data := make([]byte, limit+1)
		_, err := c.a.Set(c.ctx(), "k", data, long)
		c.tooLarge("Set", err)
		c.b.invalidate("k")
		lease := c.a.wins("k", long, nil)
		_, err = lease.Fill(c.ctx(), data, long)
		c.tooLarge("Fill", err)
		_, err = lease.Release(c.ctx())
		c.ok("Release", err)
		c.accepts(c.b.wins("k", long, nil), old)
	}},
	{"TooLargeKey", func(c *check) {
		limit := c.f.MaxKeyBytes
		c.needs(limit > 0, "the store declares no MaxKeyBytes")
		c.a.set(strings.Repeat("k", limit), c.value("v"), long)
		key := strings.Repeat("k", limit+1)
		_, err := c.a.Get(c.ctx(), key)
		c.tooLarge("Get", err)
		_, err = c.a.Acquire(c.ctx(), key, store.Request{Token: store.NewToken(), TTL: long})
		c.tooLarge("Acquire", err)
		_, err = c.a.Set(c.ctx(), key, c.value("v"), long)
		c.tooLarge("Set", err)
		c.tooLarge("Invalidate", c.a.Invalidate(c.ctx(), key))
	}},
}

func (c *check) tooLarge(what string, err error) {
	c.Helper()
	if e := c.fails(what, err); !errors.Is(e, store.ErrTooLarge) || e.Unavailable {
		c.Errorf("%s: error %v, want one that wraps store.ErrTooLarge and is not an unavailable one", what, e)
	}
}

// allowed leaves out keys that the store declares to be too long.
func (c *check) allowed(keys []string) []string {
	var allowed []string
	for _, key := range keys {
		if c.f.MaxKeyBytes == 0 || len(key) <= c.f.MaxKeyBytes {
			allowed = append(allowed, key)
		} else {
			c.Logf("left out: a key of %d bytes, the store declares a limit of %d", len(key), c.f.MaxKeyBytes)
		}
	}
	return allowed
}

func scribble(data []byte) {
	for i := range data {
		data[i] ^= 0x55
	}
}
