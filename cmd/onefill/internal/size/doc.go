// Package size says how large a cache must be for a hit rate, from a trace of
// the keys that were asked for.
//
// LRU. A cache of capacity C that evicts the least recently used serves a
// request if and only if the key and all keys that were asked for since its last
// request fit into C (Mattson et al. 1970). That sum, the request's stack
// distance, does not depend on C: one pass with a Fenwick tree over the moments
// of the keys' last requests gives the hits at every capacity, exactly. See lru.go.
//
// W-TinyLFU has no such distance: it is found out by running the cache that
// onefill has in each process on the trace, once for each capacity. See
// wtinylfu.go.
//
// Long traces are sampled by key (SHARDS, Waldspurger et al. 2015): a key whose
// hash has its first n bits 0 is kept, with all its requests, and capacities
// shrink by 2^n. So the requests of a key still have their order and their
// distances, which a sample of requests would not give. n grows while the trace
// is read, so that no more than a fixed number of requests is kept. The caches
// that are run shrink alike (miniature simulation, Waldspurger et al. 2017). See
// sample.go.
//
// What a sample estimates is the number of misses. Hits are the rest of all
// requests of the trace, which have been counted: it is a matter of luck whether
// the few keys that make up much of the trace are in the sample, but they hardly
// ever miss. This is the correction that the authors of SHARDS call SHARDS-adj.
//
// The error is not taken from the papers but measured on the trace itself: the
// sample is split, again by hash, into eight, and the spread of their curves
// says how far off the whole one is likely to be. See spread.go.
package size
