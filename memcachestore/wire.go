package memcachestore

import (
	"strconv"
)

// The commands of memcached's text protocol that this package sends: version and
// stats when it connects, then mg, ms, md and mn. Keys are checked before they get
// here (keys.go); everything else on a command line is a number or a constant. Every
// meta command carries an opaque number (O) that its reply must repeat.

// appendGet appends a read of value, CAS, remaining seconds and client flags. With a
// vivify of more than 0 an absent item is created as an empty one that lasts so many
// seconds, in the same step; with explicit it gets that CAS.
func appendGet(b []byte, item string, vivify int64, explicit uint64, opaque uint32) []byte {
	b = append(b, getCommand...)
	b = append(b, item...)
	b = append(b, getFlags...)
	if vivify > 0 {
		b = appendFlag(b, 'N', uint64(vivify))
		if explicit != 0 {
			b = appendFlag(b, 'E', explicit)
		}
	}
	return appendOpaque(b, opaque)
}

// A read without vivify is getCommand, the item, getFlags and the opaque number.
const (
	getCommand = "mg "
	getFlags   = " v c t f"
)

// appendLook appends a read of CAS and remaining seconds only.
func appendLook(b []byte, item string, opaque uint32) []byte {
	b = append(b, "mg "...)
	b = append(b, item...)
	return appendOpaque(append(b, " c t"...), opaque)
}

// write is a store, in one of three ways: of an item that still has the CAS, or, with
// a CAS of 0, of one that is absent, or of any. Each gives the item another CAS, so
// whatever another client has begun on the old one is void.
type write struct {
	cas      uint64
	any      bool
	explicit uint64 // the new CAS, 0 where the server chooses
	ttl      string // T: see ttlArg
	data     []byte
}

func appendSet(b []byte, item string, w write, opaque uint32) []byte {
	b = append(b, "ms "...)
	b = append(b, item...)
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(len(w.data)), 10)
	b = append(b, " c T"...)
	b = append(b, w.ttl...)
	b = appendFlag(b, 'F', frameFlags)
	switch {
	case w.any:
	case w.cas != 0:
		b = appendFlag(b, 'C', w.cas)
	default:
		b = append(b, " ME"...)
	}
	if w.explicit != 0 {
		b = appendFlag(b, 'E', w.explicit)
	}
	b = appendOpaque(b, opaque)
	b = append(b, w.data...)
	return append(b, crlf...)
}

// appendDelete appends a delete, with a CAS other than 0 only of that very item.
func appendDelete(b []byte, item string, cas uint64, opaque uint32) []byte {
	b = append(b, "md "...)
	b = append(b, item...)
	if cas != 0 {
		b = appendFlag(b, 'C', cas)
	}
	return appendOpaque(b, opaque)
}

func appendFlag(b []byte, flag byte, n uint64) []byte {
	return strconv.AppendUint(append(b, ' ', flag), n, 10)
}

func appendOpaque(b []byte, opaque uint32) []byte {
	return append(appendFlag(b, 'O', uint64(opaque)), crlf...)
}

const crlf = "\r\n"
