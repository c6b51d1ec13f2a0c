package onefill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill/internal/flight"
	"github.com/onefill/onefill/internal/local"
	"github.com/onefill/onefill/internal/origin"
	"github.com/onefill/onefill/store"
)

// Cache is a cache in front of a slow origin. It is safe for concurrent use.
type Cache[K comparable, V any] struct {
	opts     Options[K, V] // with defaults
	codec    uint32        // the id of opts.Codec
	log      *slog.Logger
	local    *local.Cache[K, V]
	flights  *flight.Table[outcome[V]]
	loadOne  LoadFunc[K, V]         // GetMany's for a key that is loaded alone: LoadMany, else Load
	accept   func(*outcome[V]) bool // acceptInterim, made once
	slots    *origin.Slots
	alone    *origin.Slots // for loads without a lease though there is a store, MaxLoadsDegraded of them; taken before slots
	remote   *remote       // nil without a store
	debts    *debts
	tags     *tagging // nil without Options.Tags
	bus      *busLink // nil without Options.Bus
	tracer   Tracer   // nil unless Options.Observer is one
	stats    counters
	lastCost atomic.Int64 // of the last load here, or of the first one seen in an envelope; nanoseconds, 0: unknown
	patience sharedLimit  // WaitTimeout, for those who wait for a flight

	life    context.Context // ends when Close gives up waiting
	end     context.CancelFunc
	closed  atomic.Bool
	closing chan struct{}  // closed by Close at its beginning
	mu      sync.RWMutex   // guards the step from open to closed: nothing blocks under it
	aloft   sync.WaitGroup // goroutines of this cache; added to under mu
}

// Source says where a value came from.
type Source uint8

// Where a value can come from.
const (
	SourceLocal Source = iota + 1 // the in-process cache
	SourceStore                   // the shared cache
	SourceLoad                    // the origin
)

func (s Source) String() string {
	switch s {
	case SourceLocal:
		return "local"
	case SourceStore:
		return "store"
	case SourceLoad:
		return "load"
	}
	return fmt.Sprintf("Source(%d)", uint8(s))
}

// Result is a value with what is known about it.
type Result[V any] struct {
	Value     V
	Source    Source
	Age       time.Duration // since it was loaded or Set, by this machine's clock
	Stale     bool          // its TTL has ended, or it may have changed unheard while the store was unreachable
	Coalesced bool          // another call's flight brought it
	Waited    time.Duration // how long this call waited for a flight
}

// New returns a cache. It fails if the options are invalid, naming the fields,
// and if a store is given that does not answer within 5 seconds, with a *StoreError,
// unless AllowStoreDown is set.
func New[K comparable, V any](o Options[K, V]) (*Cache[K, V], error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	c := &Cache[K, V]{
		opts:    o,
		codec:   codecID(o.Codec.Name()),
		log:     o.Logger.With("cache", o.Name),
		slots:   origin.NewSlots(origin.Limits{Most: o.MaxLoads, Least: o.MaxLoadsDegraded, Waiting: o.MaxLoadsWaiting, Strays: maxStrays(o.MaxLoads)}),
		alone:   origin.NewSlots(origin.Limits{Most: o.MaxLoadsDegraded, Waiting: o.MaxLoadsWaiting}),
		closing: make(chan struct{}),
		debts:   newDebts(),
	}
	c.loadOne = o.loadOne()
	c.accept = c.acceptInterim
	c.patience.timeout, c.patience.slice = o.WaitTimeout, min(o.WaitTimeout/256, 10*time.Millisecond)
	c.tracer, _ = o.Observer.(Tracer)
	c.life, c.end = context.WithCancel(context.Background())
	size := o.Local
	if size.Off {
		size = LocalOptions{}
	}
	c.local = local.New[K, V](local.Options{MaxEntries: size.MaxEntries, MaxWeight: size.MaxBytes, Grace: o.grace(), Shared: o.Store != nil || o.Tags})
	c.flights = flight.NewTable[outcome[V]](c.local.Now)
	if o.Tags { // before the store can tell of any
		c.tags = newTagging(after(longestJittered(o.TTL, o.Jitter), o.grace()))
	}
	if o.Store == nil {
		return c, nil
	}
	if err := c.attach(); err != nil {
		c.end()
		return nil, err
	}
	err := error(nil)
	if o.Tags {
		err = c.attachTags()
	}
	if err == nil && o.Bus != nil { // which needs a Store
		err = c.attachBus()
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// attachTimeout bounds New: longer than an operation may take, since it connects
// and probes.
const attachTimeout = 5 * time.Second

func (c *Cache[K, V]) attach() error {
	patience := attachTimeout
	if c.opts.AllowStoreDown {
		patience = time.Second
	}
	ctx, cancel := context.WithTimeout(c.life, max(patience, c.opts.StoreTimeout))
	defer cancel()
	c.remote = newRemote(c.opts.StoreTimeout, c)
	session, err := c.opts.Store.Attach(ctx, store.Config{
		Name:      c.opts.Name,
		Owner:     c.opts.Owner,
		Grace:     c.opts.grace(),
		AllowDown: c.opts.AllowStoreDown,
		Events:    store.Events{Changed: c.changed, Lost: c.lost, Replaced: c.replaced, Voided: c.voided, Raised: c.raised},
	})
	if err != nil {
		return fmt.Errorf("onefill: attaching cache %q to its store: %w", c.opts.Name, err)
	}
	c.remote.attach(session)
	if c.opts.AllowStoreDown {
		if err := session.Ping(ctx); err != nil {
			c.log.Warn("the store does not answer yet", "err", err)
		}
	}
	return nil
}

// localTTL is how long an entry may be served without a look at the store. What
// the store can do is asked each time, as it may be known only once the store can
// be reached.
func (c *Cache[K, V]) localTTL() time.Duration {
	return c.opts.localTTL(c.remote != nil, c.remote != nil && c.remote.session.Features().Push)
}

// call is what a caller who waits until a moment wants of a flight.
func (c *Cache[K, V]) call(now, until int64) flight.Call[outcome[V]] {
	if c.remote == nil {
		return flight.Call[outcome[V]]{Now: now, Until: until, MaxAge: math.MaxInt64}
	}
	return flight.Call[outcome[V]]{
		Now:    now,
		Until:  until,
		MaxAge: c.localTTL(),
		Accept: c.accept, // who cannot have the interim looks at the store
	}
}

// changed hears from the store that somebody else has changed a key.
func (c *Cache[K, V]) changed(key string) {
	c.local.Pushed(key)
	c.flights.Changed(key)
}

// lost hears that pushes may have been missed.
func (c *Cache[K, V]) lost() {
	c.local.Broken()
	c.flights.ChangedAll()
	c.remote.broken.Store(true) // last: who clears it finds the rest done
	c.checkStore()
}

// storeDown and storeUp are called by remote when its mind changes about the store,
// or about one of its servers.
func (c *Cache[K, V]) storeDown(err error) {
	c.log.Warn("the store, or one of its servers, is unreachable", "on_store_down", c.opts.OnStoreDown.String(), "max_loads_without_lease", c.opts.MaxLoadsDegraded, "err", err)
	c.tell(Event{Kind: EventStoreDown, Err: err})
}

func (c *Cache[K, V]) storeUp() {
	c.mended() // also where one of several servers is back: whose keys were loaded alone is not known
	if c.remote.sharded == nil {
		c.limited(c.slots.Restart())
	} else {
		c.limited(c.slots.Half())
	}
	c.log.Info("the store answers again")
	c.tell(Event{Kind: EventStoreUp})
	c.replaySoon()
}

// mended: the store answers after a break. What was read before it may have been
// invalidated unheard.
func (c *Cache[K, V]) mended() {
	c.local.Mended()
	c.flights.ChangedAll()
}

func (c *Cache[K, V]) storeError(key string, err error) {
	c.stats.storeErrors.Add(1)
	c.tell(Event{Kind: EventStoreError, Key: key, Err: err})
}

const (
	closeTimeout = 5 * time.Second // how long Close waits for flights
	farewell     = time.Second     // and then for those whose contexts it has ended
)

// Close waits for the flights in the air, at most 5 seconds, then ends their
// contexts. Calls that begin after Close return ErrClosed. It does not close the
// store, which belongs to whoever made it. Closing twice is fine.
func (c *Cache[K, V]) Close() error {
	c.mu.Lock()
	first := c.closed.CompareAndSwap(false, true)
	c.mu.Unlock()
	if !first {
		return nil
	}
	close(c.closing)
	landed := make(chan struct{})
	go func() {
		c.aloft.Wait()
		close(landed)
	}()
	var err error
	patience := time.NewTimer(closeTimeout)
	defer patience.Stop()
	select {
	case <-landed:
	case <-patience.C:
		err = errors.New("onefill: Close: loads still ran after 5 seconds; their contexts were ended")
		// The loads that heed it give their leases back, for which they need the store.
		c.end()
		patience.Reset(farewell)
		select {
		case <-landed:
		case <-patience.C:
		}
	}
	c.end()
	if c.remote != nil {
		c.payLast()
		c.bus.close()
		err = errors.Join(err, c.remote.session.Close())
	}
	c.local.Close()
	if c.tags != nil {
		c.tags.known.Close()
	}
	return err
}

// begin starts a goroutine that Close waits for. It refuses with false when the
// cache is closed.
func (c *Cache[K, V]) begin(fn func()) bool {
	if !c.enter() {
		return false
	}
	go func() {
		defer c.aloft.Done()
		fn()
	}()
	return true
}

// enter makes Close wait until aloft.Done, unless the cache is closed.
func (c *Cache[K, V]) enter() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed.Load() {
		return false
	}
	c.aloft.Add(1)
	return true
}
