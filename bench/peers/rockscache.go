package peers

import (
	"context"
	"time"

	"github.com/dtm-labs/rockscache"
	"github.com/redis/go-redis/v9"
)

func rockscachePeer() Peer {
	return rocks("rockscache", "default options: who has lost sleeps 100 ms", 100*time.Millisecond)
}

func rockscacheSleep10() Peer {
	p := rocks("rockscache, LockSleep 10 ms", "LockSleep 10 ms", 10*time.Millisecond)
	p.Extra = true
	return p
}

func rocks(name, how string, sleep time.Duration) Peer {
	return Peer{Name: name, Module: "github.com/dtm-labs/rockscache", OneLoad: Fleet, Fenced: true, How: how, New: func(at Servers) (Cache, error) {
		options := rockscache.NewDefaultOptions()
		options.LockSleep = sleep
		rdb := newGoRedis(at)
		return &rocksCache{rdb, rockscache.NewClient(rdb, options)}, nil
	}}
}

type rocksCache struct {
	rdb *redis.Client
	c   *rockscache.Client
}

func (r *rocksCache) Close() { r.rdb.Close() }

func (r *rocksCache) Get(ctx context.Context, key string, load Loader) ([]byte, error) {
	s, err := r.c.Fetch2(ctx, key, TTL, func() (string, error) {
		b, err := load(ctx, key)
		return string(b), err
	})
	return []byte(s), err
}

func (r *rocksCache) GetMany(ctx context.Context, keys []string, load ManyLoader) (map[string][]byte, error) {
	values, err := r.c.FetchBatch2(ctx, keys, TTL, func(missing []int) (map[int]string, error) {
		wanted := make([]string, len(missing))
		for i, x := range missing {
			wanted[i] = keys[x]
		}
		loaded, err := load(ctx, wanted)
		out := make(map[int]string, len(loaded))
		for _, x := range missing {
			out[x] = string(loaded[keys[x]])
		}
		return out, err
	})
	if err != nil {
		return nil, err
	}
	out := make(map[string][]byte, len(values))
	for i, s := range values {
		out[keys[i]] = []byte(s)
	}
	return out, nil
}
