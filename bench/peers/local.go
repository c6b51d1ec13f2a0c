package peers

import (
	"context"
	"errors"
	"sync"

	"github.com/Yiling-J/theine-go"
	"github.com/hashicorp/golang-lru/v2"
	"github.com/maypok86/otter/v2"
	"github.com/mgtv-tech/jetcache-go"
	"github.com/onefill/onefill"
	"github.com/onefill/onefill/redisstore"
	"github.com/redis/rueidis"
	"github.com/samber/hot"
	"github.com/viccon/sturdyc"
)

// Local is a cache in the process as a hit and its policy see it.
type Local interface {
	// Hit is the read that is measured: through the loader where there is one, since
	// that is how it is used. False is a miss, after which nothing is stored.
	Hit(key string) ([]byte, bool)
	// Set stores; it returns when the entry can be read. Those that are Shared take it from
	// several goroutines.
	Set(key string, value []byte)
	Close()
}

// Accessor is a Local whose loader fills it: Access is a hit, or a miss that has stored
// the value.
type Accessor interface {
	Access(key string, value []byte) (hit bool)
}

// LocalPeer is a way to have a cache in the process.
type LocalPeer struct {
	Name, Module, How string
	// Floor: it evicts nothing, so it takes part in hits only. PolicyOnly: in hit ratios
	// only, as it does not keep what is put into it.
	Floor, PolicyOnly bool
	// Shared: it talks to Redis for what is not there, so it is left out where misses count.
	Shared bool
	New    func(at Servers, capacity int) (Local, error)
}

// Locals are all of them.
func Locals() []LocalPeer {
	return []LocalPeer{
		{Name: "onefill", How: "no store", New: newOnefillLocal},
		{Name: "onefill with a store", How: "in front of Redis, tracked", Shared: true, New: newOnefillShared},
		{Name: "otter, loader", Module: otterModule, How: "Get with a loader", New: newLocalOtter(true)},
		{Name: "otter", Module: otterModule, How: "GetIfPresent", New: newLocalOtter(false)},
		{Name: "ristretto", Module: ristrettoModule, New: newLocalRistretto},
		{Name: "theine", Module: theineModule, New: newLocalTheine},
		{Name: "theine, loader", Module: theineModule, Floor: true, New: newLocalTheineLoading},
		{Name: "sturdyc", Module: sturdycModule, How: "10 shards", New: newLocalSturdyc},
		{Name: "hot", Module: hotModule, How: "LRU", New: newLocalHot(hot.LRU)},
		{Name: "hot, W-TinyLFU", Module: hotModule, PolicyOnly: true, New: newLocalHot(hot.WTinyLFU)},
		{Name: "golang-lru", Module: "github.com/hashicorp/golang-lru/v2", How: "LRU, no time to live", New: newLocalLRU},
		{Name: "jetcache", Module: jetcacheModule, How: "freecache, 256 MB", Floor: true, New: newLocalJetcache},
		{Name: "rueidis DoCache", Module: rueidisModule, How: "client-side caching", Floor: true, Shared: true, New: newLocalRueidis},
		{Name: "map, read only", How: "the floor", Floor: true, New: newLocalMap},
	}
}

var errNotThere = errors.New("not in the cache")

// onefillLocalCache loads what Set and Access give it, and nothing else.
type onefillLocalCache struct {
	c      *onefill.Cache[string, []byte]
	closes func() error
}

func newOnefillLocal(_ Servers, capacity int) (Local, error) { return newLocalOnefill(nil, capacity) }

func newOnefillShared(at Servers, capacity int) (Local, error) {
	s, err := redisstore.Open("redis://" + at.Redis)
	if err != nil {
		return nil, err
	}
	return newLocalOnefill(s, capacity)
}

func newLocalOnefill(s *redisstore.Store, capacity int) (Local, error) {
	l := &onefillLocalCache{closes: func() error { return nil }}
	o := onefill.Options[string, []byte]{Name: "local", TTL: TTL, Local: onefill.LocalOptions{MaxEntries: capacity, TTL: TTL},
		Load: func(context.Context, string) ([]byte, error) { return nil, errNotThere }}
	if s != nil {
		o.Store, l.closes = s, s.Close
	}
	c, err := onefill.New(o)
	if err != nil {
		return nil, errors.Join(err, l.closes())
	}
	l.c = c
	return l, nil
}

func (l *onefillLocalCache) Hit(key string) ([]byte, bool) {
	b, err := l.c.Get(context.Background(), key)
	return b, err == nil
}

func (l *onefillLocalCache) Access(key string, value []byte) (hit bool) {
	loaded := false
	_, err := l.c.GetOrLoad(context.Background(), key, func(context.Context, string) ([]byte, error) {
		loaded = true // seen by the caller, who waits for it
		return value, nil
	})
	return err == nil && !loaded
}

func (l *onefillLocalCache) Set(key string, value []byte) { l.Access(key, value) }

func (l *onefillLocalCache) Close() {
	_ = errors.Join(l.c.Close(), l.closes()) // nothing is measured any more
}

// local is a Local of three functions.
type local struct {
	hit   func(string) ([]byte, bool)
	set   func(string, []byte)
	close func()
}

func (l *local) Hit(key string) ([]byte, bool) { return l.hit(key) }
func (l *local) Set(key string, value []byte)  { l.set(key, value) }
func (l *local) Close() {
	if l.close != nil {
		l.close()
	}
}

func newLocalOtter(loading bool) func(Servers, int) (Local, error) {
	return func(_ Servers, capacity int) (Local, error) {
		c, err := newOtter(capacity)
		if err != nil {
			return nil, err
		}
		l := &local{hit: c.GetIfPresent, set: func(k string, v []byte) { c.Set(k, v) }, close: func() { c.StopAllGoroutines() }}
		if loading {
			loader := otter.LoaderFunc[string, []byte](func(context.Context, string) ([]byte, error) { return nil, errNotThere })
			l.hit = func(k string) ([]byte, bool) {
				v, err := c.Get(context.Background(), k, loader)
				return v, err == nil
			}
		}
		return l, nil
	}
}

func newLocalRistretto(_ Servers, capacity int) (Local, error) {
	c, err := newRistretto(capacity)
	if err != nil {
		return nil, err
	}
	return &local{hit: c.Get, close: c.Close, set: func(k string, v []byte) {
		c.SetWithTTL(k, v, 1, TTL)
		c.Wait()
	}}, nil
}

func newLocalTheine(_ Servers, capacity int) (Local, error) {
	c, err := theine.NewBuilder[string, []byte](int64(capacity)).Build()
	if err != nil {
		return nil, err
	}
	return &local{hit: c.Get, set: func(k string, v []byte) { c.SetWithTTL(k, v, 1, TTL) }, close: c.Close}, nil
}

func newLocalTheineLoading(_ Servers, capacity int) (Local, error) {
	c, err := theine.NewBuilder[string, []byte](int64(capacity)).BuildWithLoader(func(context.Context, string) (theine.Loaded[[]byte], error) {
		return theine.Loaded[[]byte]{}, errNotThere
	})
	if err != nil {
		return nil, err
	}
	return &local{set: func(k string, v []byte) { c.SetWithTTL(k, v, 1, TTL) }, close: c.Close, hit: func(k string) ([]byte, bool) {
		v, err := c.Get(context.Background(), k)
		return v, err == nil
	}}, nil
}

func newLocalSturdyc(_ Servers, capacity int) (Local, error) {
	c := newSturdyc(capacity)
	fetch := sturdyc.FetchFn[[]byte](func(context.Context) ([]byte, error) { return nil, errNotThere })
	return &local{set: func(k string, v []byte) { c.Set(k, v) }, hit: func(k string) ([]byte, bool) {
		v, err := c.GetOrFetch(context.Background(), k, fetch)
		return v, err == nil
	}}, nil
}

func newLocalHot(algorithm hot.EvictionAlgorithm) func(Servers, int) (Local, error) {
	return func(_ Servers, capacity int) (Local, error) {
		c := hot.NewHotCache[string, []byte](algorithm, capacity).WithTTL(TTL).Build()
		return &local{set: c.Set, hit: func(k string) ([]byte, bool) {
			v, ok, _ := c.Get(k)
			return v, ok
		}}, nil
	}
}

func newLocalLRU(_ Servers, capacity int) (Local, error) {
	c, err := lru.New[string, []byte](capacity)
	if err != nil {
		return nil, err
	}
	return &local{hit: c.Get, set: func(k string, v []byte) { c.Add(k, v) }}, nil
}

func newLocalJetcache(_ Servers, _ int) (Local, error) {
	c, ctx := newJetcacheLocal(), context.Background()
	return &local{close: c.Close, set: func(k string, v []byte) { _ = c.Set(ctx, k, cache.Value(v)) }, hit: func(k string) ([]byte, bool) {
		var b []byte
		err := c.Get(ctx, k, &b)
		return b, err == nil
	}}, nil
}

func newLocalRueidis(at Servers, _ int) (Local, error) {
	c, err := rueidis.NewClient(rueidisOption(at))
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	hit := func(k string) ([]byte, bool) {
		b, err := c.DoCache(ctx, c.B().Get().Key(k).Cache(), TTL).AsBytes()
		return b, err == nil
	}
	return &local{hit: hit, close: c.Close, set: func(k string, v []byte) {
		_ = c.Do(ctx, c.B().Set().Key(k).Value(rueidis.BinaryString(v)).Ex(TTL).Build()).Error()
		hit(k) // now it is in the process
	}}, nil
}

// newLocalMap is a map that is complete before it is read: no lock, no policy.
func newLocalMap(_ Servers, capacity int) (Local, error) {
	m, mu := make(map[string][]byte, capacity), sync.Mutex{}
	return &local{hit: func(k string) ([]byte, bool) {
		v, ok := m[k]
		return v, ok
	}, set: func(k string, v []byte) {
		mu.Lock()
		m[k] = v
		mu.Unlock()
	}}, nil
}
