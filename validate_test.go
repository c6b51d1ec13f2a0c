package onefill

import (
	"context"
	"github.com/onefill/onefill/internal/origin"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// The validator that ends every test finds what it is there to find: each invariant is
// broken by hand, and named by it (STYLE 18).
func TestValidatorFindsBrokenCaches(t *testing.T) {
	for want, breakIt := range map[string]func(*Cache[string, string]){
		"still in the air": func(c *Cache[string, string]) { c.flights.Join("k", c.call(0, 0)) },
		"1 flights or writes": func(c *Cache[string, string]) {
			c.flights.BeginWrite("k", func() {})
		},
		"1 used": func(c *Cache[string, string]) { _, _ = c.slots.Acquire(context.Background(), nil) },
		"1 waiting": func(c *Cache[string, string]) {
			c.slots = origin.NewSlots(origin.Limits{})
			go c.slots.Acquire(c.life, nil)
			for c.slots.State().Waiting == 0 {
				runtime.Gosched()
			}
		},
		"without a lease": func(c *Cache[string, string]) { _, _ = c.alone.Acquire(context.Background(), nil) },
		"limit 0":         func(c *Cache[string, string]) { c.slots = origin.NewSlots(origin.Limits{}) },
		"at most 1 are allowed": func(c *Cache[string, string]) {
			for _, k := range []string{"a", "b", "c"} {
				_ = c.Set(context.Background(), k, "v")
			}
			c.opts.Local.MaxEntries = 1
		},
		"fills and": func(c *Cache[string, string]) { c.stats.fills.Add(1) },
		"refusals":  func(c *Cache[string, string]) { c.stats.loads.Add(1); c.stats.fillsRefused.Add(2) },
		"1 errors":  func(c *Cache[string, string]) { c.stats.loadErrors.Add(1) },
		"1 panics":  func(c *Cache[string, string]) { c.stats.panics.Add(1) },
	} {
		c, err := New(Options[string, string]{})
		if err != nil {
			t.Fatal(err)
		}
		if wrong := c.Validate(); len(wrong) != 0 {
			t.Fatalf("a sound cache: %v", wrong)
		}
		breakIt(c)
		if wrong := c.Validate(); !slices.ContainsFunc(wrong, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("Validate says %q, want %q", wrong, want)
		}
		c.end()
		c.local.Close()
	}
}
