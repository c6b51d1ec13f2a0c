package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"
)

// Handler does the jobs of one kind. One of Job and Batch is set. Both are called from
// several goroutines at once, with a context that has the values of Start's and ends
// when the handler has run for its MaxRunTime, when the leases of all jobs that it was
// given are lost, and when Stop's context ends: context.Cause tells which. A goroutine runs
// one call after the other: what a handler does to it, runtime.LockOSThread or labels for a
// profile, it has to undo.
type Handler struct {
	// Job does one job. The package comment says what its error decides.
	Job func(ctx context.Context, d Delivery) error
	// Batch does all jobs of the kind that one Receive has brought, in the order in
	// which it brought them, so that it may do those of one key once. Nil means that all
	// are done; otherwise it returns one result for each job.
	Batch func(ctx context.Context, ds []Delivery) []error
	// MaxAttempts and MaxRunTime, if not 0, are used instead of the worker's.
	MaxAttempts int
	MaxRunTime  time.Duration
}

// WorkerOptions say what a worker does and how.
type WorkerOptions struct {
	// Queue to work on. Needed.
	Queue Queue
	// Handlers by the kind of job. Needed.
	Handlers map[string]Handler
	// Concurrency is how many calls of handlers run at once. Default 8.
	Concurrency int
	// Batch is how many jobs are received at once, at most. Jobs beyond the free places
	// wait in the worker, leased: a Batch larger than Concurrency saves calls of the
	// queue and keeps jobs from other workers. It, or a batch handler, also lets two
	// Receives be under way at once where handlers are quicker than the queue. Default: Concurrency, or 100 with a
	// batch handler; in any case at most Caps.MaxBatch.
	Batch int
	// Lease is how long a job stays away from others after this process has died. It is
	// extended every third of it, from the receipt to the end. Default 30 s, at least
	// 100 ms.
	Lease time.Duration
	// Wait is how long one Receive waits for jobs; a Stop may have to wait as long, on a
	// queue that cannot be called back. Default 20 s, at most Caps.MaxWait.
	Wait time.Duration
	// MaxRunTime is how long a handler may run. Then its context ends and the lease is
	// not extended any more, so that a handler that hangs does not keep its job for ever:
	// when the lease ends, somebody else gets it, though this one may still be running. A
	// job that has waited in the worker for as long without being begun is given back.
	// Twice of it is at most Caps.MaxLease. Default 5 min.
	MaxRunTime time.Duration
	// MaxAttempts is how often a job is tried. What fails then, or is claimed once more
	// because nobody has heard of its last attempt, goes to the dead letters. Default 20, or
	// Caps.MaxAttempts if that is less: of more the queue would keep the jobs, and no error.
	// A job that kills its process takes the others along that the worker held: their claims
	// count, too, also where they had not been begun. Batch 1 keeps them apart.
	MaxAttempts int
	// RetryMin and RetryMax bound the pause after a failure: it is random between 0 and
	// RetryMin after the first attempt, between 0 and twice that after the second, and
	// so on up to RetryMax. Defaults 1 s and 10 min.
	RetryMin, RetryMax time.Duration
	// OrderedKeys: of the jobs of one Key that this worker holds, one runs at a time, in
	// the order of their receipt, and when one fails, those behind it are given back with
	// it. Batches of one kind run one at a time, and are not ordered against other kinds.
	// With several workers, and over failures, this is an order only on a queue with
	// Caps.OrderedKeys. A slow key may hold up the worker: it stops receiving when it
	// holds (Concurrency+1) × Batch jobs.
	OrderedKeys bool
	// AllowQueueDown makes Start succeed although the queue cannot be reached.
	AllowQueueDown bool
	// Observer hears of what happens. It may be nil.
	Observer Observer
	// Logger, default slog.Default().
	Logger *slog.Logger
}

const (
	defaultConcurrency = 8
	defaultBatch       = 100
	defaultLease       = 30 * time.Second
	defaultWait        = 20 * time.Second
	defaultMaxRunTime  = 5 * time.Minute
	defaultMaxAttempts = 20
	defaultRetryMin    = time.Second
	defaultRetryMax    = 10 * time.Minute

	minLease = 100 * time.Millisecond

	// callTimeout is how long a call of the queue may take besides its wait.
	callTimeout = 10 * time.Second
	// stopGrace is how long handlers have to return after Stop has ended their contexts.
	stopGrace = time.Second
)

// Worker runs the jobs of a queue. It works once: what was stopped is not started again.
type Worker struct {
	opts    WorkerOptions
	caps    Caps
	log     *slog.Logger
	batches bool // some handler takes batches

	starting sync.Mutex    // held by Start, so that a second Start waits for the first
	quit     chan struct{} // closed by Stop
	done     chan struct{} // closed when nothing is left
	room     chan struct{} // capacity 1: look again whether more jobs can be received
	settling chan struct{} // capacity 1: there is something to settle
	beating  chan struct{} // capacity 1: look again what is to be extended

	// callContext makes the parent of the contexts of calls of handlers; receiveMore is a Receive
	// beside poll's; forcing ends all of these and the Receive that waits. Start sets
	// the three, under mu and before there is a goroutine.
	callContext func() (context.Context, context.CancelCauseFunc)
	receiveMore func()
	forcing     context.CancelCauseFunc

	// mu guards everything below and everything in held, call and line. No call of the
	// queue, a handler, the observer or the logger is made under it.
	mu        sync.Mutex
	started   bool // Start has succeeded
	stopping  bool
	polled    bool               // poll has ended
	beside    bool               // a Receive is under way beside poll's
	coming    int                // jobs that the Receives under way have asked for
	quick     time.Time          // see askMore; zero unless the last Receive has brought all it wanted
	isDone    bool               // done is closed
	running   int                // calls of handlers
	ready     []*call            // to be run when a place is free
	lines     map[string]*line   // OrderedKeys
	held      map[*held]struct{} // every job in hand
	nextBeat  time.Time          // when the heartbeat looks again at what is held
	unsettled []*held            // ends that the queue has not been told of yet
	counts    [eventKinds]int64
}

// NewWorker checks the options and makes a worker. Its error names the fields at odds.
func NewWorker(o WorkerOptions) (*Worker, error) {
	if o.Queue == nil {
		return nil, errors.New("queue.NewWorker: WorkerOptions.Queue is nil")
	}
	w := &Worker{
		caps:     o.Queue.Caps(),
		quit:     make(chan struct{}),
		done:     make(chan struct{}),
		room:     make(chan struct{}, 1),
		settling: make(chan struct{}, 1),
		beating:  make(chan struct{}, 1),
		lines:    make(map[string]*line),
		held:     make(map[*held]struct{}),
	}
	o.Handlers = maps.Clone(o.Handlers)
	for _, h := range o.Handlers {
		w.batches = w.batches || h.Batch != nil
	}
	o.defaults(w.caps, w.batches)
	if err := o.validate(w.caps); err != nil {
		return nil, fmt.Errorf("queue.NewWorker: %w", err)
	}
	w.opts, w.log = o, o.Logger
	return w, nil
}

func (o *WorkerOptions) defaults(c Caps, batches bool) {
	setDefault(&o.Concurrency, defaultConcurrency)
	if o.Batch == 0 {
		o.Batch = o.Concurrency
		if batches {
			o.Batch = defaultBatch
		}
		if c.MaxBatch > 0 {
			o.Batch = min(o.Batch, c.MaxBatch)
		}
	}
	setDefault(&o.Lease, defaultLease)
	setDefault(&o.Wait, defaultWait)
	o.Wait = min(o.Wait, c.MaxWait, math.MaxInt64-callTimeout)
	setDefault(&o.MaxRunTime, defaultMaxRunTime)
	most := defaultMaxAttempts
	if c.MaxAttempts > 0 {
		most = min(most, c.MaxAttempts)
	}
	setDefault(&o.MaxAttempts, most)
	setDefault(&o.RetryMin, defaultRetryMin)
	setDefault(&o.RetryMax, max(defaultRetryMax, o.RetryMin))
	for kind, h := range o.Handlers {
		setDefault(&h.MaxAttempts, o.MaxAttempts)
		setDefault(&h.MaxRunTime, o.MaxRunTime)
		o.Handlers[kind] = h
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (o *WorkerOptions) validate(c Caps) error {
	for _, f := range []struct {
		name string
		bad  bool
		is   any
	}{
		{"Concurrency", o.Concurrency < 0, o.Concurrency}, {"Batch", o.Batch < 0, o.Batch},
		{"Lease", o.Lease < 0, o.Lease}, {"Wait", o.Wait < 0, o.Wait},
		{"MaxRunTime", o.MaxRunTime < 0, o.MaxRunTime}, {"MaxAttempts", o.MaxAttempts < 0, o.MaxAttempts},
		{"RetryMin", o.RetryMin < 0, o.RetryMin}, {"RetryMax", o.RetryMax < 0, o.RetryMax},
	} {
		if f.bad {
			return fmt.Errorf("%s is negative: %v", f.name, f.is)
		}
	}
	if c.MaxBatch > 0 && o.Batch > c.MaxBatch {
		return fmt.Errorf("a Batch of %d, this queue delivers at most %d at once", o.Batch, c.MaxBatch)
	}
	if o.RetryMin > o.RetryMax {
		return fmt.Errorf("RetryMin %v is longer than RetryMax %v", o.RetryMin, o.RetryMax)
	}
	if o.Lease < minLease {
		return fmt.Errorf("a Lease of %v is too short to be extended in time, at least %v is needed", o.Lease, minLease)
	}
	if err := c.CheckLease(o.Lease); err != nil {
		return fmt.Errorf("Lease: %w", err)
	}
	if len(o.Handlers) == 0 {
		return errors.New("there are no Handlers")
	}
	for _, kind := range slices.Sorted(maps.Keys(o.Handlers)) {
		if err := o.Handlers[kind].validate(kind, c); err != nil {
			return err
		}
	}
	return nil
}

func (h Handler) validate(kind string, c Caps) error {
	if err := ValidKind(kind); err != nil {
		return fmt.Errorf("Handlers: %w", err)
	}
	if (h.Job == nil) == (h.Batch == nil) {
		return fmt.Errorf("Handlers[%q]: one of Job and Batch must be set", kind)
	}
	if h.MaxAttempts < 0 || h.MaxRunTime < 0 {
		return fmt.Errorf("Handlers[%q]: MaxAttempts %d and MaxRunTime %v must not be negative", kind, h.MaxAttempts, h.MaxRunTime)
	}
	if c.MaxLease > 0 && h.MaxRunTime > c.MaxLease/2 {
		return fmt.Errorf("Handlers[%q]: a MaxRunTime of %v, but this queue leases a job for at most %v in all, and a job may wait in the worker as long as it may run; at most %v is possible",
			kind, h.MaxRunTime, c.MaxLease, c.MaxLease/2)
	}
	return nil
}

// Start begins to work. It asks the queue first whether it is fit for use, within ctx
// and 10 s, and fails if it is not. The handlers' contexts have ctx's values, but it is
// Stop that ends the work, not the end of ctx. Starting twice is harmless; after Stop it
// fails with [ErrWorkerStopped].
func (w *Worker) Start(ctx context.Context) error {
	w.starting.Lock()
	defer w.starting.Unlock()
	w.mu.Lock()
	started, stopping := w.started, w.stopping
	w.mu.Unlock()
	if stopping {
		return ErrWorkerStopped
	}
	if started {
		return nil
	}
	if err := w.check(ctx); err != nil {
		return err
	}
	return w.begin(context.WithoutCancel(ctx))
}

func (w *Worker) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := w.opts.Queue.Check(ctx)
	if w.opts.AllowQueueDown && errors.Is(err, ErrUnavailable) {
		w.log.Warn("queue: the queue cannot be reached, starting all the same", "error", err)
		return nil
	}
	return err
}

func (w *Worker) begin(base context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopping { // a Stop during the check
		return ErrWorkerStopped
	}
	work, force := context.WithCancelCause(base)
	w.forcing = force
	w.callContext = func() (context.Context, context.CancelCauseFunc) { return context.WithCancelCause(work) }
	w.receiveMore = func() { w.receiveBeside(work) }
	w.started = true
	go w.poll(work)
	go w.settle(base)
	go w.beat(base)
	return nil
}

// Stop ends the work. It receives no more, gives back at once what was not begun, and
// waits for the handlers that run and for the queue to hear of their ends. A Receive
// that is waiting is called back through Request.Stop, not by cancelling it; where the
// queue cannot be called back it ends by itself, at most Wait later, and what it brings
// is given back, since jobs of a cancelled one would be nobody's until their lease ends.
//
// When ctx ends before that, the contexts of the handlers end, and that of a Receive that
// still waits, and Stop returns an error if they have not returned, and the queue has not
// heard of it, a second later. They are still looked after in the background as long as
// the process lives.
//
// Stopping twice is harmless: both wait.
func (w *Worker) Stop(ctx context.Context) error {
	w.halt()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
	}
	w.force()
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-w.done:
		return nil
	case <-grace.C:
		s := w.Stats()
		return fmt.Errorf("the worker has not come to its end, %d calls of handlers still run, %d jobs are in hand: %w", s.Running, s.InHand, context.Cause(ctx))
	}
}

// force ends the contexts of the handlers and of a Receive that waits.
func (w *Worker) force() {
	w.mu.Lock()
	forcing := w.forcing
	w.mu.Unlock()
	if forcing != nil {
		forcing(ErrWorkerStopped)
	}
}

// halt makes the worker stop, once.
func (w *Worker) halt() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopping {
		return
	}
	w.stopping = true
	close(w.quit)
	if !w.started {
		w.isDone = true
		close(w.done)
		return
	}
	w.handBackWaiting()
}

// drained ends the worker when nothing is left. mu is held.
func (w *Worker) drained() {
	if w.stopping && w.polled && !w.beside && w.running == 0 && len(w.held) == 0 && !w.isDone {
		w.isDone = true
		close(w.done)
	}
}

// ring makes whoever waits on a channel of capacity 1 look again.
func ring(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
