package peers

import (
	"context"
	"sync/atomic"

	"github.com/Yiling-J/theine-go"
	"github.com/dgraph-io/ristretto/v2"
	"github.com/maypok86/otter/v2"
	"github.com/samber/hot"
)

// Caches of one process, with a loader where they have one.

const (
	otterModule     = "github.com/maypok86/otter/v2"
	theineModule    = "github.com/Yiling-J/theine-go"
	hotModule       = "github.com/samber/hot"
	ristrettoModule = "github.com/dgraph-io/ristretto/v2"
)

func otterPeer() Peer {
	return Peer{Name: "otter", Module: otterModule, OneLoad: Process, InProcess: true, How: "in process only", New: func(Servers) (Cache, error) {
		c, err := newOtter(LocalEntries)
		return otterCache{c}, err
	}}
}

func newOtter(capacity int) (*otter.Cache[string, []byte], error) {
	return otter.New(&otter.Options[string, []byte]{MaximumSize: capacity, ExpiryCalculator: otter.ExpiryWriting[string, []byte](TTL)})
}

type otterCache struct{ c *otter.Cache[string, []byte] }

func (o otterCache) Close() { o.c.StopAllGoroutines() }

func (o otterCache) Get(ctx context.Context, key string, load Loader) ([]byte, error) {
	return o.c.Get(ctx, key, otter.LoaderFunc[string, []byte](load))
}

func theinePeer() Peer {
	return Peer{Name: "theine", Module: theineModule, OneLoad: Process, InProcess: true, How: "in process only", New: func(Servers) (Cache, error) {
		t := &theineCache{}
		c, err := theine.NewBuilder[string, []byte](LocalEntries).BuildWithLoader(func(ctx context.Context, key string) (theine.Loaded[[]byte], error) {
			b, err := (*t.load.Load())(ctx, key)
			return theine.Loaded[[]byte]{Value: b, Cost: 1, TTL: TTL}, err
		})
		t.c = c
		return t, err
	}}
}

// theineCache has one loader, so that of the latest call counts.
type theineCache struct {
	c    *theine.LoadingCache[string, []byte]
	load atomic.Pointer[Loader]
}

func (t *theineCache) Close() { t.c.Close() }

func (t *theineCache) Get(ctx context.Context, key string, load Loader) ([]byte, error) {
	t.load.Store(&load)
	return t.c.Get(ctx, key)
}

func hotPeer() Peer {
	return Peer{Name: "hot", Module: hotModule, OneLoad: Process, InProcess: true, How: "LRU, in process only", New: func(Servers) (Cache, error) {
		return hotCache{newHot(LocalEntries)}, nil
	}}
}

func newHot(capacity int) *hot.HotCache[string, []byte] {
	return hot.NewHotCache[string, []byte](hot.LRU, capacity).WithTTL(TTL).Build()
}

type hotCache struct{ c *hot.HotCache[string, []byte] }

func (hotCache) Close() {}

func (h hotCache) Get(ctx context.Context, key string, load Loader) ([]byte, error) {
	b, _, err := h.c.GetWithLoaders(key, func(keys []string) (map[string][]byte, error) {
		out := make(map[string][]byte, len(keys))
		for _, k := range keys {
			b, err := load(ctx, k)
			if err != nil {
				return nil, err
			}
			out[k] = b
		}
		return out, nil
	})
	return b, err
}

func ristrettoPeer() Peer {
	return Peer{Name: "ristretto", Module: ristrettoModule, OneLoad: NoScope, InProcess: true, How: "in process only; it has no loader, so every miss loads", New: func(Servers) (Cache, error) {
		c, err := newRistretto(LocalEntries)
		return ristrettoCache{c}, err
	}}
}

func newRistretto(capacity int) (*ristretto.Cache[string, []byte], error) {
	return ristretto.NewCache(&ristretto.Config[string, []byte]{NumCounters: 10 * int64(capacity), MaxCost: int64(capacity), BufferItems: 64, IgnoreInternalCost: true})
}

type ristrettoCache struct {
	c *ristretto.Cache[string, []byte]
}

func (r ristrettoCache) Close() { r.c.Close() }

func (r ristrettoCache) Get(ctx context.Context, key string, load Loader) ([]byte, error) {
	if b, ok := r.c.Get(key); ok {
		return b, nil
	}
	b, err := load(ctx, key)
	if err == nil {
		r.c.SetWithTTL(key, b, 1, TTL)
	}
	return b, err
}
