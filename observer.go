package onefill

import (
	"fmt"
	"runtime/debug"
	"time"

	"github.com/onefill/onefill/internal/local"
)

// Observer hears of what a cache does, but for most hits in local, which Stats counts.
// It is called from the goroutines that do it, with no lock held; it must be
// quick and safe for concurrent use. Its panics are caught and logged. One that is a
// [Tracer] as well is used as such.
type Observer interface {
	Observe(Event)
}

// ObserverFunc is a function as an Observer.
type ObserverFunc func(Event)

// Observe calls the function.
func (f ObserverFunc) Observe(e Event) { f(e) }

// Event is one thing that happened.
type Event struct {
	Kind  EventKind
	Cache string        // Options.Name
	Key   string        // as in the store, without the name; empty where no single key is meant
	Took  time.Duration // what Kind says
	Age   time.Duration // of the value, where there is one
	Err   error         // the cause, where there is one
	N     int           // how many, where Kind says so

	Flight uint64 // the flight that it is about, where there is one; see Flight.ID

	Callers int // EventMiss: who waited for it in this process
}

// EventKind is the kind of an Event. EventMiss is told once for each flight whose callers
// found nothing fresh, in local or in the store, when they asked. Its N is how many loads they
// waited for, as far as this process knows: its own, and one more if it waited for another
// process's before, or instead. 1 is what onefill is for; 2 says that a lease was lost; 0 that the
// answer was a failure that is remembered, or that there was no place at the origin. Its Err is
// what the callers got; of a row that does not exist, whoever found that out, it is ErrNotFound.
type EventKind uint8

// The kinds of events.
const (
	EventLocalHit      EventKind = iota + 1 // one hit in local of N, picked at random; Age
	EventStoreHit                           // a flight found a fresh value in the store; Age
	EventMiss                               // a miss group of this process has ended; Took, Err, Callers, and N, the loads it waited for
	EventLoad                               // a load of N keys ended; Took is its time, Err its failure; no Key for a LoadMany
	EventWait                               // a call's wait for a flight ended; Took, Err
	EventLeaseWait                          // a wait of a flight for another one's load ended; Took. A flight may wait several times
	EventFill                               // the store accepted a loaded value
	EventFillRefused                        // the store refused a loaded value: the lease was lost
	EventLeaseLost                          // a lease was found lost while the load ran
	EventStale                              // a stale value was served; Age
	EventRefresh                            // a background refresh began
	EventEarlyRefresh                       // a background refresh began before the value's expiry
	EventRefreshFailed                      // a background refresh brought nothing; Err
	EventOriginBusy                         // a flight got no place at the origin
	EventStoreError                         // an operation of the store failed; Err
	EventStoreDown                          // the store, or one of its servers, is taken for unreachable; Err
	EventStoreUp                            // the store answers again
	EventLoadLimit                          // the limit of loads at once has changed; N
	EventReplay                             // writes of N keys were repeated after an outage or a failover
	EventUndecodable                        // a stored entry could not be read; Err
	EventUnstorable                         // a value could not be encoded or is too large; Err
	EventBusGap                             // all of local is taken for old, as something may have gone unheard; Err
	EventBusError                           // a message could not be published; Err
)

// localHitsTold is how many hits in local there are for one that the observer hears of.
const (
	localHitsTold     = 1 << localHitsToldBits
	localHitsToldBits = 6
)

var eventNames = [...]string{
	EventLocalHit: "local hit", EventStoreHit: "store hit", EventMiss: "miss", EventLoad: "load", EventWait: "wait", EventLeaseWait: "lease wait",
	EventFill: "fill", EventFillRefused: "fill refused", EventLeaseLost: "lease lost", EventStale: "stale served",
	EventRefresh: "refresh", EventEarlyRefresh: "early refresh", EventRefreshFailed: "refresh failed", EventOriginBusy: "origin busy",
	EventLoadLimit: "load limit", EventReplay: "replay",
	EventStoreError: "store error", EventStoreDown: "store down", EventStoreUp: "store up",
	EventUndecodable: "undecodable", EventUnstorable: "unstorable",
	EventBusGap: "bus gap", EventBusError: "bus error",
}

func (k EventKind) String() string {
	if int(k) < len(eventNames) && k > 0 {
		return eventNames[k]
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// tell calls the observer. No lock is held.
func (c *Cache[K, V]) tell(e Event) {
	if c.opts.Observer == nil {
		return
	}
	defer c.survive()
	e.Cache = c.opts.Name
	c.opts.Observer.Observe(e)
}

// survive is deferred around an observer's code, whose panics are to end nothing.
func (c *Cache[K, V]) survive() {
	if r := recover(); r != nil {
		c.log.Error("the observer panicked", "panic", r, "stack", string(debug.Stack()))
	}
}

// Observers is an Observer that passes everything on to each of several, in order; those that
// are nil are left out. If one of them is a [Tracer], so is it: a loader's context goes through
// all of them, the first one's innermost.
func Observers(all ...Observer) Observer {
	var some observers
	var traced tracers
	for _, o := range all {
		if o == nil {
			continue
		}
		some = append(some, o)
		if t, ok := o.(Tracer); ok {
			traced.tracers = append(traced.tracers, t)
		}
	}
	switch {
	case len(some) == 0:
		return nil
	case len(some) == 1:
		return some[0]
	case len(traced.tracers) == 0:
		return some
	}
	traced.observers = some
	return traced
}

type observers []Observer

func (all observers) Observe(e Event) {
	if len(all) == 0 {
		return
	}
	defer all[1:].Observe(e) // also if the first one panics
	all[0].Observe(e)
}

// hit counts a hit in local, and tells the observer of one in localHitsTold. Which one does
// not recur with a period: the hits of one GetMany are counted in a row, and of its keys
// every 64th would always be the same ones.
func (c *Cache[K, V]) hit(key K, e *local.Entry[V]) {
	if nth := c.stats.localHits.inc(); spread(nth, localHitsToldBits) == 0 && c.opts.Observer != nil {
		c.tellHit(key, e)
	}
}

func (c *Cache[K, V]) tellHit(key K, e *local.Entry[V]) {
	c.tell(Event{Kind: EventLocalHit, Key: c.opts.Key(key), Age: ageOf(e), N: localHitsTold})
}
