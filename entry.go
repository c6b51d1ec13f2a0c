package onefill

import (
	"fmt"
	"math"
	"time"

	"github.com/onefill/onefill/internal/local"
	"github.com/onefill/onefill/store"
)

// The forms of a value: loaded, as an entry of local, as an envelope of the store.

// moment is one reading of the clock, and of how long what the store says may be served. On
// some machines a reading costs as much as all else that is done with a hit.
type moment struct {
	wall     time.Time
	local    int64
	localTTL time.Duration
}

func (c *Cache[K, V]) moment() moment {
	now := time.Now()
	return moment{now, c.local.At(now), c.localTTL()}
}

// entry is what was loaded or Set, as local keeps it: its age and its freshness
// count from now.
func (c *Cache[K, V]) entry(key K, l *loaded[V], stamp local.Stamp) *local.Entry[V] {
	now := c.local.Now()
	e := &local.Entry[V]{
		Created: time.Now().UnixMicro(),
		Soft:    until(now, l.ttl),
		Trusted: until(now, c.localTTL()),
		Stamp:   stamp,
		Cost:    uint32(min(l.cost.Microseconds(), math.MaxUint32)),
	}
	if l.notFound {
		e.Rare = &local.Rare{NotFound: true}
	} else {
		e.Value = c.copied(l.value) // whoever has made it may keep it, and change it
		if c.opts.Version != nil {
			e.Rare = &local.Rare{RowVersion: c.opts.Version(e.Value)}
		}
	}
	c.weigh(key, e)
	return e
}

// weigh notes what the entry takes, where that counts.
func (c *Cache[K, V]) weigh(key K, e *local.Entry[V]) {
	if c.opts.Local.MaxBytes == 0 {
		return
	}
	if e.Rare == nil {
		e.Rare = &local.Rare{}
	}
	e.Rare.Weight = entryOverhead
	if e.IsValue() {
		e.Rare.Weight = uint32(min(max(c.opts.Weigh(key, e.Value), 1), math.MaxUint32))
	}
}

// encode is the envelope of an entry that is fresh for ttl from its creation.
func (c *Cache[K, V]) encode(l *loaded[V], e *local.Entry[V], granted time.Time) ([]byte, error) {
	created := time.UnixMicro(e.Created)
	env := store.Envelope{
		Kind:       store.KindValue,
		Codec:      c.codec,
		Version:    store.NewVersion(granted),
		Created:    created,
		SoftExpiry: wallAfter(created, l.ttl),
		Cost:       l.cost,
		RowVersion: e.RowVersion(),
		Epoch:      l.tagged.epoch,
		Tags:       l.tagged.tags,
	}
	if !e.IsValue() {
		env.Kind = store.KindNotFound
		return env.Encode(), nil
	}
	payload, err := encodeSafely(c.opts.Codec, e.Value)
	if err != nil {
		return nil, fmt.Errorf("encoding the value: %w", err)
	}
	env.Payload = payload
	if n, most := store.HeaderBytes+len(payload), c.maxValueBytes(); n > most {
		return nil, fmt.Errorf("%w: the encoded value has %d bytes, at most %d are stored (MaxValueBytes is %d)", store.ErrTooLarge, n, most, c.opts.MaxValueBytes)
	}
	return env.Encode(), nil
}

// maxValueBytes is the largest envelope that both the user and the server allow.
func (c *Cache[K, V]) maxValueBytes() int {
	if most := c.remote.session.Features().MaxValueBytes; most > 0 {
		return min(most, c.opts.MaxValueBytes)
	}
	return c.opts.MaxValueBytes
}

// unstorableMark is what the store keeps in the place of a value that it cannot hold.
func unstorableMark[V any](e *local.Entry[V], l *loaded[V], granted time.Time) []byte {
	created := time.UnixMicro(e.Created)
	env := store.Envelope{Kind: store.KindUnstorable, Version: store.NewVersion(granted), Created: created, SoftExpiry: wallAfter(created, l.ttl), RowVersion: e.RowVersion(),
		Epoch: l.tagged.epoch, Tags: l.tagged.tags}
	return env.Encode()
}

// decode is the entry of local for bytes from the store. Its expiry is judged by
// this machine's clock, bounded by the TTL that it was stored with: a clock that is
// slow cannot make the value live longer than a whole TTL from now.
//
// asked is when the store was asked: what it says may have become old since then. at is now;
// e is where the entry is made.
func (c *Cache[K, V]) decode(e *local.Entry[V], key K, data []byte, stamp local.Stamp, asked int64, at moment) (*local.Entry[V], tagged, error) {
	env, err := store.Decode(data)
	if err != nil {
		return nil, tagged{}, err
	}
	if !c.debts.trusts(env.Version.Time()) {
		return nil, tagged{}, errDoubted
	}
	t := tagged{epoch: env.Epoch, tags: env.Tags}
	if c.lastCost.Load() == 0 {
		c.lastCost.Store(int64(env.Cost))
	}
	*e = local.Entry[V]{
		Created: env.Created.UnixMicro(),
		Soft:    at.local + int64(min(env.SoftExpiry.Sub(at.wall), env.SoftExpiry.Sub(env.Created))),
		Trusted: until(asked, at.localTTL),
		Stamp:   stamp,
		Cost:    uint32(min(env.Cost.Microseconds(), math.MaxUint32)),
	}
	switch {
	case env.Kind == store.KindNotFound:
		e.Rare = &local.Rare{NotFound: true}
		return e, t, nil
	case env.Kind == store.KindUnstorable:
		e.Rare = &local.Rare{Absent: true}
		return e, t, nil
	case env.Kind != store.KindValue:
		return nil, t, fmt.Errorf("%w: kind %q under a value's key", store.ErrUndecodable, env.Kind)
	case env.Codec != c.codec:
		return nil, t, fmt.Errorf("%w: written by another codec than %q", store.ErrUndecodable, c.opts.Codec.Name())
	}
	if e.Value, err = decodeSafely(c.opts.Codec, env.Payload); err != nil {
		return nil, t, fmt.Errorf("decoding the value: %w", err)
	}
	if env.RowVersion != 0 {
		e.Rare = &local.Rare{RowVersion: env.RowVersion}
	}
	c.weigh(key, e)
	return e, t, nil
}
