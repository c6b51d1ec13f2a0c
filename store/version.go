package store

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// Version is the id of one stored value: 48 bits of Unix milliseconds, then 80
// random bits, so that versions sort by the time at which their lease was
// granted. It tells values apart and dates them; the fence is the lease's token,
// never the order of two versions.
type Version [16]byte

// NewVersion mints the version of a value whose lease was granted at t.
func NewVersion(t time.Time) Version {
	var v Version
	binary.BigEndian.PutUint64(v[:8], uint64(max(t.UnixMilli(), 0))<<16)
	rand.Read(v[6:]) // never fails, says crypto/rand
	return v
}

// NewToken mints a token.
func NewToken() Token {
	var t Token
	rand.Read(t[:])
	return t
}

// Time is the moment at which the version was minted.
func (v Version) Time() time.Time {
	return time.UnixMilli(int64(binary.BigEndian.Uint64(v[:8]) >> 16))
}

func (v Version) String() string { return hex.EncodeToString(v[:]) }

func (t Token) String() string { return hex.EncodeToString(t[:]) }
