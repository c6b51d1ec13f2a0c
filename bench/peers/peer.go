// Package peers holds one adapter for each way to do cache-aside that onefill is
// measured against, and onefill's own. An adapter does what the library's
// documentation shows, with its default settings unless How says otherwise.
package peers

import (
	"bytes"
	"context"
	"time"
)

// What all peers are measured with.
const (
	// TTL outlasts every measure.
	TTL = 10 * time.Minute
	// ValueSize is the size of every value in bytes.
	ValueSize = 100
	// LocalEntries is the size of in-process caches where the measure gives none.
	LocalEntries = 200_000
)

// Value is what loaders return. It is shared: nobody may write to it.
func Value() []byte { return value }

var value = bytes.Repeat([]byte("v"), ValueSize)

// Loader reads one value from the origin.
type Loader func(ctx context.Context, key string) ([]byte, error)

// ManyLoader reads the values of keys from the origin.
type ManyLoader func(ctx context.Context, keys []string) (map[string][]byte, error)

// Cache is a peer at work: Get is a hit, or a load by whatever rules the peer has.
type Cache interface {
	Get(ctx context.Context, key string, load Loader) ([]byte, error)
	Close()
}

// ManyCache is a Cache that reads many keys in one call.
type ManyCache interface {
	Cache
	GetMany(ctx context.Context, keys []string, load ManyLoader) (map[string][]byte, error)
}

// Servers are the addresses (host:port) of what peers share.
type Servers struct{ Redis, Memcached string }

// Scope says among whom a peer has one load of an absent key at a time.
type Scope string

// The scopes.
const (
	NoScope Scope = "nobody"
	Process Scope = "a process"
	Fleet   Scope = "the fleet"
)

// Peer is a way to do cache-aside.
type Peer struct {
	Name string
	// Module is the path of what it is made of, for the table of versions; "" is
	// this repository.
	Module string
	// OneLoad says who shares a load; Fenced, that a load which has lost its lease, or
	// was overtaken by an invalidation, is not written to the shared cache.
	OneLoad Scope
	Fenced  bool
	// How says what is not default, in words for the report.
	How string
	// Cold: its in-process cache cannot be turned off, so that a hit in the shared cache
	// needs a key that this instance has not read yet.
	Cold bool
	// InProcess: it has no shared cache, so there is nothing to fence.
	InProcess bool
	// Extra: a variant of another peer, left out of quick runs.
	Extra bool
	// Memcached: it is on memcached, so its anchor is another.
	Memcached bool
	New       func(Servers) (Cache, error)
}

// Store are the peers whose hits in the shared cache are measured.
func Store() []Peer {
	return []Peer{
		onefillRedis("onefill", "", localOff), onefillRedis("onefill, no tracking", "", localOff|noTracking),
		onefillRedis("onefill, local on", "each key read once", cold),
		onefillMemcached("onefill on memcached", localOff),
		rueidisDo(), rueidisCacheCold(), asideCold(),
		goRedis(), goRedisAutoPipeline(), goRedisCache(), gocachePeer(), jetcache(), rockscachePeer(), singleflightPeer(), sturdycCold(),
		gomemcache(),
	}
}

// Many are those that read many keys in one call.
func Many() []Peer {
	return []Peer{
		onefillRedis("onefill", "", localOff), onefillRedis("onefill, no tracking", "", localOff|noTracking),
		onefillMemcached("onefill on memcached", localOff),
		rueidisDo(), goRedis(), goRedisPipeline(), jetcache(), rockscachePeer(), sturdycCold(), gomemcache(),
	}
}

// Herd are those that are read by many callers of one process.
func Herd() []Peer {
	return append([]Peer{onefillLocal("onefill, local only"), onefillRedis("onefill", "", 0),
		onefillRedis("onefill, no tracking", "", noTracking), onefillMemcached("onefill on memcached", 0)},
		naive(), singleflightPeer(), setnxPoll(true, 10*time.Millisecond), pubsub(),
		otterPeer(), theinePeer(), hotPeer(), ristrettoPeer(), sturdycLocal(), sturdycRedis(),
		goRedisCache(), gocachePeer(), jetcache(), rockscachePeer(), aside())
}

// FleetPeers are those that several processes share.
func FleetPeers() []Peer {
	return []Peer{onefillRedis("onefill", "", 0), onefillRedis("onefill, no tracking", "", noTracking), onefillMemcached("onefill on memcached", 0),
		naive(), singleflightPeer(), setnxPoll(false, 10*time.Millisecond), setnxPoll(true, 10*time.Millisecond), setnxPoll(true, 50*time.Millisecond), pubsub(),
		goRedisCache(), gocachePeer(), jetcache(), sturdycRedis(), rockscachePeer(), rockscacheSleep10(), aside(), rueidisLock()}
}

// Outage are those that are measured while Redis is cut off.
func Outage() []Peer {
	return []Peer{onefillRedis("onefill", "default StoreTimeout", impatient), onefillRedis("onefill, no tracking", "default StoreTimeout", noTracking|impatient),
		naive(), singleflightPeer(), goRedisCache(), gocachePeer(), jetcache(), sturdycRedis(), rockscachePeer(), aside()}
}

// Named finds a fleet peer, for the children of a herd.
func Named(name string) (Peer, bool) {
	for _, p := range FleetPeers() {
		if p.Name == name {
			return p, true
		}
	}
	return Peer{}, false
}
