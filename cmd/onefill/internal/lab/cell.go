package lab

import (
	"context"
	"fmt"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
)

// cell is one scenario in one mode.
type cell struct {
	run      *run
	scenario *Scenario
	mode     string
	key      string
	calls    []Call // of the callers; the verifying ones are in verified
	verified []Call
	ops      []Operation
	res      Result

	waves []Wave // of S7
	// unmeasured loads were made before what is measured began.
	unmeasured int
	// missTook is what a process needs for a miss whose load takes no time, at most, while
	// nothing is wrong: S7's measure of how busy the machine is.
	missTook time.Duration
	outage   *outage // of a scenario with traffic
	commit   *Commit // of the scenario of that name

	before map[string]int64 // commands that the store had executed
	began  time.Time
	marked bool
}

// callers returns the callers of each process, those that keep accepts; nil
// accepts all.
func (c *cell) callers(keep func(id int) bool) [][]int {
	byProcess := make([][]int, len(c.run.fleet))
	for p := range byProcess {
		for _, id := range c.run.cfg.callersOf(p) {
			if keep == nil || keep(id) {
				byProcess[p] = append(byProcess[p], id)
			}
		}
	}
	return byProcess
}

// innocents are the calls that nobody cancelled.
func (c *cell) innocents() []Call {
	if c.scenario.ID != "S6" {
		return c.calls
	}
	var rest []Call
	for _, call := range c.calls {
		if notFirst(call.Caller) {
			rest = append(rest, call)
		}
	}
	return rest
}

// prepare makes every process ready: connected, warmed up, callers parked.
func (c *cell) prepare(ctx context.Context) error {
	cfg := c.run.cfg
	setup := cellSetup{
		Scenario: c.scenario.ID, Mode: c.mode, Push: c.run.store.push,
		LeaseUS: cfg.Lease.Microseconds(), TTLUS: c.run.ttl().Microseconds(), TimeoutUS: cfg.Timeout.Microseconds(),
	}
	if c.scenario.policy != nil {
		setup.Policy = c.scenario.policy(c)
	}
	if c.scenario.prepare != nil {
		return c.scenario.prepare(ctx, c, setup)
	}
	if err := c.run.origin.Plan(ctx, c.key, c.scenario.plan(cfg)); err != nil {
		return fmt.Errorf("write the row: %w", err)
	}
	callers := c.callers(nil)
	if c.scenario.faulty {
		callers = c.callers(func(int) bool { return false }) // each wave parks its own
	}
	_, err := c.run.fleet.each(ctx, func(p int) command {
		return command{Op: opPrepare, Key: c.key, Cell: &setup, Callers: callers[p]}
	})
	return err
}

// keys are those whose loads count.
func (c *cell) keys() []string {
	if c.scenario.keys == nil {
		return []string{c.key}
	}
	return c.scenario.keys(c)
}

// start lets callers go, in all processes before any answer is awaited.
func (c *cell) start(ctx context.Context, phase string, callers [][]int) error {
	return c.tell(ctx, opStart, phase, callers, nil)
}

// collect waits until the callers have their answers.
func (c *cell) collect(ctx context.Context, callers [][]int) error {
	return c.tell(ctx, opCollect, "", callers, &c.calls)
}

func (c *cell) tell(ctx context.Context, op, phase string, callers [][]int, calls *[]Call) error {
	replies, err := c.run.fleet.each(ctx, func(p int) command {
		if len(callers[p]) == 0 {
			return command{}
		}
		return command{Op: op, Phase: phase, Callers: callers[p]}
	})
	if calls != nil {
		for _, r := range replies {
			*calls = append(*calls, r.Calls...)
		}
	}
	return err
}

// awaitReading waits until an operation has read the row and waits itself.
func (c *cell) awaitReading(ctx context.Context) error {
	for {
		n, err := c.run.origin.Waiting(ctx, c.key)
		if err != nil {
			return fmt.Errorf("look for the first load: %w", err)
		}
		if n > 0 {
			return nil
		}
		if err := recipe.Pause(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("wait for the first load: %w", err)
		}
	}
}

// mark ends what is measured; what is asked afterwards is verification.
func (c *cell) mark(ctx context.Context) error {
	if c.marked {
		return nil
	}
	c.marked = true
	c.res.ElapsedMS = time.Since(c.began).Milliseconds()
	if c.scenario.faulty {
		return nil // the server has been another one meanwhile
	}
	after, err := c.run.store.commands(ctx)
	if err != nil {
		return fmt.Errorf("ask the store for its counters: %w", err)
	}
	c.res.Commands, c.res.CommandStats = difference(c.before, after)
	return nil
}

// What the store can hold after S5.
const (
	holdsOld     = "old"
	holdsNew     = "new"
	holdsNothing = "nothing"
)

// verify looks at what the store holds and what every process answers.
func (c *cell) verify(ctx context.Context) error {
	stored, err := c.run.fleet[0].do(ctx, command{Op: opStored})
	if err != nil {
		return err
	}
	c.res.StoreHolds = holdsNothing
	if stored.Found {
		l, err := decodeLoaded(stored.Answer)
		if err != nil {
			return err
		}
		c.res.StoreHolds = holdsNew
		if l.Row != rowNew {
			c.res.StoreHolds = holdsOld
		}
	}
	replies, err := c.run.fleet.each(ctx, func(int) command { return command{Op: opGet, Phase: phaseVerify} })
	for _, r := range replies {
		c.verified = append(c.verified, r.Calls...)
	}
	return err
}

// holder is somebody who takes and drops the lock or lease, in one of the processes.
type holder struct {
	name    string
	process *process
}

func (c *cell) holder(name string, process int) holder {
	return holder{name, c.run.fleet[process%len(c.run.fleet)]}
}

func (h holder) do(ctx context.Context, op string) (bool, error) {
	r, err := h.process.do(ctx, command{Op: op, Holder: h.name})
	return r.Yes, err
}
