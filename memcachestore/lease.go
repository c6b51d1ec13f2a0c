package memcachestore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onefill/onefill/store"
)

// lease implements store.Lease. It names the very item that the grant has made, by
// its CAS: whatever has been done to the key since, by anybody, has changed that or
// removed the item. An item that outlives its lease, because it has a value or the
// record of a failure, is looked at first: only the server knows whether the lease is
// over.
type lease struct {
	s *session
	place
	by owner

	// turn is held by the one call that is under way; it guards what follows.
	turn   chan struct{}
	conn   *conn  // over which cas was learned
	cas    uint64 // of the item
	ends   int64  // of what the server says remains of the item
	over   bool   // it lies over a value or a record, or what was one
	stored uint64 // row version of that value, 0 if there is none
	done   bool   // it has ended, as far as is known here
	unsure bool   // the outcome of a call is not known
}

var _ store.Lease = (*lease)(nil)

// hold makes the lease that of the item.
func (l *lease) hold(it *item) {
	l.cas, l.ends = it.cas, it.claimEnds
	l.over = it.valued || it.recorded
	l.stored = store.RowVersionOf(it.value)
}

// act is the frame of every call: one at a time, over a connection on which the CAS
// still means something. What it returns is what is known about the lease then.
func (l *lease) act(ctx context.Context, op string, do func(c *conn) (ok bool, err error)) (bool, error) {
	if l.s.closed.Load() {
		return false, l.failure(op, errSessionClosed)
	}
	return l.acts(ctx, op, do)
}

func (l *lease) acts(ctx context.Context, op string, do func(c *conn) (ok bool, err error)) (bool, error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return false, l.failure(op, ended(ctx))
	}
	if err := ctx.Err(); err != nil {
		return false, l.failure(op, fmt.Errorf("not asked: %w", err))
	}
	if l.done {
		return false, nil
	}
	ok, err := l.attempt(ctx, do)
	switch {
	case errors.Is(err, errRestarted):
		l.done = true
		return false, nil
	case err != nil:
		l.unsure = true
		return false, l.failure(op, err)
	case !ok:
		l.done = true
	}
	return ok, nil
}

func (l *lease) attempt(ctx context.Context, do func(c *conn) (bool, error)) (bool, error) {
	c, err := l.connection(ctx)
	if err != nil {
		return false, err
	}
	if l.unsure {
		it, err := l.read(ctx, c)
		if err != nil || it.cas == 0 {
			return false, err
		}
		l.unsure = false
		l.hold(&it)
	}
	return do(c)
}

// connection returns the grant's connection, or another one to the same life of the
// server. Over a connection to a later life the CAS would name somebody else's item.
func (l *lease) connection(ctx context.Context) (*conn, error) {
	if l.conn.alive() {
		return l.conn, nil
	}
	c, err := l.node.get(ctx)
	if err != nil {
		return nil, err
	}
	if !c.life.same(&l.conn.life) {
		return nil, errRestarted
	}
	l.conn = c
	return c, nil
}

// read returns the item if it is still this lease's; its CAS is 0 if not.
func (l *lease) read(ctx context.Context, c *conn) (item, error) {
	it, err := l.place.read(ctx, c)
	if err != nil || it.claim != leased || it.cas != l.cas && (it.by != l.by || it.by.token == store.Token{}) {
		return item{}, err
	}
	return it, nil
}

// live says whether the lease is not over by the server's clock.
func (l *lease) live(ctx context.Context, c *conn) (bool, error) {
	if !l.over {
		return true, nil // the item ends with the lease
	}
	r, err := c.do(ctx, func(b []byte, opaque uint32) []byte { return appendLook(b, l.item, opaque) }, nil)
	switch {
	case err != nil:
		return false, err
	case r.code == codeMiss:
		return false, nil
	case r.code != codeDone:
		return false, r.unexpected()
	}
	return r.cas == l.cas && r.left > l.ends && r.left != forever, nil
}

// Fill implements store.Lease: one ms, and one mg before it where the lease lies over
// something. A value that is too large is refused before it is sent, as memcached would
// remove the item that it was to replace; the lease stands until it is released.
func (l *lease) Fill(ctx context.Context, data []byte, ttl time.Duration) (bool, error) {
	if err := l.s.checkSize(data); err != nil {
		return false, l.failure("fill", err)
	}
	return l.act(ctx, "fill", func(c *conn) (bool, error) {
		live, err := l.live(ctx, c)
		if err != nil || !live {
			return false, err
		}
		if older(data, l.stored) {
			_, err := l.leave(ctx, c, (*item).plain)
			return false, err
		}
		return l.fill(ctx, c, data, seconds(ttl))
	})
}

func (l *lease) fill(ctx context.Context, c *conn, data []byte, ttl int64) (ok bool, err error) {
	if ttl <= 0 {
		ok, err = l.remove(ctx, c, l.cas)
	} else {
		var cas uint64
		cas, err = l.swap(ctx, c, l.cas, &item{valued: true, value: data}, ttl, nil)
		ok = cas != 0
	}
	l.done = ok
	return ok, err
}

// Fail implements store.Lease: one ms, and one mg before it where the lease lies over
// a value, which stays. With a ttl of 0 or less it leaves no record, not even that of
// a failure before.
func (l *lease) Fail(ctx context.Context, record []byte, ttl time.Duration) (bool, error) {
	return l.act(ctx, "fail", func(c *conn) (bool, error) {
		if ttl <= 0 {
			return l.leave(ctx, c, (*item).plain)
		}
		left := claimSeconds(ttl, shortestClaim)
		ok, err := l.reclaim(ctx, c, func(it *item) (item, int64) { return it.failedFor(left, record) })
		l.done = ok
		return ok, err
	})
}

// Renew implements store.Lease: as Fail.
func (l *lease) Renew(ctx context.Context, ttl time.Duration) (bool, error) {
	return l.act(ctx, "renew", func(c *conn) (bool, error) {
		left := claimSeconds(ttl, shortestClaim)
		return l.reclaim(ctx, c, func(it *item) (item, int64) { return it.leasedTo(l.by, l.s.owner, left) })
	})
}

// reclaim replaces the item by what becomes of it under another claim.
func (l *lease) reclaim(ctx context.Context, c *conn, become func(it *item) (next item, ttl int64)) (bool, error) {
	it := item{cas: l.cas}
	if l.over {
		var err error
		if it, err = l.read(ctx, c); err != nil || it.cas == 0 {
			return false, err
		}
	}
	next, ttl := become(&it)
	cas, err := l.swap(ctx, c, it.cas, &next, ttl, nil)
	if err != nil || cas == 0 {
		return false, err
	}
	next.cas = cas
	l.hold(&next)
	return true, nil
}

// Release implements store.Lease: one md, or, where the lease lies over a value or a
// record, which stay, one mg and one ms.
func (l *lease) Release(ctx context.Context) (bool, error) {
	return l.act(ctx, "release", func(c *conn) (bool, error) { return l.release(ctx, c) })
}

func (l *lease) release(ctx context.Context, c *conn) (bool, error) {
	return l.leave(ctx, c, (*item).released)
}

// leave ends the lease and leaves what remains of the item.
func (l *lease) leave(ctx context.Context, c *conn, remains func(it *item) (next item, ttl int64)) (ok bool, err error) {
	if !l.over {
		ok, err = l.remove(ctx, c, l.cas)
	} else {
		var it item
		if it, err = l.read(ctx, c); err != nil || it.cas == 0 {
			return false, err
		}
		ok, err = l.settle(ctx, c, &it, remains)
	}
	l.done = ok
	return ok, err
}

// giveBack releases what was granted to a caller who had left. If he is back already,
// he has moved the lease to his next try, and this one's is no more. Also after the
// session has been closed.
func (l *lease) giveBack(ctx context.Context) {
	l.acts(ctx, "release", func(c *conn) (bool, error) { return l.release(ctx, c) }) // at worst it ends by itself
}
