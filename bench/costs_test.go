package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/memcachestore"
	"github.com/onefill/onefill/redisstore"
	"github.com/onefill/onefill/store"
)

// What a call allocates does not depend on the machine, so it is a test. The race detector
// allocates too: these run without it.
func TestLocalHitAllocatesNothing(t *testing.T) {
	type row struct {
		ID   int
		Name string
	}
	for name, allocations := range map[string]float64{
		"bytes":            hitCost(t, onefill.Options[string, []byte]{}, "k", []byte("v")),
		"a struct":         hitCost(t, onefill.Options[int, row]{}, 7, row{7, "x"}),
		"a pointer":        hitCost(t, onefill.Options[int64, *row]{}, 7, &row{7, "x"}),
		"StaleFor":         hitCost(t, onefill.Options[string, string]{StaleFor: time.Minute}, "k", "v"),
		"EarlyRefresh":     hitCost(t, onefill.Options[string, string]{EarlyRefresh: 1}, "k", "v"),
		"MaxBytes":         hitCost(t, onefill.Options[string, string]{Local: onefill.LocalOptions{MaxBytes: 1 << 20}}, "k", "v"),
		"versions":         hitCost(t, onefill.Options[string, string]{Version: func(string) uint64 { return 1 }}, "k", "v"),
		"tags":             hitCost(t, onefill.Options[string, string]{Tags: true}, "k", "v"),
		"a store":          hitCost(t, onefill.Options[string, string]{Store: inRedis(t)}, "k", "v"),
		"a row not found":  hitCost(t, onefill.Options[string, string]{NotFoundTTL: time.Hour}, "none", ""),
		"an observed call": hitCost(t, onefill.Options[string, string]{Observer: onefill.ObserverFunc(func(onefill.Event) {})}, "k", "v"),
	} {
		if allocations != 0 {
			t.Errorf("%s: a hit in local allocates %g times", name, allocations)
		}
	}
}

// hitCost is what a Get of a key that local holds allocates.
func hitCost[K comparable, V any](t *testing.T, o onefill.Options[K, V], key K, value V) float64 {
	t.Helper()
	o.Load = func(context.Context, K) (V, error) {
		if any(key) == any("none") {
			return value, onefill.ErrNotFound
		}
		return value, nil
	}
	o.TTL = time.Hour
	return cost(t, o, func(c *onefill.Cache[K, V]) error {
		_, err := c.Get(context.Background(), key)
		if errors.Is(err, onefill.ErrNotFound) && any(key) == any("none") {
			return nil
		}
		return err
	})
}

// cost is the mean number of allocations of a call, in the whole process, once it has been
// called before.
func cost[K comparable, V any](t *testing.T, o onefill.Options[K, V], call func(*onefill.Cache[K, V]) error) float64 {
	t.Helper()
	o.Name = fmt.Sprint("cost", time.Now().UnixNano())
	c, err := onefill.New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	return testing.AllocsPerRun(1000, func() {
		if err := call(c); err != nil {
			t.Error(err)
		}
	})
}

// TestStoreHitAllocations bounds what a hit in the store allocates, in this library and the
// client together, where local keeps nothing.
func TestStoreHitAllocations(t *testing.T) {
	cancelable, cancel := context.WithCancel(context.Background())
	defer cancel()
	keys := make([]string, 100)
	for i := range keys {
		keys[i] = fmt.Sprint("key:", i)
	}
	one := func(ctx context.Context) func(*onefill.Cache[string, []byte]) error {
		return func(c *onefill.Cache[string, []byte]) error {
			_, err := c.Get(ctx, "k")
			return err
		}
	}
	many := func(c *onefill.Cache[string, []byte]) error {
		got, err := c.GetMany(context.Background(), keys)
		if len(got) != len(keys) {
			return fmt.Errorf("%d of %d keys, %w", len(got), len(keys), err)
		}
		return err
	}
	for _, tt := range []struct {
		what  string
		store store.Store
		call  func(*onefill.Cache[string, []byte]) error
		most  float64
	}{
		{"Redis", inRedis(t), one(context.Background()), 6},
		{"Redis, a call that can be cancelled", inRedis(t), one(cancelable), 11},
		{"Redis, 100 keys", inRedis(t), many, 140},
		{"memcached", inMemcached(t), one(context.Background()), 6},
		{"memcached, 100 keys", inMemcached(t), many, 350},
	} {
		// On a busy machine a slow answer would be an outage, and the next calls loads.
		o := onefill.Options[string, []byte]{Store: tt.store, StoreTimeout: 4 * time.Second, TTL: time.Hour, Local: onefill.LocalOptions{Off: true},
			Load: func(context.Context, string) ([]byte, error) { return make([]byte, 100), nil }}
		got := cost(t, o, tt.call)
		t.Logf("%s: %g allocations", tt.what, got)
		if got > tt.most {
			t.Errorf("%s: a hit allocates %g times, at most %g are allowed", tt.what, got, tt.most)
		}
	}
}

func inRedis(t *testing.T) store.Store {
	s, err := redisstore.Open(servertest.Redis(t, servers.RedisOptions{}).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func inMemcached(t *testing.T) store.Store {
	s := memcachestore.New(servertest.Memcached(t, servers.MemcachedOptions{}).Addr())
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestWaitingTakesNoMoreStack: callers of a herd, each on a stack as small as Go makes them, of
// which they take 190 bytes themselves, wait without growing it. Forced: all have joined the flight, whose load hangs, when the
// stacks are counted. The next size of a stack is 4 KB.
func TestWaitingTakesNoMoreStack(t *testing.T) {
	const child = "ONEFILL_TEST_STACKS"
	if os.Getenv(child) == "" {
		// In a process whose new stacks are always the smallest: others learn from their last
		// collection how large they had better be.
		again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		again.Env = append(os.Environ(), child+"=1", "GODEBUG=adaptivestackstart=0")
		out, err := again.CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Error(err)
		}
		return
	}
	const callers = 2000
	began, goOn := make(chan struct{}), make(chan struct{})
	c, err := onefill.New(onefill.Options[string, []byte]{Load: func(context.Context, string) ([]byte, error) {
		close(began)
		<-goOn
		return nil, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithCancel(t.Context()) // as a server's: it can end
	defer cancel()
	var all sync.WaitGroup
	get := func() {
		var own [60]byte
		if _, err := c.Get(ctx, "k"); err != nil {
			t.Error(err, use(own[:]))
		}
	}
	all.Go(get)
	<-began
	before := stacks()
	for range callers {
		all.Go(get)
	}
	for deadline := time.Now().Add(10 * time.Second); c.Stats().Coalesced < callers; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d callers have joined", c.Stats().Coalesced, callers)
		}
	}
	each := (stacks() - before) / callers
	close(goOn)
	all.Wait()
	t.Logf("%d bytes of stack a caller", each)
	if each > 3000 {
		t.Errorf("a caller who waits has %d bytes of stack: one of 2 KB was not enough", each)
	}
}

//go:noinline
func use(b []byte) int { return copy(b, "on the stack") }

// stacks is the memory of all stacks, after a collection, which gives back what is free.
func stacks() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.StackInuse)
}
