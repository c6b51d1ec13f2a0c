package peers

import (
	"context"
	"sync/atomic"

	"github.com/eko/gocache/lib/v4/cache"
	"github.com/eko/gocache/lib/v4/store"
	redisstore "github.com/eko/gocache/store/redis/v4"
	"github.com/redis/go-redis/v9"
)

func gocachePeer() Peer {
	return Peer{Name: "eko/gocache", Module: "github.com/eko/gocache/lib/v4", OneLoad: Process, How: "Loadable over its Redis store; it writes in the background", New: func(at Servers) (Cache, error) {
		rdb := newGoRedis(at)
		g := &gocacheCache{rdb: rdb}
		g.c = cache.NewLoadable(func(ctx context.Context, key any) (string, []store.Option, error) {
			b, err := (*g.load.Load())(ctx, key.(string))
			return string(b), nil, err
		}, cache.New[string](redisstore.NewRedis(rdb, store.WithExpiration(TTL))))
		return g, nil
	}}
}

// gocacheCache has one loader, so that of the latest call counts.
type gocacheCache struct {
	rdb  *redis.Client
	c    *cache.LoadableCache[string]
	load atomic.Pointer[Loader]
}

func (g *gocacheCache) Close() {
	g.c.Close()
	g.rdb.Close()
}

func (g *gocacheCache) Get(ctx context.Context, key string, load Loader) ([]byte, error) {
	g.load.Store(&load)
	s, err := g.c.Get(ctx, key)
	return []byte(s), err
}
