package peers

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/memcachestore"
	"github.com/onefill/onefill/redisstore"
	"github.com/onefill/onefill/store"
)

type onefillFlags uint

const (
	localOff onefillFlags = 1 << iota
	noTracking
	cold
	impatient // the default StoreTimeout, for outages
)

func onefillLocal(name string) Peer {
	return Peer{Name: name, OneLoad: Process, InProcess: true, How: "no store; " + onefillHow, New: func(Servers) (Cache, error) { return newOnefill(nil, nil, 0) }}
}

const onefillHow = "TTL 10 min, 200,000 entries in local"

// patience is the StoreTimeout where no outage is measured. With the default of 250 ms a
// machine that does something else for a moment would be an outage, and the measure would
// be of loads; other clients have 3 or 10 seconds.
const patience = 3 * time.Second

func onefillRedis(name, how string, flags onefillFlags) Peer {
	if how != "" {
		how = "; " + how
	}
	switch {
	case flags&localOff != 0:
		how = "TTL 10 min, Local.Off" + how
	default:
		how = onefillHow + how
	}
	if flags&impatient == 0 {
		how += "; StoreTimeout 3 s"
	}
	var opts []redisstore.Option
	if flags&noTracking != 0 {
		opts = append(opts, redisstore.NoTracking())
		how = "redisstore.NoTracking; " + how
	}
	return Peer{Name: name, OneLoad: Fleet, Fenced: true, How: how, Cold: flags&cold != 0, New: func(at Servers) (Cache, error) {
		s, err := redisstore.Open("redis://"+at.Redis, opts...)
		if err != nil {
			return nil, err
		}
		return newOnefill(s, s.Close, flags)
	}}
}

func onefillMemcached(name string, flags onefillFlags) Peer {
	how := onefillHow
	if flags&localOff != 0 {
		how = "TTL 10 min, Local.Off"
	}
	how += "; StoreTimeout 3 s"
	return Peer{Name: name, OneLoad: Fleet, Fenced: true, How: how, Memcached: true, New: func(at Servers) (Cache, error) {
		s := memcachestore.New(at.Memcached)
		return newOnefill(s, s.Close, flags)
	}}
}

// onefillCache is onefill with the loader given by each call; bulk loaders are an
// option of the cache, so they go through a pointer.
type onefillCache struct {
	cache      *onefill.Cache[string, []byte]
	many       atomic.Pointer[ManyLoader]
	closeStore func() error
}

func newOnefill(s store.Store, closeStore func() error, flags onefillFlags) (*onefillCache, error) {
	o := &onefillCache{closeStore: closeStore}
	options := onefill.Options[string, []byte]{
		Name: "bench", TTL: TTL, Store: s,
		Load: func(ctx context.Context, key string) ([]byte, error) {
			values, err := (*o.many.Load())(ctx, []string{key})
			return values[key], err
		},
		LoadMany: func(ctx context.Context, keys []string) (map[string][]byte, error) {
			return (*o.many.Load())(ctx, keys)
		},
	}
	if flags&impatient == 0 {
		options.StoreTimeout = patience
	}
	if flags&localOff != 0 {
		options.Local.Off = true
	} else {
		options.Local.MaxEntries = LocalEntries
	}
	var err error
	if o.cache, err = onefill.New(options); err != nil && closeStore != nil {
		_ = closeStore() // the first error is the one to report
	}
	return o, err
}

func (o *onefillCache) Get(ctx context.Context, key string, load Loader) ([]byte, error) {
	return o.cache.GetOrLoad(ctx, key, load)
}

// GetMany takes the loader of the first call for all calls: in this measure no loader is
// to run at all, and a store for each call would count as an allocation of onefill's.
func (o *onefillCache) GetMany(ctx context.Context, keys []string, load ManyLoader) (map[string][]byte, error) {
	if o.many.Load() == nil {
		o.many.Store(&load)
	}
	return o.cache.GetMany(ctx, keys)
}

func (o *onefillCache) Close() {
	_ = o.cache.Close() // nothing is measured any more
	if o.closeStore != nil {
		_ = o.closeStore() // nothing is measured any more
	}
}
