package watch

import (
	"context"
	"errors"
	"time"

	"github.com/onefill/onefill"
)

// Group is a miss group of a process: those of its callers who waited for the same load.
type Group struct {
	// Type is "group" for one that has ended, "live" for one that is waited for still, and
	// "beat" for none: a stream in which nothing happens says so every ten seconds.
	Type string `json:"type"`
	// At is when the group ended; of a live one, now.
	At    time.Time `json:"at"`
	Cache string    `json:"cache,omitempty"`
	Key   string    `json:"key,omitempty"`
	// Callers have joined so far, Waiting wait now.
	Callers int `json:"callers"`
	Waiting int `json:"waiting,omitempty"`
	// TookMS is how long the group has lasted, LoadMS its longest load in this process,
	// LeaseMS how long it waited for other processes' loads: milliseconds.
	TookMS  float64 `json:"took_ms"`
	LoadMS  float64 `json:"load_ms,omitempty"`
	LeaseMS float64 `json:"lease_ms,omitempty"`
	// Loads is how many loads the callers have waited for: 1 is what onefill is for.
	Loads   int     `json:"loads"`
	Outcome Outcome `json:"outcome,omitempty"`
	Error   string  `json:"error,omitempty"`
	// Background: a refresh, whose beginner does not wait for it.
	Background bool `json:"background,omitempty"`
}

// Outcome is how a miss group ended, or what a live one does.
type Outcome string

// The outcomes.
const (
	Loaded      Outcome = "loaded"       // a load of this process brought the value
	FillRefused Outcome = "fill refused" // the same, but its lease was lost: the value was stored nowhere
	LeaseWait   Outcome = "lease wait"   // a load of another process brought the value
	NotFound    Outcome = "not found"    // the row does not exist; a load of this process, or of another, said so
	Stale       Outcome = "stale"        // a stale value was served, as there was no other
	Busy        Outcome = "busy"         // there was no place at the origin in time
	Timeout     Outcome = "timeout"      // WaitTimeout or LoadTimeout
	Failed      Outcome = "error"        // the load failed, here or in another process
	Loading     Outcome = "loading"      // live: a load of this process runs
	Waiting     Outcome = "waiting"      // live: no load of this process runs
)

// flight is one that is in the air, or has just landed. Its fields are guarded by the
// recorder's mu.
type flight struct {
	id               uint64
	name             name
	start            time.Time
	background       bool
	callers, waiting int
	loading          int
	loads            int
	longest, lease   time.Duration
	refused, busy    bool
	loadErr          error
	idle             bool // nobody waits and nothing loads: it has landed, or is about to
}

// outcome judges by the end of the group what it has come to. A group without an error although
// its load failed, or found no place, was answered with a stale value.
func (f *flight) outcome(e *onefill.Event) Outcome {
	switch err := e.Err; {
	case errors.Is(err, onefill.ErrNotFound) && !f.refused:
		return NotFound
	case errors.Is(err, onefill.ErrNotFound):
		return FillRefused
	case errors.Is(err, onefill.ErrOriginBusy):
		return Busy
	case errors.Is(err, onefill.ErrWaitTimeout), errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case err != nil:
		return Failed
	case f.busy, f.loads > 0 && f.loadErr != nil:
		return Stale
	case f.refused:
		return FillRefused
	case f.loads > 0:
		return Loaded
	}
	return LeaseWait
}

// live is a group that goes on.
func (f *flight) live(now time.Time) Group {
	g := Group{Type: "live", At: now, Cache: f.name.cache, Key: f.name.key, Callers: f.callers, Waiting: f.waiting,
		TookMS: milliseconds(now.Sub(f.start)), LoadMS: milliseconds(f.longest), LeaseMS: milliseconds(f.lease), Loads: f.loads, Outcome: Waiting, Background: f.background}
	if f.loading > 0 {
		g.Outcome = Loading
	}
	return g
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
