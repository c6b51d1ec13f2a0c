package integration

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

// TestTagOverHundredThousand voids a tag that 100,000 entries of a Redis are under. The
// properties: it is one round trip, whatever lies under the tag; afterwards none of them
// is served, from the store or from local, in the cache that has voided it at once, in the
// other one within the bound; what is asked for again is loaded as it is now. What is void
// stays in the server until its TTL ends: the test logs the memory.
//
// The order: a and b have entries in local and the store has all | the rows change |
// a: InvalidateTag, nil | reads in a, then in b.
func TestTagOverHundredThousand(t *testing.T) {
	const n, loaded, step, name = 100_000, 2000, 500, "tagged"
	server := servertest.Redis(t, servers.RedisOptions{})
	admin := adminOf(t, server)
	var version, loads atomic.Int64
	version.Store(1)
	_, caches := loopback(t, server, 2, func(o *worldOptions) {
		o.Name, o.MaxBatch = name, 1000
		o.TagsOf = func(string, row) []string { return []string{"all"} }
		o.LoadMany = func(_ context.Context, keys []string) (map[string]row, error) {
			loads.Add(int64(len(keys)))
			now := version.Load()
			found := make(map[string]row, len(keys))
			for _, key := range keys {
				found[key] = row{fmt.Sprintf("v%d", now), now}
			}
			return found, nil
		}
		o.Load = func(context.Context, string) (row, error) { return row{}, errors.New("LoadMany is meant to be called") }
	})
	a, b, ctx := caches[0], caches[1], context.Background()
	must(t, a.InvalidateTag(ctx, "none")) // the script is known to the server, and has been sent
	empty := admin.memory()
	warm(t, caches, loaded)
	admin.multiply(name, loaded, n)
	var sample []string
	for i := 0; i < n; i += step {
		sample = append(sample, numbered(i))
	}
	for _, cache := range caches {
		wantVersions(t, cache, sample, 1)
	}
	if got := loads.Load(); got != loaded {
		t.Errorf("%d loads, want %d: the copies are not taken for entries", got, loaded)
	}
	full := admin.memory()

	version.Store(2)
	before, begin := admin.calls(), time.Now()
	must(t, a.InvalidateTag(ctx, "all"))
	took := time.Since(begin)
	after := admin.calls()
	t.Logf("a tag over %d entries was voided in %v", n, took)
	wantOneScript(t, before, after)
	if limit := 100*time.Millisecond + slack(); took > limit {
		t.Errorf("it took %v, want %v at most", took, limit)
	}

	for _, key := range sample {
		if _, found, err := a.Peek(ctx, key); found || err != nil {
			t.Errorf("%s is still there in the cache that has voided its tag: %v, %v", key, found, err)
		}
	}
	wantVersions(t, a, sample[:len(sample)/2], 2)
	poll(t, "the other cache has heard", func() bool { r, err := b.Get(ctx, sample[0]); return err == nil && r.Version == 2 })
	wantVersions(t, b, sample, 2)
	wantVersions(t, a, sample, 2)
	if got, want := loads.Load(), int64(loaded+len(sample)); got != want {
		t.Errorf("%d rows were loaded again, want %d", got-loaded, want-loaded)
	}
	t.Logf("memory of the server: %d KiB without, %d KiB with the entries (%d bytes each), %d KiB when they are void and %d were loaded again",
		empty>>10, full>>10, (full-empty)/n, admin.memory()>>10, len(sample))
}

func numbered(i int) string { return fmt.Sprint("k", i) }

// warm loads the keys k0 to kn, a share in each cache.
func warm(t *testing.T, caches []*onefill.Cache[string, row], n int) {
	t.Helper()
	begin := time.Now()
	var loading sync.WaitGroup
	for i, cache := range caches {
		loading.Go(func() {
			var mine iter.Seq[string] = func(yield func(string) bool) {
				for k := i; k < n && yield(numbered(k)); k += len(caches) {
				}
			}
			if done, err := cache.Warm(context.Background(), mine, onefill.WarmRate(1e6)); err != nil || done.Found != n/len(caches) {
				t.Errorf("cache %d: %+v, %v", i, done, err)
			}
		})
	}
	loading.Wait()
	t.Logf("%d entries were loaded in %v", n, time.Since(begin).Round(time.Millisecond))
}

// multiply makes n entries of those that were loaded, each of which is a copy with its TTL:
// an entry does not say what its key is. To load them all takes seconds, and with the race
// detector most of a minute.
func (a *admin) multiply(name string, loaded, n int) {
	a.t.Helper()
	a.do("EVAL", `for i = tonumber(ARGV[2]), tonumber(ARGV[3]) - 1 do
		redis.call('COPY', string.format(ARGV[1], i % tonumber(ARGV[2])), string.format(ARGV[1], i))
	end`, "0", valueKey(name, "k%d"), strconv.Itoa(loaded), strconv.Itoa(n))
	if got, err := a.do("DBSIZE").AsInt64(); err != nil || got < int64(n) {
		a.t.Fatalf("the server has %d keys, %v; want %d at least", got, err, n)
	}
}

func wantVersions(t *testing.T, cache *onefill.Cache[string, row], keys []string, version int64) {
	t.Helper()
	got, err := cache.GetMany(context.Background(), keys)
	if err != nil || len(got) != len(keys) {
		t.Fatalf("%d rows for %d keys, %v", len(got), len(keys), err)
	}
	for key, r := range got {
		if r.Version != version {
			t.Errorf("%s is at version %d, want %d", key, r.Version, version)
		}
	}
}

// wantOneScript wants one script to have been sent between two countings, and nothing else
// that has to do with values or tags. An EXISTS follows each script (redisstore).
func wantOneScript(t *testing.T, before, after map[string]int) {
	t.Helper()
	sent := map[string]int{}
	for _, name := range []string{"evalsha", "eval", "mget", "scan", "keys", "unlink", "del"} {
		if n := after[name] - before[name]; n != 0 {
			sent[name] = n
		}
	}
	t.Logf("commands: %v", sent)
	if len(sent) != 1 || sent["evalsha"] != 1 {
		t.Errorf("%v was sent, want one script", sent)
	}
}

// memory is what the server uses, in bytes.
func (a *admin) memory() int64 {
	a.t.Helper()
	text, err := a.do("INFO", "memory").ToString()
	if err != nil {
		a.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(text, "used_memory:")
	digits, _, _ := strings.Cut(rest, "\r")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		a.t.Fatal(err)
	}
	return n
}
