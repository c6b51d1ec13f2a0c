package onefill

import "fmt"

// Validate walks the whole cache when nothing should be going on and says what is
// left over or inconsistent. Every test ends with it.
func (c *Cache[K, V]) Validate() []string {
	wrong := c.flights.Check()
	if n := c.flights.InFlight(); n != 0 {
		wrong = append(wrong, fmt.Sprintf("%d flights or writes are still in the air", n))
	}
	if used, limit, waiting := c.slots.State(); used != 0 || waiting != 0 || limit < 1 {
		wrong = append(wrong, fmt.Sprintf("slots: %d used, %d waiting, limit %d", used, waiting, limit))
	}
	s := c.Stats()
	if s.LocalEntries > c.opts.Local.MaxEntries {
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
