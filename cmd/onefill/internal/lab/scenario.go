package lab

import (
	"context"
	"fmt"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
)

// A Scenario is one of the situations in which caches of this kind go wrong.
type Scenario struct {
	ID    string
	Title string // for the table
	About string // one or two sentences, for the report
	Must  string // what onefill must give

	// load is how long one operation takes here.
	load func(Config) time.Duration
	// plan says what the origin holds.
	plan func(c Config) plan
	// modes are those that it can be tried on; nil: all.
	modes []string
	// groups is how many groups of callers wait for the same row.
	groups int
	// together: all callers come at once, so that their wait beyond the load says something.
	together bool
	// faulty: something happens to the store, which the lab does to its own only.
	faulty bool
	// traffic: calls at even intervals for many keys instead of callers who come once.
	traffic bool
	// beside is how many connections to the origin it needs beside those of the readers.
	beside int
	// needs says what the run's servers lack for it, or nothing; nil: any will do.
	needs func(r *run) string
	// prepare makes rows and processes ready; nil: as in the other scenarios.
	prepare func(ctx context.Context, c *cell, setup cellSetup) error
	// policy sets the caches up; nil: as in the other scenarios.
	policy func(c *cell) policy
	// keys are those whose loads count; nil: the cell's key.
	keys func(c *cell) []string
	// play makes it happen.
	play func(ctx context.Context, c *cell) error
	// demands lists what was not met of what onefill must give.
	demands func(c *cell) []string
}

// rowOld and rowNew are what the database holds, before and after the write of S5.
const (
	rowOld = "version 1 of the row"
	rowNew = "version 2 of the row"
)

func normalLoad(c Config) time.Duration { return c.Load }

// Scenarios are all of them, in the order of reports.
var Scenarios = []*Scenario{{
	ID: "S1", Title: "the key is absent", groups: 1, together: true,
	About: "Every caller misses the same absent key at the same moment.",
	Must:  "one load, the same answer for all",
	load:  normalLoad, plan: func(c Config) plan { return plan{Row: rowOld, Wait: c.Load} },
	play: playHerd, demands: demandOneLoad,
}, {
	ID: "S2", Title: "the row does not exist", groups: 1, together: true,
	About: "The same, and the database has no such row.",
	Must:  "one load, ErrNotFound for all",
	load:  normalLoad, plan: func(c Config) plan { return plan{Wait: c.Load} },
	play: playHerd, demands: demandNotFound,
}, {
	ID: "S3", Title: "the database fails", groups: 1, together: true,
	About: "The same, and the query ends in an error.",
	Must:  "one load, the error for all in one load's time",
	load:  normalLoad, plan: func(c Config) plan { return plan{Wait: c.Load, Failed: true} },
	play: playHerd, demands: demandSharedError,
}, {
	ID: "S4", Title: "the load outlasts the lease", groups: 1, together: true,
	About: "The load takes 1.6 times as long as the lease, or the lock, lasts.",
	Must:  "one load, the same answer for all",
	load:  Config.slowLoad, plan: func(c Config) plan { return plan{Row: rowOld, Wait: c.slowLoad()} },
	play: playHerd, demands: demandOneLoad,
}, {
	ID: "S5", Title: "a paused old load publishes late", groups: 2,
	About: "A slow load has read the old row. The row is changed and the key invalidated, in another process. Other callers read. " +
		"Then the old load returns. The lab looks at the answers after the invalidation, at the store and at every process.",
	Must: "the new row, in the store and in every process",
	load: normalLoad, plan: func(c Config) plan { return plan{Row: rowOld, Wait: c.oldLoad()} },
	play: playLatePublish, demands: demandNew,
}, {
	ID: "S6", Title: "the first caller cancels", groups: 1,
	About: "The first caller, whose miss started the load, gives up in the middle of it. All others go on waiting.",
	Must:  "one load, no failure for anybody else",
	load:  normalLoad, plan: func(c Config) plan { return plan{Row: rowOld, Wait: c.Load} },
	play: playCancel, demands: demandInnocent,
}, {
	ID: "S7", Title: "the store is killed", groups: 3, faulty: true,
	About: "The store is killed. All callers ask for an absent key at once, then all once more, and then for a key that every process has read before.",
	Must:  "one load in each process and no more, everybody served, the known key at once",
	load:  normalLoad, plan: func(c Config) plan { return plan{Row: rowOld, Wait: c.Load} },
	policy: wavePolicy, keys: waveKeys,
	play: playWaves, demands: demandServed,
}, {
	ID: "release", Title: "the wrong owner releases", modes: []string{ModeLock, ModeOnefill},
	About: "A's lock or lease expires and B gets it. A, still at work, stores what it has loaded and releases. C tries to take it while B works. " +
		"For onefill this is played on the store itself, past the cache, which would have noticed earlier.",
	Must: "A's value and A's release are refused, B's lease stands",
	load: normalLoad, plan: func(c Config) plan { return plan{Row: rowOld} },
	play: playRelease, demands: demandStands,
}, {
	ID: "killed", Title: "the store is killed under load", faulty: true, traffic: true,
	modes: []string{ModeNaive, ModeLock, ModeOnefill},
	About: "Calls come at even intervals, several times as many as the database could load; the store answers nearly all. Then it is killed, and after a while restarted, empty. " +
		"The database works on so many operations at once; the others queue there, and fail at their deadline.",
	Must: "never more operations at once than MaxLoads, and than MaxLoadsDegraded without the store; everybody served; the hit rate recovers",
	load: outageLoad, policy: outagePolicy, keys: trafficKeys,
	prepare: prepareTraffic, play: playOutage(killStore, healAfter(outageLasts, momentRestarted), outageAfter), demands: demandBounded,
}, {
	ID: "frozen", Title: "the store hangs under load", faulty: true, traffic: true,
	modes: []string{ModeNaive, ModeOnefill},
	About: "The same, but the store's process is stopped (SIGSTOP): its connections stay open and nothing answers. Then it goes on (SIGCONT). " +
		"Every mode waits 250 ms at most for one of the store's answers.",
	Must: "the same",
	load: outageLoad, policy: outagePolicy, keys: trafficKeys,
	prepare: prepareTraffic, play: playOutage(freezeStore, healAfter(outageLasts, momentThawed), outageAfter), demands: demandBounded,
}, {
	ID: "cold", Title: "the store restarts empty", faulty: true, traffic: true,
	modes: []string{ModeNaive, ModeLock, ModeOnefill},
	About: "The same, but the store is back at once, and empty: every key is absent at the same moment.",
	Must:  "never more operations at once than MaxLoads; everybody served; the hit rate recovers",
	load:  outageLoad, policy: outagePolicy, keys: trafficKeys,
	prepare: prepareTraffic, play: playOutage(killStore, healAfter(0, momentRestarted), coldAfter), demands: demandBounded,
}, {
	ID: "commit", Title: "the commit and the cache", faulty: true,
	modes: []string{ModeNaive, ModeOnefill},
	About: "Writers change rows while all processes read them. Naive commits and then deletes the key; onefill enqueues the invalidation in the transaction that changes the row, " +
		"and workers apply it. Writers and workers are killed (SIGKILL) at random moments and replaced; the store is stopped and started with its data, twice. " +
		"When all is quiet, what the store holds and what every process answers is compared with the rows.",
	Must: "every cached value is its row",
	load: commitLoad, needs: commitNeeds, beside: commitConnections, policy: commitPolicy, keys: noKeys,
	prepare: prepareCommit, play: playCommit, demands: demandCommitted,
}}

// bound is what the scenario may take in one mode.
func (s *Scenario) bound(c Config) time.Duration {
	if s.traffic {
		return outageBefore + outageLasts + outageAfter + outagePatience + trafficTimeout + cleanupTimeout
	}
	return time.Duration(max(s.groups, 2)) * c.Timeout // one after the other; the release has two
}

// ScenarioIDs lists the ids of all scenarios.
func ScenarioIDs() []string {
	ids := make([]string, len(Scenarios))
	for i, s := range Scenarios {
		ids[i] = s.ID
	}
	return ids
}

// playHerd releases all callers at once.
func playHerd(ctx context.Context, c *cell) error {
	if err := c.start(ctx, phaseHerd, c.callers(nil)); err != nil {
		return err
	}
	return c.collect(ctx, c.callers(nil))
}

// firstCaller is the caller that S5 and S6 begin with.
const firstCaller = 0

func isFirst(id int) bool  { return id == firstCaller }
func notFirst(id int) bool { return id != firstCaller }

// playFirst lets the first caller go and waits until its load has read the row.
func playFirst(ctx context.Context, c *cell) error {
	if err := c.start(ctx, phaseFirst, c.callers(isFirst)); err != nil {
		return err
	}
	return c.awaitReading(ctx)
}

// playLatePublish forces: process 0 loads the old row | the row is changed and
// the key invalidated by the last process | everybody else reads | the old load
// returns.
func playLatePublish(ctx context.Context, c *cell) error {
	if err := playFirst(ctx, c); err != nil {
		return err
	}
	if err := c.run.origin.Plan(ctx, c.key, plan{Row: rowNew, Wait: c.run.cfg.Load}); err != nil {
		return fmt.Errorf("change the row: %w", err)
	}
	last := len(c.run.fleet) - 1
	if _, err := c.run.fleet[last].do(ctx, command{Op: opInvalidate}); err != nil {
		return err
	}
	if err := recipe.Pause(ctx, c.run.cfg.gap()); err != nil {
		return err
	}
	if err := c.start(ctx, phaseHerd, c.callers(notFirst)); err != nil {
		return err
	}
	if err := c.collect(ctx, c.callers(nil)); err != nil {
		return err
	}
	if err := c.mark(ctx); err != nil {
		return err
	}
	return c.verify(ctx)
}

// playCancel forces: the first caller's load has begun | everybody else asks | the
// first caller's context ends in mid-load.
func playCancel(ctx context.Context, c *cell) error {
	if err := playFirst(ctx, c); err != nil {
		return err
	}
	if err := c.start(ctx, phaseHerd, c.callers(notFirst)); err != nil {
		return err
	}
	if err := recipe.Pause(ctx, c.run.cfg.Load/2); err != nil {
		return err
	}
	if _, err := c.run.fleet[0].do(ctx, command{Op: opCancel, Callers: []int{firstCaller}}); err != nil {
		return err
	}
	return c.collect(ctx, c.callers(nil))
}

// playRelease forces: A holds | A's hold expires, B holds | A stores and releases | C tries.
func playRelease(ctx context.Context, c *cell) error {
	a, b, third := c.holder("A", 0), c.holder("B", 1), c.holder("C", 2)
	if won, err := a.do(ctx, opTake); err != nil || !won {
		return fmt.Errorf("A cannot take the free lock: %w", orNothing(err))
	}
	for {
		won, err := b.do(ctx, opTake)
		if err != nil {
			return err
		}
		if won {
			break
		}
		if err := recipe.Pause(ctx, recipe.LockPauseMin); err != nil {
			return fmt.Errorf("B waits for the end of A's lock: %w", err)
		}
	}
	published, err := a.do(ctx, opPublish)
	if err != nil {
		return err
	}
	accepted, err := a.do(ctx, opDrop)
	if err != nil {
		return err
	}
	freed, err := third.do(ctx, opTake)
	if err != nil {
		return err
	}
	c.res.Freed, c.res.Accepted, c.res.Published = &freed, &accepted, &published
	c.res.Holders = 1
	if freed {
		c.res.Holders = 2
		if _, err := third.do(ctx, opDrop); err != nil {
			return err
		}
	}
	_, err = b.do(ctx, opDrop)
	return err
}

type nothing struct{}

func (nothing) Error() string { return "somebody else holds it" }

func orNothing(err error) error {
	if err == nil {
		return nothing{}
	}
	return err
}
