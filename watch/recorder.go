package watch

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill"
)

// Recorder remembers what the caches do that it is the Observer of. It is safe for
// concurrent use, by any number of caches. See the package documentation.
type Recorder struct {
	opts  Options
	start time.Time
	keys  *window

	mu     sync.Mutex // guards the fields below; nothing blocks under it
	caches map[string]*CacheStat
	air    map[uint64]*flight // by Flight.ID
	idle   []uint64           // of air, those that were left by everybody, the oldest first
	recent []Group            // ring of those that have ended
	next   int                // in recent
	dulled uint64             // flights that found no room in air

	listeners atomic.Int32 // so that nobody is told where nobody listens
	stream    stream
}

var _ onefill.Tracer = (*Recorder)(nil)

// New returns a Recorder.
func New(o Options) *Recorder {
	o = o.withDefaults()
	return &Recorder{
		opts:   o,
		start:  time.Now(),
		keys:   newWindow(o.Keys),
		caches: make(map[string]*CacheStat),
		air:    make(map[uint64]*flight),
	}
}

// Close ends the streams, so that http.Server.Shutdown need not wait for them: give it to
// RegisterOnShutdown. The Recorder goes on recording, and new streams end at once.
func (r *Recorder) Close() { r.stream.close() }

// mostCaches bounds the number of caches that are counted apart.
const mostCaches = 256

// cache is the counters of one. mu is held.
func (r *Recorder) cache(of string) *CacheStat {
	c := r.caches[of]
	if c == nil {
		if len(r.caches) >= mostCaches {
			of = "(others)"
			if c = r.caches[of]; c != nil {
				return c
			}
		}
		c = &CacheStat{Cache: of}
		r.caches[of] = c
	}
	return c
}

// Observe implements onefill.Observer.
func (r *Recorder) Observe(e onefill.Event) {
	switch e.Kind {
	case onefill.EventLocalHit:
		r.hit(&e)
	case onefill.EventStoreHit:
		r.storeHit(&e)
	case onefill.EventLoad:
		r.load(&e)
	case onefill.EventLeaseWait:
		r.ofFlight(&e, func(f *flight) { f.lease += e.Took })
	case onefill.EventFillRefused:
		r.ofFlight(&e, func(f *flight) { f.refused = true })
		r.count(e.Cache, func(c *CacheStat) { c.FillsRefused++ })
	case onefill.EventOriginBusy:
		r.ofFlight(&e, func(f *flight) { f.busy = true })
	case onefill.EventStale:
		r.count(e.Cache, func(c *CacheStat) { c.Stale++ })
		r.keys.add(time.Now(), byCalls, name{e.Cache, e.Key}, 1, nil)
	case onefill.EventStoreError:
		r.count(e.Cache, func(c *CacheStat) { c.StoreErrors++ })
	case onefill.EventMiss:
		r.miss(&e)
	}
}

func (r *Recorder) count(cache string, add func(*CacheStat)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	add(r.cache(cache))
}

// hit is one of N, so it counts N times, with the variance of such an estimate.
func (r *Recorder) hit(e *onefill.Event) {
	n := uint64(max(e.N, 1))
	r.keys.add(time.Now(), byCalls, name{e.Cache, e.Key}, n, func(c *cell) { c.variance += float64(n * (n - 1)) })
	r.count(e.Cache, func(c *CacheStat) { c.LocalHits += n })
}

// storeHit is a call that did not wait, unless callers wait for the flight: TraceWait has
// counted those, the leader among them as a rule.
func (r *Recorder) storeHit(e *onefill.Event) {
	r.mu.Lock()
	r.cache(e.Cache).StoreHits++
	followed := r.air[e.Flight] != nil
	r.mu.Unlock()
	if !followed {
		r.keys.add(time.Now(), byCalls, name{e.Cache, e.Key}, 1, nil)
	}
}

func (r *Recorder) load(e *onefill.Event) {
	failed := e.Err != nil && !errors.Is(e.Err, onefill.ErrNotFound)
	r.count(e.Cache, func(c *CacheStat) {
		c.Loads++
		if failed {
			c.LoadErrors++
		}
	})
	if e.Key == "" {
		return // a LoadMany: its keys share the time, and none is to blame for it
	}
	took := uint64(max(e.Took.Microseconds(), 1))
	r.keys.add(time.Now(), byLoad, name{e.Cache, e.Key}, took, func(c *cell) {
		c.loads++
		c.longest = max(c.longest, took)
		if failed {
			c.failed++
		}
	})
}

// ofFlight changes the flight that an event is about, if it is followed.
func (r *Recorder) ofFlight(e *onefill.Event, change func(*flight)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.air[e.Flight]; f != nil {
		change(f)
	}
}

// TraceWait implements onefill.Tracer: it counts who waits for which flight.
func (r *Recorder) TraceWait(_ context.Context, flights []onefill.Flight) func(error) {
	now := time.Now()
	for i := range flights {
		r.keys.add(now, byCalls, name{flights[i].Cache, flights[i].Key}, 1, nil)
	}
	fs := r.followAll(flights, now, func(f *flight) {
		f.callers++
		f.waiting++
	})
	return func(error) {
		r.each(fs, func(f *flight) { f.waiting-- })
	}
}

// TraceLoad implements onefill.Tracer: it notes which flights load.
func (r *Recorder) TraceLoad(ctx context.Context, flights []onefill.Flight) (context.Context, func(error)) {
	now := time.Now()
	fs := r.followAll(flights, now, func(f *flight) {
		f.loading++
		f.loads++
		f.loadErr = nil
	})
	return ctx, func(err error) {
		took := time.Since(now)
		if errors.Is(err, onefill.ErrNotFound) {
			err = nil // an answer
		}
		r.each(fs, func(f *flight) {
			f.loading--
			f.longest, f.loadErr = max(f.longest, took), err
		})
	}
}

// followed are the flights of one call; as a rule one, for which no slice is made.
type followed struct {
	one  *flight
	more []*flight
}

func (r *Recorder) followAll(flights []onefill.Flight, now time.Time, note func(*flight)) (fs followed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range flights {
		f := r.follow(&flights[i], now)
		switch {
		case f == nil:
			continue
		case len(flights) == 1:
			fs.one = f
		default:
			fs.more = append(fs.more, f)
		}
		note(f)
	}
	return fs
}

// each notes what has ended of flights.
func (r *Recorder) each(fs followed, note func(*flight)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if fs.one != nil {
		note(fs.one)
		r.quiet(fs.one)
	}
	for _, f := range fs.more {
		note(f)
		r.quiet(f)
	}
}

// follow finds a flight, or begins to follow it. Nil: there are too many. mu is held.
func (r *Recorder) follow(f *onefill.Flight, now time.Time) *flight {
	if known := r.air[f.ID]; known != nil {
		known.idle = false
		return known
	}
	if len(r.air) >= r.opts.Flights && !r.forgetIdle() {
		r.dulled++
		return nil
	}
	known := &flight{id: f.ID, name: name{f.Cache, strings.Clone(short(f.Key))}, start: now, background: f.Background}
	r.air[f.ID] = known
	return known
}

// idleKept is how many flights are kept after everybody has left them: the end of the miss
// group, which is told at about the same time, may come after. Of those that were answered by the store none comes.
const idleKept = 256

// quiet notes that a flight may have been left by everybody. mu is held.
func (r *Recorder) quiet(f *flight) {
	if f.waiting > 0 || f.loading > 0 || f.idle || r.air[f.id] != f {
		return
	}
	f.idle = true
	if r.idle = append(r.idle, f.id); len(r.idle) > idleKept {
		r.forgetFirst() // and no more: as a rule it has landed, and the last may be f, whose end comes in a moment
	}
}

// forgetFirst takes the first from idle, and forgets that flight, if there is something to forget. mu is held.
func (r *Recorder) forgetFirst() bool {
	f := r.air[r.idle[0]]
	r.idle = r.idle[1:]
	if f == nil || !f.idle {
		return false
	}
	delete(r.air, f.id)
	return true
}

// forgetIdle forgets the oldest idle flight, if there is one. mu is held.
func (r *Recorder) forgetIdle() bool {
	for len(r.idle) > 0 {
		if r.forgetFirst() {
			return true
		}
	}
	return false
}

// miss is the end of a miss group.
func (r *Recorder) miss(e *onefill.Event) {
	now, n := time.Now(), name{e.Cache, short(e.Key)}
	r.keys.add(now, byGroups, n, 1, func(c *cell) { c.loads += uint64(max(e.N, 0)) })
	if e.N > 1 {
		r.keys.add(now, byExtra, n, uint64(e.N-1), func(c *cell) { c.loads += uint64(e.N) })
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.cache(e.Cache)
	c.Groups++
	c.GroupLoads += uint64(max(e.N, 0))
	f := r.air[e.Flight]
	if delete(r.air, e.Flight); f == nil { // it was not followed: the event has to do
		f = &flight{name: name{n.cache, strings.Clone(n.key)}}
	}
	g := Group{Type: "group", At: now, Cache: n.cache, Key: f.name.key, Callers: e.Callers, TookMS: milliseconds(e.Took),
		LoadMS: milliseconds(f.longest), LeaseMS: milliseconds(f.lease), Loads: e.N, Outcome: f.outcome(e), Background: f.background}
	if e.Err != nil && g.Outcome != NotFound {
		g.Error = cutText(e.Err.Error())
	}
	if len(r.recent) < r.opts.Groups {
		r.recent = append(r.recent, g)
	} else {
		r.recent[r.next] = g
		r.next = (r.next + 1) % len(r.recent)
	}
	if r.listeners.Load() > 0 {
		r.stream.tell(r.show(g))
	}
}

// show is a group as others may see it.
func (r *Recorder) show(g Group) Group {
	g.Key, g.Error = r.opts.shown(g.Key), r.opts.text(g.Error)
	return g
}
