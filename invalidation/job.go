package invalidation

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/store"
)

// The kinds of jobs.
const (
	KindInvalidate = "onefill.invalidate"
	KindExpire     = "onefill.expire"
	KindRefresh    = "onefill.refresh"
)

// Invalidate returns a job for each key that removes it from the cache of that name, the one
// given to [For]. Set Version, Delay and Merge of the jobs as need be. It fails if the name
// is none ([store.ValidName]) or a key cannot be brought back from JSON; it talks to nobody.
func Invalidate[K comparable](cache string, keys ...K) ([]queue.Job, error) {
	return jobs(KindInvalidate, cache, keys)
}

// Expire is [Invalidate] for jobs that make the keys stale.
func Expire[K comparable](cache string, keys ...K) ([]queue.Job, error) {
	return jobs(KindExpire, cache, keys)
}

// Refresh is [Invalidate] for jobs that load the keys again, whether they are cached or not:
// each job costs the origin a load. Give the jobs the rows' Version if they have one.
func Refresh[K comparable](cache string, keys ...K) ([]queue.Job, error) {
	return jobs(KindRefresh, cache, keys)
}

func jobs[K comparable](kind, cache string, keys []K) ([]queue.Job, error) {
	if err := store.ValidName(cache); err != nil {
		return nil, fmt.Errorf("invalidation: the name of the cache: %w", err)
	}
	js := make([]queue.Job, len(keys))
	for i, key := range keys {
		p := payload{Cache: cache}
		name, err := encodeKey(key, &p)
		if err != nil {
			return nil, fmt.Errorf("invalidation: cache %q: %w", cache, err)
		}
		data, err := json.Marshal(p)
		if err != nil {
			return nil, fmt.Errorf("invalidation: cache %q, key %s: %w", cache, abbreviate(name), err)
		}
		js[i] = queue.Job{Kind: kind, Key: jobKey(cache, name), Payload: data}
	}
	return js, nil
}

// payload is what a job says.
type payload struct {
	Cache string          `json:"cache"`
	Key   json.RawMessage `json:"key,omitempty"`
	Bytes *[]byte         `json:"bytes,omitempty"` // a string that JSON cannot hold
}

const (
	maxJobKey = 1024 // bytes, of queue.Job.Key
	hashed    = "sha256:"
)

// jobKey names a key of a cache in a queue, readable where it can be. Different keys have
// different names, since jobs of one name may be merged: a key that looks like a hash is
// hashed as well.
func jobKey(cache, name string) string {
	key := cache + ":" + name
	if len(key) <= maxJobKey && utf8.ValidString(name) && !strings.ContainsRune(name, 0) && !strings.HasPrefix(name, hashed) {
		return key
	}
	sum := sha256.Sum256([]byte(name))
	return cache + ":" + hashed + hex.EncodeToString(sum[:])
}

// abbreviate keeps long keys out of error messages.
func abbreviate(key string) string {
	const most = 80
	if len(key) > most {
		key = key[:most] + "..."
	}
	return fmt.Sprintf("%q", key)
}
