package onefill

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/onefill/onefill/store"
)

// busMessage is what one cache tells the others of its name over the Bus.
type busMessage struct {
	sender busSender
	// before is how many messages the sender has numbered before this one, and ago how
	// long before this one the last of them was sent, or a little less.
	before uint64
	ago    time.Duration
	// content: the message has a number itself. A heartbeat has none.
	content    bool
	everything bool // anything may have changed
	names      []debtor
}

// busSender is a cache, from its New to its Close.
type busSender = store.Token

// A message is the magic, the version, the sender (16 bytes), before and the microseconds
// of ago (varints), the flags, and the names: for each its kind, its length (varint), itself.
const (
	busMagic      = "OFB"
	busVersion    = 1
	busContent    = 1 << 0
	busEverything = 1 << 1
	busKey        = 0
	busTag        = 1
)

var (
	errForeignMessage = errors.New("no message of a cache")
	// errUnknownMessage: a cache has said something, and who knows what.
	errUnknownMessage = errors.New("a message of a cache that this version does not understand")
)

func (m *busMessage) encode() []byte {
	b := append([]byte(busMagic), busVersion)
	b = append(b, m.sender[:]...)
	b = binary.AppendUvarint(b, m.before)
	b = binary.AppendUvarint(b, uint64(max(m.ago, 0)/time.Microsecond)) // rounded down
	flags := byte(0)
	if m.content {
		flags |= busContent
	}
	if m.everything {
		flags |= busEverything
	}
	b = append(b, flags)
	for _, n := range m.names {
		kind := byte(busKey)
		if n.tag {
			kind = busTag
		}
		b = binary.AppendUvarint(append(b, kind), uint64(len(n.name)))
		b = append(b, n.name...)
	}
	return b
}

// readBusMessage decodes a message. What it returns does not share data's memory.
func readBusMessage(data []byte) (m busMessage, err error) {
	if len(data) < len(busMagic) || string(data[:len(busMagic)]) != busMagic {
		return m, errForeignMessage
	}
	r := busReader{left: data[len(busMagic):]}
	if v := r.byte(); v != busVersion {
		return m, fmt.Errorf("%w: it is of version %d", errUnknownMessage, v)
	}
	copy(m.sender[:], r.bytes(uint64(len(m.sender))))
	m.before = r.uvarint()
	m.ago = time.Duration(min(r.uvarint(), math.MaxInt64/uint64(time.Microsecond))) * time.Microsecond
	flags := r.byte()
	m.content, m.everything = flags&busContent != 0, flags&busEverything != 0
	if flags&^(busContent|busEverything) != 0 {
		return m, fmt.Errorf("%w: its flags are %#x", errUnknownMessage, flags)
	}
	for len(r.left) > 0 && !r.short {
		kind := r.byte()
		if kind > busTag {
			return m, fmt.Errorf("%w: it has a name of kind %d", errUnknownMessage, kind)
		}
		m.names = append(m.names, debtor{string(r.bytes(r.uvarint())), kind == busTag})
	}
	if r.short {
		return m, fmt.Errorf("%w: it is cut short", errUnknownMessage)
	}
	return m, nil
}

// busReader reads what is left, until it is found to be too short.
type busReader struct {
	left  []byte
	short bool
}

func (r *busReader) byte() byte {
	b := r.bytes(1)
	if b == nil {
		return 0
	}
	return b[0]
}

func (r *busReader) bytes(n uint64) []byte {
	if n > uint64(len(r.left)) {
		r.left, r.short = nil, true
		return nil
	}
	b := r.left[:n]
	r.left = r.left[n:]
	return b
}

func (r *busReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.left)
	if n <= 0 {
		r.left, r.short = nil, true
		return 0
	}
	r.left = r.left[n:]
	return v
}
