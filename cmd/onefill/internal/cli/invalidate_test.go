package cli

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/invalidation"
	"github.com/onefill/onefill/memcachestore"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/redisstore"
	"github.com/onefill/onefill/store"
)

// application is a cache as an application has it, on the server, with the keys 1, 2 and 3.
func application(t *testing.T, st store.Store) *onefill.Cache[int64, string] {
	t.Helper()
	c, err := onefill.New(onefill.Options[int64, string]{Name: "users", Store: st, TTL: time.Hour, StaleFor: time.Hour, Local: onefill.LocalOptions{Off: true},
		Logger: slog.New(slog.DiscardHandler), Load: func(context.Context, int64) (string, error) { return "loaded", nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	for key := range int64(3) {
		if err := c.Set(t.Context(), key+1, "set"); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// state of the keys 1, 2 and 3: "set", "stale", "-" for gone.
func state(t *testing.T, c *onefill.Cache[int64, string]) string {
	t.Helper()
	var all []string
	for key := range int64(3) {
		r, found, err := c.Peek(t.Context(), key+1)
		switch {
		case err != nil:
			t.Fatal(err)
		case !found:
			all = append(all, "-")
		case r.Stale:
			all = append(all, "stale")
		default:
			all = append(all, r.Value)
		}
	}
	return strings.Join(all, " ")
}

func wantState(t *testing.T, c *onefill.Cache[int64, string], want string) {
	t.Helper()
	if got := state(t, c); got != want {
		t.Errorf("the cache has %q, want %q", got, want)
	}
}

func TestInvalidateRedis(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{Password: "secret"})
	st, err := redisstore.Open(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	c := application(t, st)
	t.Setenv("ONEFILL_REDIS", server.URL())
	if out := ok(t, "invalidate", "--cache", "users", "2"); out != "invalidated 1 key of users\n" {
		t.Errorf("%q", out)
	}
	wantState(t, c, "set - set")
	line := read[invalidateLine](t, ok(t, "invalidate", "--cache", "users", "--json", "--expire", "1", "2"))
	if line.Keys != 2 || line.Through != "redis" || line.Kind != "onefill.expire" || line.Cache != "users" {
		t.Errorf("%+v", line)
	}
	wantState(t, c, "stale - set")
	ok(t, "invalidate", "--cache", "orders", "3") // another cache's
	wantState(t, c, "stale - set")

	var out, errs bytes.Buffer
	if code := Run(t.Context(), []string{"invalidate", "--cache", "users", "-"}, strings.NewReader("1\r\n\n3\n"), &out, &errs); code != exitOK {
		t.Errorf("keys from standard input: %d, %s", code, errs.String())
	}
	wantState(t, c, "- - -")

	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	_, _, stderr := run(t, "invalidate", "--cache", "users", "1")
	fails(t, exitFailed, server.Addr(), "invalidate", "--cache", "users", "1")
	if strings.Contains(stderr, "secret") {
		t.Errorf("the password is shown: %q", stderr)
	}
}

func TestInvalidateMemcached(t *testing.T) {
	a, b := servertest.Memcached(t, servers.MemcachedOptions{}), servertest.Memcached(t, servers.MemcachedOptions{})
	st := memcachestore.New(a.Addr(), b.Addr())
	defer st.Close()
	c := application(t, st)
	addrs := b.Addr() + "," + a.Addr()
	ok(t, "invalidate", "--cache", "users", "--memcached", addrs, "1", "2", "3")
	wantState(t, c, "- - -")
	for _, s := range []*servers.Server{a, b} {
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	fails(t, exitFailed, "connection refused", "invalidate", "--cache", "users", "--memcached", addrs, "1", "2", "3")
}

// A server that hangs is an error in --timeout, which New alone would not heed, and an
// interrupt ends the wait.
func TestInvalidateStoreHangs(t *testing.T) {
	redis, mem := servertest.Redis(t, servers.RedisOptions{}), servertest.Memcached(t, servers.MemcachedOptions{})
	must(t, redis.Pause())
	must(t, mem.Pause())
	for _, server := range [][]string{{"--redis", redis.URL(), redis.Addr()}, {"--memcached", mem.Addr(), mem.Addr()}} {
		args := []string{"invalidate", "--cache", "users", server[0], server[1], "1"}
		start := time.Now()
		fails(t, exitFailed, server[2], append(args, "--timeout", "100ms")...)
		if took := time.Since(start); took > 1500*time.Millisecond {
			t.Errorf("%s: --timeout 100ms took %v", server[0], took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		start = time.Now()
		var out, errs bytes.Buffer
		if code := Run(ctx, args, strings.NewReader(""), &out, &errs); code == exitOK || time.Since(start) > 1500*time.Millisecond {
			t.Errorf("%s: interrupted: %d after %v, %s", server[0], code, time.Since(start), errs.String())
		}
		cancel()
	}
	must(t, redis.Continue())
	must(t, mem.Continue())
}

// Through the queue: the command enqueues, a worker of the application does it.
func TestInvalidateThroughQueue(t *testing.T) {
	q := testQueue(t)
	server := servertest.Redis(t, servers.RedisOptions{})
	st, err := redisstore.Open(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	c := application(t, st)

	line := read[invalidateLine](t, ok(t, "invalidate", "--cache", "users", "--through-queue", "--json", "1", "2"))
	if line.Through != "queue" || len(line.IDs) != 2 || line.IDs[0] == "" {
		t.Errorf("%+v", line)
	}
	if out := ok(t, "invalidate", "--cache", "users", "--through-queue", "--refresh", "--json-keys", "3"); out != "enqueued 1 key of users\n" {
		t.Errorf("%q", out)
	}
	wantState(t, c, "set set set") // nobody has done it yet

	handlers, err := invalidation.Handlers(invalidation.For("users", c))
	if err != nil {
		t.Fatal(err)
	}
	worker, err := queue.NewWorker(queue.WorkerOptions{Queue: q, Handlers: handlers, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer worker.Stop(context.Background())
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); worker.Stats().Done < 3; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%+v", worker.Stats())
		}
	}
	wantState(t, c, "- - loaded")
}

func TestInvalidateBadInput(t *testing.T) {
	t.Setenv("ONEFILL_POSTGRES", "postgres://postgres@127.0.0.1:1/postgres")
	badInputs(t, []badInputCase{
		{"invalidate 1 --redis redis://127.0.0.1:1", "--cache: the name is empty"},
		{"invalidate --cache a:b 1 --redis redis://127.0.0.1:1", "--cache"},
		{"invalidate --cache users 1", "set ONEFILL_REDIS"},
		{"invalidate --cache users --redis redis://h --memcached h:1 1", "--redis: excludes --memcached"},
		{"invalidate --cache users --redis redis://h", "no key is given"},
		{"invalidate --cache users --redis redis://h -", "no key is given"},
		{"invalidate --cache users --redis redis://u:secret@h 1", "ONEFILL_REDIS"},
		{"invalidate --cache users --redis http://h 1", "--redis"},
		{"invalidate --cache users --redis redis://h --expire --refresh 1", "--expire: excludes --refresh"},
		{"invalidate --cache users --redis redis://h --refresh 1", "--refresh: needs --through-queue"},
		{"invalidate --cache users --redis redis://h --json-keys 1", "--json-keys: needs --through-queue"},
		{"invalidate --cache users --through-queue --json-keys {", "key 1, \"{\", is not JSON"},
		{"invalidate --cache users --redis redis://h --timeout 0 1", "--timeout"},
	})
	fails(t, exitInput, "key 2 is empty", "invalidate", "--cache", "users", "--redis", "redis://h", "1", "")
}
