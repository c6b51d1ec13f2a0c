package memcachestore

import (
	"encoding/binary"
	"math"

	"github.com/onefill/onefill/store"
)

// What lies under a key is one item, so that one compare-and-swap decides about value
// and lease together. It is one of
//
//   - an empty item that mg N has made: somebody's lease, nothing else;
//   - a frame, below;
//   - anything else: a stranger's bytes, which are handed on as they are.
//
// A frame, big-endian:
//
//	0  2  magic "1m"
//	2  1  format, 1
//	3  1  claim: 0 none, 1 lease, 2 failure record; plus 16 if there is a value
//	4  2  length of the kept key (keys.go), 0 if the item's key is the key
//	6     if there is a claim:
//	      8  claim's end   8  value's end   16  token   4  length of the record
//	      then kept key, record, value
//
// An end is not a date. It is what the server says remains of the item (t) at that
// moment: the claim lives while more than that remains. So the server's clock alone
// decides, also for leases on items that outlive them. An item that has a claim lasts
// as long as the longer of the two.
type item struct {
	cas   uint64 // 0: absent
	left  int64  // seconds
	value []byte // set if valued
	// valued: there is a value, and its time is not over.
	valued    bool
	valueEnds int64 // of left
	claim     claim // none if its time is over
	claimEnds int64 // of left
	token     store.Token
	record    []byte
}

type claim uint8

const (
	unclaimed claim = iota
	leased
	failed
)

const (
	magic0, magic1, frameFormat = '1', 'm', 1
	valuedBit                   = 16
	headBytes                   = 6
	claimBytes                  = 8 + 8 + 16 + 4
	// frameFlags are the client flags of every item of ours: "1m" and the format.
	frameFlags = '1'<<16 | 'm'<<8 | frameFormat
	// endsNever is the end of a value that has none.
	endsNever = math.MinInt64
)

// decodeItem reads what an mg has found for a key whose kept form is kept.
func decodeItem(r reply, kept string) item {
	if r.code != codeValue {
		return item{}
	}
	it := item{cas: r.cas, left: r.left}
	switch {
	case len(r.value) == 0 && (r.won || r.already):
		it.claim = leased
	case r.flags != frameFlags || !it.parse(r.value, kept):
		it = item{cas: r.cas, left: r.left, valued: true, value: r.value}
	}
	if it.left != forever {
		it.valued = it.valued && it.left > it.valueEnds
		if it.left <= it.claimEnds {
			it.claim = unclaimed
		}
	}
	if !it.valued {
		it.value = nil
	}
	return it
}

// parse reads a frame. Of another key's frame only a live lease counts: it is waited
// for, and then the item is taken.
func (it *item) parse(b []byte, kept string) bool {
	if len(b) < headBytes || b[0] != magic0 || b[1] != magic1 || b[2] != frameFormat {
		return false
	}
	valued := b[3]&valuedBit != 0
	it.claim = claim(b[3] &^ valuedBit)
	keyLen, recordLen := int(binary.BigEndian.Uint16(b[4:])), 0
	b = b[headBytes:]
	switch it.claim {
	case unclaimed:
	case leased, failed:
		if len(b) < claimBytes {
			return false
		}
		it.claimEnds = int64(binary.BigEndian.Uint64(b))
		it.valueEnds = int64(binary.BigEndian.Uint64(b[8:]))
		it.token = store.Token(b[16:32])
		recordLen = int(binary.BigEndian.Uint32(b[32:]))
		b = b[claimBytes:]
		if !plausible(it.claimEnds) || it.valueEnds != endsNever && !plausible(it.valueEnds) {
			return false
		}
	default:
		return false
	}
	if keyLen > len(b) || recordLen > len(b)-keyLen {
		return false
	}
	if string(b[:keyLen]) != kept {
		*it = item{cas: it.cas, left: it.left, claim: it.claim, claimEnds: it.claimEnds, token: it.token}
		if it.claim == failed {
			it.claim = unclaimed
		}
		return true
	}
	b = b[keyLen:]
	it.record, it.value, it.valued = b[:recordLen:recordLen], b[recordLen:], valued
	return true
}

// plausible: an end is a difference of two numbers of seconds that a server can say.
func plausible(end int64) bool { return end > -1<<33 && end < 1<<33 }

// valueLeft is how long the value still lasts.
func (it *item) valueLeft() int64 {
	switch {
	case !it.valued:
		return 0
	case it.left == forever || it.valueEnds == endsNever:
		return forever
	}
	return it.left - it.valueEnds
}

// claimLeft is how long the claim still lasts.
func (it *item) claimLeft() int64 {
	if it.left == forever {
		return forever
	}
	return it.left - it.claimEnds
}

// claimed returns the item's value under a new claim for left seconds, and how long
// the item must last: as long as the value or the claim, but no longer than a
// relative time can say, as the ends count from it.
func (it *item) claimed(c claim, left int64, token store.Token, record []byte) (next item, ttl int64) {
	valueLeft := it.valueLeft()
	ttl = min(max(valueLeft, left), longestRelative)
	next = item{left: ttl, claim: c, claimEnds: ttl - left, token: token, record: record, valued: it.valued, value: it.value, valueEnds: endsNever}
	if valueLeft != forever {
		next.valueEnds = ttl - valueLeft
	}
	return next, ttl
}

// plain returns the item's value without a claim, and how long it lasts; 0 if there
// is none.
func (it *item) plain() (next item, ttl int64) {
	return item{valued: it.valued, value: it.value}, it.valueLeft()
}

// encode returns the frame.
func (it *item) encode(kept string) []byte {
	size := headBytes + len(kept) + len(it.record) + len(it.value)
	bits := byte(it.claim)
	if it.claim != unclaimed {
		size += claimBytes
	}
	if it.valued {
		bits |= valuedBit
	}
	b := make([]byte, 0, size)
	b = append(b, magic0, magic1, frameFormat, bits)
	b = binary.BigEndian.AppendUint16(b, uint16(len(kept)))
	if it.claim != unclaimed {
		b = binary.BigEndian.AppendUint64(b, uint64(it.claimEnds))
		b = binary.BigEndian.AppendUint64(b, uint64(it.valueEnds))
		b = append(b, it.token[:]...)
		b = binary.BigEndian.AppendUint32(b, uint32(len(it.record)))
	}
	b = append(b, kept...)
	b = append(b, it.record...)
	return append(b, it.value...)
}
