package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/onefill/onefill/internal/servers"
)

// faults are what the lab does to a store that it has started itself; a given one
// is left in peace. After any of them, heal brings the store back.
type faults interface {
	// kill ends the server at once; its connections break and new ones are refused.
	kill() error
	// restart brings it back, empty, at the same address, and waits until it answers. A
	// server that runs is ended first.
	restart(ctx context.Context) error
	// freeze makes it answer nothing; its connections stay open. thaw ends that.
	freeze() error
	thaw() error
}

// keeper are faults of a store that can be stopped, and started with what it held.
type keeper interface {
	faults
	stop(ctx context.Context) error
	start(ctx context.Context) error
}

// processFaults are those of a real server.
type processFaults struct{ server *servers.Server }

func (f processFaults) kill() error                       { return f.server.Kill() }
func (f processFaults) restart(ctx context.Context) error { return f.server.RestartEmpty(ctx) }
func (f processFaults) freeze() error                     { return f.server.Pause() }
func (f processFaults) thaw() error                       { return f.server.Continue() }

// Moments of a scenario with a fault, as plots and logs name them.
const (
	momentKilled    = "killed"
	momentFrozen    = "frozen"
	momentThawed    = "thawed"
	momentRestarted = "restarted"
)

// damaged is what of the store has to be mended after a cell, also after one that failed.
type damaged struct {
	faults faults

	mu     sync.Mutex // guards what follows
	down   bool
	frozen bool
}

func (d *damaged) kill() error {
	d.set(true, false)
	return d.faults.kill()
}

func (d *damaged) freeze() error {
	d.set(false, true)
	return d.faults.freeze()
}

// stop ends the store politely; start brings it back with its data.
func (d *damaged) stop(ctx context.Context) error {
	d.set(true, false)
	return d.faults.(keeper).stop(ctx)
}

func (d *damaged) start(ctx context.Context) error {
	if err := d.faults.(keeper).start(ctx); err != nil {
		return fmt.Errorf("start the store again: %w", err)
	}
	d.set(false, false)
	return nil
}

// heal undoes what was done, if anything was.
func (d *damaged) heal(ctx context.Context) (err error) {
	d.mu.Lock()
	down, frozen := d.down, d.frozen
	d.mu.Unlock()
	switch {
	case down:
		err = d.faults.restart(ctx)
	case frozen:
		err = d.faults.thaw()
	}
	if err != nil {
		return fmt.Errorf("bring the store back: %w", err)
	}
	d.set(false, false)
	return nil
}

func (d *damaged) set(down, frozen bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down, d.frozen = down, frozen
}

// whyNot says why a scenario cannot be played on this run's servers, or nothing.
func (r *run) whyNot(s *Scenario) string {
	if s.faulty && r.store.damage == nil {
		return "stop or kill the store, which the lab does to one of its own only, not to a given one"
	}
	if s.needs != nil {
		if why := s.needs(r); why != "" {
			return why
		}
	}
	verb, needed := "need", 0
	switch {
	case s.traffic:
		needed = r.needed(r.trafficConnections)
	case s.beside > 0:
		verb, needed = "needs", r.held()+s.beside
	}
	if r.freeConnections > 0 && r.freeConnections < needed {
		return fmt.Sprintf("%s %d connections to the database, of which the given one has %d left", verb, needed, r.freeConnections)
	}
	return ""
}

// leaveOut drops and notes the scenarios that were asked for and cannot be played. It
// is an error if none is left.
func (r *run) leaveOut() error {
	r.playable = nil
	out := make(map[string][]string) // ids by reason
	var reasons []string
	for _, s := range Scenarios {
		if !slices.Contains(r.cfg.Scenarios, s.ID) {
			continue
		}
		why := r.whyNot(s)
		if why == "" {
			r.playable = append(r.playable, s)
			continue
		}
		if out[why] == nil {
			reasons = append(reasons, why)
		}
		out[why] = append(out[why], s.ID)
	}
	for i, why := range reasons {
		reasons[i] = "Not played: " + joinWords(out[why]) + ", which " + why + "."
	}
	if len(r.playable) == 0 {
		return badInput("scenario", "nothing is left to play. %s", strings.Join(reasons, " "))
	}
	for _, text := range reasons {
		r.note("%s", text)
	}
	return nil
}

// joinWords is "a, b and c".
func joinWords(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
