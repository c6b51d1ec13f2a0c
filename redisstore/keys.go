package redisstore

import "strings"

// A cache's key has two keys in Redis: the value "of:{name:key}" and the lease
// "of:{name:key}:l". The braces put both into one slot of a cluster, also when the
// key itself holds braces: Redis hashes what lies between the first '{' and the
// first '}' after it, and both keys have that in common. A name holds neither
// colon nor braces, so the keys of two caches never meet; and a value's key ends
// in '}', a lease's in 'l', so the two kinds never meet either.
const (
	keyPrefix   = "of:{"
	keySuffix   = "}"
	leaseSuffix = ":l"
	// confirmSuffix makes the key that Confirm writes, in the value's slot; there is
	// never anything there when the script is over.
	confirmSuffix = ":w"
)

// valueKey builds the value's key from a session's prefix "of:{name:".
func valueKey(prefix, key string) string { return prefix + key + keySuffix }

func leaseKey(valueKey string) string { return valueKey + leaseSuffix }

func sessionPrefix(name string) string { return keyPrefix + name + ":" }

// parsed is a key of ours as a push names it.
type parsed struct {
	name, key string
	value     string // the value's key, also if the push was for the lease
	isLease   bool
}

func parseKey(full string) (parsed, bool) {
	value, isLease := strings.CutSuffix(full, leaseSuffix)
	rest, ok := strings.CutPrefix(value, keyPrefix)
	if !ok {
		return parsed{}, false
	}
	if rest, ok = strings.CutSuffix(rest, keySuffix); !ok {
		return parsed{}, false
	}
	name, key, ok := strings.Cut(rest, ":")
	return parsed{name: name, key: key, value: value, isLease: isLease}, ok
}
