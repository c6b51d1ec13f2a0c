package measure

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill/bench/peers"
)

// pause waits for d, or for the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errLoaded = errors.New("the loader ran although the value was there")

func noLoad(context.Context, string) ([]byte, error)                  { return nil, errLoaded }
func noLoadMany(context.Context, []string) (map[string][]byte, error) { return nil, errLoaded }
func load(context.Context, string) ([]byte, error)                    { return peers.Value(), nil }

// counted is a loader of many that counts the keys.
func counted(loads *atomic.Int64) peers.ManyLoader {
	return func(_ context.Context, keys []string) (map[string][]byte, error) {
		loads.Add(int64(len(keys)))
		out := make(map[string][]byte, len(keys))
		for _, k := range keys {
			out[k] = peers.Value()
		}
		return out, nil
	}
}

// slowly is a loader that takes d and counts.
func slowly(d time.Duration, loads *atomic.Int64) peers.Loader {
	return func(ctx context.Context, _ string) ([]byte, error) {
		loads.Add(1)
		if err := pause(ctx, d); err != nil {
			return nil, err
		}
		return peers.Value(), nil
	}
}

// keySeries makes keys that no run before has used: the number of nanoseconds is another.
type keySeries struct {
	prefix string
	next   atomic.Int64
}

func newKeys(of string) *keySeries {
	return &keySeries{prefix: of + ":" + strconv.FormatInt(time.Now().UnixNano(), 36) + ":"}
}

func (k *keySeries) key() string { return k.prefix + strconv.FormatInt(k.next.Add(1), 10) }

func (k *keySeries) keys(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = k.key()
	}
	return out
}

// pace is what a number of operations has cost.
type pace struct {
	perOp  time.Duration // of wall time, all workers together
	ops    int64
	allocs float64 // an operation
}

func (p pace) ns() float64 { return float64(p.perOp) }
func (p pace) us() float64 { return float64(p.perOp) / 1e3 }

// errOutOfWork ends a worker before its time.
var errOutOfWork = errors.New("out of work")

// throughput has workers call op, unrolled times between two looks at the clock's flag,
// until d has passed. op gets the worker and its running number.
func throughput(workers, unroll int, d time.Duration, op func(worker, i int) error) (pace, error) {
	var stop atomic.Bool
	var ops atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	work := func(w int) {
		defer wg.Done()
		i := 0
		defer func() { ops.Add(int64(i)) }()
		for first := true; first || !stop.Load(); first = false { // once at least, however busy the machine is
			for range unroll {
				if err := op(w, i); err != nil {
					if !errors.Is(err, errOutOfWork) {
						first := err // err itself stays on the stack: an allocation here would be everybody's
						failed.Store(&first)
					}
					return
				}
				i++
			}
		}
	}
	wg.Add(workers)
	timer := time.AfterFunc(d, func() { stop.Store(true) })
	defer timer.Stop()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	for w := range workers {
		go work(w)
	}
	wg.Wait()
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if err := failed.Load(); err != nil {
		return pace{}, *err
	}
	n := ops.Load()
	if n == 0 {
		return pace{}, fmt.Errorf("no operation within %v", d)
	}
	return pace{perOp: time.Duration(float64(took) / float64(n)), ops: n, allocs: float64(after.Mallocs-before.Mallocs) / float64(n)}, nil
}

// inParallel calls op for 0 to n-1 from several goroutines.
func inParallel(n int, op func(i int) error) error {
	var next atomic.Int64
	errs := make(chan error, 16)
	for range cap(errs) {
		go func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					errs <- nil
					return
				}
				if err := op(i); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	var all error
	for range cap(errs) {
		all = errors.Join(all, <-errs)
	}
	return all
}

// settle is what libraries that write in the background need.
const settle = 100 * time.Millisecond

// fill writes keys through instances of their own, in the peer's own format, until a fresh
// one finds them all: a busy machine makes writes fail that are not to fail a load.
func fill(p peers.Peer, at peers.Servers, through func(c peers.Cache, loads *atomic.Int64) error) error {
	const tries = 4
	for range tries {
		c, err := p.New(at)
		if err != nil {
			return err
		}
		var loads atomic.Int64
		err = through(c, &loads)
		c.Close()
		if err != nil || loads.Load() == 0 {
			return err
		}
	}
	return fmt.Errorf("fill: after %d tries keys are missing still", tries)
}

// fillKeys fills through Get.
func fillKeys(ctx context.Context, p peers.Peer, at peers.Servers, keys []string) error {
	return fill(p, at, func(c peers.Cache, loads *atomic.Int64) error {
		if err := inParallel(len(keys), func(i int) error {
			_, err := c.Get(ctx, keys[i], slowly(0, loads))
			return err
		}); err != nil {
			return err
		}
		return pause(ctx, settle)
	})
}
