package live

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
)

// key is the one that everybody asks for.
const key = "hot"

// arm is one mode at play: its caches, its callers and its database. Its methods, but for look
// and those that callers reach, are called by one goroutine at a time: see session.
type arm struct {
	mode     string
	backend  backend
	rec      *recorder
	database *database
	readers  []reader
	stop     func() // ends the traffic; nil: there is none

	mu      sync.Mutex // guards what follows
	flights map[int]*flight
	locks   map[string]*bar
	herd    *herd // the latest one
}

// flight is the miss of a process that shares it.
type flight struct {
	callers int
	end     func(failed bool)
}

func newArm(mode string, b backend, begin time.Time) *arm {
	rec := newRecorder(begin)
	return &arm{
		mode: mode, backend: b, rec: rec, database: newDatabase(rec),
		flights: make(map[int]*flight), locks: make(map[string]*bar),
	}
}

// open makes the caches.
func (a *arm) open(ctx context.Context, s Settings) error {
	for process := range s.Processes {
		r, err := a.openReader(ctx, process, s)
		if err != nil {
			a.close()
			return err
		}
		a.readers = append(a.readers, r)
	}
	return nil
}

func (a *arm) openReader(ctx context.Context, process int, s Settings) (reader, error) {
	if a.mode == ModeOnefill {
		return openOnefill(process, a, s)
	}
	return openRecipe(ctx, a.mode, process, a, s)
}

// close ends the traffic and closes the caches, whatever they wait for.
func (a *arm) close() {
	a.halt()
	a.database.abort()
	var all sync.WaitGroup
	for _, r := range a.readers {
		all.Go(func() { r.Close() })
	}
	all.Wait()
	a.rec.addWaits(a.leaseWaits())
	a.readers = nil
}

// leaseWaits are those of the caches that are open; onefill counts them itself, a flight once.
func (a *arm) leaseWaits() (n uint64) {
	for _, r := range a.readers {
		if r, ok := r.(*onefillReader); ok {
			n += r.cache.Stats().LeaseWaits
		}
	}
	return n
}

func (a *arm) count() Counters {
	n := a.rec.count()
	n.Waits += a.leaseWaits()
	return n
}

// look is what has happened since the last one. The readers must stay meanwhile.
func (a *arm) look() armFrame {
	f := armFrame{look: a.rec.look(), LatestHerd: a.latest()}
	f.Counters.Waits += a.leaseWaits()
	return f
}

// sharesFlights: callers of a process that miss together are one flight.
func (a *arm) sharesFlights() bool { return a.mode == ModeLocal || a.mode == ModeOnefill }

// call asks the cache of a process once.
func (a *arm) call(ctx context.Context, process int) call {
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	a.rec.beginCall()
	end := a.board(process)
	start := time.Now()
	got, err := a.readers[process].Get(patient, key)
	c := call{mode: a.mode, answer: got, err: err, took: time.Since(start)}
	c.gone = err != nil && ctx.Err() != nil
	end(err != nil && !c.gone)
	a.rec.endCall(c)
	return c
}

// board draws the caller's flight: its own, or the one that its process has.
func (a *arm) board(process int) (end func(failed bool)) {
	if !a.sharesFlights() {
		return a.rec.beginFlight(process)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.flights[process]
	if f == nil {
		f = &flight{end: a.rec.beginFlight(process)}
		a.flights[process] = f
	}
	f.callers++
	return func(failed bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if f.callers--; f.callers == 0 {
			delete(a.flights, process)
			f.end(failed)
		}
	}
}

func (a *arm) locked(name string, process int, ttl time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if old := a.locks[name]; old != nil {
		a.rec.endLease(old)
	}
	a.locks[name] = a.rec.beginLease(process, ttl)
}

func (a *arm) unlocked(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if b := a.locks[name]; b != nil {
		a.rec.endLease(b)
		delete(a.locks, name)
	}
}

// observe counts what the calls of onefill do not tell.
func (a *arm) observe(e onefill.Event) {
	if e.Kind == onefill.EventRefresh || e.Kind == onefill.EventEarlyRefresh {
		a.rec.background()
	}
}

// Callers between the herds pause for pauseMin to pauseMax before they ask again.
const (
	pauseMin = 200 * time.Millisecond
	pauseMax = 600 * time.Millisecond
)

// traffic makes callers ask at their own pace until halt.
func (a *arm) traffic(ctx context.Context, callers int) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for recipe.Pause(ctx, pauseMin+rand.N(pauseMax-pauseMin)) == nil {
				a.call(ctx, i%len(a.readers))
			}
		})
	}
	a.stop = func() {
		cancel()
		all.Wait()
	}
}

// halt calls the traffic off and returns when nobody asks any more.
func (a *arm) halt() {
	if a.stop != nil {
		a.stop()
		a.stop = nil
	}
}

// expire makes the value old in every process.
func (a *arm) expire(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*storeTimeout)
	defer cancel()
	return a.readers[0].Expire(ctx, key)
}

// clear leaves nothing of the key anywhere. Where the store is away, it does so in
// the processes.
func (a *arm) clear(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*storeTimeout)
	defer cancel()
	var all sync.WaitGroup
	for _, r := range a.readers {
		all.Go(func() { r.Clear(ctx, key) })
	}
	all.Wait()
}
