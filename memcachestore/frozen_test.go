package memcachestore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
)

// A server is frozen (SIGSTOP) under 1,000 operations at a time, of all kinds, whose
// contexts end after 250 ms, and goes on later: before its connections are given up, or
// after new ones have been tried in vain. Every operation ends with its context; there
// are never more goroutines than those of the operations, of their contexts' timers, and
// a few, and never more connections than Options.Conns; afterwards everything works. A lease that was granted
// to somebody who had left holds up its key for no longer than until the grant arrives,
// or, on a connection that was given up, until it ends.
//
// It does not run beside other tests, as it counts goroutines.
func TestFrozenUnderLoad(t *testing.T) {
	for _, c := range []struct {
		name            string
		stall, leaseTTL time.Duration
		rounds          int
	}{{"connections last", 10 * time.Second, long, 6}, {"connections are given up", time.Second, 3 * time.Second, 14}} {
		t.Run(c.name, func(t *testing.T) {
			server := servertest.Memcached(t, servers.MemcachedOptions{})
			r := attach(t, openWith(t, Options{Addrs: []string{server.Addr()}, StallTimeout: c.stall, DialTimeout: time.Second}))
			crowd := newCrowd(r, c.leaseTTL)
			w := watchResources(t, server)

			ok(t, server.Pause())
			for range c.rounds {
				crowd.round()
			}
			ok(t, server.Continue())
			most := w.stop()

			if got, want := crowd.failed.Load(), int64(c.rounds*crowdSize); got != want {
				t.Errorf("%d of %d operations failed, want all: the server was frozen", got, want)
			}
			crowd.checkDelays()
			if limit := w.before.goroutines + 2*crowdSize + 40; most.goroutines > limit {
				t.Errorf("%d goroutines, want %d at most: there were %d before", most.goroutines, limit, w.before.goroutines)
			}
			if most.conns > defaultConns {
				t.Errorf("%d connections, want %d at most", most.conns, defaultConns)
			}
			t.Logf("goroutines: %d before, up to %d; connections: up to %d", w.before.goroutines, most.goroutines, most.conns)
			crowd.checkRecovery()
			eventually(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= w.before.goroutines+2 })
		})
	}
}

// crowd is many callers, each with an operation of its own on a key of its own, which
// it repeats.
type crowd struct {
	*rig
	ops    []func(ctx context.Context) error
	leases []store.Lease
	failed atomic.Int64

	mu     sync.Mutex
	delays []time.Duration // from the contexts' ends
}

const (
	crowdSize = 1000
	opTime    = 250 * time.Millisecond
)

// newCrowd also takes the leases that some of the callers have.
func newCrowd(r *rig, leaseTTL time.Duration) *crowd {
	c := &crowd{rig: r}
	for i := range crowdSize {
		c.ops = append(c.ops, c.op(i, c.key(i), leaseTTL))
	}
	return c
}

func (c *crowd) key(i int) string { return fmt.Sprint("key ", i) }

func (c *crowd) op(i int, key string, leaseTTL time.Duration) func(ctx context.Context) error {
	data := []byte(envelope("old"))
	req := store.Request{Token: store.NewToken(), TTL: leaseTTL}
	acquire := func(ctx context.Context) error {
		req.Try++
		_, err := c.Acquire(ctx, key, req)
		return err
	}
	lease := func(seen []byte, call func(ctx context.Context, l store.Lease) (bool, error)) func(ctx context.Context) error {
		l := c.wins(key, seen)
		c.leases = append(c.leases, l)
		return func(ctx context.Context) error { return second(call(ctx, l)) }
	}
	if i%2 == 0 {
		c.set(key, string(data))
		req.Seen = store.MarkOf(data)
	}
	switch i / 2 % 10 {
	case 0:
		return func(ctx context.Context) error { return second(c.Get(ctx, key)) }
	case 1:
		return func(ctx context.Context) error { return second(c.Set(ctx, key, data, long)) }
	case 2:
		return func(ctx context.Context) error { return c.Invalidate(ctx, key) }
	case 3:
		return func(ctx context.Context) error { return c.Expire(ctx, time.Now(), key) }
	case 4:
		return c.Ping
	case 5:
		return lease(req.Seen, func(ctx context.Context, l store.Lease) (bool, error) { return l.Renew(ctx, leaseTTL) })
	case 6:
		return lease(req.Seen, func(ctx context.Context, l store.Lease) (bool, error) { return l.Fill(ctx, data, long) })
	case 7:
		return lease(req.Seen, func(ctx context.Context, l store.Lease) (bool, error) { return l.Release(ctx) })
	}
	return acquire
}

// round runs the operation of each caller, all at once, and returns when all have
// ended and their time is over.
func (c *crowd) round() {
	over := time.After(opTime)
	var all sync.WaitGroup
	for _, op := range c.ops {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), opTime)
			defer cancel()
			err := op(ctx)
			deadline, _ := ctx.Deadline()
			late := time.Since(deadline)
			if err != nil {
				c.failed.Add(1)
				if !errors.Is(err, store.ErrUnavailable) {
					c.t.Errorf("%v, want an unavailable error", err)
				}
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.delays = append(c.delays, late)
		})
	}
	all.Wait()
	<-over
}

// checkDelays: every operation ends with its context, up to what a thousand timers at
// once cost on a busy machine, which is much less than what a connection takes to be given
// up or a new one to be tried.
func (c *crowd) checkDelays() {
	slices.Sort(c.delays)
	p50, p99, most := c.delays[len(c.delays)/2], c.delays[len(c.delays)*99/100], c.delays[len(c.delays)-1]
	c.t.Logf("operations ended after their contexts by %v (median), %v (99 %%), %v (longest)", p50, p99, most)
	if p99 > 500*time.Millisecond || most > 2*time.Second {
		c.t.Errorf("an operation outlasted its context by %v, one in a hundred by %v", most, p99)
	}
}

func (c *crowd) checkRecovery() {
	c.t.Helper()
	thawed := time.Now()
	c.heals()
	used := time.Since(thawed)
	for _, l := range c.leases { // what becomes of a lease is not known after an error
		if _, err := l.Release(c.ctx); err != nil {
			c.t.Errorf("Release: %v", err)
		}
	}
	for i := range crowdSize {
		eventually(c.t, c.key(i)+" is free", func() bool {
			a := c.ask(c.key(i), nil)
			if a.State == store.Hit {
				a = c.ask(c.key(i), store.MarkOf(a.Item.Data))
			}
			if a.State != store.Won {
				return false
			}
			// What a given-up connection had brought to the server may still come in between.
			filled, err := a.Lease.Fill(c.ctx, []byte("fresh"), long)
			ok(c.t, err)
			return filled
		})
	}
	c.t.Logf("used again after %v, all keys after %v", used, time.Since(thawed))
}

// resources are what a process uses at a moment.
type resources struct{ goroutines, conns int }

type resourceWatch struct {
	before resources
	quit   chan struct{}
	most   chan resources
}

// watchResources takes the largest numbers of goroutines and of connections to a server
// until it is stopped.
func watchResources(t *testing.T, server *servers.Server) *resourceWatch {
	_, port, err := net.SplitHostPort(server.Addr())
	ok(t, err)
	now := func() resources { return resources{runtime.NumGoroutine(), connectionsTo(t, port)} }
	w := &resourceWatch{before: now(), quit: make(chan struct{}), most: make(chan resources)}
	go func() {
		most := w.before
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-w.quit:
				w.most <- most
				return
			case <-tick.C:
				r := now()
				most = resources{max(most.goroutines, r.goroutines), max(most.conns, r.conns)}
			}
		}
	}()
	return w
}

func (w *resourceWatch) stop() resources {
	close(w.quit)
	return <-w.most
}

// connectionsTo counts the open connections to a port of this machine as the kernel
// lists them, 0 where it does not.
func connectionsTo(t *testing.T, port string) int {
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return 0
	}
	defer f.Close()
	var number int
	fmt.Sscan(port, &number)
	remote, n := fmt.Sprintf(":%04X", number), 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text()) // number, local, remote, state, …
		if len(fields) > 3 && strings.HasSuffix(fields[2], remote) && fields[3] == "01" {
			n++
		}
	}
	return n
}
