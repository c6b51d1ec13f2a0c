package memcachestore

import (
	"encoding/binary"
	"math"

	"github.com/onefill/onefill/store"
)

// owner is whose lease it is: that of one attempt of one flight.
type owner struct {
	token store.Token
	try   uint32
}

// cas is that of a lease on an absent key, where clients may choose it: a random
// number of the flight, and the try counted from there. It is another one for each
// try, so that a try whose bytes arrive late makes no lease that the flight could use.
func (o owner) cas() uint64 { return o.base() + uint64(o.try) }

// base leaves room above it for every try, and below it for 0, which is no CAS.
func (o owner) base() uint64 { return binary.BigEndian.Uint64(o.token[:])>>1 + 1 }

// tryOf says which of the flight's tries has the lease of an item, if one of them has.
// An empty item tells it by its CAS. That of another flight's lease may lie among the
// numbers of this one's tries: by chance, once in 2^31 times. Then this one takes
// itself for late, and loads without a lease.
func (o owner) tryOf(it *item) (try uint32, ours bool) {
	if !it.stub {
		return it.by.try, it.by.token == o.token && o.token != store.Token{}
	}
	n := it.cas - o.base()
	return uint32(n), n <= math.MaxUint32
}

// standing is how an attempt stands to the live lease that it has found.
type standing uint8

const (
	others  standing = iota // another flight's
	mine                    // the attempt's own
	earlier                 // an earlier try's of the flight: to be moved
	later                   // a later try's: this attempt comes too late
)

// standing looks at a leased item. On a server that does not take CAS values of our
// choice a flight knows a lease by the answer that has granted it, and by nothing else.
func (o owner) standing(it *item, granted, explicit bool) standing {
	if it.stub && granted {
		return mine
	}
	try, ours := o.tryOf(it)
	switch {
	case !explicit || !ours:
		return others
	case try < o.try:
		return earlier
	case try > o.try:
		return later
	}
	return mine
}
