package peers

import (
	"context"
	"io"
	"log/slog"

	"github.com/redis/go-redis/v9"
	"github.com/viccon/sturdyc"
)

const sturdycModule = "github.com/viccon/sturdyc"

func sturdycLocal() Peer {
	return Peer{Name: "sturdyc", Module: sturdycModule, OneLoad: Process, InProcess: true, How: "10 shards, in process only", New: func(Servers) (Cache, error) {
		return &sturdycCache{c: newSturdyc(LocalEntries)}, nil
	}}
}

func sturdycRedis() Peer {
	return Peer{Name: "sturdyc + Redis", Module: sturdycModule, OneLoad: Process, How: "10 shards, distributed storage over go-redis", New: newSturdycRedis}
}

func sturdycCold() Peer {
	p := sturdycRedis()
	p.Name, p.How, p.Cold = "sturdyc + Redis, cold", "each key read once, as its in-process cache cannot be turned off", true
	return p
}

func newSturdyc(capacity int, opts ...sturdyc.Option) *sturdyc.Client[[]byte] {
	opts = append(opts, sturdyc.WithLog(slog.New(slog.NewTextHandler(io.Discard, nil))))
	return sturdyc.New[[]byte](capacity, min(10, capacity), TTL, 10, opts...)
}

func newSturdycRedis(at Servers) (Cache, error) {
	rdb := newGoRedis(at)
	return &sturdycCache{rdb, newSturdyc(LocalEntries, sturdyc.WithDistributedStorage(sturdycStorage{rdb}))}, nil
}

type sturdycCache struct {
	rdb *redis.Client // nil: in process only
	c   *sturdyc.Client[[]byte]
}

func (s *sturdycCache) Close() {
	if s.rdb != nil {
		s.rdb.Close()
	}
}

func (s *sturdycCache) Get(ctx context.Context, key string, load Loader) ([]byte, error) {
	return s.c.GetOrFetch(ctx, key, func(ctx context.Context) ([]byte, error) { return load(ctx, key) })
}

func (s *sturdycCache) GetMany(ctx context.Context, keys []string, load ManyLoader) (map[string][]byte, error) {
	return s.c.GetOrFetchBatch(ctx, keys, func(id string) string { return id }, sturdyc.BatchFetchFn[[]byte](load))
}

// sturdycStorage cannot report errors: that is sturdyc's interface.
type sturdycStorage struct{ c *redis.Client }

func (s sturdycStorage) Get(ctx context.Context, key string) ([]byte, bool) {
	b, err := s.c.Get(ctx, key).Bytes()
	return b, err == nil
}

func (s sturdycStorage) Set(ctx context.Context, key string, v []byte) { s.c.Set(ctx, key, v, TTL) }

func (s sturdycStorage) GetBatch(ctx context.Context, keys []string) map[string][]byte {
	values, err := s.c.MGet(ctx, keys...).Result()
	if err != nil {
		return nil
	}
	out := make(map[string][]byte, len(keys))
	for i, v := range values {
		if s, ok := v.(string); ok {
			out[keys[i]] = []byte(s)
		}
	}
	return out
}

func (s sturdycStorage) SetBatch(ctx context.Context, values map[string][]byte) {
	p := s.c.Pipeline()
	for k, v := range values {
		p.Set(ctx, k, v, TTL)
	}
	_, _ = p.Exec(ctx)
}
