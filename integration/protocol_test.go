package integration

import (
	"context"
	"errors"
	"time"

	"github.com/onefill/onefill"
)

// A test and its children talk in lines of JSON: requests to the child's input,
// messages from its output.

// config is what a child is started with. Zero options mean onefill's defaults.
type config struct {
	Redis, Postgres string
	Memcached       []string // instead of Redis: the servers of a memcachestore
	Taps            []*tap   `json:"-"` // the way of each process to its one memcached
	Store           storeKind
	Name            string
	Origin          int // connections to PostgreSQL

	TTL, LocalTTL, LeaseTTL, ErrorTTL, StaleOnError time.Duration
	StoreTimeout, LoadTimeout, WaitTimeout          time.Duration
	MaxLoads, MaxLoadsDegraded                      int
	Naive                                           bool // no onefill: GET, load, SET
	Bulk                                            bool // with LoadMany
}

type storeKind string

const (
	viaOpen    storeKind = "Open" // redisstore.Open
	viaNew     storeKind = "New"  // redisstore.New on a client of the user's
	noTracking storeKind = "Open, no tracking"
)

type opKind string

const (
	opCallers    opKind = "callers"    // Callers goroutines Get the Keys, after opGo
	opGo         opKind = "go"         // start the callers of request Of
	opCancel     opKind = "cancel"     // end the context of request Of
	opInvalidate opKind = "invalidate" // Keys
	opSet        opKind = "set"        // Keys[0] to Row
	opUntil      opKind = "until"      // Get Keys[0] until its version is Row.Version at least
	opSets       opKind = "sets"       // a goroutine for each of Sets calls GetMany, after opGo
	opStats      opKind = "stats"
	opHistory    opKind = "history" // run Work until opCancel
	opClose      opKind = "close"   // close the cache and the store, then end
)

type request struct {
	ID      int
	Op      opKind
	Of      int
	Keys    []string
	Callers int
	Row     row
	Work    *work
	Sets    [][]string
}

type eventKind string

const (
	evUp     eventKind = "up"     // the cache is open
	evReply  eventKind = "reply"  // the request ID is done
	evReady  eventKind = "ready"  // the callers of request ID stand at the barrier
	evLoad   eventKind = "load"   // a load of Key has read the row
	evLoaded eventKind = "loaded" // it has ended
)

type message struct {
	Event   eventKind
	ID      int
	At      time.Time
	Key     string
	Row     row
	Err     string
	Results []result
	Many    []many
	Stats   *onefill.Stats
	Peak    int // loads at once since the last opStats
}

// result is what one caller got.
type result struct {
	Key       string
	Row       row
	Class     string // "" without an error
	Err       string
	Source    onefill.Source
	Stale     bool
	Coalesced bool
	Start     time.Time
	Took      time.Duration
}

func (r result) end() time.Time { return r.Start.Add(r.Took) }

var classes = []struct {
	err  error
	name string
}{
	{onefill.ErrNotFound, "not found"},
	{onefill.ErrLoadFailed, "load failed"},
	{onefill.ErrWaitTimeout, "wait timeout"},
	{onefill.ErrOriginBusy, "origin busy"},
	{onefill.ErrStoreDown, "store down"},
	{onefill.ErrClosed, "closed"},
	{context.Canceled, "canceled"},
	{context.DeadlineExceeded, "deadline"},
}

func classOf(err error) string {
	if err == nil {
		return ""
	}
	for _, c := range classes {
		if errors.Is(err, c.err) {
			return c.name
		}
	}
	return "other"
}
