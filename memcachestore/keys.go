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
const (
	plainPrefix  = "of:"
	hashedPrefix = "oh:"
	maxItemKey   = 250
	// maxKey bounds what is kept of a key beside its value.
	maxKey = 8 << 10
	// bootKey holds the name of the server's life; see identity. No cache has an
	// empty name.
	bootKey = plainPrefix + ":life"
)

// itemKey returns the server's key, and the key to be kept with the value if the
// server's key is a hash.
func itemKey(hash func(string) [32]byte, name, key string) (item, kept string, err error) {
	if len(key) > maxKey {
		return "", "", fmt.Errorf("%w: the key has %d bytes, at most %d are allowed", store.ErrTooLarge, len(key), maxKey)
	}
	if len(plainPrefix)+len(name)+1+len(key) <= maxItemKey && printable(key) {
		return plainPrefix + name + ":" + key, "", nil
	}
	sum := hash(key)
	return hashedPrefix + name + ":" + base64.RawURLEncoding.EncodeToString(sum[:]), key, nil
}

func sha(key string) [32]byte { return sha256.Sum256([]byte(key)) }

func printable(key string) bool {
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return false
		}
	}
	return true
}
