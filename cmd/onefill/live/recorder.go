package live

import (
	"slices"
	"sync"
	"time"
)

// Lanes of a mode in the page's picture.
const (
	laneFlight    = "flight"
	laneLease     = "lease"
	laneOperation = "op"
)

// bar is something that takes time, in a lane. Times are milliseconds of the session.
type bar struct {
	ID      uint64  `json:"i"`
	Lane    string  `json:"l"`
	Process int     `json:"p"`
	Start   float64 `json:"s"`
	End     float64 `json:"e"` // 0: it goes on
	Failed  bool    `json:"f,omitempty"`

	begun time.Time
	until time.Time // when a lease ends by itself; else zero
	told  bool      // the page knows of it
}

// Counters of a mode since its page was opened.
type Counters struct {
	Calls     uint64 `json:"calls"`
	Local     uint64 `json:"local"`     // answered from the process's own memory
	Stored    uint64 `json:"stored"`    // answered from the store at once
	Flights   uint64 `json:"flights"`   // misses that went on a way of their own
	Coalesced uint64 `json:"coalesced"` // calls that joined another's flight in their process
	Waits     uint64 `json:"waits"`     // flights that waited for the lease (the lock) of another
	Loads     uint64 `json:"loads"`     // operations of the database
	Stale     uint64 `json:"stale"`     // answered with a value whose time was over
	Errors    uint64 `json:"errors"`    // calls without an answer
}

const (
	// shown is what the page draws at least: a shorter flight is a look into the store.
	shown = time.Millisecond
	// maxBars bounds what one look hands over, maxOpen what is remembered as open; beyond
	// them bars are left out of the picture, and out of nothing else.
	maxBars = 600
	maxOpen = 2000
	// window is how far back the waits go of which the page has percentiles.
	window     = 5 * time.Second
	maxSamples = 2000
)

// recorder notes what happens in one mode.
type recorder struct {
	begin time.Time // of the session

	mu       sync.Mutex // guards what follows; nothing waits under it
	counters Counters
	lastID   uint64
	open     map[uint64]*bar
	ended    []*bar // since the last look
	dropped  int    // bars left out since the last look
	samples  []sample

	waiting, waitingPeak int // callers
	running, runningPeak int // operations
}

// sample is the wait of a caller that was not answered at once.
type sample struct {
	at   time.Time
	wait time.Duration
}

func newRecorder(begin time.Time) *recorder {
	return &recorder{begin: begin, open: make(map[uint64]*bar)}
}

func (r *recorder) ms(t time.Time) float64 {
	return float64(t.Sub(r.begin).Microseconds()) / 1000
}

// start opens a bar. r.mu is held.
func (r *recorder) start(lane string, process int) *bar {
	now := time.Now()
	r.lastID++
	b := &bar{ID: r.lastID, Lane: lane, Process: process, Start: r.ms(now), begun: now}
	if len(r.open) < maxOpen {
		r.open[b.ID] = b
	} else {
		r.dropped++
	}
	return b
}

// finish closes a bar. r.mu is held.
func (r *recorder) finish(b *bar, at time.Time, failed bool) {
	if r.open[b.ID] == nil {
		return
	}
	delete(r.open, b.ID)
	if !b.told && b.Lane == laneFlight && at.Sub(b.begun) < shown {
		return
	}
	b.End, b.Failed = r.ms(at), failed
	if b.told || len(r.ended) < maxBars { // of what the page draws as going on it must hear the end
		r.ended = append(r.ended, b)
	} else {
		r.dropped++
	}
}

func (r *recorder) beginOperation(process int) (end func(failed bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.start(laneOperation, process)
	r.counters.Loads++
	r.running++
	r.runningPeak = max(r.runningPeak, r.running)
	return func(failed bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.running--
		r.finish(b, time.Now(), failed)
	}
}

// beginFlight and beginLease open a bar that its owner closes.
func (r *recorder) beginFlight(process int) (end func(failed bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.start(laneFlight, process)
	return func(failed bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.finish(b, time.Now(), failed)
	}
}

func (r *recorder) beginLease(process int, ttl time.Duration) *bar {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.start(laneLease, process)
	b.until = b.begun.Add(ttl)
	return b
}

func (r *recorder) renewLease(b *bar, ttl time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b.until = time.Now().Add(ttl)
}

// endLease closes a lease's bar, at its own end if that has come before.
func (r *recorder) endLease(b *bar) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finish(b, earlier(time.Now(), b.until), false)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// beginCall counts a caller as waiting until its end.
func (r *recorder) beginCall() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting++
}

func (r *recorder) endCall(c call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting--
	if c.gone {
		return
	}
	if c.took >= shown { // those who wait no longer are seen by nobody
		r.waitingPeak = max(r.waitingPeak, r.waiting+1)
	}
	c.count(&r.counters)
	if c.waited() {
		if len(r.samples) == maxSamples {
			r.samples = slices.Delete(r.samples, 0, maxSamples/4)
		}
		r.samples = append(r.samples, sample{time.Now(), c.took})
	}
}

// background counts a flight that no caller waits for.
func (r *recorder) background() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counters.Flights++
}

// addWaits counts those of a cache that is gone.
func (r *recorder) addWaits(n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counters.Waits += n
}

func (r *recorder) count() Counters {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counters
}

// look is what has happened since the last one.
type look struct {
	Counters Counters `json:"n"`
	Bars     []bar    `json:"bars,omitempty"`
	Dropped  int      `json:"dropped,omitempty"`
	Waiting  int      `json:"waiting"` // callers, the most since the last look
	Running  int      `json:"running"` // operations, the most since the last look
	// WaitingNow and RunningNow are those of this moment.
	WaitingNow int `json:"waiting_now"`
	RunningNow int `json:"running_now"`
	// P50 and P99 of the waits that ended in the last five seconds, in milliseconds; nil
	// if nobody waited.
	P50 *float64 `json:"p50,omitempty"`
	P99 *float64 `json:"p99,omitempty"`
}

func (r *recorder) look() look {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	l := look{
		Counters: r.counters, Dropped: r.dropped,
		Waiting: max(r.waitingPeak, r.waiting), Running: max(r.runningPeak, r.running),
		WaitingNow: r.waiting, RunningNow: r.running,
	}
	for _, b := range r.open {
		switch {
		case !b.until.IsZero() && b.until.Before(now):
			r.finish(b, b.until, false)
		case !b.told && now.Sub(b.begun) >= shown && len(l.Bars) < maxBars:
			b.told = true
			l.Bars = append(l.Bars, *b)
		}
	}
	for _, b := range r.ended {
		l.Bars = append(l.Bars, *b)
	}
	r.ended, r.dropped = nil, 0
	r.waitingPeak, r.runningPeak = r.waiting, r.running
	old := slices.IndexFunc(r.samples, func(s sample) bool { return now.Sub(s.at) < window })
	if old < 0 {
		old = len(r.samples)
	}
	r.samples = slices.Delete(r.samples, 0, old)
	l.P50, l.P99 = percentiles(r.samples)
	return l
}

// percentiles are those of the waits, in milliseconds; nil if there are none.
func percentiles(samples []sample) (p50, p99 *float64) {
	if len(samples) == 0 {
		return nil, nil
	}
	waits := make([]float64, len(samples))
	for i, s := range samples {
		waits[i] = float64(s.wait.Microseconds()) / 1000
	}
	slices.Sort(waits)
	at := func(q float64) *float64 { return &waits[min(int(q*float64(len(waits))), len(waits)-1)] }
	return at(0.50), at(0.99)
}
