package memcachestore

import (
	"context"
	"strconv"
	"time"

	"github.com/onefill/onefill/store"
)

var _ store.Inspector = (*session)(nil)

// Inspect implements store.Inspector: one mg.
func (s *session) Inspect(ctx context.Context, key string) (store.Holding, error) {
	p, err := s.at("inspect", key)
	if err != nil {
		return store.Holding{}, err
	}
	c, err := p.node.get(ctx)
	if err != nil {
		return store.Holding{}, p.failure("inspect", err)
	}
	it, err := p.read(ctx, c)
	if err != nil {
		return store.Holding{}, p.failure("inspect", err)
	}
	h := it.holding()
	h.Server, h.Clock = p.node.addr.text, time.Unix(c.life.serverTime(), 0)
	return h, nil
}

// holding is what the item says.
func (it *item) holding() store.Holding {
	h := store.Holding{Item: it.public()}
	if it.valued {
		h.Left = span(it.valueLeft())
	}
	if it.claim == leased {
		h.Lease = store.LeaseInfo{ID: it.leaseID(), Token: it.by.token, Try: it.by.try, Owner: it.holder, Left: span(it.claimLeft())}
	}
	if it.recorded {
		h.Failure = store.FailureInfo{Record: append([]byte{}, it.record...), Left: span(it.recordLeft())}
		if it.claim == failed {
			h.Failure.Blocks = span(it.claimLeft())
		}
	}
	return h
}

// leaseID is the CAS that the flight's try has, or would have, on an empty item where
// clients choose it: the token and this number name the same lease. Where the server has
// chosen it, that of an empty item is all there is.
func (it *item) leaseID() string {
	if it.stub || it.by.token == (store.Token{}) {
		return strconv.FormatUint(it.cas, 10)
	}
	return strconv.FormatUint(it.by.cas(), 10)
}

// span is so many seconds.
func span(s int64) time.Duration {
	if s > int64(store.Forever/time.Second) {
		return store.Forever
	}
	return time.Duration(s) * time.Second
}

// InspectTags implements store.Inspector: one mg for the epoch and for each tag, all at
// once. Unlike Generations it makes no empty items.
func (s *session) InspectTags(ctx context.Context, tags ...string) (store.TagState, error) {
	const op = "inspect tags"
	places, err := s.tagPlaces(op, tags)
	if err != nil {
		return store.TagState{}, err
	}
	epoch, err := s.place(op, epochPrefix+s.name)
	if err != nil {
		return store.TagState{}, err
	}
	places = append(places, epoch)
	numbers := make([]uint64, len(places))
	err = together(len(places), func(i int) error {
		var err error
		numbers[i], err = places[i].look(ctx)
		return places[i].failure(op, err)
	})
	if err != nil {
		return store.TagState{}, err
	}
	last := len(numbers) - 1
	return store.TagState{Epoch: numbers[last], Generations: numbers[:last:last]}, nil
}

// look reads a number, 0 if there is none.
func (p place) look(ctx context.Context) (uint64, error) {
	c, err := p.node.get(ctx)
	if err != nil {
		return 0, err
	}
	r, err := c.do(ctx, func(b []byte, opaque uint32) []byte { return appendGet(b, p.item, 0, 0, opaque) }, nil)
	switch {
	case err != nil:
		return 0, err
	case r.code == codeMiss:
		return 0, nil
	case r.code != codeValue:
		return 0, r.unexpected()
	}
	n, err := strconv.ParseUint(string(r.value), 10, 63)
	if err != nil {
		return 0, nil //nolint:nilerr // an empty item, or a stranger's
	}
	return n, nil
}

// BreakLease implements store.Inspector: one mg, and one md or ms of that very item.
func (s *session) BreakLease(ctx context.Context, key, id string) (bool, error) {
	p, err := s.at("break lease", key)
	if err != nil {
		return false, err
	}
	broken := false
	err = p.change(ctx, func(c *conn, it *item) (done bool, err error) {
		if it.claim != leased || id != "" && id != it.leaseID() {
			return true, nil
		}
		if it.stub {
			broken, err = p.remove(ctx, c, it.cas)
		} else {
			broken, err = p.settle(ctx, c, it, (*item).released)
		}
		return broken, err
	})
	return broken && err == nil, p.failure("break lease", err)
}
