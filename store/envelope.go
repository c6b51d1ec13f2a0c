package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"
)

// The envelope, version 1: a header of HeaderBytes, then the payload. Integers
// are big-endian, so that bytes compare as numbers do. docs/format.md is its
// description for other readers.
//
//	 0  2  magic "1f"
//	 2  1  format, 1
//	 3  1  kind: 'v' value, 'n' not found, 'f' failure, 'u' unstorable
//	 4  4  codec: which codec wrote the payload
//	 8 16  version: a time-ordered id, minted when the lease was granted
//	24  8  created, µs since 1970
//	32  8  soft expiry, µs since 1970; the one field that may change in place
//	40  4  load cost, µs, saturated
//	44  8  row version, 0 if the row has none; of a failure: failures in a row
//	52  4  CRC-32C of everything but the soft expiry and itself
//	56  4  length of the tags' section, 0 if there is none
//	60     tags' section: 8 epoch of the load, then each tag with its length before it
//	       (uvarint); then the payload
const (
	// HeaderBytes is the length of the envelope's header.
	HeaderBytes = 60
	// SoftExpiryOffset is where the soft expiry lies, 8 bytes.
	SoftExpiryOffset = 32
	// RowVersionOffset is where the row version lies, 8 bytes.
	RowVersionOffset = 44
	// MarkBytes is the length of a mark.
	MarkBytes = HeaderBytes

	magic0, magic1, format = '1', 'f', 1
	crcOffset              = 52
	tagsOffset             = 56 // of the section's length
	epochBytes             = 8
)

// Kind says what an envelope holds.
type Kind byte

// The kinds of an envelope.
const (
	KindValue    Kind = 'v'
	KindNotFound Kind = 'n' // the origin said that the row does not exist
	KindFailure  Kind = 'f' // a load failed; the payload is the message
	// KindUnstorable marks a key whose value cannot be stored, for its size or its
	// form: everybody loads it, and nobody waits for the other's load.
	KindUnstorable Kind = 'u'
)

// Envelope is a stored value with what is known about it.
type Envelope struct {
	Kind       Kind
	Codec      uint32
	Version    Version
	Created    time.Time
	SoftExpiry time.Time
	Cost       time.Duration // of the load
	RowVersion uint64
	Failures   uint64 // of a failure: how many loads have failed in a row
	Epoch      uint64 // before the load, where the cache has tags; see [Tagger]
	Tags       []string
	Payload    []byte
}

// ErrUndecodable is returned by Decode for bytes that are no envelope of this
// format: written by somebody else, cut short, or damaged.
var ErrUndecodable = errors.New("not a onefill envelope")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Append appends the encoded envelope to dst.
func (e *Envelope) Append(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, magic0, magic1, format, byte(e.Kind))
	dst = binary.BigEndian.AppendUint32(dst, e.Codec)
	dst = append(dst, e.Version[:]...)
	dst = binary.BigEndian.AppendUint64(dst, micros(e.Created))
	dst = binary.BigEndian.AppendUint64(dst, micros(e.SoftExpiry))
	dst = binary.BigEndian.AppendUint32(dst, saturate32(e.Cost.Microseconds()))
	dst = binary.BigEndian.AppendUint64(dst, e.counter())
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
	dst = e.appendTags(dst)
	binary.BigEndian.PutUint32(dst[start+tagsOffset:], uint32(len(dst)-start-HeaderBytes))
	dst = append(dst, e.Payload...)
	binary.BigEndian.PutUint32(dst[start+crcOffset:], checksum(dst[start:]))
	return dst
}

func (e *Envelope) appendTags(dst []byte) []byte {
	if e.Epoch == 0 {
		return dst
	}
	dst = binary.BigEndian.AppendUint64(dst, e.Epoch)
	for _, tag := range e.Tags {
		dst = binary.AppendUvarint(dst, uint64(len(tag)))
		dst = append(dst, tag...)
	}
	return dst
}

// parseTags reads the tags' section and leaves the payload.
func (e *Envelope) parseTags(length uint32) error {
	section := e.Payload
	if uint64(length) > uint64(len(section)) || length > 0 && length < epochBytes {
		return fmt.Errorf("%w: a tags' section of %d bytes", ErrUndecodable, length)
	}
	section, e.Payload = section[:length], section[length:]
	if length == 0 {
		return nil
	}
	e.Epoch = binary.BigEndian.Uint64(section)
	for section = section[epochBytes:]; len(section) > 0; {
		n, width := binary.Uvarint(section)
		if width <= 0 || n > uint64(len(section)-width) || len(e.Tags) == MaxTags {
			return fmt.Errorf("%w: a tag is cut short, or there are too many", ErrUndecodable)
		}
		section = section[width:]
		e.Tags, section = append(e.Tags, string(section[:n])), section[n:]
	}
	return nil
}

// counter is what lies where the row version of a value does.
func (e *Envelope) counter() uint64 {
	if e.Kind == KindFailure {
		return e.Failures
	}
	return e.RowVersion
}

// Encode returns the encoded envelope.
func (e *Envelope) Encode() []byte {
	return e.Append(make([]byte, 0, HeaderBytes+len(e.Payload)))
}

// Decode reads an envelope. The payload aliases data. Any bytes that are no
// intact envelope give an error that wraps ErrUndecodable.
func Decode(data []byte) (Envelope, error) {
	if len(data) < HeaderBytes {
		return Envelope{}, fmt.Errorf("%w: %d bytes, a header has %d", ErrUndecodable, len(data), HeaderBytes)
	}
	if data[0] != magic0 || data[1] != magic1 || data[2] != format {
		return Envelope{}, fmt.Errorf("%w: begins with %q", ErrUndecodable, data[:3])
	}
	if got, want := checksum(data), binary.BigEndian.Uint32(data[crcOffset:]); got != want {
		return Envelope{}, fmt.Errorf("%w: checksum %08x, expected %08x", ErrUndecodable, got, want)
	}
	e := Envelope{
		Kind:       Kind(data[3]),
		Codec:      binary.BigEndian.Uint32(data[4:]),
		Version:    Version(data[8:24]),
		Created:    fromMicros(binary.BigEndian.Uint64(data[24:])),
		SoftExpiry: fromMicros(binary.BigEndian.Uint64(data[SoftExpiryOffset:])),
		Cost:       time.Duration(binary.BigEndian.Uint32(data[40:])) * time.Microsecond,
		Payload:    data[HeaderBytes:],
	}
	if err := e.parseTags(binary.BigEndian.Uint32(data[tagsOffset:])); err != nil {
		return Envelope{}, err
	}
	counter := binary.BigEndian.Uint64(data[RowVersionOffset:])
	switch e.Kind {
	case KindValue, KindNotFound, KindUnstorable:
		e.RowVersion = counter
		return e, nil
	case KindFailure:
		e.Failures = counter
		return e, nil
	}
	return Envelope{}, fmt.Errorf("%w: kind %q", ErrUndecodable, data[3])
}

// MarkOf returns the bytes by which a stored value is told from another one, for
// Request.Seen: the header, which holds version, soft expiry and checksum, or
// all of a value that is shorter. It aliases data and is never nil.
func MarkOf(data []byte) []byte {
	if len(data) == 0 {
		return []byte{}
	}
	return data[:min(len(data), MarkBytes)]
}

// SameMark says whether data is the value whose mark was seen.
func SameMark(seen, data []byte) bool {
	return seen != nil && bytes.Equal(seen, MarkOf(data))
}

// RowVersionOf returns the row version of stored bytes, 0 if they are no
// envelope. It does not look at the checksum.
func RowVersionOf(data []byte) uint64 {
	if !isEnvelope(data) {
		return 0
	}
	return binary.BigEndian.Uint64(data[RowVersionOffset:])
}

// Expired returns data with its soft expiry set to now where it was later, for
// Session.Expire. False means that the data has no soft expiry and is to be
// removed. The result is a copy if anything changed.
func Expired(data []byte, now time.Time) ([]byte, bool) {
	if !isEnvelope(data) || Kind(data[3]) != KindValue {
		return nil, false
	}
	if binary.BigEndian.Uint64(data[SoftExpiryOffset:]) <= micros(now) {
		return data, true
	}
	data = bytes.Clone(data)
	binary.BigEndian.PutUint64(data[SoftExpiryOffset:], micros(now))
	return data, true
}

// ExpiryField returns the eight bytes of a soft expiry, for stores that write the
// field in place.
func ExpiryField(t time.Time) [8]byte {
	return [8]byte(binary.BigEndian.AppendUint64(nil, micros(t)))
}

func isEnvelope(data []byte) bool {
	return len(data) >= HeaderBytes && data[0] == magic0 && data[1] == magic1 && data[2] == format
}

func checksum(data []byte) uint32 {
	sum := crc32.Update(0, castagnoli, data[:SoftExpiryOffset])
	sum = crc32.Update(sum, castagnoli, data[SoftExpiryOffset+8:crcOffset])
	return crc32.Update(sum, castagnoli, data[tagsOffset:])
}

func micros(t time.Time) uint64 {
	if us := t.UnixMicro(); us > 0 {
		return uint64(us)
	}
	return 0
}

func fromMicros(us uint64) time.Time {
	return time.UnixMicro(int64(min(us, math.MaxInt64)))
}

func saturate32(n int64) uint32 {
	return uint32(min(max(n, 0), math.MaxUint32))
}
