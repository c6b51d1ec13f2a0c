package metrics

import (
	"context"
	"errors"

	"github.com/onefill/onefill"
)

// Recorder takes what has happened: of histogram i in [CacheHistograms] or [QueueHistograms],
// under Values[label], v, n times. It must be safe for concurrent use.
type Recorder interface {
	Record(i, label int, v float64, n int)
}

// The histograms of caches, in the order of CacheHistograms, and the values of their labels.
const (
	loadDuration = iota
	waitDuration
	leaseWaitDuration
	missDuration
	missLoads
	missCallers
	servedAge

	loadOK       = 0
	loadNotFound = 1
	loadError    = 2
	loadPanic    = 3
	loadTimeout  = 4

	waitAnswered = 0
	waitTimeout  = 1
	waitLeft     = 2

	fromLocal = 0
	fromStore = 1
	fromStale = 2
)

var cacheHistograms = []Metric{
	loadDuration:      histogram("onefill.load.duration", "s", "How long the loader took.", durations, "outcome", "ok", "not_found", "error", "panic", "timeout"),
	waitDuration:      histogram("onefill.wait.duration", "s", "How long calls waited for a flight, by what ended it: an answer, which may be an error; WaitTimeout; the caller's own context (left).", durations, "outcome", "answered", "timeout", "left"),
	leaseWaitDuration: histogram("onefill.lease_wait.duration", "s", "How long flights waited for another process's load, each time.", durations, ""),
	missDuration:      histogram("onefill.miss.duration", "s", "How long miss groups of this process took, from their first caller to the answer.", durations, ""),
	missLoads:         histogram("onefill.miss.loads", "{load}", "Loads that a miss group of this process has waited for; 1 is ideal.", loadCounts, ""),
	missCallers:       histogram("onefill.miss.callers", "{call}", "Callers of this process in a miss group.", callerCounts, ""),
	servedAge:         histogram("onefill.served.age", "s", "Age of what was served: fresh from local, found fresh in the store by a flight, or stale.", ages, "source", "local", "store", "stale"),
}

// CacheHistograms are the metrics of caches that RecordCache records.
func CacheHistograms() []Metric { return cacheHistograms }

// RecordCache records an event of a cache. Of hits in local, one in 64 is recorded, with n = 64.
func RecordCache(e onefill.Event, to Recorder) {
	switch e.Kind {
	case onefill.EventLoad:
		to.Record(loadDuration, loadOutcome(e.Err), e.Took.Seconds(), 1)
	case onefill.EventWait:
		to.Record(waitDuration, waitOutcome(e.Err), e.Took.Seconds(), 1)
	case onefill.EventLeaseWait:
		to.Record(leaseWaitDuration, 0, e.Took.Seconds(), 1)
	case onefill.EventMiss:
		to.Record(missDuration, 0, e.Took.Seconds(), 1)
		to.Record(missLoads, 0, float64(e.N), 1)
		to.Record(missCallers, 0, float64(e.Callers), 1)
	case onefill.EventLocalHit:
		to.Record(servedAge, fromLocal, e.Age.Seconds(), e.N)
	case onefill.EventStoreHit:
		to.Record(servedAge, fromStore, e.Age.Seconds(), 1)
	case onefill.EventStale:
		to.Record(servedAge, fromStale, e.Age.Seconds(), 1)
	}
}

// LoadOutcome is the value of the label outcome of onefill.load.duration for a loader's error.
func LoadOutcome(err error) string { return cacheHistograms[loadDuration].Values[loadOutcome(err)] }

// WaitOutcome is the value of the label outcome of onefill.wait.duration for the error of a
// call's wait.
func WaitOutcome(err error) string { return cacheHistograms[waitDuration].Values[waitOutcome(err)] }

func loadOutcome(err error) int {
	if err == nil {
		return loadOK
	}
	var p *onefill.PanicError
	switch {
	case errors.Is(err, onefill.ErrNotFound):
		return loadNotFound
	case errors.Is(err, onefill.ErrGoexit), errors.As(err, &p):
		return loadPanic
	case errors.Is(err, context.DeadlineExceeded):
		return loadTimeout
	}
	return loadError
}

func waitOutcome(err error) int {
	switch {
	case err == nil:
		return waitAnswered
	case errors.Is(err, onefill.ErrWaitTimeout):
		return waitTimeout
	}
	return waitLeft
}
