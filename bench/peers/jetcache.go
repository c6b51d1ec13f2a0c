package peers

import (
	"context"
	"time"

	"github.com/mgtv-tech/jetcache-go"
	jetlocal "github.com/mgtv-tech/jetcache-go/local"
	"github.com/mgtv-tech/jetcache-go/remote"
	"github.com/redis/go-redis/v9"
)

const jetcacheModule = "github.com/mgtv-tech/jetcache-go"

func jetcache() Peer {
	return Peer{Name: "jetcache", Module: jetcacheModule, OneLoad: Process, How: "remote only, statistics off", New: func(at Servers) (Cache, error) {
		rdb := newGoRedis(at)
		c := cache.New(cache.WithStatsDisabled(true), cache.WithRemoteExpiry(TTL), cache.WithRemote(remote.NewGoRedisV9Adapter(rdb)))
		return &jetcacheCache{rdb, c, cache.NewT[string, []byte](c)}, nil
	}}
}

func newJetcacheLocal() cache.Cache {
	return cache.New(cache.WithStatsDisabled(true), cache.WithLocal(jetlocal.NewFreeCache(256*jetlocal.MB, time.Hour)))
}

type jetcacheCache struct {
	rdb *redis.Client
	c   cache.Cache
	t   *cache.T[string, []byte]
}

func (j *jetcacheCache) Close() {
	j.c.Close()
	j.rdb.Close()
}

func (j *jetcacheCache) Get(ctx context.Context, key string, load Loader) ([]byte, error) {
	var b []byte
	err := j.c.Once(ctx, key, cache.Value(&b), cache.Do(func(ctx context.Context) (any, error) { return load(ctx, key) }))
	return b, err
}

// GetMany has keys of its own, "m:" and the key, so it must be filled through GetMany.
func (j *jetcacheCache) GetMany(ctx context.Context, keys []string, load ManyLoader) (map[string][]byte, error) {
	return j.t.MGetWithErr(ctx, "m", keys, func(ctx context.Context, missing []string) (map[string][]byte, error) { return load(ctx, missing) })
}
