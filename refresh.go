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
// to replace a value that local holds. It goes through the same lease and the same
// fence as every other flight, and whoever misses meanwhile joins it.
func (c *Cache[K, V]) refresh(ctx context.Context, key K, load LoadFunc[K, V], old *local.Entry[V], kind EventKind) {
	skey, err := c.storeKey(key)
	if err != nil {
		return
	}
	m := &miss[K, V]{c: c, key: key, load: load, replacing: old}
	now := c.local.Now()
	call := c.call(now, until(now, c.opts.WaitTimeout))
	call.Accept, call.Interim, call.Background = nil, m.interim, true
	f, leads := c.flights.Join(skey, call)
	if !leads {
		return
	}
	m.f = f
	c.startRefresh(ctx, m, kind)
}

// startRefresh sends a refresh off. It belongs to nobody's load, also if a loader's
// call has set it off: that load does not wait for it and lends it no place.
func (c *Cache[K, V]) startRefresh(ctx context.Context, m *miss[K, V], kind EventKind) {
	m.takeOff(context.WithValue(ctx, placeKey{c}, (*place)(nil)))
	if kind == EventEarlyRefresh {
		c.stats.earlyRefreshes.Add(1)
	} else {
		c.stats.refreshes.Add(1)
	}
	c.tell(Event{Kind: kind, Key: m.f.Key, Flight: m.f.ID}) // last: an observer may not return
}

// interim is what the new flight of a refresh may give to callers meanwhile: the value
// that it is to replace, if local holds it still. It is asked under the lock of the
// key's flights: a write of this process may have come since the value was read, and
// such a value must not be served by a flight that begins after the write.
func (m *miss[K, V]) interim() *outcome[V] {
	e, _, current := m.c.local.Get(m.key)
	if e == nil || !current || !e.IsValue() || !m.same(e) {
		return nil // the store will be looked at as if by a new caller
	}
	m.old, m.oldFrom = e, SourceLocal
	return &outcome[V]{entry: e, source: SourceLocal}
}
