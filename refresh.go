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
	f, leads := c.flights.Join(skey, until(c.local.Now(), c.opts.WaitTimeout), c.joinAge(), m.interim)
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

// interim is what the new flight of a refresh may give to callers meanwhile: the value
// that it is to replace, if local holds it still. It is asked under the lock of the
// key's flights: a write of this process may have come since the value was read, and
// such a value must not be served by a flight that begins after the write.
func (m *miss[K, V]) interim() *outcome[V] {
	e, _, current := m.c.local.Get(m.key)
	if e == nil || !current || !e.IsValue() || e.Created != m.refreshing {
		m.old, m.seen = nil, nil // the store will be looked at as if by a new caller
		return nil
	}
	m.old = e
	return &outcome[V]{entry: e, source: SourceLocal}
}
