package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/memcachestore"
	"github.com/onefill/onefill/redisstore"
	"github.com/onefill/onefill/store"
)

var (
	sharedRedis     = servertest.SharedRedis(servers.RedisOptions{Password: "secret"})
	sharedMemcached = [2]*servertest.Shared{servertest.SharedMemcached(servers.MemcachedOptions{}), servertest.SharedMemcached(servers.MemcachedOptions{})}
)

// forStores runs a test on a Redis with a password and on two memcached servers, for a
// cache of that name; args are the flags that name it and the servers.
func forStores(t *testing.T, do func(t *testing.T, open func() store.Store, name string, args []string)) {
	name := strings.ToLower(t.Name())
	t.Run("redis", func(t *testing.T) {
		url := sharedRedis.Get(t).URL()
		t.Setenv("ONEFILL_REDIS", url)
		do(t, func() store.Store {
			st, err := redisstore.Open(url)
			must(t, err)
			t.Cleanup(func() { st.Close() })
			return st
		}, name, []string{"--cache", name})
	})
	t.Run("memcached", func(t *testing.T) {
		a, b := sharedMemcached[0].Get(t).Addr(), sharedMemcached[1].Get(t).Addr()
		do(t, func() store.Store {
			st := memcachestore.New(a, b)
			t.Cleanup(func() { st.Close() })
			return st
		}, name, []string{"--cache", name, "--memcached", a + "," + b})
	})
}

// states are keys in every state that a key can have, each called by its state.
func states(t *testing.T, st store.Store, name string) {
	t.Helper()
	c, err := onefill.New(onefill.Options[string, string]{
		Name: name, Store: st, TTL: time.Hour, StaleFor: time.Hour, ErrorTTL: time.Minute, Jitter: onefill.NoJitter, StoreTimeout: 10 * time.Second,
		Local: onefill.LocalOptions{Off: true}, MaxValueBytes: 1000, Logger: slog.New(slog.DiscardHandler),
		TagsOf:  func(key, _ string) []string { return []string{"tag of " + key} },
		Version: func(string) uint64 { return 7 },
		Load: func(_ context.Context, key string) (string, error) {
			switch key {
			case "not_found":
				return "", onefill.ErrNotFound
			case "failed":
				return "", errors.New("no route to host")
			case "unstorable":
				return strings.Repeat("x", 1000), nil
			}
			return "text of " + key, nil
		},
	})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	for _, key := range []string{"fresh", "stale", "void", "not_found", "unstorable", "failed", "over"} {
		_, err := c.Get(t.Context(), key)
		if err != nil && key != "not_found" && key != "failed" {
			t.Fatal(key, err)
		}
	}
	must(t, c.Expire(t.Context(), "stale", "over"))
	must(t, c.InvalidateTag(t.Context(), "tag of void"))

	s, err := st.Attach(t.Context(), store.Config{Name: name, Owner: "web-3:4711"})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	if _, err := s.Set(t.Context(), "undecodable", []byte("\x00\xffsomebody else's"), time.Hour); err != nil {
		t.Fatal(err)
	}
	over, err := s.Get(t.Context(), "over")
	must(t, err)
	for key, seen := range map[string][]byte{"leased": nil, "over": store.MarkOf(over.Data)} {
		a, err := s.Acquire(t.Context(), key, store.Request{Token: store.NewToken(), TTL: time.Minute, Seen: seen})
		if err != nil || a.State != store.Won {
			t.Fatal(key, a.State, err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestInspectStates(t *testing.T) {
	forStores(t, func(t *testing.T, open func() store.Store, name string, args []string) {
		states(t, open(), name)
		inspect := func(key string) inspectLine {
			t.Helper()
			return read[inspectLine](t, ok(t, append([]string{"inspect", "--json", key}, args...)...))
		}
		for key, want := range map[string]string{"fresh": "fresh", "stale": "stale", "void": "void", "not_found": "not_found", "unstorable": "unstorable",
			"undecodable": "undecodable", "absent": "absent", "leased": "absent", "over": "stale", "failed": "absent"} {
			l := inspect(key)
			if l.State != want || l.Key != key || l.Cache != name || !strings.Contains(l.Server, "127.0.0.1:") {
				t.Errorf("%s: %+v", key, l)
			}
			if (l.Lease != nil) != (key == "leased" || key == "over") || (l.Failure != nil) != (key == "failed") || (l.Value != nil) != (want != "absent") {
				t.Errorf("%s: value %+v, lease %+v, failure %+v", key, l.Value, l.Lease, l.Failure)
			}
			if again := inspect(key); again.State != want || (again.Lease == nil) != (l.Lease == nil) { // looking has changed nothing
				t.Errorf("%s, looked at twice: %+v", key, again)
			}
		}
		checkFields(t, inspect)
		text := ok(t, append([]string{"inspect", "fresh"}, args...)...)
		for _, want := range []string{`key +"fresh" of ` + name + ` at 127\.0\.0\.1:\d+`, `state +fresh`, `age +\d+m?s, loaded at 20\d\d-\S+Z in `, `fresh +for (59m5\d|1h0m0)s more`, `kept +for (1h59m5\d|2h0m\d+)s more`,
			`version +[0-9a-f]{32}, lease granted at 20`, `row version +7`, `size +\d+ bytes, 13 of them the value's`, `codec +raw`, `checksum +ok`,
			`tag +\(the whole cache\) valid`, `tag +"tag of fresh" valid`} {
			if !regexp.MustCompile(`(?m)^` + want).MatchString(text) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
		held := regexp.MustCompile(`(?m)^lease +held by web-3:4711 \(lease ends in [\dms.]+s\), token [0-9a-f]{32}`)
		if text := ok(t, append([]string{"inspect", "over"}, args...)...); !held.MatchString(text) {
			t.Errorf("no %q in\n%s", held, text)
		}
		if strings.Contains(text, "text of fresh") || strings.Contains(text, "\x1b") {
			t.Errorf("the value is shown unasked, or there are colours: %s", text)
		}
	})
}

// checkFields looks at what --json says of some keys.
func checkFields(t *testing.T, inspect func(string) inspectLine) {
	t.Helper()
	hour := time.Hour.Milliseconds()
	v := inspect("fresh").Value
	if v.LeftMS <= hour || v.LeftMS > 2*hour+2000 || v.FreshForMS <= hour-60_000 || v.FreshForMS > hour || v.AgeMS < 0 || v.AgeMS > 60_000 {
		t.Errorf("times: %+v", v)
	}
	if v.RowVersion != 7 || v.Codec != "raw" || !v.ChecksumOK || v.PayloadBytes != len("text of fresh") || v.Bytes <= v.PayloadBytes || v.Text != nil || v.Base64 != nil {
		t.Errorf("fields: %+v", v)
	}
	if time.Since(*v.LeaseGranted).Abs() > time.Minute || time.Since(*v.Created).Abs() > time.Minute || len(v.Version) != 32 {
		t.Errorf("version: %+v", v)
	}
	void := inspect("void")
	tag := void.Value.Tags[1]
	if tag.Tag != "tag of void" || tag.Valid || tag.Voided == nil || time.Since(*tag.Voided).Abs() > time.Minute || !void.Value.Tags[0].Valid || !strings.Contains(void.Why, `"tag of void" was invalidated at 20`) {
		t.Errorf("void: %+v %+v", void, void.Value.Tags)
	}
	if l := inspect("over").Lease; l.LeftMS <= 0 || l.LeftMS > 62_000 || l.ID == "" || len(l.Token) != 32 || l.Owner != "web-3:4711" {
		t.Errorf("lease: %+v", l)
	}
	if l := inspect("leased").Lease; (l.Owner != "") != (l.Token != "") || l.Owner != "" && l.Owner != "web-3:4711" { // memcached has neither yet
		t.Errorf("lease on an absent key: %+v", l)
	}
	if f := inspect("failed").Failure; f.Message != "no route to host" || f.Failures != 1 || f.BlocksMS <= 0 || f.BlocksMS > 62_000 || f.LeftMS <= f.BlocksMS {
		t.Errorf("failure: %+v", f)
	}
	if why := inspect("undecodable").Why; !strings.Contains(why, "not a onefill envelope") {
		t.Errorf("undecodable: %q", why)
	}
}

// The value is shown only where it is asked for: text as it is, other bytes in base64, and
// nothing that a terminal would take for a command.
func TestInspectValue(t *testing.T) {
	forStores(t, func(t *testing.T, open func() store.Store, name string, args []string) {
		states(t, open(), name)
		inspect := func(more ...string) string {
			return ok(t, append(append([]string{"inspect"}, args...), more...)...)
		}
		if v := read[inspectLine](t, inspect("--json", "--value", "stale")).Value; v.Text == nil || *v.Text != "text of stale" || v.Base64 != nil {
			t.Errorf("%+v", v)
		}
		if v := read[inspectLine](t, inspect("--json", "--value", "undecodable")).Value; v.Text != nil || *v.Base64 != "AP9zb21lYm9keSBlbHNlJ3M=" {
			t.Errorf("%+v", v)
		}
		if text := inspect("--value", "stale"); !strings.HasSuffix(text, "\nvalue\ntext of stale\n") {
			t.Errorf("%s", text)
		}
		if text := inspect("--raw", "undecodable"); text != "\x00\xffsomebody else's" {
			t.Errorf("%q", text)
		}
		if text := inspect("--raw", "stale"); text != "text of stale" {
			t.Errorf("%q", text)
		}
		for _, key := range []string{"absent", "not_found", "unstorable"} { // a mark is not the empty value
			fails(t, exitFailed, "there is no value", append([]string{"inspect", "--raw", key}, args...)...)
			if v := read[inspectLine](t, inspect("--json", "--value", key)).Value; v != nil && (v.Text != nil || v.Base64 != nil) {
				t.Errorf("%s: %+v", key, v)
			}
		}
	})
}

func TestPrintableText(t *testing.T) {
	for text, want := range map[string]bool{"": true, "a\n\tb": true, "ключ 鍵": true, "\x1b[2J": false, "a\x00": false, "\xff": false, "\u009b2J": false, "\u202e": false} {
		if printableText(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}

// A server that hangs, or is not there, is an error with the address, no password, and in
// time.
func TestInspectStoreDown(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{Password: "secret"})
	t.Setenv("ONEFILL_REDIS", server.URL())
	must(t, server.Pause())
	for _, args := range [][]string{{"inspect"}, {"why"}, {"lease", "break", "--yes"}} {
		start := time.Now()
		code, out, errs := run(t, append(args, "--cache", "users", "--timeout", "100ms", "42")...)
		if code != exitFailed || out != "" || !strings.Contains(errs, server.Addr()) || strings.Contains(errs, "secret") {
			t.Errorf("%q: %d, %q, %q", args, code, out, errs)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%q took %v", args, took)
		}
	}
	must(t, server.Continue())
	must(t, server.Stop())
	fails(t, exitFailed, server.Addr(), "inspect", "--cache", "users", "42")
}

type badInputCase struct{ args, says string }

// badInputs runs commands that must be refused as bad input, with what is said about it.
func badInputs(t *testing.T, cases []badInputCase) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.args, func(t *testing.T) {
			code, stdout, stderr := run(t, strings.Fields(tt.args)...)
			if code != exitInput || stdout != "" || !strings.Contains(stderr, tt.says) || strings.Contains(stderr, "secret") {
				t.Errorf("exit code %d, %q, %q; want %d, %q and no password", code, stdout, stderr, exitInput, tt.says)
			}
		})
	}
}

func TestLookBadInput(t *testing.T) {
	badInputs(t, []badInputCase{
		{"inspect --cache users --redis redis://h", "no key is given"},
		{"inspect --cache users --redis redis://h 1 2", "2 keys are given; it takes one"},
		{"inspect --redis redis://h 1", "--cache: the name is empty"},
		{"inspect --cache users 1", "set ONEFILL_REDIS"},
		{"inspect --cache users --redis redis://h --memcached h:1 1", "--redis: excludes --memcached"},
		{"inspect --cache users --redis redis://u:secret@h 1", "ONEFILL_REDIS"},
		{"inspect --cache users --redis http://h 1", "--redis"},
		{"inspect --cache users --redis redis://h --timeout 0 1", "--timeout"},
		{"inspect --cache users --redis redis://h --raw --json 1", "--raw: excludes --json"},
		{"why --cache users --redis redis://h --stale-for -1s 1", "--stale-for: -1s"},
		{"why --cache users --redis redis://h", "no key is given"},
		{"lease break --cache users --redis redis://h 1", "give --yes"},
		{"lease brake", "unknown command"},
	})
	fails(t, exitInput, "the key is empty", "inspect", "--cache", "users", "--redis", "redis://h", "")
}

// What is typed goes before the environment, also where two flags exclude each other; two
// variables are still one too many.
func TestTypedStoreWins(t *testing.T) {
	t.Setenv("ONEFILL_REDIS", "redis://127.0.0.1:1")
	for _, command := range []string{"inspect", "why", "invalidate"} {
		fails(t, exitFailed, "memcached at 127.0.0.1:2", command, "--cache", "users", "--memcached", "127.0.0.1:2", "1")
	}
	fails(t, exitInput, "--memcached: cannot use the server", "bench", "--memcached", "127.0.0.1:2")
	t.Setenv("ONEFILL_MEMCACHED", "127.0.0.1:2")
	fails(t, exitFailed, "redis at 127.0.0.1:3", "inspect", "--cache", "users", "--redis", "redis://127.0.0.1:3", "1")
	fails(t, exitInput, "--redis: excludes --memcached", "inspect", "--cache", "users", "1")
}

// The codecs' names are those of the library.
func TestCodecNames(t *testing.T) {
	if got := onefill.JSON[int]().Name(); codecName(codecID(got)) != got {
		t.Errorf("the codec %q is not known", got)
	}
	if name := codecName(codecID("proto")); name != "" {
		t.Errorf("a codec of one's own is called %q", name)
	}
}

// It works in a cluster, where value and tags lie on different nodes.
func TestInspectInACluster(t *testing.T) {
	shards := servertest.RedisCluster(t, 2)
	url := shards[0].Primary.URL()
	t.Setenv("ONEFILL_REDIS", url)
	st, err := redisstore.Open(url)
	must(t, err)
	defer st.Close()
	c, err := onefill.New(onefill.Options[string, string]{Name: "users", Store: st, StoreTimeout: 10 * time.Second, Tags: true, Logger: slog.New(slog.DiscardHandler),
		TagsOf: func(key, _ string) []string { return []string{"t"} }})
	must(t, err)
	defer c.Close()
	seen := map[string]bool{}
	for i := range 20 {
		key := fmt.Sprint(i)
		must(t, c.Set(t.Context(), key, "v"))
		l := read[inspectLine](t, ok(t, "inspect", "--cache", "users", "--json", key))
		if l.State != stateFresh || len(l.Value.Tags) != 2 {
			t.Errorf("%+v", l)
		}
		seen[l.Server] = true
	}
	if len(seen) != 2 {
		t.Errorf("the keys of two shards lie on %v", seen)
	}
	must(t, c.InvalidateTag(t.Context(), "t"))
	if l := read[inspectLine](t, ok(t, "inspect", "--cache", "users", "--json", "3")); l.State != stateVoid {
		t.Errorf("%+v", l)
	}
}

// stopShared is for TestMain.
func stopShared() {
	sharedRedis.Stop()
	for _, s := range sharedMemcached {
		s.Stop()
	}
}
