package size

import (
	"context"
	"math"
	"time"

	"github.com/maypok86/otter/v2"
)

// runWTinyLFU counts the misses of the cache that onefill has in each process:
// otter, with the options of internal/local, but for two.
//
// Maintenance runs on the caller's goroutine. A process leaves it to others, which
// keep up with it; a loop without pauses would run away from them, lose the
// notes of its reads and hold more than the capacity.
//
// The clock stands still: a trace does not say how long a value may be served.
//
// otter hashes with a seed of its own, so two runs differ a little.
func runWTinyLFU(ctx context.Context, t *trace, capacity uint64) (misses int, err error) {
	o := &otter.Options[uint32, struct{}]{
		Executor:         func(task func()) { task() },
		Clock:            stopped{},
		ExpiryCalculator: otter.ExpiryWriting[uint32, struct{}](time.Hour),
	}
	if t.sizes == nil {
		o.MaximumSize = int(min(capacity, math.MaxInt32))
	} else {
		o.MaximumWeight = capacity
		o.Weigher = func(k uint32, _ struct{}) uint32 { return t.sizes[k] }
	}
	cache, err := otter.New(o)
	if err != nil {
		return 0, err
	}
	defer cache.StopAllGoroutines()
	for i, k := range t.refs {
		if i&0xffff == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if _, ok := cache.GetIfPresent(k); !ok {
			misses++
			cache.Set(k, struct{}{})
		}
	}
	return misses, nil
}

type stopped struct{}

func (stopped) NowNano() int64 { return int64(time.Hour) }

func (stopped) Tick(time.Duration) <-chan time.Time { return nil }
