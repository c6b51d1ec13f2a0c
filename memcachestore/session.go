package memcachestore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill/store"
)

// session implements store.Session.
type session struct {
	st     *Store
	name   string
	owner  string // Config.Owner
	closed atomic.Bool
	// raising is held by who raises the epoch: see raise.
	raising chan struct{}
}

// place is where a key lies.
type place struct {
	node *node
	item string // the server's key
	kept string // the key itself, where the server's is a hash
}

// attempts bounds how often an operation starts over because somebody else has
// changed the key between its reading and its writing.
const attempts = 100

// Features implements store.Session. KeepsToken and the limits depend on the servers,
// and may change when one that was down is met for the first time.
func (s *session) Features() store.Features { return s.st.features() }

// Server returns the address of the server that has a key, as it was given. The core
// asks for it so that a server that is down costs its own keys, not the cache.
func (s *session) Server(key string) string {
	ring := s.st.ring
	if len(ring.nodes) == 1 {
		return ring.nodes[0].addr.text
	}
	item, _, err := itemKey(s.st.hash, s.name, key)
	if err != nil {
		return ring.nodes[0].addr.text // no server has such a key, and every operation says so
	}
	return ring.node(item).addr.text
}

// at finds the place of a key.
func (s *session) at(op, key string) (place, error) {
	if s.closed.Load() {
		return place{}, failure(op, s.st.addrs(), errSessionClosed)
	}
	item, kept, err := itemKey(s.st.hash, s.name, key)
	if err != nil {
		return place{}, failure(op, s.st.addrs(), err)
	}
	return place{node: s.st.ring.node(item), item: item, kept: kept}, nil
}

func (p place) failure(op string, err error) error { return failure(op, p.node.addr.text, err) }

// read reads the place: one mg, without effect on anything but the server's LRU.
func (p place) read(ctx context.Context, c *conn) (item, error) {
	r, err := c.do(ctx, func(b []byte, opaque uint32) []byte { return appendGet(b, p.item, 0, 0, opaque) }, nil)
	return p.decode(r, err)
}

func (p place) decode(r reply, err error) (item, error) {
	switch {
	case err != nil:
		return item{}, err
	case r.code != codeValue && r.code != codeMiss:
		return item{}, r.unexpected()
	}
	return decodeItem(r, p.kept), nil
}

// swap writes next where the item still has that CAS (0: is still absent). It
// returns the new CAS, 0 if the item has changed.
func (p place) swap(ctx context.Context, c *conn, cas uint64, next *item, ttl int64, late func(reply)) (uint64, error) {
	return p.store(ctx, c, write{cas: cas}, next, ttl, late)
}

// store writes next in the way that w says; see swap.
func (p place) store(ctx context.Context, c *conn, w write, next *item, ttl int64, late func(reply)) (uint64, error) {
	w.ttl, w.data = ttlArg(ttl, c.life.serverTime()), next.encode(p.kept)
	if n := len(w.data) + len(p.item) + itemOverhead; n > c.life.itemMax {
		return 0, fmt.Errorf("%w: it needs an item of %d bytes, the server's limit is %d", store.ErrTooLarge, n, c.life.itemMax)
	}
	return p.send(ctx, c, w, late)
}

func (p place) send(ctx context.Context, c *conn, w write, late func(reply)) (uint64, error) {
	if c.life.explicit {
		w.explicit = rand.Uint64() | 1
	}
	r, err := c.do(ctx, func(b []byte, opaque uint32) []byte { return appendSet(b, p.item, w, opaque) }, late)
	switch {
	case err != nil:
		return 0, err
	case r.code == codeDone && r.cas != 0:
		return r.cas, nil
	case r.code == codeExists || r.code == codeMissing || r.code == codeNot:
		return 0, nil
	}
	return 0, r.unexpected()
}

// remove deletes the item, with a CAS other than 0 only if it still has it. False:
// there was none, or another one.
func (p place) remove(ctx context.Context, c *conn, cas uint64) (bool, error) {
	r, err := c.do(ctx, func(b []byte, opaque uint32) []byte { return appendDelete(b, p.item, cas, opaque) }, nil)
	switch {
	case err != nil:
		return false, err
	case r.code == codeDone:
		return true, nil
	case r.code == codeExists || r.code == codeMissing:
		return false, nil
	}
	return false, r.unexpected()
}

// settle replaces an item that was read by what remains of it, or by nothing.
func (p place) settle(ctx context.Context, c *conn, it *item, remains func(it *item) (next item, ttl int64)) (bool, error) {
	next, ttl := remains(it)
	if ttl <= 0 {
		return p.remove(ctx, c, it.cas)
	}
	cas, err := p.swap(ctx, c, it.cas, &next, ttl, nil)
	return cas != 0, err
}

// Get implements store.Session: one mg.
func (s *session) Get(ctx context.Context, key string) (store.Item, error) {
	p, err := s.at("get", key)
	if err != nil {
		return store.Item{}, err
	}
	c, err := p.node.get(ctx)
	if err != nil {
		return store.Item{}, p.failure("get", err)
	}
	it, err := p.read(ctx, c)
	if err != nil {
		return store.Item{}, p.failure("get", err)
	}
	return it.public(), nil
}

func (it *item) public() store.Item { return store.Item{Data: it.value, Found: it.valued} }

// Acquire implements store.Session. On an absent key, and on a hit, it is one mg,
// which takes the lease as it reads. A lease on a value that the caller has seen, or
// on the record of a failure, takes a compare-and-swap more, with the value.
func (s *session) Acquire(ctx context.Context, key string, req store.Request) (store.Answer, error) {
	p, err := s.at("acquire", key)
	if err != nil {
		return store.Answer{}, err
	}
	for range attempts {
		c, err := p.node.get(ctx)
		if err != nil {
			return store.Answer{}, p.failure("acquire", err)
		}
		answer, err := s.acquire(ctx, c, p, req)
		if err != nil || answer.State != 0 {
			return answer, p.failure("acquire", err)
		}
	}
	// Somebody is always faster: to the caller, that is somebody else's lease.
	return store.Answer{State: store.Held}, nil
}

// acquire is one attempt. An answer without a state: the item has changed meanwhile.
func (s *session) acquire(ctx context.Context, c *conn, p place, req store.Request) (store.Answer, error) {
	ttl := claimSeconds(req.TTL, shortestClaim)
	by, explicit := owner{req.Token, req.Try}, uint64(0)
	if c.life.explicit {
		explicit = by.cas()
	}
	r, err := c.do(ctx,
		func(b []byte, opaque uint32) []byte { return appendGet(b, p.item, ttl, explicit, opaque) },
		func(r reply) {
			if r.code == codeValue && r.won && len(r.value) == 0 {
				l := s.newLease(c, p, by)
				l.cas = r.cas
				p.node.late.add(l)
			}
		})
	it, err := p.decode(r, err)
	if err != nil {
		return store.Answer{}, err
	}
	if it.cas == 0 {
		return store.Answer{}, fmt.Errorf("%w: mg N found nothing and made nothing", errProtocol)
	}
	if it.valued && !store.SameMark(req.Seen, it.value) {
		return store.Answer{State: store.Hit, Item: it.public()}, nil
	}
	l := s.newLease(c, p, by)
	switch it.claim {
	case leased:
		switch by.standing(&it, r.won, explicit != 0) {
		case others:
			return store.Answer{State: store.Held, Item: it.public(), Remaining: duration(it.claimLeft())}, nil
		case mine:
			l.hold(&it)
			return l.won(&it), nil
		case later:
			l.done = true // the lease is the later one's: this one can do nothing
			return l.won(&it), nil
		}
	case failed:
		return store.Answer{State: store.Failed, Item: it.public(), Failure: it.record, Remaining: duration(it.claimLeft())}, nil
	}
	return s.claim(ctx, c, l, &it, ttl)
}

func (s *session) newLease(c *conn, p place, by owner) *lease {
	return &lease{s: s, place: p, by: by, conn: c, turn: make(chan struct{}, 1)}
}

// won is the answer of who has the lease of an item.
func (l *lease) won(it *item) store.Answer {
	return store.Answer{State: store.Won, Item: it.public(), Failure: it.record, Lease: l}
}

// claim takes the lease of an item that is there: of a value that was seen, of the
// record of a failure, of the flight's own earlier try, or of what is left of another
// key.
func (s *session) claim(ctx context.Context, c *conn, l *lease, it *item, ttl int64) (store.Answer, error) {
	next, itemTTL := it.leasedTo(l.by, s.owner, ttl)
	cas, err := l.swap(ctx, c, it.cas, &next, itemTTL, func(r reply) {
		if r.code == codeDone {
			next.cas = r.cas
			l.hold(&next)
			l.node.late.add(l)
		}
	})
	if err != nil || cas == 0 {
		return store.Answer{}, err
	}
	next.cas = cas
	l.hold(&next)
	return l.won(it), nil
}

// Set implements store.Session: one ms, or, where data has a row version, which may
// be older than what is there, one mg and one ms.
func (s *session) Set(ctx context.Context, key string, data []byte, ttl time.Duration) (bool, error) {
	p, err := s.at("set", key)
	if err != nil {
		return false, err
	}
	if err := s.checkSize(data); err != nil {
		return false, p.failure("set", err)
	}
	if store.RowVersionOf(data) == 0 {
		err = p.put(ctx, data, seconds(ttl))
		return err == nil, p.failure("set", err)
	}
	stored := false
	err = p.change(ctx, func(c *conn, it *item) (done bool, err error) {
		stored, done, err = p.set(ctx, c, it, data, seconds(ttl))
		return done, err
	})
	return stored && err == nil, p.failure("set", err)
}

// put stores data whatever is there.
func (p place) put(ctx context.Context, data []byte, ttl int64) error {
	c, err := p.node.get(ctx)
	switch {
	case err != nil:
		return err
	case ttl <= 0:
		_, err = p.remove(ctx, c, 0)
		return err
	}
	_, err = p.store(ctx, c, write{any: true}, &item{valued: true, value: data}, ttl, nil)
	return err
}

// older says whether data is of an older row version than the stored one.
func older(data []byte, stored uint64) bool {
	mine := store.RowVersionOf(data)
	return mine != 0 && mine < stored
}

// set is one attempt.
func (p place) set(ctx context.Context, c *conn, it *item, data []byte, ttl int64) (stored, done bool, err error) {
	switch {
	case it.valued && older(data, store.RowVersionOf(it.value)):
		done = !it.timed()
		if !done {
			done, err = p.settle(ctx, c, it, (*item).plain)
		}
		return false, done, err
	case ttl <= 0 && it.cas == 0:
		return true, true, nil
	case ttl <= 0:
		done, err = p.remove(ctx, c, it.cas)
		return true, done, err
	}
	cas, err := p.swap(ctx, c, it.cas, &item{valued: true, value: data}, ttl, nil)
	return true, cas != 0, err
}

// change reads the place and lets try change it, until try has done so before
// anybody else did.
func (p place) change(ctx context.Context, try func(c *conn, it *item) (done bool, err error)) error {
	for range attempts {
		c, err := p.node.get(ctx)
		if err != nil {
			return err
		}
		it, err := p.read(ctx, c)
		if err != nil {
			return err
		}
		if done, err := try(c, &it); err != nil || done {
			return err
		}
	}
	return errContended
}

func (s *session) checkSize(data []byte) error {
	if limit := s.Features().MaxValueBytes; len(data) > limit {
		return fmt.Errorf("%w: the value has %d bytes, at most %d are allowed", store.ErrTooLarge, len(data), limit)
	}
	return nil
}

// Invalidate implements store.Session: one md a key. What is not there cannot be
// filled late either, as every write names the item that it replaces.
func (s *session) Invalidate(ctx context.Context, keys ...string) error {
	return s.each("invalidate", keys, func(p place) error {
		c, err := p.node.get(ctx)
		if err == nil {
			_, err = p.remove(ctx, c, 0)
		}
		return err
	})
}

// Expire implements store.Session: a read and a write a key.
func (s *session) Expire(ctx context.Context, now time.Time, keys ...string) error {
	return s.each("expire", keys, func(p place) error {
		return p.change(ctx, func(c *conn, it *item) (bool, error) { return p.expire(ctx, c, it, now) })
	})
}

// expire is one attempt.
func (p place) expire(ctx context.Context, c *conn, it *item, now time.Time) (done bool, err error) {
	if it.cas == 0 {
		return true, nil
	}
	data, ok := store.Expired(it.value, now)
	if !it.valued || !ok {
		return p.remove(ctx, c, it.cas)
	}
	if !it.timed() && &data[0] == &it.value[0] {
		return true, nil // nothing to change, nothing to void
	}
	it.value = data
	return p.settle(ctx, c, it, (*item).plain)
}

// each does something for each key, for several at a time, and returns the first
// error.
func (s *session) each(op string, keys []string, do func(p place) error) error {
	places := make([]place, len(keys))
	for i, key := range keys {
		var err error
		if places[i], err = s.at(op, key); err != nil {
			return err
		}
	}
	return together(len(keys), func(i int) error { return places[i].failure(op, do(places[i])) })
}

// together does n things, several at a time, and returns the first error.
func together(n int, do func(i int) error) error {
	const most = 64 // at a time
	if n == 1 {
		return do(0)
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	var next atomic.Int64
	for range min(most, n) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				errs[i] = do(i)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Ping implements store.Session: every server must answer.
func (s *session) Ping(ctx context.Context) error {
	if s.closed.Load() {
		return failure("ping", s.st.addrs(), errSessionClosed)
	}
	var first error
	for _, n := range s.st.ring.nodes {
		c, err := n.get(ctx)
		if err == nil {
			err = c.noop(ctx)
		}
		if err != nil && first == nil {
			first = failure("ping", n.addr.text, err)
		}
	}
	return first
}

// Close implements store.Session. It frees nothing on the servers: leases have their
// deadlines.
func (s *session) Close() error {
	s.closed.Store(true)
	return nil
}

var errRestarted = errors.New("the server has been restarted since the lease was granted")
