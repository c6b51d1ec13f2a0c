package memcachestore

import "github.com/onefill/onefill/store"

// A lease's frame says who holds it, for people who look, in a way that does not disturb
// readers that know no holder: they take a record whose bit is not set for none. So the bit
// is off, and in the record's place lie
//
//	1  length of the holder; plus 128 if the record of a failure is behind it
//	   then holder, record
//
// The record's own end is where it always is.
const behindHolder = 128

// heldRecord is what lies in the record's place of a lease that has a holder.
func (it *item) heldRecord() []byte {
	head := byte(len(it.holder))
	if it.recorded {
		head |= behindHolder
	}
	b := make([]byte, 0, 1+len(it.holder)+len(it.record))
	return append(append(append(b, head), it.holder...), it.record...)
}

// parseHeld reads that. What does not fit counts as nothing, as it does to those who know
// no holder: the lease is what matters.
func (it *item) parseHeld(b []byte) {
	n := int(b[0] &^ behindHolder)
	if n > len(b)-1 {
		return
	}
	if holder := string(b[1 : 1+n]); store.ValidOwner(holder) == nil {
		it.holder = holder // else it is nothing to be shown
	}
	if it.recorded = b[0]&behindHolder != 0; it.recorded {
		it.record = b[1+n:]
	}
}
