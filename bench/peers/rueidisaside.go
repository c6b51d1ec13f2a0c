package peers

import (
	"context"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidisaside"
	"github.com/redis/rueidis/rueidislock"
)

const asideModule = "github.com/redis/rueidis/rueidisaside"

func aside() Peer {
	return Peer{Name: "rueidisaside", Module: asideModule, OneLoad: Fleet, Fenced: true, How: "client-side caching on, as it must be", New: newAside}
}

func asideCold() Peer {
	p := aside()
	p.Name, p.How, p.Cold = "rueidisaside, cold", "each key read once, as its client-side cache cannot be turned off", true
	return p
}

func newAside(at Servers) (Cache, error) {
	c, err := rueidisaside.NewClient(rueidisaside.ClientOption{ClientOption: rueidisOption(at)})
	return asideCache{c}, err
}

type asideCache struct{ c rueidisaside.CacheAsideClient }

func (a asideCache) Close() { a.c.Close() }

func (a asideCache) Get(ctx context.Context, key string, load Loader) ([]byte, error) {
	s, err := a.c.Get(ctx, TTL, key, func(ctx context.Context, key string) (string, error) {
		b, err := load(ctx, key)
		return string(b), err
	})
	return []byte(s), err
}

func rueidisLock() Peer {
	return Peer{Name: "rueidislock + look again", Module: rueidisModule, OneLoad: Fleet, Extra: true, How: "a lock for each load (KeyMajority 1); the lock's loss ends the load's context",
		New: func(at Servers) (Cache, error) {
			l, err := rueidislock.NewLocker(rueidislock.LockerOption{ClientOption: rueidisOption(at), KeyMajority: 1})
			return lockedCache{l}, err
		}}
}

type lockedCache struct{ l rueidislock.Locker }

func (a lockedCache) Close() { a.l.Close() }

func (a lockedCache) get(ctx context.Context, key string) ([]byte, error) {
	c := a.l.Client()
	return c.Do(ctx, c.B().Get().Key(key).Build()).AsBytes()
}

func (a lockedCache) Get(ctx context.Context, key string, load Loader) ([]byte, error) {
	b, err := a.get(ctx, key)
	if err == nil || !rueidis.IsRedisNil(err) {
		return b, err
	}
	locked, unlock, err := a.l.WithContext(ctx, key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if b, err = a.get(locked, key); err == nil || !rueidis.IsRedisNil(err) {
		return b, err
	}
	if b, err = load(locked, key); err != nil {
		return nil, err
	}
	c := a.l.Client()
	return b, c.Do(locked, c.B().Set().Key(key).Value(rueidis.BinaryString(b)).Ex(TTL).Build()).Error()
}
