package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
	"github.com/redis/rueidis"
)

// wantError checks that an error is the contract's, and whether it says that the
// server could not be asked.
func wantError(t testing.TB, err error, op string, unavailable bool, substrings ...string) {
	t.Helper()
	var typed *store.Error
	if !errors.As(err, &typed) {
		t.Fatalf("error %v (%T), want a *store.Error", err, err)
	}
	if typed.Op != op || typed.Service != "redis" && typed.Service != "valkey" || typed.Addr == "" {
		t.Errorf("service %q at %q, operation %q; want redis or valkey, an address, %q", typed.Service, typed.Addr, typed.Op, op)
	}
	if errors.Is(err, store.ErrUnavailable) != unavailable {
		t.Errorf("unavailable = %v, want %v: %v", !unavailable, unavailable, err)
	}
	for _, s := range substrings {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q does not say %q", err, s)
		}
	}
}

func within(t testing.TB, limit time.Duration, what string, do func()) {
	t.Helper()
	start := time.Now()
	do()
	if took := time.Since(start); took > limit {
		t.Errorf("%s took %s, at most %s was wanted", what, took, limit)
	}
}

// every is each operation of a session.
func every(sess store.Session, l store.Lease) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"get": func(ctx context.Context) error { _, err := sess.Get(ctx, "k"); return err },
		"acquire": func(ctx context.Context) error {
			_, err := sess.Acquire(ctx, "k", store.Request{TTL: time.Second})
			return err
		},
		"set":        func(ctx context.Context) error { _, err := sess.Set(ctx, "k", []byte("v"), time.Minute); return err },
		"invalidate": func(ctx context.Context) error { return sess.Invalidate(ctx, "k", "l") },
		"expire":     func(ctx context.Context) error { return sess.Expire(ctx, time.Now(), "k") },
		"ping":       func(ctx context.Context) error { return sess.Ping(ctx) },
		"fill":       func(ctx context.Context) error { _, err := l.Fill(ctx, []byte("v"), time.Minute); return err },
		"fail":       func(ctx context.Context) error { _, err := l.Fail(ctx, nil, time.Minute); return err },
		"renew":      func(ctx context.Context) error { _, err := l.Renew(ctx, time.Minute); return err },
		"release":    func(ctx context.Context) error { _, err := l.Release(ctx); return err },
		"epoch":      func(ctx context.Context) error { _, err := tagger(sess).Epoch(ctx); return err },
		"generations": func(ctx context.Context) error {
			_, err := tagger(sess).Generations(ctx, time.Hour, "t", "")
			return err
		},
		"void tags": func(ctx context.Context) error { return tagger(sess).VoidTags(ctx, time.Hour, "t", "") },
	}
}

func tagger(sess store.Session) store.Tagger {
	if r, ok := sess.(*rig); ok {
		sess = r.Session
	}
	return sess.(store.Tagger)
}

// A server that is frozen answers nobody; every operation ends with its context.
func TestFrozenServer(t *testing.T) {
	forEach(t, func(t *testing.T, v variant) {
		server := servertest.Redis(t, servers.RedisOptions{})
		s := v.on(t, server.URL())
		a := attach(t, s, "n")
		l := a.win("k")
		ok(t, server.Pause())
		for op, do := range every(a, l) {
			within(t, 2*time.Second, op, func() {
				ctx, cancel := context.WithTimeout(a.ctx, 50*time.Millisecond)
				defer cancel()
				wantError(t, do(ctx), op, true, "deadline")
			})
		}
		ok(t, server.Continue())
		recovers(t, s, a)
	})
}

// Who gives up gets its own context's error, and the server is not blamed for it.
func TestCancelled(t *testing.T) {
	forEach(t, func(t *testing.T, v variant) {
		server := servertest.Redis(t, servers.RedisOptions{})
		a := attach(t, v.on(t, server.URL()), "n")
		ok(t, server.Pause())
		within(t, 2*time.Second, "a cancelled get", func() {
			ctx, cancel := context.WithCancel(a.ctx)
			time.AfterFunc(20*time.Millisecond, cancel)
			_, err := a.Get(ctx, "k")
			wantError(t, err, "get", false)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v is not context.Canceled", err)
			}
		})
		ok(t, server.Continue())
	})
}

// A frozen server and far more operations than rueidis has places in its ring: first while
// all seems well, then with the ring full of commands that were given up.
func TestFrozenServerAndACrowd(t *testing.T) {
	// More at once than may run directly, and fewer, which together fill the ring.
	for _, n := range []int{1500, 400} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			forEach(t, func(t *testing.T, v variant) { frozenCrowd(t, v, n) })
		})
	}
}

func frozenCrowd(t *testing.T, v variant, n int) {
	server := servertest.Redis(t, servers.RedisOptions{})
	s := v.on(t, server.URL())
	a := attach(t, s, "n")
	a.get("k")
	ok(t, server.Pause())
	for wave := range 4 {
		within(t, 3*time.Second, fmt.Sprint("wave ", wave), func() {
			ctx, cancel := context.WithTimeout(a.ctx, 100*time.Millisecond)
			defer cancel()
			errs := make(chan error)
			for range n {
				go func() { _, err := a.Get(ctx, "k"); errs <- err }()
			}
			for range n {
				wantError(t, <-errs, "get", true)
			}
		})
	}
	ok(t, server.Continue())
	recovers(t, s, a)
}

func recovers(t *testing.T, s *Store, a *rig) {
	t.Helper()
	eventually(t, "the server is found again", func() error { return a.Ping(a.ctx) })
	eventually(t, "commands run directly again", func() error {
		_, err := a.Get(a.ctx, "k")
		if err == nil && s.guard.suspect.Load() {
			err = errors.New("still suspect")
		}
		return err
	})
	eventually(t, "no command is left behind", func() error {
		if n := len(s.guard.places); n != 0 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}

// Far more operations at once than there are places wait for one and succeed.
func TestCrowdOnAHealthyServer(t *testing.T) {
	forEach(t, func(t *testing.T, v variant) {
		a := attach(t, v.store(t), unique(t))
		const n = 5000
		errs := make(chan error)
		for i := range n {
			go func() { _, err := a.Get(a.ctx, fmt.Sprint(i)); errs <- err }()
		}
		for range n {
			ok(t, <-errs)
		}
	})
}

// A dead server is noticed at once, not at the context's end, and found again.
func TestDeadServer(t *testing.T) {
	forEach(t, func(t *testing.T, v variant) {
		server := servertest.Redis(t, servers.RedisOptions{})
		s := v.on(t, server.URL())
		a := attach(t, s, "n")
		l := a.win("k")
		ok(t, server.Kill())
		for op, do := range every(a, l) {
			within(t, 5*time.Second, op, func() { wantError(t, do(a.ctx), op, true) })
		}
		ok(t, server.RestartEmpty(a.ctx))
		eventually(t, "the server is found again", func() error { return a.Ping(a.ctx) })
		if must(l.Fill(a.ctx, []byte("late"), time.Minute))(t) {
			t.Error("a fill was accepted by a server that has lost the lease")
		}
		a.win("k")
	})
}

func TestAllowDown(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{})
	url := server.URL()
	ok(t, server.Kill())
	s := opened(t, url)
	defer s.Close()
	_, err := s.Attach(t.Context(), store.Config{Name: "n"})
	wantError(t, err, "attach", true, server.Addr())
	sess, err := s.Attach(t.Context(), store.Config{Name: "n", AllowDown: true})
	ok(t, err)
	defer sess.Close()
	if sess.Features().Push {
		t.Error("a server that was never reached is said to push")
	}
	_, err = sess.Get(t.Context(), "k")
	wantError(t, err, "get", true)
	ok(t, server.RestartEmpty(t.Context()))
	eventually(t, "the session works once the server is there", func() error {
		_, err := sess.Get(t.Context(), "k")
		return err
	})
	if !sess.Features().Push {
		t.Error("pushes are not declared after the server was reached")
	}
}

// fakeServer answers each connection in its own way.
func fakeServer(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
			go serve(conn)
		}
	}()
	return l.Addr().String()
}

// Attach says what is wrong with the server, within its context. AllowDown forgives a
// server that is not there, and nothing else.
func TestAttachToTheWrongServer(t *testing.T) {
	withPassword := servertest.Redis(t, servers.RedisOptions{Password: "right"})
	primary := servertest.Redis(t, servers.RedisOptions{})
	replica := servertest.Redis(t, servers.RedisOptions{Args: []string{"--replicaof", "127.0.0.1 " + fmt.Sprint(primary.Port())}})
	memcached := servertest.Memcached(t, servers.MemcachedOptions{})
	closed := fakeServer(t, func(c net.Conn) { c.Close() })
	silent := fakeServer(t, func(net.Conn) {})
	http := fakeServer(t, func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 400 Bad Request\r\n\r\n") })
	cases := []struct {
		name, url   string
		unavailable bool
		forgiven    bool
		says        string
	}{
		{"wrong password", "redis://:wrong@" + withPassword.Addr(), false, false, "WRONGPASS"},
		{"no password", "redis://" + withPassword.Addr(), false, false, "NOAUTH"},
		{"replica", replica.URL(), true, true, "replica"},
		{"memcached", "redis://" + memcached.Addr(), true, false, "does not speak the Redis protocol"},
		{"http", "redis://" + http, true, false, "does not speak the Redis protocol"},
		{"closes at once", "redis://" + closed, true, true, ""},
		{"never answers", "redis://" + silent, true, true, "deadline"},
		{"no such host", "redis://no-such-host.invalid:6379", true, true, "no-such-host"},
		{"nobody there", "redis://127.0.0.1:1", true, true, "refused"},
	}
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := opened(t, tt.url)
			defer s.Close()
			for _, allow := range []bool{false, true} {
				within(t, 3*time.Second, "Attach", func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					sess, err := s.Attach(ctx, store.Config{Name: "n", AllowDown: allow})
					if err == nil {
						sess.Close()
					}
					if allow && tt.forgiven {
						ok(t, err)
						return
					}
					if err != nil {
						t.Log(err)
					}
					wantError(t, err, "attach", tt.unavailable, tt.says)
				})
			}
		})
	}
}

func TestBadNames(t *testing.T) {
	s := opened(t, "redis://127.0.0.1:1")
	_, err := s.Attach(t.Context(), store.Config{Name: "a:b", AllowDown: true})
	wantError(t, err, "attach", false, `"a:b"`)
}

func TestScriptsAreLoadedAgain(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{})
	forEach(t, func(t *testing.T, v variant) {
		s := v.on(t, server.URL())
		a := attach(t, s, unique(t))
		for op := range every(a, nil) {
			l := a.win("leased for " + op)
			ok(t, raw(t, s, "SCRIPT", "FLUSH").Error())
			if err := every(a, l)[op](a.ctx); err != nil {
				t.Errorf("%s after SCRIPT FLUSH: %v", op, err)
			}
		}
		var keys []string
		for i := range 600 {
			keys = append(keys, fmt.Sprint(i))
			a.set(keys[i], "x")
		}
		ok(t, raw(t, s, "SCRIPT", "FLUSH").Error())
		ok(t, a.Invalidate(a.ctx, keys...))
		for _, key := range keys {
			a.wantMiss(key)
		}
	})
}

// A server that is full and evicts nothing: hits and invalidations go on, what needs
// memory is refused with the server's word, and that is no unavailability.
func TestFullServer(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{Args: []string{"--maxmemory-policy", "noeviction"}})
	forEach(t, func(t *testing.T, v variant) {
		s := v.on(t, server.URL())
		a := attach(t, s, unique(t))
		for _, key := range []string{"hit", "set", "stale"} {
			a.set(key, string(envelope(store.KindValue, 0, time.Now().Add(time.Hour), "")))
		}
		l := a.win("leased")
		absent := a.win("absent")
		ok(t, raw(t, s, "CONFIG", "SET", "maxmemory", "1").Error())
		defer func() { ok(t, raw(t, s, "CONFIG", "SET", "maxmemory", "0").Error()) }()

		if !a.get("hit").Found {
			t.Error("a hit was lost")
		}
		_, err := l.Fill(a.ctx, []byte("v"), time.Minute)
		wantError(t, err, "fill", false, "OOM")
		if !must(l.Release(a.ctx))(t) {
			t.Error("the lease was lost by the refused fill")
		}
		_, err = a.Acquire(a.ctx, "leased", store.Request{Token: store.NewToken(), TTL: time.Minute})
		wantError(t, err, "acquire", false, "OOM")
		_, err = a.Set(a.ctx, "set", []byte("v"), time.Minute)
		wantError(t, err, "set", false, "OOM")
		a.wantMiss("set") // the old value would be wrong
		ok(t, a.Invalidate(a.ctx, "hit", "absent", "never"))
		a.wantMiss("hit")
		if must(absent.Renew(a.ctx, time.Minute))(t) {
			t.Error("the lease outlived the invalidation")
		}
		ok(t, a.Expire(a.ctx, time.Now(), "stale"))
		if e, err := store.Decode(a.get("stale").Data); err != nil || e.SoftExpiry.After(time.Now()) {
			t.Errorf("not expired: %v %v", e.SoftExpiry, err)
		}
	})
}

// minimalACL is what the package documentation says that a user needs.
const minimalACL = "resetchannels -@all ~of:* +get +mget +set +del +exists +pttl +pexpire +getrange +setrange +eval +evalsha +hello +ping +info +getex +time +client|tracking"

func TestMinimalACL(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{})
	args := append([]string{"ACL", "SETUSER", "cache", "on", ">secret"}, strings.Fields(minimalACL)...)
	if got := sayTo(t, server.Addr(), args...); got != "OK" {
		t.Fatal(got)
	}
	url := "redis://cache:secret@" + server.Addr()
	forEach(t, func(t *testing.T, v variant) {
		s := v.on(t, url)
		a := attach(t, s, unique(t))
		if a.Features().Push != v.push {
			t.Errorf("push %v", a.Features().Push)
		}
		for op := range every(a, nil) {
			if err := every(a, a.win("for "+op))[op](a.ctx); err != nil {
				t.Errorf("%s: %v", op, err)
			}
		}
	})
	if got := sayTo(t, server.Addr(), "ACL", "LOG"); strings.Contains(got, "evalsha") || strings.Contains(got, "lua") {
		t.Errorf("commands of ours were refused: %s", got)
	}
	t.Run("without tracking", func(t *testing.T) {
		sayTo(t, server.Addr(), "ACL", "SETUSER", "cache", "-client|tracking")
		for name, s := range map[string]*Store{"open": opened(t, url), "new": New(noCacheClient(t, url))} {
			t.Cleanup(func() { s.Close() })
			a := attach(t, s, unique(t))
			if a.Features().Push {
				t.Errorf("%s: pushes are declared", name)
			}
			a.set("k", "v")
			a.wantValue("k", "v")
		}
	})
	t.Run("without scripts", func(t *testing.T) {
		sayTo(t, server.Addr(), "ACL", "SETUSER", "cache", "-eval", "-evalsha")
		s := opened(t, url)
		t.Cleanup(func() { s.Close() })
		_, err := s.Attach(t.Context(), store.Config{Name: "n", AllowDown: true})
		wantError(t, err, "attach", false, "NOPERM", "script")
	})
}

// noCacheClient is a client as one makes it for a server without tracking.
func noCacheClient(t testing.TB, url string) rueidis.Client {
	t.Helper()
	option := rueidis.MustParseURL(url)
	option.DisableCache = true
	return must(rueidis.NewClient(option))(t)
}

func TestRESP2HasNoPushes(t *testing.T) {
	url := shared.Get(t).URL() + "?protocol=2&client_cache=0"
	for name, s := range map[string]*Store{"open": opened(t, url), "new": New(client(t, url))} {
		t.Cleanup(func() { s.Close() })
		a := attach(t, s, unique(t))
		if a.Features().Push {
			t.Errorf("%s: pushes are declared", name)
		}
		must(a.win("k").Fill(a.ctx, []byte("v"), time.Minute))(t)
		a.wantValue("k", "v")
	}
}

func TestRefusedOptions(t *testing.T) {
	for field, option := range map[string]rueidis.ClientOption{
		"InitAddress":           {},
		"ClientTrackingOptions": {InitAddress: []string{"h:1"}, ClientTrackingOptions: []string{"BCAST"}},
		"PipelineMultiplex":     {InitAddress: []string{"h:1"}, PipelineMultiplex: 2},
		"DisableAutoPipelining": {InitAddress: []string{"h:1"}, DisableAutoPipelining: true},
		"SendToReplicas":        {InitAddress: []string{"h:1"}, SendToReplicas: func(rueidis.Completed) bool { return true }},
	} {
		if _, err := OpenOption(option); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, url := range []string{"", "http://h", "redis://h/x", "redis://user:secret@h:port"} {
		_, err := Open(url)
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("Open(%q): %v", url, err)
		}
	}
}

func TestOnInvalidationsIsChained(t *testing.T) {
	heard := make(chan string, 100)
	option := rueidis.MustParseURL(shared.Get(t).URL())
	option.OnInvalidations = func(keys []rueidis.RedisMessage) {
		for _, key := range keys {
			s, _ := key.ToString()
			heard <- s
		}
	}
	s := must(OpenOption(option))(t)
	t.Cleanup(func() { s.Close() })
	a := attach(t, s, unique(t))
	a.get("k")
	ok(t, ask(t, s, a, "SET", "k", "x").Error())
	a.awaitChanged("k", 1)
	select {
	case got := <-heard:
		if want := valueKey(sessionPrefix(a.name), "k"); got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	case <-time.After(patience):
		t.Error("the user's function was not called")
	}
}

// Open finds out that the server is a cluster, and pushes work there; a cluster client
// of the user's works without.
func TestCluster(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{Args: []string{"--cluster-enabled", "yes"}})
	if got := sayTo(t, server.Addr(), "CLUSTER", "ADDSLOTSRANGE", "0", "16383"); got != "OK" {
		t.Fatal(got)
	}
	eventually(t, "the cluster is up", func() error {
		if info := sayTo(t, server.Addr(), "CLUSTER", "INFO"); !strings.Contains(info, "cluster_state:ok") {
			return errors.New(info)
		}
		return nil
	})
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			s, name := v.on(t, server.URL()), unique(t)
			a, b := attach(t, s, name), attach(t, v.on(t, server.URL()), name)
			push := v.name == "open"
			if a.Features().Push != push {
				t.Fatalf("push %v", a.Features().Push)
			}
			// A node that has met no other does not know its address, and says ":6379".
			if got := serverOf(a, "k0"); got != server.Addr() {
				t.Errorf("the server of a key is %q, expected %q", got, server.Addr())
			}
			var keys []string
			for i := range 50 {
				key := fmt.Sprint("k", i)
				keys = append(keys, key)
				must(a.win(key).Fill(a.ctx, []byte("v"), time.Minute))(t)
				a.wantValue(key, "v")
				if push && a.changes(key) != 0 {
					t.Errorf("%s: the own fill was told", key)
				}
			}
			ok(t, b.Invalidate(b.ctx, keys...))
			for _, key := range keys {
				if push {
					a.awaitChanged(key, 1)
				}
				a.wantMiss(key)
			}
		})
	}
}

func TestClosedClient(t *testing.T) {
	c := must(rueidis.NewClient(rueidis.MustParseURL(shared.Get(t).URL())))(t)
	c.Close()
	s := New(c)
	defer s.Close()
	_, err := s.Attach(t.Context(), store.Config{Name: "n"})
	wantError(t, err, "attach", true)
}
