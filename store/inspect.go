package store

import (
	"context"
	"math"
	"time"
)

// Inspector may be implemented by a session. It is for operators who ask what a key is
// like, and for the tools that they ask with; a cache does not need it.
//
// Looking changes nothing: no lease is taken, nothing that is missing is made, nobody
// waits, and no time to live is made longer. A server may count it as a use of the key
// where it decides what to evict, and a session that can be told of changes may be told of
// the next one.
type Inspector interface {
	// Inspect shows what lies under a key, all of one moment, in one round trip.
	Inspect(ctx context.Context, key string) (Holding, error)
	// InspectTags shows the epoch and the generations of tags, in one round trip to each
	// server that has some of them. It fails where the session is no [Tagger].
	InspectTags(ctx context.Context, tags ...string) (TagState, error)
	// BreakLease voids the live lease of a key as a write does, and leaves the value and
	// what is remembered of a failure as they are: the holder's Fill, Fail and Renew are
	// refused from then on, those who wait are woken where the store can push, and the
	// next Acquire wins. With an id only the lease that [LeaseInfo] names so is meant, with
	// "" whichever is there. False: there is no such lease.
	BreakLease(ctx context.Context, key, id string) (bool, error)
}

// Forever is what is left of something that does not end.
const Forever = time.Duration(math.MaxInt64)

// Holding is what a store holds under a key.
type Holding struct {
	// Server is the address of the server that has the key, or those among which it is.
	Server string
	// Item is the value.
	Item Item
	// Foreign is the type of a value that is no bytes, such as "list", "" otherwise.
	Foreign string
	// Left is how long the value lasts still: [Forever] if it does not end, 0 if there is
	// none.
	Left time.Duration
	// Lease is the live one. Its ID is "" if there is none.
	Lease LeaseInfo
	// Failure is that of the last load. Its Record is nil if none is remembered.
	Failure FailureInfo
	// Clock is the server's at that moment, to its precision; zero where it shows none.
	Clock time.Time
}

// LeaseInfo is what a store knows of a live lease.
type LeaseInfo struct {
	// ID tells it from other leases of the key. Where it is Token it names the flight
	// that holds it; elsewhere it is a number of the server's, which may be another one
	// after a renewal.
	ID string
	// Token is that of the flight that holds it, zero where the server does not keep it.
	Token Token
	// Try is the attempt of that flight which was granted it, 0 where it is not kept.
	Try uint32
	// Owner is the [Config.Owner] of the session that took it. It is "" if that had none, or
	// was of a version that kept none; and where Token is zero, as there the server keeps
	// neither.
	Owner string
	// Left is how long it lasts unless it is renewed.
	Left time.Duration
}

// FailureInfo is what a store remembers of a load that failed.
type FailureInfo struct {
	// Record is what was given to [Lease.Fail]. It is not nil if there is one.
	Record []byte
	// Blocks is how long Acquire goes on to answer with it, 0 if it does not any more.
	Blocks time.Duration
	// Left is how long it is remembered. While a lease is held that may be what was left
	// when the lease was granted.
	Left time.Duration
}

// TagState is what decides about the validity of tagged values.
type TagState struct {
	// Epoch is the present one, 0 if there is none or it was lost.
	Epoch uint64
	// Generations are those of the tags that were asked for, 0 for each that there is none of.
	Generations []uint64
}

// Valid says whether the i-th of the tags leaves a value valid whose load began in epoch.
// A generation that is not there counts as it would if it was made anew now: see [Tagger].
func (s TagState) Valid(i int, epoch uint64) bool {
	g := s.Generations[i]
	if g == 0 {
		g = s.Epoch
	}
	return g != 0 && g <= epoch
}
