package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill"
)

// localHits is a loop in the process, with no server in it.
func (b *bench) localHits(ctx context.Context) error {
	c, err := onefill.New(onefill.Options[string, string]{Load: func(context.Context, string) (string, error) { return "value", nil }, TTL: time.Hour})
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Get(ctx, "key"); err != nil {
		return err
	}
	run := func(callers int) (perSec float64) {
		const batch = 1000
		var calls atomic.Int64
		var all sync.WaitGroup
		start := time.Now()
		for range callers {
			all.Go(func() {
				for time.Since(start) < 100*time.Millisecond && ctx.Err() == nil {
					for range batch {
						c.Get(ctx, "key")
					}
					calls.Add(batch)
				}
			})
		}
		all.Wait()
		return float64(calls.Load()) / time.Since(start).Seconds()
	}
	median := func(callers int) float64 {
		runs := make([]float64, 5)
		for i := range runs {
			runs[i] = run(callers)
		}
		slices.Sort(runs)
		return runs[len(runs)/2]
	}
	b.report.LocalHitNS = 1e9 / median(1)
	b.report.LocalPerSec = median(runtime.GOMAXPROCS(0))
	return ctx.Err()
}

// measure makes callers call again and again, each for as long as the configuration says, and
// for mostCalls at most. call gets the caller's number and that of the call.
func (b *bench) measure(ctx context.Context, callers, mostCalls int, call func(caller, n int) error) (Latency, error) {
	samples, errs := make([][]time.Duration, callers), make([]error, callers)
	var all sync.WaitGroup
	start := time.Now()
	for i := range callers {
		all.Go(func() {
			for n := 0; n < mostCalls && ctx.Err() == nil; n++ {
				begun := time.Now()
				if begun.Sub(start) >= b.cfg.For {
					return
				}
				if errs[i] = call(i, n); errs[i] != nil {
					return
				}
				samples[i] = append(samples[i], time.Since(begun))
			}
		})
	}
	all.Wait()
	took := time.Since(start)
	for _, err := range errs {
		if err != nil {
			return Latency{}, err
		}
	}
	l := latency(callers, slices.Concat(samples...))
	l.PerSec = float64(l.Calls) / took.Seconds()
	return l, ctx.Err()
}

func latency(callers int, samples []time.Duration) Latency {
	l := Latency{Callers: callers, Calls: len(samples)}
	l.P50US, l.P99US = microseconds(quantile(samples, 0.5)), microseconds(quantile(samples, 0.99))
	return l
}

// quantile sorts the samples. It is the smallest that is not exceeded by the part q of them.
func quantile(samples []time.Duration, q float64) time.Duration {
	if len(samples) == 0 {
		return 0
	}
	slices.Sort(samples)
	return samples[min(int(q*float64(len(samples))), len(samples)-1)]
}

func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// value is 100 bytes, as BENCH pages of caches usually have it.
var value = fmt.Sprintf("%0100d", 0)

func load(context.Context, string) (string, error) { return value, nil }

// storeHits are Gets that find a fresh value in the store, since nothing is kept in local.
func (b *bench) storeHits(ctx context.Context) error {
	c, err := newCache(b.store, b.name, load, onefill.LocalOptions{Off: true})
	if err != nil {
		return err
	}
	defer c.Close()
	// A key for each caller: callers of one key would share their flights.
	const most = 64
	keys := make([]string, most)
	for i := range keys {
		keys[i] = fmt.Sprintf("hit-%d", i)
		if _, err := c.Get(ctx, b.wrote(keys[i])); err != nil {
			return err
		}
	}
	for _, callers := range []int{1, 8, most} {
		l, err := b.measure(ctx, callers, 1<<20, func(caller, _ int) error {
			_, err := c.Get(ctx, keys[caller])
			return err
		})
		if err != nil {
			return err
		}
		b.report.StoreHits = append(b.report.StoreHits, l)
	}
	if loads := c.Stats().Loads; loads > most {
		return fmt.Errorf("the store has lost values meanwhile: %d loads of %d keys", loads, most)
	}
	return nil
}

// wrote notes a key that has to be removed.
func (b *bench) wrote(key string) string {
	b.keys = append(b.keys, key)
	return key
}

// misses are Gets of absent keys, one after the other: a look, the lease, a load that costs
// nothing, and the fill.
func (b *bench) misses(ctx context.Context) error {
	c, err := newCache(b.store, b.name, load, onefill.LocalOptions{})
	if err != nil {
		return err
	}
	defer c.Close()
	b.report.Miss, err = b.measure(ctx, 1, mostKeys/2, func(_, n int) error {
		_, err := c.Get(ctx, b.wrote(fmt.Sprintf("miss-%d", n)))
		return err
	})
	return err
}

func (b *bench) many(ctx context.Context) error {
	c, err := newCache(b.store, b.name, load, onefill.LocalOptions{Off: true})
	if err != nil {
		return err
	}
	defer c.Close()
	keys := make([]string, 100)
	for i := range keys {
		keys[i] = b.wrote(fmt.Sprintf("many-%d", i))
	}
	call := func(_, _ int) error {
		values, err := c.GetMany(ctx, keys)
		if err == nil && len(values) != len(keys) {
			err = fmt.Errorf("%d values for %d keys", len(values), len(keys))
		}
		return err
	}
	if err := call(0, 0); err != nil { // which loads them
		return err
	}
	b.report.Many, err = b.measure(ctx, 1, 1<<20, call)
	return err
}

// invalidations measures how long after the beginning of an Invalidate another cache stops to
// answer from local. Both are in this process, on connections of their own, so that one clock counts.
func (b *bench) invalidations(ctx context.Context) error {
	st, closeStore, err := b.cfg.OpenStore()
	if err != nil {
		return err
	}
	defer closeStore()
	writer, err := newCache(st, b.name, load, onefill.LocalOptions{})
	if err != nil {
		return err
	}
	defer writer.Close()
	reader, err := newCache(b.store, b.name, load, onefill.LocalOptions{})
	if err != nil {
		return err
	}
	defer reader.Close()
	push, err := pushes(ctx, st, b.name)
	if err != nil {
		return err
	}
	b.report.LocalTTLMS = float64(onefill.DefaultLocalTTL.Milliseconds())
	if !push {
		b.report.LocalTTLMS = float64(onefill.DefaultPolledTTL.Milliseconds())
		return nil
	}
	key := b.wrote("invalidated")
	var delays []time.Duration
	for range 10 * b.cfg.Rounds {
		if _, err := reader.Get(ctx, key); err != nil {
			return err
		}
		delay, err := heard(ctx, writer, reader, key)
		if err != nil {
			return err
		}
		delays = append(delays, delay)
	}
	l := latency(1, delays)
	b.report.Invalidation = &l
	return nil
}

// heard asks the reader until it does not answer from local.
func heard(ctx context.Context, writer, reader *cache, key string) (time.Duration, error) {
	start, failed := time.Now(), make(chan error, 1)
	go func() { failed <- writer.Invalidate(ctx, key) }()
	for {
		asked := time.Now()
		r, err := reader.Fetch(ctx, key)
		if err != nil {
			return 0, err
		}
		if r.Source != onefill.SourceLocal {
			return asked.Sub(start), <-failed
		}
		if asked.Sub(start) > 10*time.Second {
			return 0, fmt.Errorf("an invalidation was not heard of within 10 s (Invalidate: %v)", <-failed)
		}
		runtime.Gosched()
	}
}
