package redisstore_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/redisstore"
	"github.com/redis/rueidis"
)

// Caches with tags over a real Redis, each with a store of its own, as in two processes.

type cache = onefill.Cache[string, string]

var background = context.Background()

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newCache is a cache whose rows are all under the tag "all", and each under "row:KEY".
func newCache(t *testing.T, url string, o onefill.Options[string, string], opts ...redisstore.Option) *cache {
	t.Helper()
	st, err := redisstore.Open(url, opts...)
	must(t, err)
	o.Name, o.TTL, o.Store, o.Tags = "n", time.Hour, st, true
	o.StoreTimeout = 10 * time.Second // a busy machine is not what is tested here
	o.TagsOf = func(key, _ string) []string { return []string{"all", "row:" + key} }
	c, err := onefill.New(o)
	must(t, err)
	t.Cleanup(func() { c.Close(); st.Close() })
	return c
}

// seen polls until the cache has the value, and says how long that took since start.
func seen(t *testing.T, c *cache, key, want string, start time.Time) time.Duration {
	t.Helper()
	for {
		v, err := c.Get(background, key)
		must(t, err)
		took := time.Since(start)
		switch {
		case v == want:
			return took
		case took > 15*time.Second:
			t.Fatalf("%q is still %q after %v, want %q", key, v, took, want)
		}
	}
}

// local fails the test unless the cache has the key at hand.
func local(t *testing.T, c *cache, key string) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); ; {
		r, err := c.Fetch(background, key)
		must(t, err)
		if r.Source == onefill.SourceLocal {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%q is never in local: %+v", key, r)
		}
	}
}

// What one cache invalidates by tag is gone from the other one's local cache: in
// milliseconds where it is pushed, after Local.TTL where it is not.
func TestInvalidateTagElsewhere(t *testing.T) {
	for _, tt := range []struct {
		name     string
		rounds   int
		localTTL time.Duration
		p99      time.Duration // a busy machine included
		opts     []redisstore.Option
	}{
		{"pushed", 200, time.Hour, 100 * time.Millisecond, nil},
		{"polled", 5, 200 * time.Millisecond, 2 * time.Second, []redisstore.Option{redisstore.NoTracking()}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := servertest.Redis(t, servers.RedisOptions{})
			var row atomic.Int64
			o := onefill.Options[string, string]{
				Load:  func(context.Context, string) (string, error) { return fmt.Sprint(row.Load()), nil },
				Local: onefill.LocalOptions{TTL: tt.localTTL},
			}
			a, b := newCache(t, server.URL(), o, tt.opts...), newCache(t, server.URL(), o, tt.opts...)
			var took []time.Duration
			for i := range tt.rounds {
				local(t, b, "k")
				row.Add(1)
				tag := []string{"all", "row:k"}[i%2]
				must(t, a.InvalidateTag(background, tag))
				want := fmt.Sprint(row.Load())
				took = append(took, seen(t, b, "k", want, time.Now()))
				if v, err := a.Get(background, "k"); err != nil || v != want {
					t.Fatalf("who has invalidated it reads %q, %v, want %q", v, err, want)
				}
			}
			slices.Sort(took)
			p99 := took[len(took)*99/100]
			t.Logf("another cache saw it after: median %v, p99 %v, longest %v", took[len(took)/2], p99, took[len(took)-1])
			if p99 > tt.p99 {
				t.Errorf("p99 %v, want at most %v", p99, tt.p99)
			}
			local(t, b, "k")
			row.Add(1)
			must(t, a.Clear(background))
			seen(t, b, "k", fmt.Sprint(row.Load()), time.Now())
		})
	}
}

// A reader that has been cut off from the pushes hears nothing, and serves nothing old once
// it is back. The interleaving: b has the value in local; its connection is cut, and a
// invalidates; b reads.
func TestInvalidateTagWhileCutOff(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{})
	var row atomic.Int64
	o := onefill.Options[string, string]{
		Load:  func(context.Context, string) (string, error) { return fmt.Sprint(row.Load()), nil },
		Local: onefill.LocalOptions{TTL: time.Hour},
	}
	a, b := newCache(t, server.URL(), o), newCache(t, server.URL(), o)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true, ForceSingleClient: true})
	must(t, err)
	defer client.Close()
	for range 10 {
		local(t, b, "k")
		row.Add(1)
		must(t, client.Do(background, client.B().Arbitrary("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Build()).Error())
		for start := time.Now(); a.InvalidateTag(background, "all") != nil; {
			if time.Since(start) > 15*time.Second {
				t.Fatal("the connection is not made again")
			}
		}
		seen(t, b, "k", fmt.Sprint(row.Load()), time.Now())
	}
}

// A tag over many entries is voided by one script, in one round trip, and all of them are
// gone; so is the whole cache by Clear. 100,000 entries take as many commands.
func TestInvalidateTagOverManyEntries(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{})
	rows := func(_ context.Context, keys []string) (map[string]string, error) {
		found := map[string]string{}
		for _, key := range keys {
			found[key] = "v"
		}
		return found, nil
	}
	c := newCache(t, server.URL(), onefill.Options[string, string]{LoadMany: rows, MaxBatch: 1000, Local: onefill.LocalOptions{MaxEntries: 100}})
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true, ForceSingleClient: true})
	must(t, err)
	defer client.Close()
	const n = 20_000
	for what, void := range map[string]func(context.Context) error{
		"InvalidateTag": func(ctx context.Context) error { return c.InvalidateTag(ctx, "all") },
		"Clear":         c.Clear,
	} {
		start := time.Now()
		if done, err := c.Warm(background, numbered(n), onefill.WarmRate(1e6)); err != nil || done.Found != n {
			t.Fatalf("%+v, %v", done, err)
		}
		t.Logf("%d entries were loaded in %v", n, time.Since(start))
		must(t, void(background)) // the script is known by now
		if done, err := c.Warm(background, numbered(n), onefill.WarmRate(1e6)); err != nil || done.Found != n {
			t.Fatalf("%+v, %v", done, err)
		}
		before, start := asked(t, client), time.Now()
		must(t, void(background))
		took, after := time.Since(start), asked(t, client)
		t.Logf("%s over %d entries took %v", what, n, took)
		if scripts, others := after["evalsha"]-before["evalsha"], sent(after)-sent(before)-(after["evalsha"]-before["evalsha"]); scripts != 1 || others != 0 {
			t.Errorf("%s: %d scripts, %d other commands, want 1 and none: %v, %v", what, scripts, others, before, after)
		}
		for i := 0; i < n; i += n / 20 {
			if _, found, err := c.Peek(background, fmt.Sprint("k", i)); found || err != nil {
				t.Errorf("%s: k%d is still there, %v", what, i, err)
			}
		}
	}
}

func numbered(n int) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range n {
			if !yield(fmt.Sprint("k", i)) {
				return
			}
		}
	}
}

// asked counts what the server was asked so far, and what its scripts have asked it.
func asked(t *testing.T, client rueidis.Client) map[string]int64 {
	t.Helper()
	text, err := client.Do(background, client.B().Arbitrary("INFO", "commandstats").Build()).ToString()
	must(t, err)
	calls := map[string]int64{}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_"); ok {
			name, fields, _ := strings.Cut(rest, ":calls=")
			number, _, _ := strings.Cut(fields, ",")
			calls[name], err = strconv.ParseInt(number, 10, 64)
			must(t, err)
		}
	}
	return calls
}

// sent adds up what goes over the wire on behalf of values and tags, but for the marker
// behind a script, which is an EXISTS, as the ones in it.
func sent(calls map[string]int64) (n int64) {
	for _, name := range []string{"get", "eval", "evalsha", "del", "mget"} {
		n += calls[name]
	}
	return n
}
