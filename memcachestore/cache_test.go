package memcachestore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/memcachestore"
	"github.com/onefill/onefill/store"
)

// Caches over a real memcached: the seven situations' S1 to S6, with three caches
// that share nothing but the server, as three processes do. Processes that are killed
// and frozen are in integration/.

const loadTime = 250 * time.Millisecond

// slack is what the machine may take beyond a load and the last pause of a waiter.
const slack = 1500 * time.Millisecond

type cache = onefill.Cache[string, string]
type options = onefill.Options[string, string]

// origin is the database: it counts its loads.
type origin struct {
	mu    sync.Mutex
	value string
	err   error
	took  time.Duration
	loads atomic.Int32
	// began gets a value when a load has read its row.
	began chan struct{}
}

func newOrigin(value string, took time.Duration) *origin {
	return &origin{value: value, took: took, began: make(chan struct{}, 100)}
}

func (o *origin) load(ctx context.Context, _ string) (string, error) {
	o.loads.Add(1)
	o.mu.Lock()
	value, err, took := o.value, o.err, o.took
	o.mu.Unlock()
	o.began <- struct{}{}
	select {
	case <-time.After(took):
		return value, err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (o *origin) set(value string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.value, o.err = value, err
}

func (o *origin) wantLoads(t *testing.T, n int32) {
	t.Helper()
	if got := o.loads.Load(); got != n {
		t.Errorf("%d loads, want %d", got, n)
	}
}

// fleet is n caches of one name, each with a store of its own.
func fleet(t *testing.T, addr string, n int, o options) []*cache {
	t.Helper()
	o.Name = "t" + store.NewToken().String()[:16]
	if o.TTL == 0 {
		o.TTL = time.Minute
	}
	if o.StoreTimeout == 0 {
		o.StoreTimeout = 2 * time.Second // a busy machine is not what is tested here
	}
	caches := make([]*cache, n)
	for i := range caches {
		st := memcachestore.NewWith(memcachestore.Options{Addrs: []string{addr}, Conns: 1})
		o.Store = st
		c, err := onefill.New(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(); st.Close() })
		caches[i] = c
	}
	return caches
}

type answer struct {
	value string
	err   error
	took  time.Duration
}

// herd lets so many callers of each cache ask at once.
func herd(each int, key string, caches ...*cache) []answer {
	answers := make([]answer, each*len(caches))
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			<-start
			began := time.Now()
			v, err := caches[i%len(caches)].Get(context.Background(), key)
			answers[i] = answer{v, err, time.Since(began)}
		})
	}
	close(start)
	wg.Wait()
	return answers
}

func wantAll(t *testing.T, answers []answer, want string, within time.Duration) {
	t.Helper()
	for _, a := range answers {
		if a.err != nil || a.value != want || a.took > within {
			t.Errorf("Get = %q, %v after %v, want %q within %v", a.value, a.err, a.took, want, within)
		}
	}
}

func server(t *testing.T) *servers.Server { return servertest.Memcached(t, servers.MemcachedOptions{}) }

func TestS1AbsentKey(t *testing.T) {
	t.Parallel()
	db := newOrigin("v1", loadTime)
	caches := fleet(t, server(t).Addr(), 3, options{Load: db.load})
	wantAll(t, herd(4, "k", caches...), "v1", loadTime+slack)
	db.wantLoads(t, 1)
	wantAll(t, herd(4, "k", caches...), "v1", slack)
	db.wantLoads(t, 1)
}

func TestS2RowDoesNotExist(t *testing.T) {
	t.Parallel()
	db := newOrigin("", loadTime)
	db.set("", onefill.ErrNotFound)
	caches := fleet(t, server(t).Addr(), 3, options{Load: db.load, NotFoundTTL: time.Minute})
	for range 2 {
		for _, a := range herd(4, "k", caches...) {
			if !errors.Is(a.err, onefill.ErrNotFound) || a.took > loadTime+slack {
				t.Errorf("Get = %q, %v after %v, want ErrNotFound", a.value, a.err, a.took)
			}
		}
		db.wantLoads(t, 1)
	}
}

func TestS3OriginFails(t *testing.T) {
	t.Parallel()
	db := newOrigin("", loadTime)
	db.set("", errors.New("relation does not exist"))
	caches := fleet(t, server(t).Addr(), 3, options{Load: db.load, ErrorTTL: 2 * time.Second})
	for _, a := range herd(4, "k", caches...) {
		if !errors.Is(a.err, onefill.ErrLoadFailed) || !strings.Contains(a.err.Error(), "relation does not exist") || a.took > loadTime+slack {
			t.Errorf("Get = %v after %v, want the load's error", a.err, a.took)
		}
	}
	db.wantLoads(t, 1)
	// It is forgotten after ErrorTTL and a tick of the server's clock.
	db.set("v1", nil)
	deadline := time.Now().Add(15 * time.Second)
	for {
		if v, err := caches[0].Get(context.Background(), "k"); err == nil && v == "v1" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the failure is still remembered")
		}
		<-time.After(50 * time.Millisecond)
	}
	db.wantLoads(t, 2)
}

// Leases are whole seconds, and at least two.
func TestS4LoadOutlastsLease(t *testing.T) {
	t.Parallel()
	db := newOrigin("v1", 3200*time.Millisecond)
	caches := fleet(t, server(t).Addr(), 3, options{Load: db.load, LeaseTTL: 2 * time.Second})
	wantAll(t, herd(4, "k", caches...), "v1", 2*db.took) // two loads, one after the other, take longer
	db.wantLoads(t, 1)
}

// One cache loads v1 and pauses | v2 is committed, another cache invalidates | the
// load ends: v1 reaches those who had asked before, and nobody else.
func TestS5PausedLoad(t *testing.T) {
	t.Parallel()
	db := newOrigin("v1", time.Second)
	caches := fleet(t, server(t).Addr(), 3, options{Load: db.load, Local: onefill.LocalOptions{TTL: 100 * time.Millisecond}})
	first := make(chan answer, 1)
	go func() {
		v, err := caches[0].Get(context.Background(), "k")
		first <- answer{value: v, err: err}
	}()
	<-db.began
	db.set("v2", nil)
	if err := caches[1].Invalidate(context.Background(), "k"); err != nil {
		t.Fatal(err)
	}
	if a := <-first; a.err != nil || a.value != "v1" {
		t.Errorf("the caller from before = %q, %v, want v1", a.value, a.err)
	}
	for _, c := range caches {
		if v, err := c.Get(context.Background(), "k"); err != nil || v != "v2" {
			t.Errorf("Get after the invalidation = %q, %v, want v2", v, err)
		}
	}
	db.wantLoads(t, 2)
}

func TestS6FirstCallerCancels(t *testing.T) {
	t.Parallel()
	db := newOrigin("v1", loadTime)
	caches := fleet(t, server(t).Addr(), 3, options{Load: db.load})
	ctx, cancel := context.WithCancel(context.Background())
	first := make(chan error, 1)
	go func() {
		_, err := caches[0].Get(ctx, "k")
		first <- err
	}()
	<-db.began
	others := make(chan []answer, 1)
	go func() { others <- herd(4, "k", caches...) }()
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the first caller = %v, want context.Canceled", err)
	}
	wantAll(t, <-others, "v1", loadTime+slack)
	db.wantLoads(t, 1)
}

// A stale value comes at once, and one cache refreshes it.
func TestStaleWhileRefreshing(t *testing.T) {
	t.Parallel()
	db := newOrigin("v1", 0)
	caches := fleet(t, server(t).Addr(), 3, options{Load: db.load, StaleFor: time.Minute, Local: onefill.LocalOptions{TTL: 10 * time.Millisecond}})
	wantAll(t, herd(1, "k", caches[0]), "v1", slack)
	db.mu.Lock()
	db.value, db.took = "v2", loadTime
	db.mu.Unlock()
	if err := caches[0].Expire(context.Background(), "k"); err != nil {
		t.Fatal(err)
	}
	wantAll(t, herd(4, "k", caches...), "v1", slack)
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(10 * time.Millisecond) {
		if v, err := caches[2].Get(context.Background(), "k"); err != nil || v == "v2" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nobody has refreshed the value")
		}
	}
	db.wantLoads(t, 2)
}

// j: commands of a winner, of a hit, and of those who wait without being told.
func TestTrapJ_CommandsOfAHerd(t *testing.T) {
	t.Parallel()
	s := server(t)
	db := newOrigin("v1", time.Second)
	caches := fleet(t, s.Addr(), 3, options{Load: db.load})
	count := func(what string, most int64, do func()) {
		t.Helper()
		before := asked(t, s.Addr())
		do()
		n := asked(t, s.Addr()) - before
		t.Logf("%s: %d commands", what, n)
		if n > most || n == 0 {
			t.Errorf("%s: %d commands, want 1 to %d", what, n, most)
		}
	}
	count("a miss with load and fill", 2, func() { herd(1, "absent", caches[0]) })
	count("a hit", 1, func() { herd(1, "absent", caches[1]) })
	// Pauses are random, from 10 ms to 260 ms, and grow. In a second that makes about
	// ten; forty would take pauses that have almost all been as short as can be.
	const callers, waiting, polls = 100, 2, 40
	count("300 callers in three caches, a load of 1 s", 2+waiting*polls, func() { wantAll(t, herd(callers, "k", caches...), "v1", time.Second+slack) })
	db.wantLoads(t, 2)
}

// A value above the limit reaches its callers, and nobody waits for the lease.
func TestUnstorableValue(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 2<<20)
	db := newOrigin(large, 50*time.Millisecond)
	caches := fleet(t, server(t).Addr(), 1, options{Load: db.load})
	wantAll(t, herd(10, "k", caches...), large, slack)
	db.wantLoads(t, 1)
}

func TestNewNamesTheServer(t *testing.T) {
	_, err := onefill.New(options{Name: "users", TTL: time.Minute, Load: newOrigin("", 0).load, Store: memcachestore.New("localhost")})
	var e *onefill.StoreError
	if !errors.As(err, &e) || !strings.Contains(err.Error(), `memcached at "localhost"`) || !strings.Contains(err.Error(), "missing port") {
		t.Errorf("New = %v, want a *StoreError that names the address and its fault", err)
	}
}

// asked counts the mg, ms and md that a server was asked.
func asked(t *testing.T, addr string) int64 {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	fmt.Fprint(nc, "stats\r\n")
	sum := int64(0)
	for lines := bufio.NewScanner(nc); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 {
			break // END
		}
		switch fields[1] {
		case "cmd_get", "cmd_set", "delete_hits", "delete_misses":
			n, _ := strconv.ParseInt(fields[2], 10, 64)
			sum += n
		}
	}
	return sum
}

// tagged is a fleet whose rows are all under the tag "all".
func tagged(t *testing.T, addr string, n int, o options) []*cache {
	t.Helper()
	o.Tags, o.TTL = true, time.Hour
	o.TagsOf = func(_, _ string) []string { return []string{"all"} }
	return fleet(t, addr, n, o)
}

// What one cache invalidates by tag, or clears, the other one serves no longer than for
// Local.TTL.
func TestInvalidateTagElsewhere(t *testing.T) {
	t.Parallel()
	const localTTL = 200 * time.Millisecond
	var row atomic.Int64
	caches := tagged(t, server(t).Addr(), 2, options{
		Load:  func(context.Context, string) (string, error) { return fmt.Sprint(row.Load()), nil },
		Local: onefill.LocalOptions{TTL: localTTL},
	})
	for i := range 6 {
		for _, c := range caches {
			wantAll(t, herd(2, "k", c), fmt.Sprint(row.Load()), slack)
		}
		row.Add(1)
		void := caches[0].Clear
		if i%2 == 0 {
			void = func(ctx context.Context) error { return caches[0].InvalidateTag(ctx, "all") }
		}
		if err := void(context.Background()); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		wantAll(t, herd(1, "k", caches[0]), fmt.Sprint(row.Load()), slack)
		for {
			v, err := caches[1].Get(context.Background(), "k")
			if took := time.Since(start); err != nil || took > localTTL+slack {
				t.Fatalf("%q, %v after %v, want %d", v, err, took, row.Load())
			} else if v == fmt.Sprint(row.Load()) {
				t.Logf("the other cache saw it after %v", took)
				break
			}
		}
	}
}

// A tag over many entries costs four commands, as many as over one.
func TestInvalidateTagOverManyEntries(t *testing.T) {
	t.Parallel()
	s := server(t)
	c := tagged(t, s.Addr(), 1, options{MaxBatch: 1000, Local: onefill.LocalOptions{MaxEntries: 100},
		LoadMany: func(_ context.Context, keys []string) (map[string]string, error) {
			rows := map[string]string{}
			for _, key := range keys {
				rows[key] = "v"
			}
			return rows, nil
		}})[0]
	const n = 20_000
	done, err := c.Warm(context.Background(), func(yield func(string) bool) {
		for i := range n {
			if !yield(fmt.Sprint("k", i)) {
				return
			}
		}
	}, onefill.WarmRate(1e6))
	if err != nil || done.Found != n {
		t.Fatalf("%+v, %v", done, err)
	}
	before, start := asked(t, s.Addr()), time.Now()
	if err := c.InvalidateTag(context.Background(), "all"); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d entries: %v", n, time.Since(start))
	if got := asked(t, s.Addr()) - before; got != 4 {
		t.Errorf("%d commands, want 4", got)
	}
	for i := 0; i < n; i += n / 20 {
		if _, found, err := c.Peek(context.Background(), fmt.Sprint("k", i)); found || err != nil {
			t.Errorf("k%d is still there, %v", i, err)
		}
	}
}
