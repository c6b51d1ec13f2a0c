package lab

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/onefill/onefill"
)

// RunWorker is a reader process: it obeys the commands that it reads from in and
// ends when in does. The lab starts it by running its own program again.
func RunWorker(ctx context.Context, in io.Reader, out io.Writer) error {
	// Ctrl-C reaches every process of the terminal; the parent decides when a
	// reader stops, by closing its input.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	w := &worker{out: json.NewEncoder(out)}
	defer w.close()
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var c command
		if err := json.Unmarshal(line, &c); err != nil {
			return fmt.Errorf("this command is for the lab's own use; it read %q: %w", line, err)
		}
		switch c.Op { // the barrier: not a goroutine later
		case opStart:
			w.answer(c, w.start(c))
			continue
		case opTraffic:
			w.answer(c, w.startTraffic(ctx))
			continue
		}
		go func() { w.answer(c, w.do(ctx, c)) }()
	}
}

// worker is one reader process.
type worker struct {
	outMu sync.Mutex // guards out
	out   *json.Encoder

	mu     sync.Mutex // guards what follows; not held while anything waits
	setup  workerSetup
	origin origin
	cell   *workerCell
	leaves []func() // ends what opWrite and opWork have started
}

// workerCell is one scenario in one mode, in this process.
type workerCell struct {
	process int
	setup   cellSetup
	key     string
	ttl     time.Duration
	reader  reader

	mu      sync.Mutex // guards what follows
	callers map[int]*caller
	traffic *generator // nil: none runs
}

// caller is one goroutine that asks the cache once.
type caller struct {
	ctx    context.Context
	cancel context.CancelFunc
	start  chan string // the phase; makes it go
	done   chan struct{}
	call   Call // to be read after done
}

func (w *worker) answer(c command, r reply) {
	r.ID = c.ID
	w.outMu.Lock()
	defer w.outMu.Unlock()
	w.out.Encode(r) // a parent that is gone closes our input too
}

func (w *worker) do(ctx context.Context, c command) (r reply) {
	var err error
	switch c.Op {
	case opOpen:
		err = w.open(ctx, *c.Setup)
	case opPrepare:
		err = w.prepare(ctx, c)
	case opPark:
		err = w.park(ctx, c)
	case opCancel:
		err = w.each(c, func(cl *caller) { cl.cancel() })
	case opCollect:
		err = w.each(c, func(cl *caller) { <-cl.done; r.Calls = append(r.Calls, cl.call) })
	case opWrite:
		err = w.startWriting(ctx, c)
	case opWork:
		err = w.startWorking(ctx, c)
	case opLeave:
		w.leave()
	case opFinish:
		err = w.finish()
	default:
		err = w.withReader(ctx, c, &r)
	}
	if err != nil {
		r.Err = err.Error()
	}
	return r
}

// withReader does what needs only the cell's cache.
func (w *worker) withReader(ctx context.Context, c command, r *reply) (err error) {
	cell, err := w.current()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, micros(cell.setup.TimeoutUS))
	defer cancel()
	switch c.Op {
	case opGet:
		r.Calls = []Call{cell.call(ctx, -1, c.Phase, cmp.Or(c.Key, cell.key))}
		return nil
	case opFill:
		return cell.fill(ctx, cell.setup.Traffic.Keys, c.Share, c.Of)
	case opRecent:
		g := cell.running()
		if g == nil {
			return errors.New("there is no traffic")
		}
		r.Recent = tallyOf(g.since(c.SinceUS))
		return nil
	case opHalt:
		r.Calls = cell.halt()
		return nil
	case opCompare:
		return cell.compare(ctx, c.Commit.Keys, r)
	case opInvalidate:
		return cell.reader.Invalidate(ctx, cell.key)
	case opStored:
		r.Answer, r.Found, err = cell.reader.Stored(ctx, cell.key)
		return err
	}
	l, ok := cell.reader.(leaser)
	if !ok {
		return fmt.Errorf("mode %s has no lock", cell.setup.Mode)
	}
	switch c.Op {
	case opTake:
		r.Yes, err = l.Take(ctx, cell.key, c.Holder)
	case opPublish:
		late, _ := loaded{Row: rowOld}.encode()
		r.Yes, err = l.Publish(ctx, cell.key, c.Holder, late)
	case opDrop:
		r.Yes, err = l.Drop(ctx, cell.key, c.Holder)
	default:
		err = fmt.Errorf("unknown command %q", c.Op)
	}
	return err
}

func (w *worker) open(ctx context.Context, s workerSetup) error {
	o, err := openOrigin(ctx, s.Origin, s.Connections)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.setup, w.origin = s, o
	return nil
}

// warmKey has a row that takes no time; reading it opens connections and makes
// the server know the scripts.
const warmKey = "warm"

func (w *worker) prepare(ctx context.Context, c command) error {
	w.mu.Lock()
	process, o := w.setup, w.origin
	w.mu.Unlock()
	s, timeout := *c.Cell, micros(c.Cell.TimeoutUS)
	warmCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ask := func(ctx context.Context, key string) (string, error) { return o.Read(ctx, key, process.Process) }
	if s.Traffic != nil {
		ask = pooled(ask, s.Traffic.Connections, s.Traffic.Patience)
	}
	r, err := openReader(warmCtx, s.Mode, process.Store, readerConfig{
		run: process.Run, ttl: micros(s.TTLUS), lease: micros(s.LeaseUS), timeout: timeout, push: s.Push, policy: s.Policy, load: ask,
	})
	if err != nil {
		return fmt.Errorf("open the cache: %w", err)
	}
	connections := process.Connections
	if s.Traffic != nil {
		connections = s.Traffic.Connections
	}
	if err := errors.Join(o.Warm(warmCtx, connections), warm(warmCtx, r)); err != nil {
		r.Close()
		return fmt.Errorf("warm up: %w", err)
	}
	cell := &workerCell{process: process.Process, setup: s, key: c.Key, ttl: micros(s.TTLUS), reader: r, callers: make(map[int]*caller)}
	cell.park(ctx, c.Callers, c.Key)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cell = cell
	return nil
}

func (w *worker) park(ctx context.Context, c command) error {
	cell, err := w.current()
	if err == nil {
		cell.park(ctx, c.Callers, cmp.Or(c.Key, cell.key))
	}
	return err
}

// park makes the callers of a key and returns when all of them wait for their start.
// Callers of the same numbers have their answers.
func (cell *workerCell) park(ctx context.Context, ids []int, key string) {
	var parked sync.WaitGroup
	parked.Add(len(ids))
	for _, id := range ids {
		cl := &caller{start: make(chan string, 1), done: make(chan struct{})}
		cl.ctx, cl.cancel = context.WithTimeout(ctx, micros(cell.setup.TimeoutUS))
		cell.mu.Lock()
		cell.callers[id] = cl
		cell.mu.Unlock()
		go func() {
			defer close(cl.done)
			defer cl.cancel()
			parked.Done()
			select {
			case phase := <-cl.start:
				cl.call = cell.call(cl.ctx, id, phase, key)
			case <-cl.ctx.Done():
			}
		}()
	}
	parked.Wait()
}

func warm(ctx context.Context, r reader) error {
	_, err := r.Get(ctx, warmKey)
	return err
}

func (w *worker) start(c command) (r reply) {
	if err := w.each(c, func(cl *caller) { cl.start <- c.Phase }); err != nil {
		r.Err = err.Error()
	}
	return r
}

func (w *worker) startTraffic(ctx context.Context) (r reply) {
	cell, err := w.current()
	if err != nil {
		r.Err = err.Error()
		return r
	}
	cell.mu.Lock()
	defer cell.mu.Unlock()
	cell.traffic = cell.generate(ctx, *cell.setup.Traffic)
	return r
}

func (cell *workerCell) running() *generator {
	cell.mu.Lock()
	defer cell.mu.Unlock()
	return cell.traffic
}

// halt ends the traffic, if there is any.
func (cell *workerCell) halt() []Call {
	cell.mu.Lock()
	g := cell.traffic
	cell.traffic = nil
	cell.mu.Unlock()
	if g == nil {
		return nil
	}
	return g.halt()
}

// each does something with the callers that the command names.
func (w *worker) each(c command, do func(*caller)) error {
	cell, err := w.current()
	if err != nil {
		return err
	}
	for _, id := range c.Callers {
		cell.mu.Lock()
		cl := cell.callers[id]
		cell.mu.Unlock()
		if cl == nil {
			return fmt.Errorf("caller %d is not in this process", id)
		}
		do(cl)
	}
	return nil
}

func (w *worker) current() (*workerCell, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cell == nil {
		return nil, errors.New("nothing has been prepared")
	}
	return w.cell, nil
}

// call asks the cache once and notes what came of it.
func (cell *workerCell) call(ctx context.Context, id int, phase, key string) Call {
	c := Call{Scenario: cell.setup.Scenario, Mode: cell.setup.Mode, Process: cell.process, Caller: id, Phase: phase}
	if key != cell.key {
		c.Key = key
	}
	start := time.Now()
	got, err := cell.reader.Get(ctx, key)
	took := time.Since(start)
	c.StartUS = start.UnixMicro()
	c.EndUS = c.StartUS + took.Microseconds()
	var l loaded
	if err == nil {
		l, err = decodeLoaded(got.Payload)
	}
	c.Kind = kindOf(err)
	switch c.Kind {
	case KindValue:
		c.Row, c.Operation, c.ReadUS, c.Source, c.Stale = l.Row, l.Operation, l.ReadUS, got.Source, got.Stale
	default:
		c.Error = err.Error()
	}
	return c
}

func kindOf(err error) Kind {
	switch {
	case err == nil:
		return KindValue
	case errors.Is(err, errNoRow), errors.Is(err, onefill.ErrNotFound):
		return KindNotFound
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, onefill.ErrWaitTimeout):
		return KindTimeout
	case errors.Is(err, context.Canceled):
		return KindCancelled
	}
	return KindError
}

func (w *worker) finish() error {
	w.mu.Lock()
	cell := w.cell
	w.cell = nil
	w.mu.Unlock()
	if cell == nil {
		return nil
	}
	cell.halt()
	for _, cl := range cell.callers { // nobody parks any more
		cl.cancel()
		<-cl.done
	}
	return cell.reader.Close()
}

func (w *worker) close() {
	w.leave()
	w.finish()
	if w.origin != nil {
		w.origin.Close()
	}
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
