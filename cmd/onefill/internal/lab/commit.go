package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
	"github.com/onefill/onefill/pgqueue"
)

// Sizes and times of the scenario "commit". The keys are so many, and the writers so slow, that
// what is lost while the store is away is written again for few of them afterwards: what is
// written again is invalidated again, and shows nothing.
const (
	commitKeys      = 300
	commitReads     = 150.0 // a second, of each reader
	commitWrites    = 80.0  // a second, of each writer
	commitWriters   = 2
	commitWorkers   = 2
	commitQueries   = 4 // connections of each reader to the database
	commitPatience  = 5 * time.Second
	commitBefore    = 700 * time.Millisecond // the caches fill
	commitAway      = 400 * time.Millisecond // the store is stopped
	commitBetween   = 500 * time.Millisecond // it runs
	commitAfter     = 200 * time.Millisecond // writers go on
	commitStops     = 2
	commitDrain     = 20 * time.Second // for the queue to become empty
	commitPushes    = 300 * time.Millisecond
	killPauseMin    = 20 * time.Millisecond
	killPauseMax    = 120 * time.Millisecond
	workerLease     = time.Second // what a killed worker keeps from others
	helperQueries   = 3           // connections of a writer or worker
	commitProcesses = 100         // from here on writers and workers are numbered
)

// commitConnections are those that writers and workers need beside the readers', while one of
// them is replaced.
const commitConnections = (commitWriters + commitWorkers + 1) * helperQueries

func commitLoad(Config) time.Duration { return 2 * time.Millisecond }

func noKeys(*cell) []string { return []string{} } // loads are not what it is about

func commitPolicy(*cell) policy { return policy{StoreTimeout: storeTimeout} }

// commitNeeds: what it shows depends on a store that keeps its data, and the queue is on
// PostgreSQL.
func commitNeeds(r *run) string {
	_, keeps := r.store.damage.faults.(keeper)
	switch {
	case !keeps:
		return "needs a Redis of the lab's own, which is stopped and started with its data"
	case r.spec.Kind != originPostgres:
		return "needs PostgreSQL, which has the queue"
	}
	return ""
}

// Commit is what the scenario of that name gave.
type Commit struct {
	Keys          int `json:"keys"`
	Commits       int `json:"commits"` // by the database's own count
	WritersKilled int `json:"writers_killed"`
	WorkersKilled int `json:"workers_killed"`
	StoreStops    int `json:"store_stops"`
	// StaleKeys is for how many keys the store holds, or a process answers, something that is
	// not the row; StaleStored and StaleAnswers count those of the store and of all processes.
	StaleKeys    int `json:"stale_keys"`
	StaleStored  int `json:"stale_stored"`
	StaleAnswers int `json:"stale_answers"`
	// Unread is how many questions at the end had no answer.
	Unread int `json:"unread"`
	// Of the queue: what was left of it, how long it took to become empty once the writers had
	// ended, and the dead letters.
	JobsLeft  int64    `json:"jobs_left"`
	Dead      int64    `json:"dead"`
	DrainedMS *float64 `json:"drained_ms,omitempty"`

	why string // of Unread
}

// commitSetup is what a writer or worker is told.
type commitSetup struct {
	Mode      string  `json:"mode"`
	Cell      string  `json:"cell"`
	Keys      int     `json:"keys"`
	PerSecond float64 `json:"per_second"`
	Push      bool    `json:"push"`
	Policy    policy  `json:"policy"`
	LeaseUS   int64   `json:"lease_us"`
	TTLUS     int64   `json:"ttl_us"`
	TimeoutUS int64   `json:"timeout_us"`
}

// prepareCommit makes the queue and the rows, and the readers ready.
func prepareCommit(ctx context.Context, c *cell, setup cellSetup) error {
	pg := c.run.origin.(*postgres)
	q, err := pg.queue()
	if err == nil {
		_, err = q.MigrateUp(ctx)
	}
	if err != nil {
		return fmt.Errorf("make the queue: %w", err)
	}
	if err := pg.fillRows(ctx, c.key, commitKeys, commitLoad(c.run.cfg)); err != nil {
		return fmt.Errorf("write the rows: %w", err)
	}
	setup.Traffic = &traffic{Keys: commitKeys, PerSecond: commitReads, Timeout: trafficTimeout, Patience: commitPatience}
	_, err = c.readers().each(ctx, func(p int) command {
		one := setup
		of := *setup.Traffic
		of.Connections = min(commitQueries, c.run.connections(p))
		one.Traffic = &of
		return command{Op: opPrepare, Key: c.key, Cell: &one}
	})
	return err
}

// playCommit lets writers, workers and readers run, kills and stops what it may, lets the queue
// become empty, and compares.
func playCommit(ctx context.Context, c *cell) (err error) {
	p := &commitPlay{cell: c, out: &Commit{Keys: commitKeys}}
	defer p.stopCrews()
	if err := p.startCrews(ctx); err != nil {
		return err
	}
	if _, err := c.readers().each(ctx, func(int) command { return command{Op: opTraffic} }); err != nil {
		return err
	}
	if err := p.havoc(ctx); err != nil {
		return err
	}
	if err := p.quiet(ctx); err != nil {
		return err
	}
	if err := c.mark(ctx); err != nil {
		return err
	}
	if err := p.compare(ctx); err != nil {
		return err
	}
	c.commit = p.out
	return nil
}

// commitPlay is the scenario in progress.
type commitPlay struct {
	*cell
	out              *Commit
	writers, workers *crew
}

// crew are processes of one kind, each of which may be killed and is replaced.
type crew struct {
	c       *cell
	op      string
	first   int // number of the next process
	members fleet
	killed  int
}

func (p *commitPlay) startCrews(ctx context.Context) error {
	p.writers = &crew{c: p.cell, op: opWrite, first: commitProcesses}
	p.workers = &crew{c: p.cell, op: opWork, first: 2 * commitProcesses}
	for range commitWriters {
		if err := p.writers.add(ctx); err != nil {
			return err
		}
	}
	for range commitWorkers {
		if p.mode != ModeOnefill {
			break
		}
		if err := p.workers.add(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *commitPlay) stopCrews() {
	p.writers.members.stop()
	p.workers.members.stop()
}

// add starts a process and sets it to work.
func (cr *crew) add(ctx context.Context) error {
	r := cr.c.run
	one, err := startProcess(cr.first, r.argv)
	if err != nil {
		return err
	}
	cr.first++
	cr.members = append(cr.members, one)
	if _, err := one.do(ctx, command{Op: opOpen, Setup: &workerSetup{
		Process: one.number, Run: r.id, Origin: r.spec, Store: r.store.spec, Connections: helperQueries,
	}}); err != nil {
		return err
	}
	_, err = one.do(ctx, command{Op: cr.op, Commit: &commitSetup{
		Mode: cr.c.mode, Cell: cr.c.key, Keys: commitKeys, PerSecond: commitWrites, Push: r.store.push, Policy: commitPolicy(cr.c),
		LeaseUS: r.cfg.Lease.Microseconds(), TTLUS: r.ttl().Microseconds(), TimeoutUS: r.cfg.Timeout.Microseconds(),
	}})
	return err
}

// kill ends one of them, whatever it is doing, and replaces it.
func (cr *crew) kill(ctx context.Context) error {
	i := rand.IntN(len(cr.members))
	victim := cr.members[i]
	cr.members = append(cr.members[:i:i], cr.members[i+1:]...)
	if err := victim.kill(); err != nil {
		return err
	}
	cr.killed++
	return cr.add(ctx)
}

// havoc kills writers and workers while the store comes and goes.
func (p *commitPlay) havoc(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	store := make(chan error, 1)
	go func() { store <- p.stopAndStart(ctx) }()
	for n := 0; ; n++ {
		victims := p.writers
		if n%3 == 2 && len(p.workers.members) > 0 {
			victims = p.workers
		}
		timer := time.NewTimer(killPauseMin + rand.N(killPauseMax-killPauseMin))
		select {
		case err := <-store:
			timer.Stop()
			p.out.WritersKilled, p.out.WorkersKilled = p.writers.killed, p.workers.killed
			return err
		case <-timer.C:
		}
		if err := victims.kill(ctx); err != nil {
			cancel()
			return errors.Join(err, <-store)
		}
	}
}

func (p *commitPlay) stopAndStart(ctx context.Context) error {
	wait := commitBefore
	for range commitStops {
		if err := recipe.Pause(ctx, wait); err != nil {
			return err
		}
		if err := p.run.store.damage.stop(ctx); err != nil {
			return fmt.Errorf("stop the store: %w", err)
		}
		p.out.StoreStops++
		if err := recipe.Pause(ctx, commitAway); err != nil {
			return err
		}
		if err := p.run.store.damage.start(ctx); err != nil {
			return err
		}
		wait = commitBetween
	}
	return recipe.Pause(ctx, commitAfter)
}

// quiet ends the writers in order, lets the workers do what is left, and ends the readers.
func (p *commitPlay) quiet(ctx context.Context) error {
	if _, err := p.writers.members.each(ctx, func(int) command { return command{Op: opLeave} }); err != nil {
		return err
	}
	if p.mode == ModeOnefill {
		if err := p.drain(ctx); err != nil {
			return err
		}
	}
	if err := recipe.Pause(ctx, commitPushes); err != nil {
		return err
	}
	_, err := p.readers().each(ctx, func(int) command { return command{Op: opHalt} })
	return err
}

func (p *commitPlay) drain(ctx context.Context) error {
	q, err := p.run.origin.(*postgres).queue()
	if err != nil {
		return err
	}
	for began := time.Now(); ; {
		s, err := q.Stats(ctx)
		if err != nil {
			return fmt.Errorf("look at the queue: %w", err)
		}
		p.out.JobsLeft, p.out.Dead = s.Ready+s.NotReady, s.Dead
		took := time.Since(began)
		if p.out.JobsLeft == 0 {
			ms := milliseconds(took)
			p.out.DrainedMS = &ms
		}
		if p.out.JobsLeft == 0 || took > commitDrain {
			return nil
		}
		if err := recipe.Pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// compare asks the database, the store and every reader for every key.
func (p *commitPlay) compare(ctx context.Context) error {
	rows, commits, err := p.run.origin.(*postgres).rows(ctx, p.key, commitKeys)
	if err != nil {
		return fmt.Errorf("read the rows: %w", err)
	}
	p.out.Commits = commits
	replies, err := p.readers().each(ctx, func(int) command { return command{Op: opCompare, Commit: &commitSetup{Keys: commitKeys}} })
	if err != nil {
		return err
	}
	p.out.judge(rows, replies)
	return nil
}

// judge counts what is not its row. Every process asks the same store; the first one's word is
// taken.
func (o *Commit) judge(rows []string, replies []reply) {
	stale := make(map[int]bool)
	for n, r := range replies {
		o.Unread += r.Unread
		if r.Why != "" {
			o.why = r.Why
		}
		for i, row := range rows {
			if r.Rows[i] != "" && r.Rows[i] != row {
				o.StaleAnswers++
				stale[i] = true
			}
			if n == 0 && r.Stored[i] != "" && r.Stored[i] != row {
				o.StaleStored++
				stale[i] = true
			}
		}
	}
	o.StaleKeys = len(stale)
}

func demandCommitted(c *cell) []string {
	var d demand
	o := c.res.Commit
	d.that(o.StaleKeys == 0, "%d of %d keys are stale: the store holds %d old rows, the processes answered %d times with one", o.StaleKeys, o.Keys, o.StaleStored, o.StaleAnswers)
	d.that(o.Unread == 0, "%d questions had no answer when all was quiet: %s", o.Unread, o.why)
	d.that(o.JobsLeft == 0, "%d jobs were left %v after the last commit", o.JobsLeft, commitDrain)
	d.that(o.Dead == 0, "%d jobs went to the dead letters", o.Dead)
	return d
}

// endangered checks that the scenario is one: if nothing is stale without the queue either, it
// proves nothing.
func endangered(res Result) string {
	if res.Commit.StaleKeys == 0 {
		return fmt.Sprintf("naive had no stale key after %d commits, %d killed writers and %d stops of the store, so nothing was in danger",
			res.Commit.Commits, res.Commit.WritersKilled, res.Commit.StoreStops)
	}
	return sanityOK
}

// queue is that of the run, in the lab's own schema.
func (p *postgres) queue() (*pgqueue.Queue, error) {
	return pgqueue.New(p.pool, pgqueue.Schema(p.schema), pgqueue.PollInterval(20*time.Millisecond))
}
