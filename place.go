package onefill

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/onefill/onefill/internal/origin"
)

// place is a load's place at the origin. A load lends it to loads of the same cache
// that are nested in it, one at a time: it waits for them, and MaxLoads outer loads
// would otherwise wait for places that only they could free. It is free when nobody
// uses it any more: the outer load may end before one that was nested in it.
type place struct {
	free     func()
	borrowed bool // from an outer load
	// spare holds a token while the place may be borrowed.
	spare chan struct{}

	mu    sync.Mutex // leaf
	lent  bool       // guarded by mu
	ended bool       // guarded by mu: the load that lends it has ended
}

// placeKey finds the place of the innermost load of a cache in a context.
type placeKey struct{ cache any }

func newPlace(free func()) *place {
	p := &place{free: free, spare: make(chan struct{}, 1)}
	p.spare <- struct{}{}
	return p
}

// borrow is called by who has received the token. It fails if the load that lends the
// place has ended meanwhile.
func (p *place) borrow() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lent = !p.ended
	return p.lent
}

// giveBack ends what borrow began.
func (p *place) giveBack() {
	p.mu.Lock()
	p.lent = false
	ended := p.ended
	if !ended {
		p.spare <- struct{}{} // there is room: this is the only token
	}
	p.mu.Unlock()
	if ended {
		p.free()
	}
}

// leave is called at the end of the load that has the place.
func (p *place) leave() {
	p.mu.Lock()
	p.ended = true
	lent := p.lent
	p.mu.Unlock()
	if !lent {
		p.free()
	}
}

// place gets a place at the origin for one load, of a flight, which leaves it when it ends. alone:
// the load has no lease although there is a store; of those there are at most
// MaxLoadsDegraded at once.
func (c *Cache[K, V]) place(ctx context.Context, skey string, flight uint64, alone bool) (*place, error) {
	patience, cancel := context.WithTimeout(ctx, c.opts.WaitTimeout/2)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	outer, _ := ctx.Value(placeKey{c}).(*place)
	own := func() {}
	if alone {
		p, err := c.placeIn(patience, c.alone, outer)
		if err != nil || p.borrowed {
			return p, c.noPlace(err, skey, flight, c.alone)
		}
		own = p.leave
	}
	p, err := c.placeIn(patience, c.slots, outer)
	if err != nil {
		own()
		return nil, c.noPlace(err, skey, flight, c.slots)
	}
	free := p.free
	p.free = func() { free(); own() }
	return p, nil
}

// placeIn waits for a place of its own or for the outer load's, if there is one,
// whichever is free first.
func (c *Cache[K, V]) placeIn(patience context.Context, slots *origin.Slots, outer *place) (*place, error) {
	var spare chan struct{}
	if outer != nil {
		spare = outer.spare
	}
	for {
		borrowed, err := slots.Acquire(patience, spare)
		switch {
		case err != nil:
			return nil, err
		case !borrowed:
			return newPlace(slots.Release), nil
		case outer.borrow():
			p := newPlace(outer.giveBack)
			p.borrowed = true
			return p, nil
		}
		spare = nil // the outer load has ended
	}
}

// noPlace turns a failure to get a place into what the callers are told.
func (c *Cache[K, V]) noPlace(err error, skey string, flight uint64, slots *origin.Slots) error {
	if err == nil {
		return nil
	}
	if c.life.Err() != nil {
		return ErrClosed
	}
	c.stats.originBusy.Add(1)
	c.tell(Event{Kind: EventOriginBusy, Key: skey, Flight: flight})
	at := slots.State()
	why := fmt.Sprintf("within %v; at most %d loads run", c.opts.WaitTimeout/2, at.Limit)
	switch {
	case errors.Is(err, origin.ErrFull):
		why = fmt.Sprintf("as MaxLoadsWaiting (%d) are waiting already", c.opts.MaxLoadsWaiting)
	case at.Strays >= maxStrays(c.opts.MaxLoads):
		why += fmt.Sprintf(", and %d that have been left behind after LoadTimeout still do", at.Strays)
	}
	return fmt.Errorf("%w: no place for %q %s, %d more wait", ErrOriginBusy, abbreviate(skey), why, at.Waiting)
}

// maxStrays is how many loaders that were left behind may still run before no load gets
// a place.
func maxStrays(maxLoads int) int { return max(maxLoads, 64) }

// limited passes a change of the limit on.
func (c *Cache[K, V]) limited(limit int, changed bool) {
	if changed {
		c.tell(Event{Kind: EventLoadLimit, N: limit})
	}
}
