package onefill

import (
	"fmt"
	"slices"

	"github.com/onefill/onefill/store"
)

// The arithmetic of times to live, and the default of Options.Owner, for their own tests.
var (
	EarlyBy   = earlyBy
	Jittered  = jittered
	After     = after
	WallAfter = wallAfter
	OwnerOf   = ownerOf
)

// Features are those of the cache's store.
func (c *Cache[K, V]) Features() store.Features { return c.remote.session.Features() }

// MaxEntries is the size of the local cache, with its default.
func (c *Cache[K, V]) MaxEntries() int { return c.opts.Local.MaxEntries }

// TagsApart says whether each of the tags, and each of the keys, has a stripe of local to
// itself: where two share one, an invalidation of one drops the other from local, too, and a
// test that says what is dropped cannot say so.
func (c *Cache[K, V]) TagsApart(keys, tags []string) bool {
	names := slices.Clone(keys)
	for _, tag := range append([]string{wholeCache}, tags...) {
		names = append(names, tagStripe(tag))
	}
	for i, a := range names {
		for _, b := range names[:i] {
			if c.local.Together(a, b) {
				return false
			}
		}
	}
	return true
}

// InFlight counts flights and writes that have not ended.
func (c *Cache[K, V]) InFlight() int { return c.flights.InFlight() }

// DefaultKey is the key function of a type, nil if it has none.
func DefaultKey[K comparable]() func(K) string { return defaultKey[K]() }

// CodecID is what the envelope keeps of a codec's name.
func CodecID(name string) uint32 { return codecID(name) }

// Validate walks the whole cache when nothing should be going on and says what is
// left over or inconsistent. Every test ends with it.
func (c *Cache[K, V]) Validate() []string {
	wrong := c.flights.Check()
	if n := c.flights.InFlight(); n != 0 {
		wrong = append(wrong, fmt.Sprintf("%d flights or writes are still in the air", n))
	}
	if at := c.slots.State(); at.Used != 0 || at.Waiting != 0 || at.Limit < c.opts.MaxLoadsDegraded || at.Limit > c.opts.MaxLoads {
		wrong = append(wrong, fmt.Sprintf("slots: %d used, %d waiting, limit %d", at.Used, at.Waiting, at.Limit))
	}
	if at := c.alone.State(); at.Used != 0 || at.Waiting != 0 || at.Strays != 0 {
		wrong = append(wrong, fmt.Sprintf("slots for loads without a lease: %d used, %d waiting, %d strays", at.Used, at.Waiting, at.Strays))
	}
	s := c.Stats()
	if s.LocalEntries > c.opts.Local.MaxEntries && c.opts.Local.MaxBytes == 0 {
		wrong = append(wrong, fmt.Sprintf("%d local entries, at most %d are allowed", s.LocalEntries, c.opts.Local.MaxEntries))
	}
	if c.opts.LoadMany != nil {
		return wrong // one call of LoadMany counts as one load, and has many fills
	}
	if s.Fills+s.FillsRefused > s.Loads {
		wrong = append(wrong, fmt.Sprintf("%d fills and %d refusals of %d loads", s.Fills, s.FillsRefused, s.Loads))
	}
	if s.LoadErrors > s.Loads || s.Panics > s.LoadErrors {
		wrong = append(wrong, fmt.Sprintf("%d loads, %d errors, %d panics", s.Loads, s.LoadErrors, s.Panics))
	}
	return wrong
}

// KeepDebts bounds what is kept of writes that the store may lack to n short keys.
func (c *Cache[K, V]) KeepDebts(n int) { c.debts.most = n * (debtOverhead + 8) }
