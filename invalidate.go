package onefill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onefill/onefill/internal/flight"
	"github.com/onefill/onefill/internal/local"
	"github.com/onefill/onefill/store"
)

// A write has three steps: void the key's flights and drop it from local; write
// the store; void and drop again, also after an error, since a flight may have
// read the old value in between and the write may have been applied although its
// answer was lost.

// Set writes a value through: to the store, then to local. It voids every load of
// the key that is in flight, in this process and in the others. An error means
// that the store may not have it. A value that cannot be stored, since it cannot be
// encoded or is too large, is an error too, and the key is invalidated: what was
// cached before is older than what the caller has.
func (c *Cache[K, V]) Set(ctx context.Context, key K, v V) error {
	skey, err := c.writable(key)
	if err != nil {
		return err
	}
	l := &loaded[V]{value: v, ttl: jittered(c.opts.TTL, c.opts.Jitter)}
	e, valid, err := c.setEntry(ctx, key, l)
	switch {
	case err != nil || !valid: // a tag was voided in this moment: so is the value
		return errors.Join(err, c.Invalidate(ctx, key))
	case c.remote == nil:
		c.flights.Void(skey, func() { c.put(key, e) })
		return nil
	}
	data, err := c.encode(l, e, time.Now())
	if err != nil {
		err = fmt.Errorf("onefill: Set %q: %w", abbreviate(skey), err)
	} else {
		err = c.setShared(ctx, key, skey, e, data, after(l.ttl, c.opts.grace()))
		if !errors.Is(err, store.ErrTooLarge) {
			return err
		}
	}
	return errors.Join(err, c.Invalidate(ctx, key))
}

// setEntry is the entry of a value that is Set, under its tags.
func (c *Cache[K, V]) setEntry(ctx context.Context, key K, l *loaded[V]) (e *local.Entry[V], valid bool, err error) {
	l.tagged, err = c.beginTagged(ctx, true)
	if err != nil {
		return nil, false, err
	}
	if l.tagged.tags, err = c.tagsOf(key, l.value, false, nil); err != nil {
		return nil, false, err
	}
	e = c.entry(key, l, c.local.Stamp(c.opts.Key(key)))
	valid, err = c.validate(ctx, e, l.tagged, true)
	return e, valid, err
}

func (c *Cache[K, V]) setShared(ctx context.Context, key K, skey string, e *local.Entry[V], data []byte, ttl time.Duration) error {
	drop := func() { c.local.Drop(key) }
	var publish func()
	w := c.flights.BeginWrite(skey, drop)
	defer func() { c.flights.EndWrite(w, drop, publish) }()
	e.Stamp = c.local.Stamp(skey) // the write reads the value again, and arms for it
	var stored bool
	number := c.debts.begin()
	err := c.remote.must(ctx, skey, func(ctx context.Context) (err error) {
		stored, err = c.remote.session.Set(ctx, skey, data, ttl)
		return err
	})
	if err != nil || stored { // else the store has a newer row, and lacks nothing
		c.wrote([]string{skey}, number, writeHard, err)
	}
	if err == nil && stored {
		publish = func() { c.put(key, e) }
	}
	return err
}

// Invalidate removes the keys everywhere: in this process, in the store, and in
// the other processes (see Local.TTL). It voids every load of them that is in
// flight: what such a load brings goes to those who already wait for it and is not
// stored. Nil means that the store has applied it. A key that cannot be one (empty, too
// long) is an error, and then none is touched.
func (c *Cache[K, V]) Invalidate(ctx context.Context, keys ...K) error {
	return c.write(ctx, keys, writeHard, c.local.Drop, func(ctx context.Context, skeys []string) error {
		return c.remote.session.Invalidate(ctx, skeys...)
	})
}

// Expire makes the keys stale from now on: their values may be served where
// StaleFor and StaleOnError allow it, while one caller refreshes them. Like
// Invalidate it voids every load of them that is in flight.
func (c *Cache[K, V]) Expire(ctx context.Context, keys ...K) error {
	drop := c.local.Drop
	if c.remote == nil {
		drop = c.expireLocal
	}
	now := time.Now()
	return c.write(ctx, keys, writeSoft, drop, func(ctx context.Context, skeys []string) error {
		return c.remote.session.Expire(ctx, now, skeys...)
	})
}

// expireLocal makes the entry of a cache without a store stale. With a store, local
// is dropped instead: the stale value is in the store, and is read from there by
// somebody who then hears of its next change.
func (c *Cache[K, V]) expireLocal(key K) {
	e, now, _ := c.local.Get(key)
	if e == nil {
		return
	}
	if !e.IsValue() || c.opts.grace() == 0 {
		c.local.Drop(key)
		return
	}
	stale := *e
	stale.Soft = min(e.Soft, now)
	stale.Rare = nil
	if e.Rare != nil { // without a failure
		stale.Rare = &local.Rare{RowVersion: e.RowVersion(), Tags: e.Tags(), Weight: e.Weight()}
	}
	c.local.Put(key, &stale)
}

func (c *Cache[K, V]) write(ctx context.Context, keys []K, kind writeKind, drop func(K), apply func(context.Context, []string) error) error {
	if c.closed.Load() {
		return ErrClosed
	}
	skeys := make([]string, len(keys))
	for i, key := range keys {
		skey, err := c.storeKey(key)
		if err != nil {
			return err
		}
		if err := c.fitsStore(skey); err != nil {
			return err
		}
		skeys[i] = skey
	}
	if len(keys) == 0 {
		return nil
	}
	writes := make([]flight.Write[outcome[V]], len(keys))
	for i, skey := range skeys {
		writes[i] = c.flights.BeginWrite(skey, func() { drop(keys[i]) })
	}
	defer func() {
		for i, w := range writes {
			c.flights.EndWrite(w, func() { drop(keys[i]) }, nil)
		}
	}()
	if c.remote == nil {
		return nil
	}
	var errs []error
	for chunk := range slices.Chunk(skeys, writeChunk) {
		key := "" // several servers may be meant
		if len(chunk) == 1 {
			key = chunk[0]
		}
		number := c.debts.begin()
		err := c.remote.must(ctx, key, func(ctx context.Context) error { return apply(ctx, chunk) })
		c.wrote(chunk, number, kind, err)
		if len(chunk) == len(skeys) {
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// writeChunk is how many keys share one StoreTimeout.
const writeChunk = 1000

// writable is the key as a string, if the cache can be written to.
func (c *Cache[K, V]) writable(key K) (string, error) {
	if c.closed.Load() {
		return "", ErrClosed
	}
	return c.storeKey(key)
}

// fitsStore says whether the store can have such a key: if not, one write of many keys
// would be applied in part.
func (c *Cache[K, V]) fitsStore(skey string) error {
	if c.remote == nil {
		return nil
	}
	if most := c.remote.session.Features().MaxKeyBytes; most > 0 && len(skey) > most {
		return fmt.Errorf("onefill: %w: the key %q has %d bytes, at most %d are allowed in this store", store.ErrTooLarge, abbreviate(skey), len(skey), most)
	}
	return nil
}
