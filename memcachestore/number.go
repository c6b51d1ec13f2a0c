package memcachestore

import (
	"context"
	"fmt"
	"strconv"
)

// number is an item that holds a number, in decimal: the epoch of a cache's name, or the
// generation of a tag. It is only ever replaced by its CAS. A reader who finds none makes
// an empty item in the same step, and puts the number into that very one: so what he has
// learned since, the epoch for one, is not older than the item that he replaces, and what
// anybody else has written or removed meanwhile stands.
type number struct {
	n    uint64 // 0: there is none yet, or something that is none of ours
	cas  uint64
	left int64 // seconds
}

// emptySeconds is how long the empty item lasts that a reader leaves who says nothing more.
const emptySeconds = 60

// number reads the place: one mg, which makes an empty item if there is none.
func (p place) number(ctx context.Context, c *conn) (number, error) {
	r, err := c.do(ctx, func(b []byte, opaque uint32) []byte { return appendGet(b, p.item, emptySeconds, 0, opaque) }, nil)
	switch {
	case err != nil:
		return number{}, err
	case r.code != codeValue:
		return number{}, r.unexpected()
	case r.cas == 0:
		return number{}, fmt.Errorf("%w: an item without a CAS", errProtocol)
	}
	n, err := strconv.ParseUint(string(r.value), 10, 63)
	if err != nil {
		n = 0
	}
	return number{n: n, cas: r.cas, left: r.left}, nil
}

// replace puts n in the place of a number that was read over the same connection, for ttl
// seconds. False: it has changed.
func (p place) replace(ctx context.Context, c *conn, old number, n uint64, ttl int64) (bool, error) {
	w := write{cas: old.cas, ttl: ttlArg(ttl, c.life.serverTime()), data: strconv.AppendUint(nil, n, 10)}
	cas, err := p.send(ctx, c, w, nil)
	return cas != 0, err
}

// lasting is how long a number must last at least, and how long it is made to last where
// it would not: seldom, as that is a write.
type lasting struct{ least, ttl int64 }

// become replaces the number at the place by what next makes of it, if that is another one
// or would not last, and returns it.
func (p place) become(ctx context.Context, last lasting, next func(n uint64) uint64) (uint64, error) {
	for range attempts {
		c, err := p.node.get(ctx)
		if err != nil {
			return 0, err
		}
		old, err := p.number(ctx, c)
		if err != nil {
			return 0, err
		}
		n := next(old.n)
		if n == old.n && old.left >= last.least {
			return n, nil
		}
		if done, err := p.replace(ctx, c, old, n, last.ttl); err != nil || done {
			return n, err
		}
	}
	return 0, errContended
}
