package peers

import (
	"context"

	"github.com/go-redis/cache/v9"
	"github.com/redis/go-redis/v9"
)

func goRedisCache() Peer {
	return Peer{Name: "go-redis/cache", Module: "github.com/go-redis/cache/v9", OneLoad: Process, How: "Once, without its local cache", New: func(at Servers) (Cache, error) {
		rdb := newGoRedis(at)
		return &goRedisOnce{rdb, cache.New(&cache.Options{Redis: rdb})}, nil
	}}
}

type goRedisOnce struct {
	rdb *redis.Client
	c   *cache.Cache
}

func (g *goRedisOnce) Close() { g.rdb.Close() }

func (g *goRedisOnce) Get(ctx context.Context, key string, load Loader) ([]byte, error) {
	var b []byte
	err := g.c.Once(&cache.Item{Ctx: ctx, Key: key, Value: &b, TTL: TTL, Do: func(*cache.Item) (any, error) { return load(ctx, key) }})
	return b, err
}
