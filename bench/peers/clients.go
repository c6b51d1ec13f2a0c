package peers

import (
	"context"
	"errors"
	"log/slog"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// The clients alone: what a hit costs without any library. Nothing is shared by
// callers, so they take part where there is nothing to load.

const rueidisModule = "github.com/redis/rueidis"

// Silence keeps go-redis and onefill from telling of outages that are made on purpose.
func Silence() {
	redis.SetLogger(silent{})
	slog.SetDefault(slog.New(slog.DiscardHandler))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func newGoRedis(at Servers) *redis.Client { return redis.NewClient(&redis.Options{Addr: at.Redis}) }

func rueidisOption(at Servers) rueidis.ClientOption {
	return rueidis.ClientOption{InitAddress: []string{at.Redis}}
}

func goRedis() Peer {
	return Peer{Name: "go-redis", Module: goRedisModule, OneLoad: NoScope, How: "GET, MGET",
		New: func(at Servers) (Cache, error) { return &goRedisClient{c: newGoRedis(at)}, nil }}
}

func goRedisPipeline() Peer {
	return Peer{Name: "go-redis, pipeline", Module: goRedisModule, OneLoad: NoScope, How: "100 GETs in a pipeline",
		New: func(at Servers) (Cache, error) { return &goRedisClient{c: newGoRedis(at), pipeline: true}, nil }}
}

func goRedisAutoPipeline() Peer {
	return Peer{Name: "go-redis, AutoPipeline", Module: goRedisModule, OneLoad: NoScope, How: "GET through AutoPipeline",
		New: func(at Servers) (Cache, error) {
			c := newGoRedis(at)
			auto, err := c.AutoPipeline()
			return &goRedisClient{c: c, auto: auto}, err
		}}
}

type goRedisClient struct {
	c        *redis.Client
	auto     *redis.AutoPipeliner
	pipeline bool
}

func (g *goRedisClient) Close() { g.c.Close() }

func (g *goRedisClient) Get(ctx context.Context, key string, load Loader) ([]byte, error) {
	var b []byte
	var err error
	if g.auto != nil {
		b, err = g.auto.Get(ctx, key).Bytes()
	} else {
		b, err = g.c.Get(ctx, key).Bytes()
	}
	if errors.Is(err, redis.Nil) {
		if b, err = load(ctx, key); err == nil {
			err = g.c.Set(ctx, key, b, TTL).Err()
		}
	}
	return b, err
}

func (g *goRedisClient) GetMany(ctx context.Context, keys []string, _ ManyLoader) (map[string][]byte, error) {
	if g.pipeline {
		return g.getPipelined(ctx, keys)
	}
	values, err := g.c.MGet(ctx, keys...).Result()
	if err != nil {
		return nil, err
	}
	out := make(map[string][]byte, len(keys))
	for i, v := range values {
		if s, ok := v.(string); ok {
			out[keys[i]] = []byte(s)
		}
	}
	return out, nil
}

func (g *goRedisClient) getPipelined(ctx context.Context, keys []string) (map[string][]byte, error) {
	p := g.c.Pipeline()
	cmds := make([]*redis.StringCmd, len(keys))
	for i, key := range keys {
		cmds[i] = p.Get(ctx, key)
	}
	if _, err := p.Exec(ctx); err != nil {
		return nil, err
	}
	out := make(map[string][]byte, len(keys))
	for i, key := range keys {
		b, err := cmds[i].Bytes()
		if err != nil {
			return nil, err
		}
		out[key] = b
	}
	return out, nil
}

func rueidisDo() Peer {
	return Peer{Name: "rueidis Do", Module: rueidisModule, OneLoad: NoScope, How: "GET, rueidis.MGet", New: newRueidis(false)}
}

func rueidisCacheCold() Peer {
	return Peer{Name: "rueidis DoCache, cold", Module: rueidisModule, OneLoad: NoScope, How: "GET, tracked; each key read once", Cold: true, New: newRueidis(true)}
}

func newRueidis(cached bool) func(Servers) (Cache, error) {
	return func(at Servers) (Cache, error) {
		c, err := rueidis.NewClient(rueidisOption(at))
		return &rueidisClient{c, cached}, err
	}
}

type rueidisClient struct {
	c      rueidis.Client
	cached bool
}

func (r *rueidisClient) Close() { r.c.Close() }

func (r *rueidisClient) Get(ctx context.Context, key string, load Loader) ([]byte, error) {
	var result rueidis.RedisResult
	if r.cached {
		result = r.c.DoCache(ctx, r.c.B().Get().Key(key).Cache(), TTL)
	} else {
		result = r.c.Do(ctx, r.c.B().Get().Key(key).Build())
	}
	b, err := result.AsBytes()
	if rueidis.IsRedisNil(err) {
		if b, err = load(ctx, key); err == nil {
			err = r.c.Do(ctx, r.c.B().Set().Key(key).Value(rueidis.BinaryString(b)).Ex(TTL).Build()).Error()
		}
	}
	return b, err
}

func (r *rueidisClient) GetMany(ctx context.Context, keys []string, _ ManyLoader) (map[string][]byte, error) {
	messages, err := rueidis.MGet(r.c, ctx, keys)
	if err != nil {
		return nil, err
	}
	out := make(map[string][]byte, len(keys))
	for key, message := range messages {
		if out[key], err = message.AsBytes(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func gomemcache() Peer {
	return Peer{Name: "gomemcache", Module: "github.com/bradfitz/gomemcache", OneLoad: NoScope, Memcached: true, How: "MaxIdleConns 64 (with the default of 2 it dials for most reads)",
		New: func(at Servers) (Cache, error) {
			c := memcache.New(at.Memcached)
			c.MaxIdleConns = 64
			return memcacheClient{c}, nil
		}}
}

type memcacheClient struct{ c *memcache.Client }

func (m memcacheClient) Close() { m.c.Close() }

func (m memcacheClient) Get(ctx context.Context, key string, load Loader) ([]byte, error) {
	item, err := m.c.Get(key)
	if err == nil {
		return item.Value, nil
	}
	if !errors.Is(err, memcache.ErrCacheMiss) {
		return nil, err
	}
	b, err := load(ctx, key)
	if err == nil {
		err = m.c.Set(&memcache.Item{Key: key, Value: b, Expiration: int32(TTL.Seconds())})
	}
	return b, err
}

func (m memcacheClient) GetMany(_ context.Context, keys []string, _ ManyLoader) (map[string][]byte, error) {
	items, err := m.c.GetMulti(keys)
	if err != nil {
		return nil, err
	}
	out := make(map[string][]byte, len(items))
	for key, item := range items {
		out[key] = item.Value
	}
	return out, nil
}
