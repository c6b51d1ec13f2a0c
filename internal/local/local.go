// Package local is the in-process cache: otter (W-TinyLFU), and the stamps by
// which an entry knows that it may have become old.
//
// A push names a key as a string, entries are found by K, and there is no way
// back from one to the other. So pushes raise a counter of a stripe of keys, and
// an entry carries the counter's value from before it was read: a push drops it
// by making that value old, in one atomic step, whether the entry is there yet
// or not. A stripe is shared by a few keys; an entry that is dropped because of
// its neighbour costs a look at the store, and nothing else, since only caches
// with a store hear pushes. Drops by this process's own writes are exact.
//
// Moments are this package's business, not otter's: its expiry would cost a hit a second
// reading of the clock, and an entry 24 bytes. What has expired is dropped by a sweep (see
// sweep.go), which is what otter's timer wheel would be for.
package local

import (
	"hash/maphash"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
)

// Entry is what local holds of a key. It is immutable once it is stored, and callers share
// it. Moments are those of the cache's clock.
type Entry[V any] struct {
	// What a hit looks at comes first: a cache line, if the value is small.
	Value   V
	Soft    int64 // the value's soft expiry
	Trusted int64 // the end of Local.TTL: until then an invalidation elsewhere may go unnoticed
	Rare    *Rare // nil for an ordinary value
	Stamp   Stamp
	Cost    uint32 // of the load, microseconds
	Created int64  // Unix microseconds
}

// Rare is what few entries have.
type Rare struct {
	Absent bool // there is no value: only a failure is remembered, or that the store cannot hold it
	// NotFound: the origin said that the row does not exist.
	NotFound bool
	// Failure of the last load, remembered until FailedUntil: until then nobody loads.
	Failure     error
	FailedUntil int64
	// Private: the failure says something about a context. It holds back the loads that
	// somebody can do without, and is told to nobody.
	Private bool
	// Failures is how many loads have failed in a row, and counts until CountedUntil.
	Failures     uint64
	CountedUntil int64
	RowVersion   uint64
	Weight       uint32 // where the size is in bytes
	// Doubted: what the entry holds was read before a break. It was stored again, with a current
	// stamp, for the sake of the failure, and counts only while the store cannot be asked.
	Doubted bool
	// Tags are the stamps of what else the entry depends on: a push on one of them drops it.
	Tags []Stamp
}

// Has says that the entry holds an answer of the origin, be it that the row does
// not exist; otherwise it only remembers a failure.
func (e *Entry[V]) Has() bool { return e.Rare == nil || !e.Rare.Absent }

// IsValue says that the entry holds a value.
func (e *Entry[V]) IsValue() bool { return e.Rare == nil || !e.Rare.Absent && !e.Rare.NotFound }

// Plain says that the entry is a value and nothing else is to be known about it.
func (e *Entry[V]) Plain() bool {
	return e.Rare == nil || !e.Rare.Absent && !e.Rare.NotFound && e.Rare.Failure == nil
}

// Fresh says whether the entry needs no question at that moment: neither its soft expiry nor
// the end of Local.TTL has come.
func (e *Entry[V]) Fresh(now int64) bool { return now < e.Soft && now < e.Trusted }

// FailureAt is the failure that is remembered at that moment for those who ask, or nil.
func (e *Entry[V]) FailureAt(now int64) error {
	if !e.HeldBack(now) || e.Rare.Private {
		return nil
	}
	return e.Rare.Failure
}

// HeldBack says whether a load has failed so lately that nobody tries again who has a
// stale value.
func (e *Entry[V]) HeldBack(now int64) bool { return e.Rare != nil && now < e.Rare.FailedUntil }

// FailuresAt is how many loads have failed in a row, as far as it counts at that moment.
func (e *Entry[V]) FailuresAt(now int64) uint64 {
	if e.Rare == nil || now >= e.Rare.CountedUntil {
		return 0
	}
	return e.Rare.Failures
}

// Doubted says that the entry may be old although its stamp is current.
func (e *Entry[V]) Doubted() bool { return e.Rare != nil && e.Rare.Doubted }

// RowVersion is the row's own version, 0 if it has none.
func (e *Entry[V]) RowVersion() uint64 {
	if e.Rare == nil {
		return 0
	}
	return e.Rare.RowVersion
}

// Weight is what the entry weighs, 0 where entries are counted.
func (e *Entry[V]) Weight() uint32 {
	if e.Rare == nil {
		return 0
	}
	return e.Rare.Weight
}

// Tags are the stamps of the entry's tags.
func (e *Entry[V]) Tags() []Stamp {
	if e.Rare == nil {
		return nil
	}
	return e.Rare.Tags
}

// Stamp is the state of what pushes have said, before an entry was read.
type Stamp struct {
	stripe uint32
	pushes uint32 // of the stripe
	breaks uint32 // of the connection
}

// Cache is the in-process cache. The zero value of entries' windows is the
// caller's business; Cache decides only whether a stamp is current.
type Cache[K comparable, V any] struct {
	otter   *otter.Cache[K, *Entry[V]] // nil: nothing is kept
	base    time.Time                  // of the clock
	most    int64                      // weight, 0 where entries are counted
	grace   time.Duration              // how long entries are kept after their soft expiry
	seed    maphash.Seed
	stripes []atomic.Uint32
	breaks  atomic.Uint32 // raised when pushes may have been missed
	floor   atomic.Uint32 // entries from before this break are gone for good
	sweeper sweeper
}

const maxStripes = 1 << 18

// Options of a Cache.
type Options struct {
	// MaxEntries is the size, or MaxWeight is, in whatever entries weigh. Both 0: a cache
	// that keeps nothing.
	MaxEntries int
	MaxWeight  int64
	// Grace is how long after its soft expiry an entry is kept.
	Grace time.Duration
	// Shared: pushes will come, so stripes are needed.
	Shared bool
}

// New returns an empty cache.
func New[K comparable, V any](o Options) *Cache[K, V] {
	c := &Cache[K, V]{
		base:    time.Now().Add(-time.Hour), // so that no moment is 0 or negative
		grace:   o.Grace,
		most:    o.MaxWeight,
		seed:    maphash.MakeSeed(),
		stripes: make([]atomic.Uint32, 1),
	}
	c.sweeper.left.Store(sweepAfter)
	if o.Shared {
		n := 256
		for n < 4*o.entries() && n < maxStripes {
			n *= 2
		}
		c.stripes = make([]atomic.Uint32, n)
	}
	if o.MaxEntries == 0 && o.MaxWeight == 0 {
		return c
	}
	oo := &otter.Options[K, *Entry[V]]{MaximumSize: o.MaxEntries}
	if o.MaxWeight > 0 {
		oo.MaximumSize, oo.MaximumWeight = 0, uint64(o.MaxWeight)
		// It runs under a lock of otter's: the entry was weighed before.
		oo.Weigher = func(_ K, e *Entry[V]) uint32 { return max(e.Weight(), 1) }
	}
	c.otter = otter.Must(oo)
	return c
}

// entries is about how many there will be.
func (o *Options) entries() int {
	const typical = 1 << 10 // of a weight in bytes
	return max(o.MaxEntries, int(min(o.MaxWeight/typical, maxStripes)))
}

// end is the moment after which no option allows to serve the entry.
func (c *Cache[K, V]) end(e *Entry[V]) int64 {
	end := int64(0)
	switch {
	case !e.Has():
	case c.grace == 0:
		end = min(e.Soft, e.Trusted)
	case e.Soft > math.MaxInt64-int64(c.grace):
		return math.MaxInt64
	default:
		end = e.Soft + int64(c.grace)
	}
	if e.Rare != nil {
		end = max(end, e.Rare.FailedUntil, e.Rare.CountedUntil)
	}
	return end
}

// At is a moment on the cache's clock.
func (c *Cache[K, V]) At(t time.Time) int64 { return int64(t.Sub(c.base)) }

// Now is the moment on the cache's clock, which is the runtime's monotonic one.
func (c *Cache[K, V]) Now() int64 { return int64(time.Since(c.base)) }

// Sight is what a look at a key has found.
type Sight[V any] struct {
	// Entry is what is kept of the key, or nil. [Cache.Kept] says what it is good for.
	Entry *Entry[V]
	// At is when the look began; to read the clock after it would be to wait for it.
	At int64
}

// Look is the hot path: it reads the clock once and allocates nothing. It is a hit if the
// entry can be served and nothing else is to be done: a value, fresh and current, after which
// no load has failed.
func (c *Cache[K, V]) Look(k K) (s Sight[V], hit bool) {
	s.At = c.Now()
	if c.otter == nil {
		return s, false
	}
	s.Entry, _ = c.otter.GetIfPresent(k)
	e := s.Entry
	return s, e != nil && e.Fresh(s.At) && c.Current(e.Stamp) && (e.Rare == nil || e.Plain() && c.CurrentEntry(e))
}

// Kept returns an entry, unless it may not be served in any case. It is current if no push
// and no break of the connection has come since before it was read; an entry that is not
// current, or is doubted, may be old, and only StaleFor and StaleOnError can allow to serve it.
func (c *Cache[K, V]) Kept(e *Entry[V], now int64) (kept *Entry[V], current bool) {
	if e == nil || now >= c.end(e) {
		return nil, false
	}
	there, current := c.holds(e.Stamp)
	if e.Rare != nil {
		for _, s := range e.Rare.Tags {
			still, now := c.holds(s)
			there, current = there && still, current && now
		}
	}
	if !there {
		return nil, false
	}
	return e, current && !e.Doubted()
}

// Doubt is a copy of an entry that local takes although a break has come since it was read, or
// nil if the entry is gone for good. at was taken after the break: if another one comes, or a
// push, local will not take it.
func (c *Cache[K, V]) Doubt(e *Entry[V], at Stamp) *Entry[V] {
	if kept, _ := c.Kept(e, c.Now()); kept == nil {
		return nil
	}
	rare := Rare{}
	if e.Rare != nil {
		rare = *e.Rare
	}
	rare.Doubted, rare.Tags = true, slices.Clone(rare.Tags)
	for i := range rare.Tags {
		rare.Tags[i].breaks = at.breaks
	}
	doubted := *e
	doubted.Rare, doubted.Stamp.breaks = &rare, at.breaks
	return &doubted
}

// Get is [Cache.Look] and [Cache.Kept], for those who want to know more than whether it is a hit.
func (c *Cache[K, V]) Get(k K) (e *Entry[V], now int64, current bool) {
	s, _ := c.Look(k)
	e, current = c.Kept(s.Entry, s.At)
	return e, s.At, current
}

// holds says whether what was read under the stamp may be there still, and whether it is
// current.
func (c *Cache[K, V]) holds(s Stamp) (there, current bool) {
	if c.stripes[s.stripe].Load() != s.pushes {
		return false, false
	}
	if c.breaks.Load() == s.breaks {
		return true, true
	}
	return s.breaks >= c.floor.Load(), false
}

// Stamp is taken before the store is asked, and goes into the entry that is made
// of the answer.
func (c *Cache[K, V]) Stamp(key string) Stamp {
	s := Stamp{breaks: c.breaks.Load()}
	if len(c.stripes) > 1 {
		s.stripe = uint32(maphash.String(c.seed, key)) & uint32(len(c.stripes)-1)
	}
	s.pushes = c.stripes[s.stripe].Load()
	return s
}

// Together says whether a push on one of two keys drops the other, too.
func (c *Cache[K, V]) Together(a, b string) bool { return c.Stamp(a).stripe == c.Stamp(b).stripe }

// Current says whether nothing has been heard since the stamp was taken.
func (c *Cache[K, V]) Current(s Stamp) bool {
	return c.stripes[s.stripe].Load() == s.pushes && c.breaks.Load() == s.breaks
}

// CurrentEntry says whether nothing has been heard that the entry depends on.
func (c *Cache[K, V]) CurrentEntry(e *Entry[V]) bool {
	if !c.Current(e.Stamp) {
		return false
	}
	if e.Rare != nil {
		for _, s := range e.Rare.Tags {
			if !c.Current(s) {
				return false
			}
		}
	}
	return true
}

// Put stores an entry. An entry whose stamp is not current is left out, as it
// could not be served and might replace one that can; so is one that weighs more than
// everything may.
func (c *Cache[K, V]) Put(k K, e *Entry[V]) {
	switch {
	case c.otter == nil || !c.CurrentEntry(e):
	case c.most > 0 && int64(e.Weight()) > c.most: // it would drive everything else out
		c.otter.Invalidate(k)
	default:
		c.otter.Set(k, e)
		c.maySweep()
	}
}

// Keeps says whether anything is kept at all.
func (c *Cache[K, V]) Keeps() bool { return c.otter != nil }

// Drop removes the entry of k: this process's own writes do.
func (c *Cache[K, V]) Drop(k K) {
	if c.otter != nil {
		c.otter.Invalidate(k)
	}
}

// Pushed drops what was read under key before now: somebody else has changed it.
func (c *Cache[K, V]) Pushed(key string) {
	if len(c.stripes) > 1 {
		c.stripes[uint32(maphash.String(c.seed, key))&uint32(len(c.stripes)-1)].Add(1)
	}
}

// Broken says that pushes may have been missed: no entry is current any more.
func (c *Cache[K, V]) Broken() { c.breaks.Add(1) }

// Mended says that the store answers again after a break: what is older than the
// answer is gone for good, since it may have been invalidated unheard.
//
// The floor comes first: else [Cache.Doubt], in between, would find an old entry there still,
// and stamp it as one from after the break.
func (c *Cache[K, V]) Mended() {
	for {
		breaks := c.breaks.Load()
		for floor := c.floor.Load(); floor <= breaks && !c.floor.CompareAndSwap(floor, breaks+1); {
			floor = c.floor.Load()
		}
		if c.breaks.CompareAndSwap(breaks, breaks+1) {
			return
		}
	}
}

// Len is the number of entries, including some that have expired.
func (c *Cache[K, V]) Len() int {
	if c.otter == nil {
		return 0
	}
	return c.otter.EstimatedSize()
}

// Weight is what the entries weigh together, about; 0 where they are counted.
func (c *Cache[K, V]) Weight() uint64 {
	if c.otter == nil || !c.otter.IsWeighted() {
		return 0
	}
	return c.otter.WeightedSize()
}

// Close frees what the cache holds.
func (c *Cache[K, V]) Close() {
	if c.otter != nil {
		c.sweeper.stop()
		c.otter.InvalidateAll()
		c.otter.StopAllGoroutines()
	}
}
