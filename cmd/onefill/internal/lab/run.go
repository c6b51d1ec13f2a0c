// Package lab makes readers in several processes miss the same keys at once, on
// real servers, with plain cache-aside, with common recipes and with onefill,
// lets the database count what reaches it, and asserts what onefill guarantees.
package lab

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
)

// Listener hears of a run's progress. Its functions may be nil.
type Listener struct {
	// Step: something begins, such as "S1 naive".
	Step func(what string, number, of int)
	// Result: a scenario has been played in a mode.
	Result func(Result)
}

// Report is the outcome of a run.
type Report struct {
	Config      Config
	Environment Environment
	Started     time.Time
	Took        time.Duration
	Results     []Result
	Calls       []Call
	Operations  []Operation
	// ClockOffset is how far the origin's clock was ahead of the callers' clock.
	ClockOffset time.Duration
	// Dir holds the report and the logs.
	Dir string
}

// Failures lists what was asserted and not met, and what makes the run worthless.
func (r *Report) Failures() []string {
	var all []string
	for _, res := range r.Results {
		if res.Asserted && !res.Ok {
			all = append(all, fmt.Sprintf("%s %s: %s", res.Scenario, res.Mode, strings.Join(res.Failed, "; ")))
		}
		if res.Sanity != "" && res.Sanity != sanityOK {
			all = append(all, "sanity check: "+res.Sanity)
		}
	}
	return all
}

// run is a run in progress.
type run struct {
	cfg    Config
	id     string // random; part of every name that the run uses on a server
	origin origin
	spec   originSpec
	store  *storeServer
	fleet  fleet
	report *Report
	argv   []string // of a reader process

	playable        []*Scenario // of the configured ones
	freeConnections int         // that a given database has left; 0: enough

	cleanups []func(context.Context) error
	keys     []string
}

// Run plays the configured scenarios. worker is the command line of a reader
// process: this program, with the arguments that lead to [RunWorker]. Everything
// that was started is stopped when Run returns, and everything that was made on
// given servers is removed. The report is complete up to the error, if any.
func Run(ctx context.Context, cfg Config, worker []string, on Listener) (*Report, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	id := make([]byte, 5)
	rand.Read(id)
	r := &run{cfg: cfg, id: hex.EncodeToString(id), report: &Report{Config: cfg, Started: time.Now()}}
	if err := r.makeDir(); err != nil {
		return nil, err
	}
	err := r.play(ctx, worker, on)
	err = errors.Join(err, r.clean(ctx))
	if len(r.report.Results) == 0 && cfg.Out == "" {
		os.Remove(r.report.Dir) // empty
	}
	r.report.Took = time.Since(r.report.Started)
	return r.report, err
}

// makeDir makes the directory of the report first, since a run whose results
// cannot be written is a waste of time.
func (r *run) makeDir() error {
	dir := r.cfg.Out
	if dir == "" {
		dir = filepath.Join(os.TempDir(), "onefill-lab-"+r.report.Started.Format("20060102-150405")+"-"+r.id)
	}
	r.report.Dir = dir
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return badInput("out", "cannot make the directory: %v", err)
	}
	probe, err := os.CreateTemp(dir, ".probe-")
	if err != nil {
		return badInput("out", "cannot write there: %v", err)
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

func (r *run) play(ctx context.Context, worker []string, on Listener) error {
	var cells []*cell
	step := func(what string, number int) {
		if on.Step != nil {
			on.Step(what, number, len(cells))
		}
	}
	step("starting servers and readers", 0)
	if err := r.start(ctx, worker); err != nil {
		return err
	}
	cells = r.cells()
	for i, c := range cells {
		step(c.scenario.ID+" "+c.mode, i+1)
		if err := r.playCell(ctx, c); err != nil {
			return fmt.Errorf("%s %s: %w", c.scenario.ID, c.mode, err)
		}
		r.report.Results = append(r.report.Results, c.res)
		r.report.Calls = append(append(r.report.Calls, c.calls...), c.verified...)
		r.report.Operations = append(r.report.Operations, c.ops...)
		if on.Result != nil {
			on.Result(c.res)
		}
	}
	return nil
}

func (r *run) cells() []*cell {
	var cells []*cell
	for _, s := range r.playable {
		for _, mode := range r.cfg.Modes {
			if s.modes == nil || slices.Contains(s.modes, mode) {
				cells = append(cells, &cell{run: r, scenario: s, mode: mode, key: strings.ToLower(s.ID) + "-" + mode})
			}
		}
	}
	return cells
}

// start brings up servers and readers.
func (r *run) start(ctx context.Context, worker []string) (err error) {
	if err := r.startStore(ctx); err != nil {
		return err
	}
	r.cleanup(func(context.Context) error { r.store.close(); return nil })
	if r.report.Environment.StoreHow == howGiven {
		r.cleanup(r.removeKeys)
	}
	if err := r.startOrigin(ctx); err != nil {
		return err
	}
	if err := r.leaveOut(); err != nil {
		return err
	}
	if r.report.ClockOffset, err = r.origin.ClockOffset(ctx); err != nil {
		return fmt.Errorf("ask the origin for its time: %w", err)
	}
	if err := r.origin.Plan(ctx, warmKey, plan{Row: "warm"}); err != nil {
		return fmt.Errorf("write the first row: %w", err)
	}
	r.argv = worker
	if r.fleet, err = startFleet(r.cfg.Processes, worker); err != nil {
		return err
	}
	r.cleanup(func(context.Context) error { r.fleet.stop(); return nil })
	openCtx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	_, err = r.fleet.each(openCtx, func(p int) command {
		return command{Op: opOpen, Setup: &workerSetup{
			Process: p, Run: r.id, Origin: r.spec, Store: r.store.spec, Connections: r.trafficConnections(p),
		}}
	})
	return err
}

// settle is what a cell may take beyond its callers' timeout, for their answers.
const settle = 5 * time.Second

func (r *run) playCell(ctx context.Context, c *cell) (err error) {
	ctx, cancel := context.WithTimeout(ctx, c.scenario.bound(r.cfg)+settle)
	defer cancel()
	if c.scenario.faulty {
		defer func() {
			healCtx, cancel := cleanupContext(ctx)
			defer cancel()
			err = errors.Join(err, r.store.damage.heal(healCtx))
		}()
	}
	r.keys = append(r.keys, c.key)
	c.res = r.result(c)
	if err := c.prepare(ctx); err != nil {
		return err
	}
	if !c.scenario.faulty {
		if c.before, err = r.store.commands(ctx); err != nil {
			return fmt.Errorf("ask the store for its counters: %w", err)
		}
	}
	c.began = time.Now()
	if err := c.scenario.play(ctx, c); err != nil {
		return err
	}
	if err := c.mark(ctx); err != nil {
		return err
	}
	if _, err := r.fleet.each(ctx, func(int) command { return command{Op: opFinish} }); err != nil {
		return err
	}
	return c.conclude(ctx)
}

// conclude asks the origin and judges.
func (c *cell) conclude(ctx context.Context) (err error) {
	loads, err := c.countLoads(ctx)
	if err != nil {
		return err
	}
	c.measure(loads, c.run.report.ClockOffset)
	c.res.Failed = c.scenario.demands(c)
	c.res.Ok = len(c.res.Failed) == 0
	c.res.Asserted = c.mode == ModeOnefill
	if c.mode == ModeNaive {
		switch {
		case c.scenario.ID == "S1":
			c.res.Sanity = sanity(c.res, c.run.cfg)
		case c.outage != nil:
			c.res.Sanity = overload(c.res)
		case c.commit != nil:
			c.res.Sanity = endangered(c.res)
		}
	}
	return nil
}

// countLoads asks for the counters and the logs of all keys.
func (c *cell) countLoads(ctx context.Context) (loads int, err error) {
	for _, key := range c.keys() {
		n, err := c.run.origin.Count(ctx, key)
		if err != nil {
			return 0, fmt.Errorf("ask the origin for its count: %w", err)
		}
		loads += n
		ops, err := c.run.origin.Operations(ctx, key)
		if err != nil {
			return 0, fmt.Errorf("ask the origin for its log: %w", err)
		}
		for _, o := range ops {
			o.Scenario, o.Mode = c.scenario.ID, c.mode
			if key != c.key {
				o.Key = key
			}
			c.ops = append(c.ops, o)
		}
	}
	return loads - c.unmeasured, nil
}

const sanityOK = "ok"

// sanityLoad is the load from which on the barrier must make every caller of
// naive miss: it is far longer than the callers' start can differ.
const sanityLoad = 100 * time.Millisecond

// sanity checks the lab itself: if naive costs fewer loads than it has callers,
// they did not come together, and a single load in another mode proves nothing.
func sanity(res Result, cfg Config) string {
	if res.Loads != cfg.Callers && cfg.Load >= sanityLoad {
		return fmt.Sprintf("naive cost %d loads in S1 instead of one for each of the %d callers, so the callers did not come together", res.Loads, cfg.Callers)
	}
	return sanityOK
}

// overload checks that an outage scenario is one: if naive does not ask the database for more
// at once than it can work on, that onefill does not either proves nothing.
func overload(res Result) string {
	if o := res.Outage; o.MaxInFlight <= o.Workers {
		return fmt.Sprintf("naive had %d operations at once in %s, no more than the %d that the database can work on, so nothing was in danger",
			o.MaxInFlight, res.Scenario, o.Workers)
	}
	return sanityOK
}

func (r *run) result(c *cell) Result {
	env := r.report.Environment
	return Result{
		Scenario: c.scenario.ID, Mode: c.mode,
		Store: env.Store, StoreVersion: env.StoreVersion, Origin: env.Origin, OriginVer: env.OriginVersion,
		Processes: r.cfg.Processes, Callers: r.cfg.Callers,
		LoadMS: milliseconds(c.scenario.load(r.cfg)), LeaseMS: milliseconds(r.cfg.Lease),
	}
}

// ttl of what the lab stores: longer than a cell lasts, and short enough that
// nothing stays for long should a run be killed.
func (r *run) ttl() time.Duration { return 2*r.cfg.Timeout + time.Minute }

func (r *run) cleanup(f func(context.Context) error) { r.cleanups = append(r.cleanups, f) }

// clean undoes what start did, the last thing first, also after Ctrl-C.
func (r *run) clean(ctx context.Context) error {
	ctx, cancel := cleanupContext(ctx)
	defer cancel()
	var errs []error
	for _, f := range slices.Backward(r.cleanups) {
		errs = append(errs, f(ctx))
	}
	return errors.Join(errs...)
}

// removeKeys deletes what the run stored on a given server.
func (r *run) removeKeys(ctx context.Context) error {
	keys := append(r.keys, warmKey)
	for _, mode := range r.cfg.Modes {
		cache, err := openReader(ctx, mode, r.store.spec, readerConfig{
			run: r.id, ttl: r.ttl(), lease: r.cfg.Lease, timeout: r.cfg.Timeout, push: r.store.push,
			load: func(context.Context, string) (string, error) { return "", errNoRow },
		})
		if err != nil {
			return fmt.Errorf("remove the lab's keys: %w", err)
		}
		for _, key := range keys {
			err = errors.Join(err, cache.Invalidate(ctx, key))
			if l, ok := cache.(*recipe.Lock); ok {
				_, dropErr := l.Drop(ctx, key, "")
				err = errors.Join(err, dropErr)
			}
		}
		if err := errors.Join(err, cache.Close()); err != nil {
			return fmt.Errorf("remove the lab's keys: %w", err)
		}
	}
	return nil
}
