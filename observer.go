package onefill

import (
	"fmt"
	"time"
)

// Observer hears of what a cache does, but for hits in local, which Stats counts.
// It is called from the goroutines that do it, with no lock held; it must be
// quick and safe for concurrent use. Its panics are caught and logged.
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
}

// EventKind is the kind of an Event.
type EventKind uint8

// The kinds of events.
const (
	EventStoreHit      EventKind = iota + 1 // a flight found a fresh value in the store; Age
	EventLoad                               // a load ended; Took is its time, Err its failure
	EventWait                               // a call's wait for a flight ended; Took, Err
	EventLeaseWait                          // a flight waited for another one's load; Took
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

var eventNames = [...]string{
	EventStoreHit: "store hit", EventLoad: "load", EventWait: "wait", EventLeaseWait: "lease wait",
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
	defer func() {
		if r := recover(); r != nil {
			c.log.Error("the observer panicked", "event", e.Kind.String(), "panic", r)
		}
	}()
	e.Cache = c.opts.Name
	c.opts.Observer.Observe(e)
}
