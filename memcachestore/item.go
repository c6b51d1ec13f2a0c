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
//	3  1  claim: 0 none, 1 lease, 2 the last load failed; plus 16 if there is a value,
//	      32 if there is the record of a failure
//	4  2  length of the kept key (keys.go), 0 if the item's key is the key
//	6     if there is a claim or a record:
//	      8  claim's end   8  value's end   8  record's end
//	      16 token, 4 try: whose lease it is   4  length of the record
//	      then kept key, record, value; the record's place is also the holder's (holder.go)
//
// An end is not a date. It is what the server says remains of the item (t) at that
// moment: the claim lives while more than that remains, and so do value and record. So
// the server's clock alone decides, also for leases on items that outlive them. An item
// that has a claim or a record lasts as long as the longest of its parts.
//
// The record of a failure is a part of its own, as it outlasts the claim that it came
// with, and the lease of whoever tries next.
type item struct {
	cas  uint64 // 0: absent
	left int64  // seconds
	// stub: it is the empty one that mg N has made.
	stub bool

	// valued: there is a value, and its time is not over.
	valued    bool
	value     []byte
	valueEnds int64 // of left

	claim     claim // none if its time is over
	claimEnds int64 // of left
	by        owner // of a lease, as far as the item says
	// holder is the Config.Owner of the session that has the lease, as far as the item says.
	// It decides nothing.
	holder string

	// recorded: there is the record of a failure, and it is not to be forgotten yet.
	recorded   bool
	record     []byte
	recordEnds int64 // of left
}

type claim uint8

const (
	unclaimed claim = iota
	leased
	failed
)

const (
	magic0, magic1, frameFormat = '1', 'm', 1
	valuedBit, recordedBit      = 16, 32
	headBytes                   = 6
	claimBytes                  = 8 + 8 + 8 + 16 + 4 + 4
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
	case len(r.value) == 0 && r.won:
		it.stub, it.claim = true, leased
		return it // to who has just made it, the server says that it never ends
	case len(r.value) == 0 && r.already:
		it.stub, it.claim = true, leased
	case r.flags != frameFlags || !it.parse(r.value, kept):
		it = item{cas: r.cas, left: r.left, valued: true, value: r.value}
	}
	it.outlive()
	return it
}

// outlive drops the parts whose time is over. What claims an item that never ends is
// none of ours: it would hold up the key for ever.
func (it *item) outlive() {
	endless := it.left == forever
	if !endless && it.left <= it.valueEnds {
		it.valued = false
	}
	if endless || it.left <= it.claimEnds {
		it.claim = unclaimed
	}
	if endless || it.left <= it.recordEnds {
		it.recorded = false
	}
	if !it.valued {
		it.value = nil
	}
	if !it.recorded {
		it.record = nil
	}
}

// parse reads a frame. Of another key's frame only a live lease counts: it is waited
// for, and then the item is taken.
func (it *item) parse(b []byte, kept string) bool {
	if len(b) < headBytes || b[0] != magic0 || b[1] != magic1 || b[2] != frameFormat {
		return false
	}
	it.valued, it.recorded = b[3]&valuedBit != 0, b[3]&recordedBit != 0
	it.claim = claim(b[3] &^ (valuedBit | recordedBit))
	keyLen, recordLen := int(binary.BigEndian.Uint16(b[4:])), 0
	b = b[headBytes:]
	if it.claim > failed {
		return false
	}
	if it.timed() {
		if len(b) < claimBytes {
			return false
		}
		recordLen = it.parseEnds(b)
		b = b[claimBytes:]
		if !plausible(it.claimEnds) || !plausible(it.recordEnds) || it.valueEnds != endsNever && !plausible(it.valueEnds) {
			return false
		}
	}
	if keyLen > len(b) || recordLen > len(b)-keyLen {
		return false
	}
	if string(b[:keyLen]) != kept {
		*it = item{cas: it.cas, left: it.left, claim: it.claim, claimEnds: it.claimEnds, by: it.by}
		if it.claim == failed {
			it.claim = unclaimed
		}
		return true
	}
	b = b[keyLen:]
	it.record, it.value = b[:recordLen:recordLen], b[recordLen:]
	if it.claim == leased && !it.recorded && recordLen > 0 {
		it.parseHeld(it.record)
	}
	return true
}

// timed says whether the frame says when its parts end; else it is a value and
// nothing more, and ends with the item.
func (it *item) timed() bool { return it.claim != unclaimed || it.recorded }

func (it *item) parseEnds(b []byte) (recordLen int) {
	it.claimEnds = int64(binary.BigEndian.Uint64(b))
	it.valueEnds = int64(binary.BigEndian.Uint64(b[8:]))
	it.recordEnds = int64(binary.BigEndian.Uint64(b[16:]))
	it.by = owner{store.Token(b[24:40]), binary.BigEndian.Uint32(b[40:])}
	return int(binary.BigEndian.Uint32(b[44:]))
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
	if it.claim == unclaimed {
		return 0
	}
	return it.left - it.claimEnds
}

// recordLeft is how long the record of a failure is still remembered.
func (it *item) recordLeft() int64 {
	if !it.recorded {
		return 0
	}
	return it.left - it.recordEnds
}

// leasedTo returns the item under a lease for left seconds, and how long it must
// last. Value and record stay.
func (it *item) leasedTo(by owner, holder string, left int64) (next item, ttl int64) {
	next = item{claim: leased, by: by, holder: holder, valued: it.valued, value: it.value, recorded: it.recorded, record: it.record}
	return next, next.arrange(it.valueLeft(), left, it.recordLeft())
}

// failedFor returns the item's value after a failure that counts for left seconds and
// is remembered for as long again.
func (it *item) failedFor(left int64, record []byte) (next item, ttl int64) {
	next = item{claim: failed, valued: it.valued, value: it.value, recorded: true, record: record}
	return next, next.arrange(it.valueLeft(), left, 2*left)
}

// released returns the item without its claim, and how long it must last; 0 if nothing
// is left of it.
func (it *item) released() (next item, ttl int64) {
	if !it.recorded {
		return it.plain()
	}
	next = item{valued: it.valued, value: it.value, recorded: true, record: it.record}
	return next, next.arrange(it.valueLeft(), 0, it.recordLeft())
}

// plain returns the item's value alone, and how long it lasts; 0 if there is none.
func (it *item) plain() (next item, ttl int64) {
	return item{valued: it.valued, value: it.value}, it.valueLeft()
}

// arrange sets the ends of parts that last so long, and returns how long the item must
// last: as long as the longest, but no longer than a relative time can say, as the ends
// count from it.
func (it *item) arrange(value, claim, record int64) (ttl int64) {
	ttl = min(max(value, claim, record), longestRelative)
	it.left, it.claimEnds, it.valueEnds, it.recordEnds = ttl, ttl-claim, endsNever, ttl-record
	if value != forever {
		it.valueEnds = ttl - value
	}
	return ttl
}

// encode returns the frame.
func (it *item) encode(kept string) []byte {
	bits := byte(it.claim)
	if it.valued {
		bits |= valuedBit
	}
	record := it.record
	switch {
	case it.claim == leased && it.holder != "":
		record = it.heldRecord() // its bit is off: see there
	case it.recorded:
		bits |= recordedBit
	}
	b := make([]byte, 0, headBytes+claimBytes+len(kept)+len(record)+len(it.value))
	b = append(b, magic0, magic1, frameFormat, bits)
	b = binary.BigEndian.AppendUint16(b, uint16(len(kept)))
	if it.timed() {
		b = binary.BigEndian.AppendUint64(b, uint64(it.claimEnds))
		b = binary.BigEndian.AppendUint64(b, uint64(it.valueEnds))
		b = binary.BigEndian.AppendUint64(b, uint64(it.recordEnds))
		b = append(b, it.by.token[:]...)
		b = binary.BigEndian.AppendUint32(b, it.by.try)
		b = binary.BigEndian.AppendUint32(b, uint32(len(record)))
	}
	b = append(b, kept...)
	b = append(b, record...)
	return append(b, it.value...)
}
