package onefill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"reflect"
	"strconv"
	"time"

	"github.com/onefill/onefill/bus"
	"github.com/onefill/onefill/store"
)

// NoJitter as Options.Jitter turns jitter off (0 means the default).
const NoJitter = math.SmallestNonzeroFloat64

// Defaults of Options, where a field is left zero.
const (
	DefaultTTL             = time.Minute
	DefaultJitter          = 0.1
	DefaultNotFoundTTL     = 10 * time.Second
	DefaultErrorTTL        = time.Second
	DefaultLoadTimeout     = 30 * time.Second
	DefaultLeaseTTL        = 5 * time.Second
	DefaultStoreTimeout    = 250 * time.Millisecond
	DefaultMaxLoads        = 256
	DefaultMaxLoadsWaiting = 10_000
	DefaultMaxEntries      = 10_000
	// DefaultMaxValueBytes counts the envelope's 60 bytes, too.
	DefaultMaxValueBytes = 1 << 20
	DefaultMaxBatch      = 100
	// DefaultLocalTTL bounds how long a local entry lives without a look at the
	// store, where the store can push; DefaultPolledTTL where it cannot.
	DefaultLocalTTL  = time.Minute
	DefaultPolledTTL = 5 * time.Second

	// MaxKeyBytes is the longest key, as a string. A store may take less: memcachestore
	// takes 8 KiB.
	MaxKeyBytes = 64 << 10
)

// Options configure a Cache. The zero value of each field is its default;
// durations must not be negative.
type Options[K comparable, V any] struct {
	// Name is the cache's namespace in the store and its label in metrics. Caches
	// of the same name on the same store share their entries. Needed with a Store:
	// printable ASCII without space, colon and braces, at most 128 bytes.
	Name string

	// Owner is who this process is to people who look at a lease of it in the store, with
	// `onefill inspect`: printable ASCII without space, at most 64 bytes. It decides nothing, so
	// several processes may have the same. Default: the host's name, a colon and the
	// process ID.
	Owner string

	// Load asks the origin for one key. It returns ErrNotFound if the row does not
	// exist; an ErrNotFound that it got from another cache and passes on means the
	// same, so hide it (with %v, not %w) where it does not. Its context ends after LoadTimeout and has the values of the caller's
	// context, but not its cancellation. It may call SetTTL. Needed for Get;
	// GetOrLoad brings its own.
	Load func(ctx context.Context, key K) (V, error)

	// LoadMany asks the origin for many keys at once, at most MaxBatch. A key that
	// is not in the map does not exist; with an error, the keys that are in the map
	// are loaded and the others have failed. Default: Load for each key.
	LoadMany func(ctx context.Context, keys []K) (map[K]V, error)

	// MaxBatch is the most keys given to LoadMany. Default 100.
	MaxBatch int

	// TTL is how long a value is fresh. Default 1 minute.
	TTL time.Duration

	// Jitter is the largest part of the TTL, from 0 to 1, that is added at random so
	// that what was stored together does not expire together. Default 0.1; NoJitter
	// turns it off.
	Jitter float64

	// StaleFor is how long after its TTL a value may still be served while one
	// caller refreshes it in the background. Default 0: never.
	StaleFor time.Duration

	// StaleOnError is how long after its TTL a value may still be served when it
	// cannot be loaded: the load failed, the origin is busy. Default 0: never.
	StaleOnError time.Duration

	// EarlyRefresh is the beta of XFetch: a value may be refreshed in the background
	// before its TTL ends, the likelier the nearer the end is and the longer its
	// load took. 1 is a good value; larger is earlier. It is decided at hits in local.
	// Default 0: off.
	EarlyRefresh float64

	// NotFoundTTL is how long ErrNotFound is remembered. Default 10 seconds, or TTL
	// if that is shorter.
	NotFoundTTL time.Duration

	// ErrorTTL is how long a failed load is remembered: until then callers, in all
	// processes, get its error instead of asking the origin again. Context errors
	// are not remembered. While loads keep failing, it doubles: up to 16 times
	// where a stale value is served meanwhile (then a timeout holds the next attempt back,
	// too), else from the third failure on, up to 4 times. Default 1 second. A
	// store that cannot push keeps it for a
	// second at least (memcached, whose clock ticks seconds, for two), so that everybody
	// who waits and polls comes by in time.
	ErrorTTL time.Duration

	// LoadTimeout bounds one load. A loader that does not return by then is left
	// behind: its callers get an error, its place is given back, its result is
	// dropped. While MaxLoads loaders (64 at least) that were left behind still run, no
	// other load gets a place. Default 30 seconds.
	LoadTimeout time.Duration

	// WaitTimeout bounds how long one call waits, whatever it waits for; it may be 10 ms less,
	// or a 256th if that is less. Default
	// LoadTimeout plus 1 second, so that a load that takes too long reports itself.
	WaitTimeout time.Duration

	// LeaseTTL is how long the right to load a key outlives its holder's last sign
	// of life: a killed process blocks a key for that long. It is renewed while the
	// load runs, so loads may be longer. Default 5 seconds.
	LeaseTTL time.Duration

	// MaxLoads is the most loads at once in this cache. A load that gets no place
	// within half of WaitTimeout is given up: its callers get a stale value where
	// StaleOnError allows it, else ErrOriginBusy. First come, first served. A load
	// that is nested in another one of this cache takes a place of its own or the outer
	// one's, whichever is free first.
	//
	// The limit in force moves between MaxLoadsDegraded and MaxLoads: it is halved when
	// more than half of the latest loads have failed, begins at MaxLoadsDegraded when
	// the store comes back after an outage (at half of what it was where only one of its
	// servers was away), and grows in eight steps, each after as many loads as it allows at
	// once (8 at least) of which a tenth failed at most. Default 256.
	MaxLoads int

	// MaxLoadsWaiting is how many loads may wait for a place; one more is given up at
	// once, as if it had got none in time. Default 10,000.
	MaxLoadsWaiting int

	// MaxLoadsDegraded is the most loads at once that have no lease, since the store,
	// or the server of their key, is unreachable or refuses. Default an eighth of
	// MaxLoads, at least 1. Not more than MaxLoads.
	MaxLoadsDegraded int

	// StoreTimeout bounds one operation of the store; up to a 32nd of it less. Default 250 ms.
	StoreTimeout time.Duration

	// Local is the in-process cache in front of the store.
	Local LocalOptions

	// Store is the cache that processes share. Default nil: this process only.
	Store store.Store

	// Bus tells the other processes at once what this one writes, where the Store cannot
	// push (memcached, a Redis without tracking): their local entries and flights are then
	// old for as long as a message takes, as a rule, and never for longer than Local.TTL, for
	// which a longer time than the default is thus in order. All processes that share the
	// cache should have it. Nothing waits for it or fails by it: while it is away, Local.TTL
	// is the bound. New fails if it cannot subscribe within 5 seconds, unless AllowStoreDown is
	// set. It needs a Store. With one that pushes it is allowed, and needless. The cache does
	// not close it. See package bus; redisstore has one. Default nil.
	Bus bus.Bus

	// AllowStoreDown lets New succeed while the store cannot be reached. It waits for
	// the store for a second at most (or for StoreTimeout, if that is longer), and logs.
	AllowStoreDown bool

	// OnStoreDown says what happens to a miss while the store is unreachable.
	// Default LoadLimited.
	OnStoreDown StoreDownPolicy

	// MaxValueBytes is the largest value that goes to the store, encoded and with the 60
	// bytes of its envelope. A larger one
	// that was loaded is served and kept in local; a mark in the store tells the other
	// processes, each of which loads it for itself. Set refuses it and invalidates the
	// key. Default 1 MiB, or the server's limit if that is less.
	MaxValueBytes int

	// Codec turns values into bytes and back. Default: []byte and string as they
	// are, JSON for everything else.
	Codec Codec[V]

	// Key turns a key into the string under which it is stored, which must differ
	// for different keys. Needed where K is neither a string nor an integer kind.
	Key func(K) string

	// Version returns the row's own version, if it has one: a value of an older
	// version never replaces one of a newer version.
	Version func(V) uint64

	// Tags allows values to be under tags (SetTags, TagsOf), and InvalidateTag and Clear.
	// All processes that share the cache must set it: values of one that does not are
	// misses for those that do. It costs a question to the store for each load, one for
	// a tag's generation now and then, and a look at each tag when local is read. Default
	// false.
	Tags bool

	// TagsOf returns the tags of a value, beside those that its loader sets: also where
	// it is Set, and for each row of LoadMany. It implies Tags. Default nil.
	TagsOf func(K, V) []string

	// Weigh says how many bytes an entry takes in local, for Local.MaxBytes. Needed with it
	// unless V is []byte or string, whose default counts the key, the value and 256 bytes.
	Weigh func(K, V) int

	// Clone copies a value before it is handed out, and what was loaded or Set before it is
	// kept, so that nobody outside shares what the cache has. Default: callers share values
	// that hold pointers, and must not change them.
	Clone func(V) V

	// Observer hears of what the cache does. Default nil.
	Observer Observer

	// Logger gets what an operator should see. Default slog.Default().
	Logger *slog.Logger
}

// LocalOptions configure the in-process cache, which evicts by W-TinyLFU.
type LocalOptions struct {
	// MaxEntries is its size. Default 10,000.
	MaxEntries int

	// MaxBytes is its size in bytes, as Options.Weigh counts them, instead of MaxEntries.
	// `onefill size` finds a size for a hit rate. Default 0: MaxEntries counts.
	MaxBytes int64

	// TTL is how long an entry is served without a look at the store, and so the
	// bound of local staleness after an invalidation in another process. Default:
	// without a Store, TTL itself; with one, the smallest of TTL and 1 minute, or of
	// TTL and 5 seconds where the store cannot push.
	TTL time.Duration

	// Off leaves the in-process cache out. It needs a Store.
	Off bool
}

// StoreDownPolicy says what happens to a miss while the store is unreachable.
type StoreDownPolicy uint8

const (
	// LoadLimited loads, at most MaxLoadsDegraded at a time.
	LoadLimited StoreDownPolicy = iota
	// StaleOnly serves what is in local, stale within StaleOnError, and else fails
	// with ErrStoreDown.
	StaleOnly
	// Fail fails with ErrStoreDown.
	Fail
)

func (p StoreDownPolicy) String() string {
	switch p {
	case LoadLimited:
		return "LoadLimited"
	case StaleOnly:
		return "StaleOnly"
	case Fail:
		return "Fail"
	}
	return fmt.Sprintf("StoreDownPolicy(%d)", uint8(p))
}

// validate reports every field that is wrong, by name.
func (o *Options[K, V]) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"TTL", o.TTL}, {"StaleFor", o.StaleFor}, {"StaleOnError", o.StaleOnError},
		{"NotFoundTTL", o.NotFoundTTL}, {"ErrorTTL", o.ErrorTTL}, {"LoadTimeout", o.LoadTimeout},
		{"WaitTimeout", o.WaitTimeout}, {"LeaseTTL", o.LeaseTTL}, {"StoreTimeout", o.StoreTimeout},
		{"Local.TTL", o.Local.TTL},
	} {
		if d.d < 0 {
			bad("%s is negative: %v; 0 means the default", d.name, d.d)
		}
	}
	for _, n := range []struct {
		name string
		n    int
	}{
		{"MaxLoads", o.MaxLoads}, {"MaxLoadsDegraded", o.MaxLoadsDegraded}, {"MaxLoadsWaiting", o.MaxLoadsWaiting}, {"MaxBatch", o.MaxBatch},
		{"MaxValueBytes", o.MaxValueBytes}, {"Local.MaxEntries", o.Local.MaxEntries},
	} {
		if n.n < 0 {
			bad("%s is negative: %d; 0 means the default", n.name, n.n)
		}
	}
	if !(o.Jitter >= 0 && o.Jitter <= 1) {
		bad("Jitter is %v; it must be from 0 to 1", o.Jitter)
	}
	if !(o.EarlyRefresh >= 0) || math.IsInf(o.EarlyRefresh, 1) {
		bad("EarlyRefresh is %v; it must be 0 or a positive number", o.EarlyRefresh)
	}
	switch {
	case o.Local.MaxBytes < 0:
		bad("Local.MaxBytes is negative: %d; 0 means that MaxEntries counts", o.Local.MaxBytes)
	case o.Local.MaxBytes > 0 && o.Local.MaxEntries > 0:
		bad("Local.MaxBytes (%d) and Local.MaxEntries (%d) are both set; the size is one of them", o.Local.MaxBytes, o.Local.MaxEntries)
	case o.Local.MaxBytes > 0 && o.Weigh == nil && defaultWeigh[K, V](nil) == nil:
		bad("Local.MaxBytes is set and Weigh is nil: set Weigh to a function that says how many bytes a %T takes", *new(V))
	case o.Local.MaxBytes == 0 && o.Weigh != nil:
		bad("Weigh is set and Local.MaxBytes is not: entries are weighed for that only")
	}
	if o.MaxLoads > 0 && o.MaxLoadsDegraded > o.MaxLoads {
		bad("MaxLoadsDegraded (%d) is more than MaxLoads (%d)", o.MaxLoadsDegraded, o.MaxLoads)
	}
	if o.OnStoreDown > Fail {
		bad("OnStoreDown is %d, none of LoadLimited, StaleOnly, Fail", o.OnStoreDown)
	}
	if o.EarlyRefresh > 0 && o.Local.Off {
		bad("EarlyRefresh and Local.Off are both set: a hit in local is what decides about an early refresh")
	}
	errs = append(errs, o.validateStore()...)
	if o.Key == nil && defaultKey[K]() == nil {
		bad("Key is nil and the key type %T is neither a string nor an integer kind; set Key to a function that turns it into a string", *new(K))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("onefill: invalid Options: %w", errors.Join(errs...))
}

func (o *Options[K, V]) validateStore() (errs []error) {
	if v := reflect.ValueOf(o.Store); v.Kind() == reflect.Pointer && v.IsNil() {
		return []error{fmt.Errorf("Store is a nil %T: what made it has returned an error, perhaps", o.Store)}
	}
	if o.Store == nil {
		if o.Local.Off {
			errs = append(errs, errors.New("Local.Off is set and Store is nil: nothing is left to cache in"))
		}
		if o.AllowStoreDown {
			errs = append(errs, errors.New("AllowStoreDown is set and Store is nil"))
		}
		if o.Bus != nil {
			errs = append(errs, errors.New("Bus is set and Store is nil: it tells of what was written to a store"))
		}
		return errs
	}
	if v := reflect.ValueOf(o.Bus); v.Kind() == reflect.Pointer && v.IsNil() {
		errs = append(errs, fmt.Errorf("Bus is a nil %T: what made it has returned an error, perhaps", o.Bus))
	}
	if err := store.ValidName(o.Name); err != nil {
		errs = append(errs, fmt.Errorf("Name, which is needed with a Store: %w", err))
	}
	if err := store.ValidOwner(o.Owner); err != nil {
		errs = append(errs, fmt.Errorf("Owner: %w", err))
	}
	return errs
}

// withDefaults fills in what is left zero, but for Local.TTL, which depends on
// what the store can do.
func (o Options[K, V]) withDefaults() Options[K, V] {
	o.TTL = or(o.TTL, DefaultTTL)
	o.Jitter = or(o.Jitter, DefaultJitter)
	o.NotFoundTTL = or(o.NotFoundTTL, min(DefaultNotFoundTTL, o.TTL))
	o.ErrorTTL = or(o.ErrorTTL, DefaultErrorTTL)
	o.LoadTimeout = or(o.LoadTimeout, DefaultLoadTimeout)
	o.WaitTimeout = or(o.WaitTimeout, after(o.LoadTimeout, time.Second))
	o.LeaseTTL = or(o.LeaseTTL, DefaultLeaseTTL)
	o.StoreTimeout = or(o.StoreTimeout, DefaultStoreTimeout)
	o.MaxLoads = or(o.MaxLoads, max(DefaultMaxLoads, o.MaxLoadsDegraded))
	o.MaxLoadsDegraded = or(o.MaxLoadsDegraded, max(1, o.MaxLoads/8))
	o.MaxLoadsWaiting = or(o.MaxLoadsWaiting, DefaultMaxLoadsWaiting)
	o.MaxBatch = or(o.MaxBatch, DefaultMaxBatch)
	if o.Load == nil {
		o.Load = o.loadOne()
	}
	o.MaxValueBytes = or(o.MaxValueBytes, DefaultMaxValueBytes)
	o.Tags = o.Tags || o.TagsOf != nil
	if o.Owner == "" && o.Store != nil {
		host, _ := os.Hostname() // who has no name is known by its process ID
		o.Owner = ownerOf(host, os.Getpid())
	}
	if o.Local.MaxBytes == 0 {
		o.Local.MaxEntries = or(o.Local.MaxEntries, DefaultMaxEntries)
	}
	if o.Codec == nil {
		o.Codec = defaultCodec[V]()
	}
	if o.Key == nil {
		o.Key = defaultKey[K]()
	}
	if o.Weigh == nil {
		o.Weigh = defaultWeigh[K, V](o.Key)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// ownerOf is the default of Options.Owner. What no owner may hold is replaced, and what is
// too much of a host's name cut off.
func ownerOf(host string, pid int) string {
	id := ":" + strconv.Itoa(pid)
	b := []byte(host[:min(len(host), store.MaxOwnerBytes-len(id))])
	for i, c := range b {
		if c <= ' ' || c > '~' {
			b[i] = '-'
		}
	}
	return string(b) + id
}

// entryOverhead is what an entry of local takes beside its key and value where it is weighed: 247
// bytes with strings, 263 with slices, measured with 200,000 entries.
const entryOverhead = 256

// defaultWeigh is nil if the size of a V cannot be told.
func defaultWeigh[K comparable, V any](key func(K) string) func(K, V) int {
	switch any(*new(V)).(type) {
	case []byte:
		return func(k K, v V) int { return len(key(k)) + len(any(v).([]byte)) + entryOverhead }
	case string:
		return func(k K, v V) int { return len(key(k)) + len(any(v).(string)) + entryOverhead }
	}
	return nil
}

// localTTL is Local.TTL with its default.
func (o *Options[K, V]) localTTL(shared, push bool) time.Duration {
	switch {
	case o.Local.TTL > 0:
		return o.Local.TTL
	case !shared:
		return math.MaxInt64 // the value's own TTL decides
	case push:
		return min(o.TTL, DefaultLocalTTL)
	default:
		return min(o.TTL, DefaultPolledTTL)
	}
}

// grace is how long after its soft expiry a value is kept.
func (o *Options[K, V]) grace() time.Duration { return max(o.StaleFor, o.StaleOnError) }

func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}
