package redisstore

import "strings"

// A cache's key has two keys in Redis: the value "of:{name:key}" and the lease
// "of:{name:key}:l". The braces put both into one slot of a cluster, also when the
// key itself holds braces: Redis hashes what lies between the first '{' and the
// first '}' after it, and both keys have that in common. A name holds neither
// colon nor braces, so the keys of two caches never meet; and a value's key ends
// in '}', a lease's in 'l', so the two kinds never meet either.
//
// The tags of a cache, and its epoch, are all in one slot: "of:{name}:t:tag" and
// "of:{name}:e". There the brace comes first, and in a cache's keys the colon.
const (
	keyPrefix   = "of:{"
	keySuffix   = "}"
	leaseSuffix = ":l"
	// confirmSuffix makes the key that Confirm writes, in the value's slot; there is
	// never anything there when the script is over.
	confirmSuffix = ":w"
	epochSuffix   = ":e"
	tagInfix      = ":t:"
)

// valueKey builds the value's key from a session's prefix "of:{name:".
func valueKey(prefix, key string) string { return prefix + key + keySuffix }

func leaseKey(valueKey string) string { return valueKey + leaseSuffix }

func sessionPrefix(name string) string { return keyPrefix + name + ":" }

func epochKey(name string) string { return keyPrefix + name + keySuffix + epochSuffix }

// tagPrefix is also the generation of the empty tag, which the whole cache is under.
func tagPrefix(name string) string { return keyPrefix + name + keySuffix + tagInfix }

// parsed is a key of ours as a push names it.
type parsed struct {
	kind keyKind
	name string
	key  string // the cache's, or the tag, or empty for the epoch
	full string // the value's key, also if the push was for the lease, or the generation's, or the epoch's
}

type keyKind uint8

const (
	isValue keyKind = iota + 1
	isLease
	isTag
	isEpoch
)

// parseKey reads a key that pushes are told of.
func parseKey(full string) (parsed, bool) {
	rest, ok := strings.CutPrefix(full, keyPrefix)
	end := strings.IndexAny(rest, ":"+keySuffix)
	if !ok || end < 0 {
		return parsed{}, false
	}
	p := parsed{kind: isValue, name: rest[:end], full: full}
	if strings.HasPrefix(rest[end:], keySuffix) {
		if rest[end:] == keySuffix+epochSuffix {
			p.kind = isEpoch
			return p, true
		}
		p.kind = isTag
		p.key, ok = strings.CutPrefix(rest[end:], keySuffix+tagInfix)
		return p, ok
	}
	if value, ok := strings.CutSuffix(full, keySuffix+leaseSuffix); ok {
		p.kind, p.full = isLease, value+keySuffix
	}
	p.key, ok = strings.CutSuffix(p.full[len(keyPrefix)+end+1:], keySuffix)
	return p, ok
}
