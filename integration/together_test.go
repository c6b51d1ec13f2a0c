package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/redisstore"
)

// Several caches in one process are as far apart as caches in several processes.

// pairs runs a test with two caches of one name: over one Store, and over two.
func pairs(t *testing.T, test func(t *testing.T, a, b *onefill.Cache[string, row])) {
	t.Helper()
	for _, kind := range []storeKind{viaOpen, viaNew} {
		for _, stores := range []string{"one Store", "two Stores"} {
			t.Run(string(kind)+", "+stores, func(t *testing.T) {
				first := connect(t, kind)
				second := first
				if stores == "two Stores" {
					second = connect(t, kind)
				}
				name := fmt.Sprintf("pair-%d", serial.Add(1))
				a, _ := inProcess(t, name, first)
				b, _ := inProcess(t, name, second)
				test(t, a, b)
			})
		}
	}
}

// outcome is what a Get in the background came to.
type outcome struct {
	row row
	err error
}

func getting(c *onefill.Cache[string, row], key string) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		r, err := c.Get(ctx, key)
		done <- outcome{r, err}
	}()
	return done
}

func wantRow(t *testing.T, got outcome, version int64) {
	t.Helper()
	if got.err != nil || got.row.Version != version {
		t.Errorf("got version %d, %v; want version %d", got.row.Version, got.err, version)
	}
}

func TestTwoCachesShareALoad(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *onefill.Cache[string, row]) {
		o := origin(t)
		key := o.add(t, 0)
		load := o.close(t, key)
		first := getting(a, key)
		poll(t, "a loads", func() bool { return o.loads(t, key) == 1 })
		second := getting(b, key)
		poll(t, "b waits for a's lease", func() bool { return b.Stats().LeaseWaits == 1 })
		load.open()
		wantRow(t, <-first, 1)
		wantRow(t, <-second, 1)
		o.wantLoads(t, 1, key)
		if a, b := a.Stats(), b.Stats(); a.Loads != 1 || b.Loads != 0 || b.StoreHits != 1 {
			t.Errorf("a has %d loads, b %d and %d store hits; want 1, 0 and 1", a.Loads, b.Loads, b.StoreHits)
		}
	})
}

// What a writes, b hears, although both may read over the same connection, which does
// not tell itself of its own writes.
func TestTwoCachesHearEachOther(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *onefill.Cache[string, row]) {
		o := origin(t)
		key := o.add(t, 0)
		for round := range 20 {
			writer, reader := a, b
			if round%2 == 1 {
				writer, reader = b, a
			}
			for _, c := range []*onefill.Cache[string, row]{a, b} {
				wantRow(t, <-getting(c, key), o.version(t, key)) // in both locals
			}
			version := o.write(t, key)
			write := func() error { return writer.Invalidate(t.Context(), key) }
			if round%4 >= 2 {
				write = func() error { return writer.Set(t.Context(), key, row{Value: "set", Version: version}) }
			}
			if err := write(); err != nil {
				t.Fatal(err)
			}
			wantRow(t, <-getting(writer, key), version)
			begin := time.Now()
			poll(t, "the other cache has the new row", func() bool { return (<-getting(reader, key)).row.Version == version })
			if took := time.Since(begin); took > slack() {
				t.Errorf("the other cache had the old row for %v", took)
			}
		}
	})
}

// a loads v1; the row becomes v2 and b invalidates; a's fill comes late. Later callers
// of both do not join a's flight, and its value is stored nowhere.
func TestTwoCachesVoidEachOther(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *onefill.Cache[string, row]) {
		o := origin(t)
		key := o.add(t, 0)
		old := o.close(t, key)
		first := getting(a, key)
		poll(t, "a loads", func() bool { return o.loads(t, key) == 1 })
		o.unset(t, key)
		o.write(t, key)
		if err := b.Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		// The push reaches a soon; who comes after it starts anew.
		poll(t, "a's later callers do not join the old flight", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			r, err := a.Get(ctx, key)
			return err == nil && r.Version == 2
		})
		wantRow(t, <-getting(b, key), 2)
		old.open()
		wantRow(t, <-first, 1)
		wantRow(t, <-getting(a, key), 2)
		wantRow(t, <-getting(b, key), 2)
		o.wantLoads(t, 2, key)
	})
}

// Caches of different names share a server and nothing else, whatever their names and
// keys look like when they are put one after the other.
func TestNamesDoNotMeet(t *testing.T) {
	o := origin(t)
	st := connect(t, viaOpen)
	key := o.add(t, 0)
	names := []string{"names", "names2", "names.l", "other"}
	caches := make([]*onefill.Cache[string, row], len(names))
	for i, name := range names {
		caches[i], _ = inProcess(t, name, st)
	}
	for i, c := range caches {
		wantRow(t, <-getting(c, key), 1)
		o.wantLoads(t, i+1, key)
	}
	o.write(t, key)
	if err := caches[0].Invalidate(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	wantRow(t, <-getting(caches[0], key), 2)
	for _, c := range caches[1:] {
		wantRow(t, <-getting(c, key), 1) // nobody told it
	}
	strange(t, st)
}

// strange sets keys that could meet if names and keys were joined carelessly.
func strange(t *testing.T, st *redisstore.Store) {
	t.Helper()
	caches := map[string]*onefill.Cache[string, row]{}
	for _, name := range []string{"a", "a-b"} {
		caches[name], _ = inProcess(t, name, st)
	}
	strangers := []string{"b:c", ":b:c", "c", "}:l", "}", "{a:c}", "c}:l", "a\r\nDEL c", "\x00"}
	for name, c := range caches {
		for i, key := range strangers {
			if err := c.Set(t.Context(), key, row{Value: name, Version: int64(i)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name := range caches {
		fresh, _ := inProcess(t, name, st) // with an empty local
		for i, key := range strangers {
			got, err := fresh.GetOrLoad(t.Context(), key, func(context.Context, string) (row, error) {
				return row{}, errors.New("it is not in the store")
			})
			if want := (row{Value: name, Version: int64(i)}); err != nil || got != want {
				t.Errorf("cache %q, key %q: got %v, %v; want %v", name, key, got, err, want)
			}
		}
	}
}
