// Package store is the contract between onefill and a shared cache (Redis,
// Valkey, memcached, or memory), the envelope in which values lie there, and
// the errors that a store returns. It imports the standard library only.
//
// A [Store] is what a user makes once and hands to any number of caches. Each
// cache attaches to it under its name and works through the [Session] that it
// gets: the session's keys are the cache's own keys, without the name.
//
// # What a store promises
//
// The words are those of the README: a lease is the right to load one key, held
// by one flight in the whole fleet; a fill is the write of a loaded value under
// a lease.
//
//  1. One lease. As long as the store keeps its data, at most one live lease
//     for a key exists. [Session.Acquire] re-reads the key and takes the lease
//     in one atomic step.
//  2. The fence. [Lease.Fill], [Lease.Fail] and [Lease.Renew] act only while
//     the lease is still the holder's own: an expired, voided or replaced lease
//     is refused (false, nil), and an absent lease is a refusal, never an
//     acceptance.
//  3. Set, Invalidate and Expire void every lease of their keys, in the same
//     atomic step in which they change the value, also when the value is absent.
//  4. No client's clock decides about a lease.
//  5. Any bytes may be a value, the empty ones too, and no value is a marker.
//  6. No operation costs more when the store holds more.
//  7. Where the store can push ([Features.Push]): a session that has read a key
//     (its value or its absence, by Get, by Acquire, or by its own Fill or Set)
//     is told of the next change of the value by anybody else, through
//     [Events.Changed], or is told through [Events.Lost] that it cannot be told
//     any more. Its own writes are not reported to itself, but they are reported
//     to the other sessions of the same name, also in the same process; its own
//     Invalidate and Expire end the promise until it reads the key again.
//  8. A session whose server may have lost writes that it had answered, since a replica
//     was promoted or the server restarted with what it had saved, says so through
//     [Events.Replaced] before it lets an operation through to that server.
//  9. A value of an older row version (see [RowVersionOf]) never replaces one of a
//     newer; what has none is never older, so that the mark of a row that was
//     deleted replaces the row.
//
// Times to live saturate: a value stored for zero or less is gone at once, with
// everything that the write voids; a shorter lease than the shortest is raised to
// it; a failure record for zero or less is not kept.
//
// Operations respect the context that they get; every error is an [*Error]. It
// wraps [ErrUnavailable] when the server could not be asked or did not answer by
// the context's deadline; a context that was cancelled says nothing about the
// server. A miss is not an error.
package store

import (
	"context"
	"time"
)

// Store is a shared cache. It is safe for concurrent use, and it may serve any
// number of caches, whose keys do not meet as long as their names differ.
type Store interface {
	// Attach binds a cache to the store. It asks the server whether it is alive
	// and able to do what is needed, within ctx, and fails with an [*Error]
	// otherwise, unless cfg.AllowDown is set: then a server that cannot be
	// reached is no error, and the session works as soon as it can be.
	Attach(ctx context.Context, cfg Config) (Session, error)
}

// Config is what a cache tells the store about itself.
type Config struct {
	// Name is the namespace of the cache's keys. See [ValidName].
	Name string
	// Owner is who holds the leases that are taken through the session, for people who ask
	// an [Inspector] about a key. It decides nothing: whose lease it is, its token says.
	// "" where that is to stay unknown. See [ValidOwner].
	Owner string
	// Grace is how long a value may be served after its soft expiry, by any of
	// the cache's options; the physical TTLs given to the session include it.
	Grace time.Duration
	// AllowDown makes Attach succeed although the server cannot be reached.
	AllowDown bool
	// Events hears of what others change. Its functions may be nil.
	Events Events
}

// Events are called by a store that can push, from any goroutine, also from one
// that is inside an operation of another session. They return quickly, never
// block, and never call the store.
type Events struct {
	// Changed says that somebody else has changed, deleted or voided the value
	// of a key that this session has read, or that the value has expired.
	// Spurious calls are allowed.
	Changed func(key string)
	// Lost says that from some moment before now changes may have gone unheard:
	// a connection was lost, or the server has forgotten what the session reads.
	Lost func()
	// Replaced says that the server which answers from now on may lack writes that
	// were answered before: a replica took the primary's place, or the server was
	// restarted with what it had saved. Spurious calls are allowed. A store whose
	// servers come back empty needs none. Lost is called as well.
	Replaced func()
	// Voided says that the generation of a tag, which this session has read, was changed
	// by somebody else, or lost. See [Tagger].
	Voided func(tag string)
	// Raised says that the epoch, which this session has read, was raised or lost: some tag
	// was voided by somebody. Spurious calls are allowed.
	Raised func()
}

// Features says what a store can do. The conformance suite expects exactly what
// is declared and logs what it leaves out.
type Features struct {
	// Push: Events are called, and Answer.Watch is not nil.
	Push bool
	// AcquireReads: Acquire costs no more than Get, also on a hit, so a reader
	// that would load may ask it at once and save a round trip.
	AcquireReads bool
	// KeepsToken: Acquire by the token that already holds the lease answers Won
	// again, so that a reply that was lost costs nothing.
	KeepsToken bool
	// FailureKeepsValue: after Fail the value that was there before is still
	// found. Every store of this module can.
	FailureKeepsValue bool
	// Granularity is the smallest step of a TTL or a lease: TTLs are rounded up
	// to a multiple of it, and may end up to one step early or late.
	Granularity time.Duration
	// MinLease is the shortest lease that works; shorter ones are raised to it.
	MinLease time.Duration
	// MaxKeyBytes and MaxValueBytes are the server's limits, 0 where none matters.
	MaxKeyBytes, MaxValueBytes int
}

// Token identifies one flight's claim to a lease. It is unique in the fleet and
// kept over the retries of that flight.
type Token [16]byte

// Item is what the store holds under a key.
type Item struct {
	// Data is the stored envelope, as it was given. The caller may keep it.
	Data []byte
	// Found is false on a miss. A key of a foreign type or form counts as found
	// with the data that could be read, possibly none: it decodes as nothing and
	// is overwritten by the next fill.
	Found bool
}

// State is the kind of an [Answer].
type State uint8

const (
	// Hit: the item holds a value other than the one that the caller had seen.
	Hit State = iota + 1
	// Won: the lease is the caller's. Item, if found, is what the caller had seen.
	Won
	// Held: somebody else's lease is live. Item as for Won.
	Held
	// Failed: the last load failed, and its record is still remembered. Item as for Won.
	Failed
)

func (s State) String() string {
	switch s {
	case Hit:
		return "hit"
	case Won:
		return "won"
	case Held:
		return "held"
	case Failed:
		return "failed"
	}
	return "invalid state"
}

// Request is what Acquire needs.
type Request struct {
	// Token of the flight that asks.
	Token Token
	// Try numbers the flight's attempts, from 1. A grant belongs to the attempt with
	// the highest number that has reached the server: one that arrives late, its
	// connection given up and the question repeated, neither takes the grant away from
	// a later one nor makes a lease that the flight could fill under again. What it is
	// answered may be Won all the same, with a lease that can do nothing.
	Try uint32
	// TTL of the lease.
	TTL time.Duration
	// Seen is the mark (see [MarkOf]) of the value that the caller has seen and
	// wants to replace, because it is stale, about to be, or unreadable. Nil if it
	// has seen none. A value with another mark is a Hit.
	Seen []byte
}

// Answer is the outcome of Acquire.
type Answer struct {
	State State
	// Item is set for Hit; for the other states it is set where the store has
	// read it anyway.
	Item Item
	// Lease is set for Won.
	Lease Lease
	// Remaining is how long the lease (Held) or the failure record (Failed)
	// still lasts, 0 where the store cannot tell.
	Remaining time.Duration
	// Failure is the record given to [Lease.Fail]: for Failed, and for Won if the
	// store remembers it still.
	Failure []byte
	// Watch wakes a caller whose answer was Held, nil where the store cannot
	// push. Stop must be called.
	Watch Watch
}

// Watch is a subscription to the end of somebody else's lease. It was made
// before the store was asked, so that no change is missed; it wakes once.
type Watch interface {
	// C receives or is closed when the key's value or lease has changed, or when
	// changes may have gone unheard. Waking up means: ask again.
	C() <-chan struct{}
	// Stop ends the subscription. It may be called more than once.
	Stop()
}

// Lease is the right to load one key. Its methods return false (and no error)
// when the lease is not the holder's any more. After an error of Fill nobody
// knows whether it was applied; Release then makes sure that nobody waits.
type Lease interface {
	// Fill stores data for ttl and ends the lease, if it is still the holder's and
	// the stored value is not of a newer row version. In the latter case it is
	// refused and the lease ends all the same.
	Fill(ctx context.Context, data []byte, ttl time.Duration) (bool, error)
	// Fail ends the lease and leaves record, which is no value, for ttl: until
	// then Acquire answers Failed. For as long again the record is remembered: who
	// wins the lease then gets it along, so that failures in a row can be counted.
	// Fill, Set, Invalidate and Expire forget it. The stored value stays as it is.
	Fail(ctx context.Context, record []byte, ttl time.Duration) (bool, error)
	// Renew makes the lease last for ttl from now.
	Renew(ctx context.Context, ttl time.Duration) (bool, error)
	// Release ends the lease and leaves no value: the next caller wins at once. A failure
	// that was remembered when the lease was won may be kept.
	Release(ctx context.Context) (bool, error)
}

// Session is one cache's access to a store. It is safe for concurrent use.
type Session interface {
	// Features says what this session can do, which may depend on the server.
	Features() Features
	// Get reads a key. It takes no lease, consumes nobody's turn, and never waits.
	Get(ctx context.Context, key string) (Item, error)
	// Acquire reads the key again and, unless it holds a value that the caller
	// has not seen, takes the lease: in one atomic step.
	Acquire(ctx context.Context, key string, req Request) (Answer, error)
	// Set stores data for ttl and voids every lease and failure record of the key.
	// If the stored value is of a newer row version it stays, and Set returns false;
	// leases are voided all the same.
	Set(ctx context.Context, key string, data []byte, ttl time.Duration) (bool, error)
	// Invalidate removes the values and voids the leases and failure records of
	// the keys. Nil means that all of it was applied; after an error some keys may
	// have been.
	Invalidate(ctx context.Context, keys ...string) error
	// Expire sets the soft expiry of the stored values to now where it is later
	// (see [Expired]), and voids leases and failure records; what is no value with a
	// soft expiry (marks, foreign data) is removed.
	Expire(ctx context.Context, now time.Time, keys ...string) error
	// Ping asks the server whether it answers.
	Ping(ctx context.Context) error
	// Close ends the session: watches are woken, events stop. The store stays
	// open; it belongs to whoever made it.
	Close() error
}

// ManyReader may be implemented by a session that reads many keys for the price of few.
type ManyReader interface {
	// GetMany is Get for each of the keys, which have one server if the session is
	// [Sharded]: in one round trip, or in few if there are very many. It returns as many
	// items, in their order. A key of a foreign type may count as not found. After an error
	// nothing of it counts.
	GetMany(ctx context.Context, keys []string) ([]Item, error)
}

// Sharded may be implemented by a session whose keys lie on several servers. Then a
// server that is down costs its own keys only.
type Sharded interface {
	// Server names the server of a key, without asking it.
	Server(key string) string
}
