// Package onefill is a cache that asks the origin once. When a key is absent or
// has expired, one caller in the whole fleet loads it; everybody else, in every
// process, waits for that load and gets its result. A load that ends too late to
// be right is never published. Every wait, and the number of loads at once, is
// bounded.
//
// # In one process
//
//	cache, err := onefill.New(onefill.Options[int64, User]{
//		Load: func(ctx context.Context, id int64) (User, error) {
//			return db.User(ctx, id) // onefill.ErrNotFound if there is no such row
//		},
//		TTL: time.Minute,
//	})
//	if err != nil {
//		return err
//	}
//	defer cache.Close()
//
//	user, err := cache.Get(ctx, 42)
//
// A thousand concurrent calls of Get for an absent key call Load once. A value that
// is in the process and fresh costs no allocation and no round trip.
//
// # In many processes
//
// Give all processes the same store, and the cache a name:
//
//	shared, err := redisstore.Open("redis://localhost:6379")
//	...
//	cache, err := onefill.New(onefill.Options[int64, User]{
//		Name:  "users",
//		Load:  loadUser,
//		TTL:   time.Minute,
//		Store: shared,
//	})
//
// Now the callers of all processes together cause one load. Values that were read
// once are kept in the process too, and Redis tells the process when somebody else
// changes them. Package memcachestore is the same on memcached, on one server or
// several, which tells nobody of changes: there Local.TTL says how long a process may
// not know. Package store/memstore is a store for tests: caches that are given the
// same one behave like processes.
//
// # When the data changes
//
// After a committed write, say so:
//
//	err := cache.Invalidate(ctx, 42)
//
// Nil means that the value is gone from the store and that no load which is in the
// air, in any process, will put the old row back. Other processes drop it from
// memory when the store's push arrives, at the latest after Local.TTL.
// [Cache.Set] writes the new value through instead; [Cache.Expire] only makes the
// old one stale, so that it may still be served while one caller refreshes it.
//
// # Stale values, rows that do not exist, failures
//
// Three durations say what may be served when there is no fresh value:
//
//   - StaleFor: after its TTL a value is served for so long, at once, while one
//     caller in the fleet refreshes it in the background.
//   - StaleOnError: after its TTL a value is served for so long if it cannot be
//     loaded.
//   - NotFoundTTL: a loader that returns [ErrNotFound] has answered; the answer is
//     cached, for a time of its own.
//
// Any other error is not an answer. It reaches everybody who waits, in every
// process, is remembered for ErrorTTL so that a failing origin is not asked by
// each caller in turn, and replaces no value. An error that wraps a context's, that
// of LoadTimeout included, says nothing about the row: it reaches those who wait in
// this process and is not remembered, so an origin that hangs gets one load of a key
// after the other.
//
// A loader may decide for how long its value is fresh: see [SetTTL].
//
// # Contexts and bounds
//
// A load does not belong to the caller who happened to start it. It runs with the
// values of that caller's context, but not with its cancellation; it ends after
// LoadTimeout; and its result is stored even if everybody has left. A caller waits
// no longer than its own context and WaitTimeout. At most MaxLoads loads run at
// once, and MaxLoadsDegraded of those without a lease, while the store is unreachable
// or grants no leases.
//
// A loader may Get from other caches, and from its own, with the context that it
// was given: then its place among the MaxLoads serves the inner load too, and a cycle
// is an error. An [ErrNotFound] that it gets there and passes on counts as its own:
// the outer key is remembered as a row that does not exist.
//
// # Errors
//
// Get returns the value, or one of these:
//
//   - [ErrNotFound]: the row does not exist.
//   - the context's error: the caller's context ended first.
//   - [ErrWaitTimeout]: no answer within WaitTimeout. The load goes on.
//   - [ErrLoadFailed], as a [*LoadError] with the key and the loader's error. A
//     panic of the loader is a [*PanicError] inside it, runtime.Goexit is
//     [ErrGoexit]. If another process ran the load, only the text of its error is
//     there.
//   - [ErrOriginBusy]: there was no place for the load in time.
//   - [ErrStoreDown]: the store is unreachable and OnStoreDown says to fail.
//   - [ErrCycle]: a loader asks, perhaps through others, for the key it is loading.
//   - [ErrClosed]: the cache was closed.
//
// New, Set, Invalidate, Expire and Peek return a [*StoreError] if the store fails:
// it names the service, the address, the operation and the cause. Set also fails if
// the value cannot be stored, since it cannot be encoded or is larger than
// MaxValueBytes; then the key has been invalidated. [Cache.GetMany] returns what it
// has, and a [*ManyError] with the error of each key that failed.
//
// # Guarantees
//
// As long as the store keeps its data (it evicts no lease, loses nothing in a
// failover, is not flushed):
//
//   - One load: at most one live lease for a key exists in the fleet, and the callers
//     of one process share one flight.
//   - Nothing late is published: a value whose lease was lost while it was being
//     loaded goes into no cache. Those who already waited for it still get it.
//   - Every wait is bounded. A loader that panics, exits, hangs or is killed leaves
//     nobody waiting past the bound, and the key works afterwards.
//   - A caller that leaves takes nobody along.
//   - An error is not a miss: it deletes and replaces nothing.
//   - Invalidate tells the truth: nil means that it was applied.
//   - Any bytes are a value; what cannot be decoded is a miss. What is too large for
//     the store is served and kept in the process; each process loads it for itself.
//
// Not promised: one load after a lease was lost, linearizability with the database,
// mutual exclusion for anything but filling caches, and the first two of the above
// across a failover that loses writes. docs/guarantees.md says for each guarantee
// what it rests on and which tests keep it.
//
// # What it does
//
// [Cache.Stats] counts, [Options.Observer] hears of each event, [Cache.Fetch]
// returns with a value where it came from, and how old it is.
package onefill
