package lab

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
)

// An outage scenario makes calls at even intervals, whatever becomes of them, for keys
// that expire one by one, before a database that takes so many operations at once;
// the others queue, and fail at their deadline. Then something happens to the store.
// What the callers ask for in a second is several times what the database can load in one,
// so it lives as long as the cache does.
type outageSize struct {
	load     time.Duration // of an operation, when a worker has it
	workers  int           // of the origin, for each process
	loads    int           // MaxLoads
	degraded int           // MaxLoadsDegraded
	keys     int
	rate     float64 // calls a second, of each process

	connections int // of each process to the origin
}

// Sizes for a database server and for the embedded one, which counts more slowly. In
// both, what a process needs at most while the store is away, every key in 2 seconds,
// is about half of what its MaxLoadsDegraded can load, and the callers ask for two and a
// half times what the workers can load, or more.
var (
	sizeServer   = outageSize{load: 50 * time.Millisecond, workers: 4, loads: 4, degraded: 2, keys: 40, rate: 200, connections: 20}
	sizeEmbedded = outageSize{load: 100 * time.Millisecond, workers: 2, loads: 2, degraded: 1, keys: 10, rate: 60, connections: 20}
)

// Times of an outage scenario.
const (
	outageTTL      = 2 * time.Second        // of the values
	originDeadline = 500 * time.Millisecond // of a query, queue included
	originPatience = 500 * time.Millisecond // for a connection
	storeTimeout   = 250 * time.Millisecond
	trafficTimeout = 6 * time.Second // more than WaitTimeout: what a cache does is to be seen

	outageBefore = 500 * time.Millisecond
	outageLasts  = 1600 * time.Millisecond
	outageAfter  = 1500 * time.Millisecond
	coldAfter    = 1500 * time.Millisecond
	// outagePatience is how much longer onefill has to recover; the traffic ends when
	// it has.
	outagePatience = 8 * time.Second
	// aftermath is how long after a restart, which is over in a moment, its consequences
	// are looked at.
	aftermath = time.Second
)

// outageLoad is what a load takes in these scenarios; see outageSize.
func outageLoad(Config) time.Duration { return sizeServer.load }

// maxTrafficProcesses bounds what the database has to bear; more processes stand by.
const maxTrafficProcesses = 4

func (r *run) trafficProcesses() int { return min(r.cfg.Processes, maxTrafficProcesses) }

// readers are the processes that make traffic.
func (c *cell) readers() fleet { return c.run.fleet[:c.run.trafficProcesses()] }

func (r *run) outageSize() outageSize {
	if r.spec.Kind == originSQLite {
		return sizeEmbedded
	}
	return sizeServer
}

func outagePolicy(c *cell) policy {
	size := c.run.outageSize()
	return policy{
		StoreTimeout: storeTimeout, LocalTTL: outageTTL, StaleFor: outageTTL / 2, StaleOnError: 5 * outageTTL,
		// A query, the wait for a connection, and the scheduler of a busy machine.
		LoadTimeout: 3 * time.Second,
		WaitTimeout: 4 * time.Second,
		MaxLoads:    size.loads, MaxLoadsDegraded: size.degraded,
	}
}

// prepareTraffic writes the rows and makes the processes ready. Those beyond
// maxTrafficProcesses have nothing to do.
func prepareTraffic(ctx context.Context, c *cell, setup cellSetup) error {
	if err := c.planTraffic(ctx, plan{Row: rowOld}); err != nil { // quick, for fill
		return err
	}
	size := c.run.outageSize()
	setup.TTLUS = outageTTL.Microseconds()
	setup.Traffic = &traffic{Keys: size.keys, PerSecond: size.rate, Timeout: trafficTimeout,
		Connections: size.connections, Patience: originPatience}
	_, err := c.readers().each(ctx, func(int) command {
		return command{Op: opPrepare, Key: c.key, Cell: &setup}
	})
	return err
}

func (c *cell) planTraffic(ctx context.Context, p plan) error {
	for _, key := range c.keys() {
		if err := c.run.origin.Plan(ctx, key, p); err != nil {
			return fmt.Errorf("write the rows: %w", err)
		}
	}
	return nil
}

func trafficKeys(c *cell) []string {
	keys := make([]string, c.run.outageSize().keys)
	for i := range keys {
		keys[i] = trafficKey(c.key, i)
	}
	return keys
}

// outage is a scenario of this kind in progress.
type outage struct {
	*cell
	size    outageSize
	began   time.Time
	moments []Moment
	from    time.Time // when the store went away
	until   time.Time // up to when it was away
	back    time.Time // when it had returned, as the lab knows
	ended   time.Time
	before  tally // of the calls before the harm, for as long as the traffic runs
}

// playOutage makes the traffic, lets harm and repair happen to the store, and goes on
// until the traffic is as it was before.
func playOutage(harm, repair func(ctx context.Context, o *outage) error, after time.Duration) func(context.Context, *cell) error {
	return func(ctx context.Context, c *cell) (err error) {
		o := &outage{cell: c, size: c.run.outageSize()}
		if err := o.fill(ctx); err != nil {
			return err
		}
		o.began = time.Now()
		if err := o.tellTraffic(ctx, func(int) command { return command{Op: opTraffic} }, nil); err != nil {
			return err
		}
		if err := recipe.Pause(ctx, outageBefore); err != nil {
			return err
		}
		if o.before, err = o.recent(ctx, o.began); err != nil {
			return err
		}
		o.from = time.Now()
		if err := harm(ctx, o); err != nil {
			return err
		}
		if err := repair(ctx, o); err != nil {
			return err
		}
		o.back = time.Now()
		if err := o.awaitRecovery(ctx, after); err != nil {
			return err
		}
		o.ended = time.Now()
		c.outage = o
		return o.tellTraffic(ctx, func(int) command { return command{Op: opHalt} }, func(r reply) { c.calls = append(c.calls, r.Calls...) })
	}
}

func (o *outage) tellTraffic(ctx context.Context, order func(p int) command, hear func(reply)) error {
	replies, err := o.readers().each(ctx, order)
	if err == nil && hear != nil {
		for _, r := range replies {
			hear(r)
		}
	}
	return err
}

// fill makes the store hold every key before the traffic begins. From then on loads
// take their time.
func (o *outage) fill(ctx context.Context) error {
	of := o.run.trafficProcesses()
	if err := o.tellTraffic(ctx, func(p int) command { return command{Op: opFill, Share: p, Of: of} }, nil); err != nil {
		return err
	}
	loads, err := o.countLoads(ctx)
	if err != nil {
		return err
	}
	o.unmeasured, o.ops = loads, nil
	return o.planTraffic(ctx, plan{Row: rowOld, Wait: o.size.load, Workers: o.size.workers * of, Deadline: originDeadline})
}

// moment notes that something has been done.
func (o *outage) moment(what string) {
	o.moments = append(o.moments, Moment{what, milliseconds(time.Since(o.began))})
}

func killStore(_ context.Context, o *outage) error {
	o.moment(momentKilled)
	return o.run.store.damage.kill()
}

func freezeStore(_ context.Context, o *outage) error {
	o.moment(momentFrozen)
	return o.run.store.damage.freeze()
}

// healAfter lets the outage last, then ends it.
func healAfter(lasts time.Duration, what string) func(ctx context.Context, o *outage) error {
	return func(ctx context.Context, o *outage) error {
		if err := recipe.Pause(ctx, lasts); err != nil {
			return err
		}
		o.until = time.Now()
		if err := o.run.store.damage.heal(ctx); err != nil {
			return err
		}
		o.moment(what)
		return nil
	}
}

// awaitRecovery waits for as long as every mode is looked at, and for onefill until the
// traffic is as it was before the outage.
func (o *outage) awaitRecovery(ctx context.Context, after time.Duration) error {
	if err := recipe.Pause(ctx, after); err != nil || o.mode != ModeOnefill {
		return err
	}
	for time.Since(o.back) < after+outagePatience {
		// Twice as long as it has to be steady: a call that has not ended is not counted.
		now, err := o.recent(ctx, time.Now().Add(-2*steady*bucket))
		if err != nil || now.recovered(o.before) {
			return err
		}
		if err := recipe.Pause(ctx, bucket); err != nil {
			return err
		}
	}
	return nil
}

// recent counts the calls that began at or after since.
func (o *outage) recent(ctx context.Context, since time.Time) (t tally, err error) {
	err = o.tellTraffic(ctx,
		func(int) command { return command{Op: opRecent, SinceUS: since.UnixMicro()} },
		func(r reply) { t = t.plus(r.Recent) })
	return t, err
}

// measure fills in what the traffic gave.
func (o *outage) measure(clockOffset time.Duration) {
	limits, processes := outagePolicy(o.cell), o.run.trafficProcesses()
	from, to := o.window()
	ms := func(t time.Time) float64 { return milliseconds(t.Sub(o.began)) }
	out := &Outage{
		Keys: o.size.keys, PerSecond: o.size.rate * float64(processes), Processes: processes,
		Workers: o.size.workers * processes, DeadlineMS: milliseconds(originDeadline),
		Limit: limits.MaxLoads * processes, LimitDegraded: limits.MaxLoadsDegraded * processes,
		Moments: o.moments, FromMS: ms(from), ToMS: ms(to),
		Before:    tallyOf(between(o.calls, o.began, from)),
		Meanwhile: tallyOf(between(o.calls, from, to)),
		Series:    makeSeries(o.calls, o.ops, o.began, clockOffset, o.ended.Sub(o.began)),
	}
	out.P50MS, out.P99MS, _ = waits(between(o.calls, from, to))
	_, _, out.MaxMS = waits(o.calls)
	at := func(t time.Time) time.Time { return t.Add(clockOffset) }
	for _, op := range o.ops {
		if op.StartUS >= at(from).UnixMicro() && op.StartUS < at(to).UnixMicro() {
			out.LoadsMeanwhile++
		}
	}
	out.MaxInFlight = atOnce(o.ops, at(o.began), at(o.ended))
	if unleased := from.Add(o.unleased(at(from))); unleased.Before(o.until) {
		out.MaxInFlightDown = atOnce(o.ops, at(unleased), at(o.until))
	}
	if took, ok := out.Series.recovery(out.Before, o.back.Sub(o.began)); ok {
		recovered := milliseconds(took)
		out.RecoveredMS = &recovered
	}
	o.res.Outage, o.res.MaxInFlight = out, &out.MaxInFlight
	o.res.Callers, o.res.LoadMS = len(o.calls), milliseconds(o.size.load)
}

// window is the time whose figures the table has: while the store was away, but no
// less than its aftermath.
func (o *outage) window() (from, to time.Time) {
	to = o.from.Add(aftermath)
	if o.back.After(to) {
		to = o.back
	}
	return o.from, to
}

// unleased is how long after the harm a load may go on that had its lease from before:
// one that was waiting for a place, then its own time, and a little for the scheduler. On
// a busy machine a load takes as long as the slowest of those that were under way, by the
// database's clock.
func (o *outage) unleased(harm time.Time) time.Duration {
	slowest := o.size.load
	for _, op := range o.ops {
		if op.StartUS < harm.UnixMicro() && op.EndUS > harm.UnixMicro() {
			slowest = max(slowest, time.Duration(op.EndUS-op.StartUS)*time.Microsecond)
		}
	}
	return 3*slowest + 100*time.Millisecond
}

// waits are the median, the 99th percentile and the longest, in milliseconds.
func waits(calls []Call) (p50, p99, longest float64) {
	if len(calls) == 0 {
		return 0, 0, 0
	}
	all := make([]time.Duration, len(calls))
	for i, c := range calls {
		all[i] = c.Wait()
	}
	slices.Sort(all)
	return milliseconds(quantile(all, 0.5)), milliseconds(quantile(all, 0.99)), milliseconds(quantile(all, 1))
}
