package onefill

import (
	"context"

	"github.com/onefill/onefill/internal/flight"
	"github.com/onefill/onefill/internal/local"
	"github.com/onefill/onefill/store"
)

// manyLook is one look at the store for many flights that a call leads. Most of them end
// with it, so it makes for them only what they need for that: a [miss] is made for those
// that are not over with a fresh value.
type manyLook[K comparable, V any] struct {
	c     *Cache[K, V]
	seats []*seat[K, V]
	keys  []string

	asked   int64  // as in miss
	reopens uint64 // as in miss
	items   []store.Item
	at      moment
	room    []local.Entry[V] // for as many, if local keeps none of them
}

// look looks at the store for all flights that the call leads, if the store can do that at
// once. It is their leader's own look, as taxi is for one: those that it does not land have
// to take off.
func (g *gathering[K, V]) look(ctx context.Context) {
	c := g.c
	if g.leads < 2 || c.remote == nil || c.remote.many == nil || c.debts.count() > 0 || c.lookTakes("") > c.opts.WaitTimeout {
		return
	}
	l := &manyLook[K, V]{c: c, seats: make([]*seat[K, V], 0, g.leads), keys: make([]string, 0, g.leads)}
	for i := range g.seats {
		s := &g.seats[i]
		if !s.leads || g.sight(s.key).Entry != nil && s.leg(ctx, c, (*miss[K, V]).localAgain) {
			continue
		}
		l.seats, l.keys = append(l.seats, s), append(l.keys, s.f.Key)
	}
	if len(l.seats) == 0 {
		return
	}
	l.ask()
	var errOf func(int) error
	l.items, errOf = c.remote.getMany(ctx, l.keys)
	c.learnTags(ctx, l.items)
	l.at = c.moment()
	for next := 0; next < len(l.seats); {
		next = l.landFresh(next)
	}
	for i, s := range l.seats {
		if s.landed {
			continue
		}
		s.leg(ctx, c, func(m *miss[K, V]) (outcome[V], bool) {
			m.stamp, m.asked, m.reopens = s.stamp, l.asked, l.reopens
			return m.found(ctx, itemAt(l.items, i), errOf(i), l.at)
		})
	}
}

// ask is what is done before the store is asked, as in miss.
func (l *manyLook[K, V]) ask() {
	l.reopens, l.asked = l.c.debts.reopens.Load(), l.c.local.Now()
	for i, s := range l.seats {
		s.stamp = l.c.local.Stamp(l.keys[i])
	}
}

// landFresh lands the flights from one of them on that have found a fresh value; found does
// the same for one, and everything else. It returns before the end if a codec or Weigh has
// panicked: that key goes the long way too, where this is dealt with.
func (l *manyLook[K, V]) landFresh(from int) (next int) {
	c := l.c
	if c.tags != nil { // whether a value is valid may have to be asked
		return len(l.seats)
	}
	defer func() { _ = recover() }()
	for next = from; next < len(l.seats); {
		i, s := next, l.seats[next]
		next++
		item := itemAt(l.items, i)
		if !item.Found || c.debts.reopens.Load() != l.reopens {
			continue
		}
		e, _, err := c.decode(l.roomAt(i), s.key, item.Data, s.stamp, l.asked, l.at)
		if err != nil || !e.Has() || l.at.local >= e.Soft {
			continue
		}
		out := c.storeHit(s.f, e)
		var publish func()
		if c.local.Keeps() {
			publish = func() { c.put(s.key, e) }
		}
		s.landed = true
		c.flights.Land(s.f, out, publish, nil)
	}
	return next
}

// roomAt is where an entry can be made: in a piece of memory for all of them, unless local
// would keep it for one of them.
func (l *manyLook[K, V]) roomAt(i int) *local.Entry[V] {
	if l.c.local.Keeps() {
		return new(local.Entry[V])
	}
	if l.room == nil {
		l.room = make([]local.Entry[V], len(l.seats))
	}
	return &l.room[i]
}

// itemAt is an item of many, if there are any.
func itemAt(items []store.Item, i int) store.Item {
	if items == nil {
		return store.Item{}
	}
	return items[i]
}

// seat is a call's place in a flight.
type seat[K comparable, V any] struct {
	key K
	f   *flight.Flight[outcome[V]]
	// leads: the call leads the flight. landed: it has landed it itself, and nobody has waited.
	leads, landed bool
	stamp         local.Stamp // as in miss, of a flight that the call leads
	m             *miss[K, V] // of such a flight once it is needed
}

// miss is the work of the flight, which the call leads.
func (s *seat[K, V]) miss(c *Cache[K, V]) *miss[K, V] {
	if s.m == nil {
		s.m = &miss[K, V]{c: c, f: s.f, key: s.key, load: c.loadOne}
	}
	return s.m
}

// leg is a leg of the flight before it takes off. It says whether the flight has landed.
func (s *seat[K, V]) leg(ctx context.Context, c *Cache[K, V], fn func(*miss[K, V]) (outcome[V], bool)) (landed bool) {
	m := s.miss(c)
	defer func() { s.landed = m.landed }() // also if a codec or an observer ends the goroutine: it must not land twice
	_, landed = m.leg(ctx, func(context.Context) (outcome[V], bool) { return fn(m) })
	return landed
}
