package store

import (
	"errors"
	"fmt"
)

// ErrUnavailable is wrapped by an [*Error] whose cause is that the server could
// not be asked or did not answer in time, as opposed to an answer that is an
// error. An operation that failed so may have been applied.
var ErrUnavailable = errors.New("store unavailable")

// ErrTooLarge is wrapped by an [*Error] that refuses a key or a value because of
// its size.
var ErrTooLarge = errors.New("too large for the store")

// ErrNotReplicated is wrapped by an [*Error] of a write that was applied, but that
// fewer replicas have confirmed than was asked for: a failover may lose it.
var ErrNotReplicated = errors.New("not confirmed by enough replicas")

// Error is what every operation of a store returns when it fails: which service,
// at which address, in which operation, and why.
type Error struct {
	Service string // "redis", "memcached", "memory"
	Addr    string // host:port, or several, comma-separated
	Op      string // "attach", "get", "acquire", "fill", ...
	Err     error  // the cause
	// Unavailable: the server could not be asked or did not answer in time.
	Unavailable bool
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s at %s: %s: %v", e.Service, e.Addr, e.Op, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is(err, ErrUnavailable) say what Unavailable says.
func (e *Error) Is(target error) bool { return target == ErrUnavailable && e.Unavailable }

// ValidName says whether name can be the namespace of a cache: 1 to 128 bytes of
// printable ASCII without space, colon and braces. Those separate the name from
// the key in the store, so a name that held them could make two caches meet.
func ValidName(name string) error {
	if name == "" {
		return errors.New("the name is empty")
	}
	if len(name) > 128 {
		return fmt.Errorf("the name has %d bytes, at most 128 are allowed", len(name))
	}
	for i, r := range name {
		if !visible(r) || r == ':' || r == '{' || r == '}' {
			return fmt.Errorf("the name %q holds %q at byte %d; printable ASCII without space, colon and braces is allowed", name, r, i)
		}
	}
	return nil
}

// MaxOwnerBytes is the length of the longest [Config.Owner].
const MaxOwnerBytes = 64

// ValidOwner says whether owner can be a [Config.Owner]: at most [MaxOwnerBytes] bytes of
// printable ASCII without space, so that it can lie in a record behind others' fields, and
// be shown on a terminal as it is. The empty one is valid.
func ValidOwner(owner string) error {
	if len(owner) > MaxOwnerBytes {
		return fmt.Errorf("the owner has %d bytes, at most %d are allowed", len(owner), MaxOwnerBytes)
	}
	for i, r := range owner {
		if !visible(r) {
			return fmt.Errorf("the owner %q holds %q at byte %d; printable ASCII without space is allowed", owner, r, i)
		}
	}
	return nil
}

// visible: ASCII, no space and no control byte.
func visible(r rune) bool { return ' ' < r && r <= '~' }
