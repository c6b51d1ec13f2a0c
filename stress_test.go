package onefill_test

import (
	"context"
	"errors"
	"math/rand"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// Random operations against an oracle, with real goroutines and real time. In three
// caches on one store eight goroutines read, write, invalidate, expire and cancel, on
// a few keys. The properties:
//
//  1. A call that begins after an Invalidate of its process has returned nil gets no
//     row older than the one that was committed before that Invalidate began, but
//     for stale ones where Expire was called: those are told apart by Result.Stale,
//     and a hard-invalidated row is not served stale either.
//  2. The same after an Invalidate in another process, where the store pushes, once
//     its push must have come (pushDelay: memstore tells at once, but leaves it to
//     another goroutine if that one is telling the same session).
//  3. While the store keeps its data at most one load of a key that has not been
//     voided runs at a time. A load may have been voided if a void has begun since
//     the call began that led its flight; the call's context says when that was.
//  4. Nobody gets an empty value without an error, or an error that nobody caused.
//  5. At the end no flight, no place, no lease and no goroutine is left.
//
// ONEFILL_STRESS is its duration, "30s" say; default 2 s.
func TestStress(t *testing.T) {
	d := 2 * time.Second
	if s := os.Getenv("ONEFILL_STRESS"); s != "" {
		var err error
		if d, err = time.ParseDuration(s); err != nil {
			t.Fatalf("ONEFILL_STRESS: %v", err)
		}
	}
	for name, o := range map[string]*memstore.Options{
		"local": nil, "push": {}, "poll": {NoPush: true},
		"memcached-like": {NoPush: true, AcquireReads: true, ForgetsToken: true, Granularity: time.Second, MinLease: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) { stress(t, d/4, o) })
	}
}

const stressKeys = 6

// row is one row of the origin: its version only grows.
type row struct {
	committed atomic.Int64
	// floor[p] is the version below which process p may not read any more.
	floor   [3]atomic.Int64
	mu      sync.Mutex // guards what follows
	epoch   int        // raised when a void begins and when it ends
	voiding int        // voids that are under way: each takes a lease away at some moment, and none is double then
	running int        // loads that began in this epoch for calls of this epoch
	double  int        // how often one began while another one ran
}

// began returns a context that says when a call began.
func (r *row) began(ctx context.Context) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	return context.WithValue(ctx, r, r.epoch)
}

// void begins a void, and returns what ends it.
func (r *row) void() (end func()) {
	mark := func(voiding int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.epoch++
		r.voiding += voiding
		r.running = 0
	}
	mark(1)
	return func() { mark(-1) }
}

// enter is called by a load.
func (r *row) enter(ctx context.Context) (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	epoch := r.epoch
	if ctx.Value(r) != epoch || r.voiding > 0 {
		return func() {}
	}
	if r.running++; r.running > 1 {
		r.double++
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.epoch == epoch {
			r.running--
		}
	}
}

const pushDelay = 250 * time.Millisecond

func raise(a *atomic.Int64, to int64) {
	for old := a.Load(); old < to && !a.CompareAndSwap(old, to); old = a.Load() {
	}
}

var errCaused = errors.New("caused by the stress test")

func stress(t *testing.T, d time.Duration, layout *memstore.Options) {
	before := runtime.NumGoroutine()
	var rows [stressKeys]row
	load := func(ctx context.Context, key string) (string, error) {
		i, _ := strconv.Atoi(key)
		r := &rows[i]
		defer r.enter(ctx)()
		v := r.committed.Load()
		switch rand.Intn(40) {
		case 0:
			return "", errCaused
		case 1:
			panic(errCaused)
		case 2:
			onefill.SetTTL(ctx, 0)
		case 3, 4, 5:
			onefill.SetTTL(ctx, 20*time.Millisecond)
		case 6, 7, 8:
			t := time.NewTimer(time.Duration(rand.Intn(2000)) * time.Microsecond)
			defer t.Stop()
			<-t.C
		}
		return strconv.FormatInt(v+1, 10), nil // never empty
	}
	o := options{Load: load, TTL: 5 * time.Second, StaleFor: 20 * time.Millisecond, StaleOnError: 50 * time.Millisecond, ErrorTTL: time.Millisecond,
		EarlyRefresh: 1000, MaxLoads: 64}
	var st *memstore.Store
	processes, pushes := 1, true
	if layout != nil {
		st, processes, pushes = memstore.New(*layout), 3, !layout.NoPush
	}
	caches := make([]*cache, processes)
	for p := range caches {
		caches[p] = newCache(t, with(o, st))
	}
	stop := make(chan struct{})
	time.AfterFunc(d, func() { close(stop) })
	var wg sync.WaitGroup
	var reads, writes atomic.Int64
	for g := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewSource(int64(g)))
			for {
				select {
				case <-stop:
					return
				default:
				}
				i, p := rnd.Intn(stressKeys), rnd.Intn(processes)
				key, c, r := strconv.Itoa(i), caches[p], &rows[i]
				if op := rnd.Intn(40); op == 0 {
					writes.Add(1)
					v := r.committed.Add(1)
					end := r.void()
					err := c.Invalidate(bg, key)
					end()
					if err != nil {
						t.Errorf("Invalidate: %v", err)
					}
					for q := range processes {
						if q == p {
							raise(&r.floor[q], v)
						} else if pushes {
							time.AfterFunc(pushDelay, func() { raise(&r.floor[q], v) })
						}
					}
				} else if op == 1 {
					end := r.void()
					if err := c.Expire(bg, key); err != nil {
						t.Errorf("Expire: %v", err)
					}
					end()
				} else {
					reads.Add(1)
					readOnce(t, rnd, c, r, p, key)
				}
			}
		})
	}
	wg.Wait()
	for _, c := range caches {
		finish(t, c)
	}
	if st != nil {
		if u := st.Usage(); u.Leases != 0 || u.Watches != 0 || u.Sessions != 0 {
			t.Errorf("left in the store: %+v", u)
		}
	}
	for i := range rows {
		if n := rows[i].double; n != 0 {
			t.Errorf("key %d was loaded %d times while it was being loaded", i, n)
		}
	}
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+1 })
	t.Logf("%d reads, %d invalidations", reads.Load(), writes.Load())
}

func readOnce(t *testing.T, rnd *rand.Rand, c *cache, r *row, p int, key string) {
	ctx := r.began(bg)
	if rnd.Intn(10) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rnd.Intn(500))*time.Microsecond)
		defer cancel()
	}
	floor := r.floor[p].Load()
	var v string
	var err error
	switch rnd.Intn(3) {
	case 0:
		v, err = c.Get(ctx, key)
	case 1:
		var res onefill.Result[string]
		res, err = c.Fetch(ctx, key)
		v = res.Value
	case 2:
		var many map[string]string
		many, err = c.GetMany(ctx, []string{key})
		v = many[key]
	}
	switch {
	case err == nil:
		got, _ := strconv.ParseInt(v, 10, 64)
		if got-1 < floor {
			t.Errorf("process %d read version %d of %q, which was invalidated at %d before the call", p, got-1, key, floor)
		}
	case !errors.Is(err, errCaused) && !errors.Is(err, onefill.ErrLoadFailed) && !errors.Is(err, context.DeadlineExceeded):
		t.Errorf("an error that nobody caused: %v", err)
	case v != "":
		t.Errorf("a value and an error: %q, %v", v, err)
	}
}
