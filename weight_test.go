package onefill_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// Where the size is in bytes, large values take the place of many small ones, whatever
// their number; what has expired, or was read from the store, counts as well.
func TestLocalSizeInBytes(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		size := 1000
		c := newCache(t, with(options{TTL: time.Hour, Local: onefill.LocalOptions{MaxBytes: 200_000},
			Load: func(context.Context, string) (string, error) { return strings.Repeat("x", size), nil }}, st))
		for round := range 2 {
			for i := range 1000 {
				if _, err := c.Get(bg, fmt.Sprint("small", i)); err != nil {
					t.Fatal(err)
				}
			}
			s := c.Stats()
			// 1,000 bytes, a key, and 256
			if s.LocalBytes > 220_000 || s.LocalBytes < 100_000 {
				t.Errorf("round %d: %d bytes in %d entries", round, s.LocalBytes, s.LocalEntries)
			}
		}
		size = 150_000
		for i := range 5 {
			if _, err := c.Get(bg, fmt.Sprint("large", i)); err != nil {
				t.Fatal(err)
			}
		}
		if s := c.Stats(); s.LocalBytes > 220_000 {
			t.Errorf("%d bytes with large values", s.LocalBytes)
		}
	})
}

// The user's own weights count, for Set as well.
func TestWeigh(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCache(t, options{TTL: time.Hour, Local: onefill.LocalOptions{MaxBytes: 100},
			Weigh: func(k, _ string) int {
				if k == "heavy" {
					return 1 << 40
				}
				return -1 // counts as 1
			}})
		must(t, c.Set(bg, "heavy", "v"))
		for i := range 1000 {
			must(t, c.Set(bg, fmt.Sprint(i), "v"))
		}
		peek(t, c, "heavy", "")
		peek(t, c, "999", "v")
		if s := c.Stats(); s.LocalBytes < 50 || s.LocalBytes > 150 {
			t.Errorf("%d bytes", s.LocalBytes)
		}
	})
}

func TestWeightOptions(t *testing.T) {
	type row struct{}
	for want, o := range map[string]onefill.Options[string, row]{
		"Weigh is nil":                {Local: onefill.LocalOptions{MaxBytes: 1}},
		"MaxBytes is negative":        {Local: onefill.LocalOptions{MaxBytes: -1}},
		"are both set":                {Local: onefill.LocalOptions{MaxBytes: 1, MaxEntries: 1}},
		"Local.MaxBytes is not":       {Weigh: func(string, row) int { return 1 }},
		"MaxLoadsWaiting is negative": {MaxLoadsWaiting: -1},
	} {
		if _, err := onefill.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}
