package onefill

import (
	"context"
	"time"

	"github.com/onefill/onefill/internal/local"
)

// dueEarly draws whether this reader refreshes the value before it expires.
func (c *Cache[K, V]) dueEarly(e *local.Entry[V], now int64) bool {
	if c.opts.EarlyRefresh == 0 || !e.IsValue() {
		return false
	}
	early := earlyBy(time.Duration(e.Cost)*time.Microsecond, c.opts.EarlyRefresh)
	return until(now, early) >= e.Soft
}

// refresh starts a flight for the key in the background, unless one is in the air,
// to replace a value that local holds.
func (c *Cache[K, V]) refresh(ctx context.Context, key K, load LoadFunc[K, V], old *local.Entry[V], kind EventKind) {
	c.refreshAs(ctx, &miss[K, V]{c: c, key: key, load: load, old: old, refreshing: old.Created}, kind)
}

// refreshAs starts m in the background. It goes through the same lease and the same
// fence as every other flight, and whoever misses meanwhile joins it.
func (c *Cache[K, V]) refreshAs(ctx context.Context, m *miss[K, V], kind EventKind) {
	skey, err := c.storeKey(m.key)
	if err != nil {
		return
	}
	f, leads := c.flights.Join(skey, until(c.local.Now(), c.opts.WaitTimeout), c.joinAge())
	if !leads {
		if m.lease != nil { // another flight waits for it
			c.releaseLater(ctx, skey, m.lease)
		}
		return
	}
	if kind == EventEarlyRefresh {
		c.stats.earlyRefreshes.Add(1)
	} else {
		c.stats.refreshes.Add(1)
	}
	c.tell(Event{Kind: kind, Key: skey})
	m.f = f
	m.takeOff(ctx)
}
