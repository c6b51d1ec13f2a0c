package lab

import (
	"context"
	"fmt"

	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
	"github.com/onefill/onefill/store"
)

// StoreRedis is the kind of store for Redis, Valkey and the embedded miniredis.
const StoreRedis = "redis"

// StoreMemcached is the kind of store for memcached.
const StoreMemcached = "memcached"

// StoreKinds lists what --store takes. A new kind needs a case in openPlain,
// openShared and startStore.
var StoreKinds = []string{StoreRedis, StoreMemcached}

// storeSpec says where the store is; it goes to the reader processes.
type storeSpec struct {
	Kind string `json:"kind"`
	URL  string `json:"url"` // memcached: host:port, or unix:/path
}

// plainStore is a shared cache as the recipes without onefill use it.
type plainStore = recipe.Store

// storeServer is the parent's view of the store.
type storeServer struct {
	name    string // "redis", "valkey", "miniredis", "memcached"
	version string
	private bool // started for this run
	spec    storeSpec
	// push says whether the server tells its clients of changes.
	push bool
	// commands returns how often the server has executed each command so far.
	commands func(ctx context.Context) (map[string]int64, error)
	// damage is what can be done to it; nil: to a given server nothing.
	damage *damaged
	close  func()
}

func openPlain(ctx context.Context, spec storeSpec) (plainStore, error) {
	switch spec.Kind {
	case StoreRedis:
		return recipe.OpenRedis(ctx, spec.URL)
	case StoreMemcached:
		return openPlainMemcached(ctx, spec.URL)
	}
	return nil, fmt.Errorf("unknown kind of store %q", spec.Kind)
}

// openShared opens the store as onefill uses it.
func openShared(spec storeSpec) (store.Store, func() error, error) {
	switch spec.Kind {
	case StoreRedis:
		return openSharedRedis(spec.URL)
	case StoreMemcached:
		return openSharedMemcached(spec.URL)
	}
	return nil, nil, fmt.Errorf("unknown kind of store %q", spec.Kind)
}

// difference is what was executed between two countings, without the counting.
func difference(before, after map[string]int64) (total int64, by map[string]int64) {
	by = make(map[string]int64)
	for name, n := range after {
		if n -= before[name]; n > 0 && name != "info" {
			by[name] = n
			total += n
		}
	}
	return total, by
}
