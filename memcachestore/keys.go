package memcachestore

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"

	"github.com/onefill/onefill/store"
)

// A cache's key lies under "of:name:key" where that is a key that memcached takes:
// at most 250 bytes, nothing but printable ASCII, no space. Any other key lies under
// "oh:name:" and its SHA-256, and what is stored there holds the key itself, so that
// two keys of one hash are told apart. A name holds no colon, so keys of two caches
// never meet, nor do the two forms.
//
// The generation of a tag lies under "ot:name:tag" where memcached takes that, and else
// under "ou:name:" and the tag's SHA-256; tags of one hash would be voided together. The
// epoch lies under "oe:name".
const (
	plainPrefix  = "of:"
	hashedPrefix = "oh:"
	maxItemKey   = 250
	// maxKey bounds what is kept of a key beside its value.
	maxKey = 8 << 10
	// bootKey holds the name of the server's life; see identity. No cache has an
	// empty name.
	bootKey = plainPrefix + ":life"

	plainTagPrefix  = "ot:"
	hashedTagPrefix = "ou:"
	epochPrefix     = "oe:"
)

// itemKey returns the server's key, and the key to be kept with the value if the
// server's key is a hash.
func itemKey(hash func(string) [32]byte, name, key string) (item, kept string, err error) {
	if len(key) > maxKey {
		return "", "", fmt.Errorf("%w: the key has %d bytes, at most %d are allowed", store.ErrTooLarge, len(key), maxKey)
	}
	var room [maxItemKey]byte
	b, kept := appendItemKey(room[:0], hash, name, key)
	return string(b), kept, nil
}

// appendItemKey appends what itemKey returns, of a key that is not too long.
func appendItemKey(b []byte, hash func(string) [32]byte, name, key string) (_ []byte, kept string) {
	begin := len(b)
	b = append(append(append(append(b, plainPrefix...), name...), ':'), key...)
	if fits(b[begin:]) {
		return b, ""
	}
	b = append(append(append(b[:begin], hashedPrefix...), name...), ':')
	return append(b, hashed(hash, key)...), key
}

// tagKey returns the server's key for the generation of a tag.
func tagKey(hash func(string) [32]byte, name, tag string) string {
	if plain := plainTagPrefix + name + ":" + tag; fits(plain) {
		return plain
	}
	return hashedTagPrefix + name + ":" + hashed(hash, tag)
}

// fits says whether memcached takes a key.
func fits[T string | []byte](item T) bool { return len(item) <= maxItemKey && printable(item) }

func hashed(hash func(string) [32]byte, key string) string {
	sum := hash(key)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

func sha(key string) [32]byte { return sha256.Sum256([]byte(key)) }

func printable[T string | []byte](key T) bool {
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return false
		}
	}
	return true
}
