package storetest

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill/store"
)

var crowds = []test{
	{"CrowdOneHolder", func(c *check) {
		// Without anybody who voids leases, and with leases that do not end by
		// themselves, at most one holder of a key exists at any moment, each of its
		// fills is accepted, and it has won over the value that was filled last.
		const keys, workers, rounds = 4, 8, 60
		var ks [keys]heldKey
		c.crowd(workers, func(ctx context.Context, p *peer, worker int) error {
			for i := range rounds {
				k := (worker + i) % keys
				if err := ks[k].refresh(ctx, p, fmt.Sprint(k), c.value(fmt.Sprint(worker, i))); err != nil {
					return fmt.Errorf("key %d: %w", k, err)
				}
			}
			return nil
		})
		for k := range keys {
			if last := ks[k].filled.Load(); last != nil {
				c.a.holds(fmt.Sprint(k), *last)
			} else {
				c.Errorf("key %d was never filled", k)
			}
		}
	}},
	{"CrowdFence", func(c *check) {
		// Loaders against writers who invalidate, expire and set: a fill is never
		// accepted when a void began after its lease was granted and ended before
		// the fill began; and what is stored is what an accepted write has written.
		const keys, loaders, writers, rounds = 3, 6, 2, 60
		logs := make([]voids, keys)
		var written sync.Map // payloads of fills and sets that were begun
		c.crowd(loaders+writers, func(ctx context.Context, p *peer, worker int) error {
			for i := range rounds {
				k := (worker + i) % keys
				payload := fmt.Sprintf("%d %d", worker, i)
				written.Store(payload, true)
				var err error
				if worker < writers {
					err = logs[k].void(ctx, p, fmt.Sprint(k), i, c.value(payload))
				} else {
					err = logs[k].load(ctx, p, fmt.Sprint(k), c.value(payload))
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		for k := range keys {
			item := c.a.get(fmt.Sprint(k))
			if !item.Found {
				continue
			}
			e, err := store.Decode(item.Data)
			if err != nil {
				c.Errorf("key %d holds %s: %v", k, show(item), err)
			} else if _, ok := written.Load(string(e.Payload)); !ok {
				c.Errorf("key %d holds %q, which nobody has written", k, e.Payload)
			}
		}
	}},
}

// heldKey is what is known about a key that nobody but lease holders writes.
type heldKey struct {
	holders atomic.Int32
	filled  atomic.Pointer[[]byte] // by the last holder
}

// refresh reads the key and, if it wins the lease of what it has read, fills it.
func (k *heldKey) refresh(ctx context.Context, p *peer, key string, data []byte) error {
	item, err := p.Get(ctx, key)
	if err != nil {
		return err
	}
	answer, err := p.Acquire(ctx, key, store.Request{Token: store.NewToken(), TTL: long, Seen: seen(item)})
	if err != nil {
		return err
	}
	if answer.Watch != nil {
		answer.Watch.Stop()
	}
	if answer.State != store.Won {
		return nil
	}
	if n := k.holders.Add(1); n != 1 {
		return fmt.Errorf("%d holders", n)
	}
	if last := k.filled.Load(); last != nil && !bytes.Equal(*last, item.Data) {
		return fmt.Errorf("won over %s, but %s was filled since", show(item), show(store.Item{Data: *last, Found: true}))
	}
	k.filled.Store(&data)
	k.holders.Add(-1)
	if ok, err := answer.Lease.Fill(ctx, data, long); err != nil || !ok {
		return fmt.Errorf("the only holder's fill = %v, %v", ok, err)
	}
	return nil
}

// crowd runs work in n goroutines, spread over four sessions of two clients.
func (c *check) crowd(n int, work func(ctx context.Context, p *peer, worker int) error) {
	c.Helper()
	peers := []*peer{c.a, c.b, c.peer(c.a.store), c.peer(c.b.store)}
	ctx, cancel := context.WithTimeout(context.Background(), 3*c.h.Patience)
	defer cancel()
	var wg sync.WaitGroup
	for worker := range n {
		wg.Go(func() {
			if err := work(ctx, peers[worker%len(peers)], worker); err != nil {
				c.Errorf("worker %d: %v", worker, err)
				cancel()
			}
		})
	}
	wg.Wait()
}

// voids is a log of the operations that void the leases of one key, by a clock
// of its own that ticks with each begin and end.
type voids struct {
	mu    sync.Mutex
	clock int
	done  [][2]int // begin and end of those that have ended
}

func (v *voids) tick() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.clock++
	return v.clock
}

func (v *voids) ended(begin int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.clock++
	v.done = append(v.done, [2]int{begin, v.clock})
}

// between says whether an operation began after one moment and ended before
// another one.
func (v *voids) between(after, before int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, d := range v.done {
		if d[0] > after && d[1] < before {
			return true
		}
	}
	return false
}

func (v *voids) void(ctx context.Context, p *peer, key string, i int, data []byte) error {
	begin := v.tick()
	var err error
	switch i % 3 {
	case 0:
		err = p.Invalidate(ctx, key)
	case 1:
		err = p.Expire(ctx, time.Now(), key)
	case 2:
		_, err = p.Set(ctx, key, data, long)
	}
	v.ended(begin)
	return err
}

func (v *voids) load(ctx context.Context, p *peer, key string, data []byte) error {
	item, err := p.Get(ctx, key)
	if err != nil {
		return err
	}
	answer, err := p.Acquire(ctx, key, store.Request{Token: store.NewToken(), TTL: long, Seen: seen(item)})
	if err != nil {
		return err
	}
	if answer.Watch != nil {
		answer.Watch.Stop()
	}
	if answer.State != store.Won {
		return nil
	}
	granted := v.tick()
	for range 3 { // the load, as long as a few round trips
		if err := p.Ping(ctx); err != nil {
			return err
		}
	}
	begin := v.tick()
	ok, err := answer.Lease.Fill(ctx, data, long)
	if err != nil {
		return err
	}
	if ok && v.between(granted, begin) {
		return fmt.Errorf("key %s: a fill was accepted although the lease had been voided before", key)
	}
	return nil
}
