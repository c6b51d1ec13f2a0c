package live_test

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/cmd/onefill/live"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

// TestBadSettings: what is out of bounds is refused by name, and changes nothing.
func TestBadSettings(t *testing.T) {
	t.Parallel()
	_, url := serve(t, options{})
	p := join(t, url, quiet)
	for _, tt := range []struct{ body, field, says string }{
		{`{"callers": 0}`, "callers", "allowed is 1 to 200"},
		{`{"callers": 201}`, "callers", "allowed is 1 to 200"},
		{`{"callers": -1}`, "callers", "-1"},
		{`{"callers": 1.5}`, "callers", "number 1.5"},
		{`{"callers": "many"}`, "callers", "string"},
		{`{"processes": 9}`, "processes", "1 to 8"},
		{`{"load_ms": 10}`, "load_ms", "50 to 3000"},
		{`{"load_ms": 999999999999}`, "load_ms", "50 to 3000"},
		{`{"lease_ms": 0}`, "lease_ms", "200 to 10000"},
		{`{"ttl_ms": 0}`, "ttl_ms", "500 to 30000"},
		{`{"jitter_pct": 101}`, "jitter_pct", "0 to 100"},
		{`{"failure_pct": -1}`, "failure_pct", "0 to 100"},
		{`{"modes": []}`, "modes", "name one at least"},
		{`{"modes": ["quick"]}`, "modes", `unknown mode \"quick\"`},
		{`{"modes": ["naive", "naive"]}`, "modes", "named twice"},
		{`{"modes": ["naive", "naive", "naive", "naive", "naive"]}`, "modes", "5 modes"},
		{`{"caller": 3}`, "", `unknown field \"caller\"`},
		{`{} {}`, "", "more than one value"},
		{`[]`, "", "array"},
		{``, "", "EOF"},
	} {
		for _, path := range []string{url + "session", p.url + "settings"} {
			status, text := post(t, path, tt.body)
			if status != http.StatusBadRequest || !strings.Contains(text, tt.says) || tt.field != "" && !strings.Contains(text, `"field":"`+tt.field+`"`) {
				t.Errorf("%s: %d %s; expected 400 with field %q and %q", tt.body, status, text, tt.field, tt.says)
			}
		}
	}
	checkLoads(t, p.herd(), 12, 3, 1, 1)
}

// TestGuard: requests that another site has led here are refused, with the headers that keep a
// browser from doing anything with the answer.
func TestGuard(t *testing.T) {
	t.Parallel()
	h, _ := serve(t, options{Hosts: []string{"lab.example"}})
	for _, tt := range []struct {
		method, path, host string
		header             map[string]string
		status             int
	}{
		{"GET", "/", "localhost:8461", nil, 200},
		{"GET", "/", "127.0.0.1:8461", nil, 200},
		{"GET", "/", "[::1]:8461", nil, 200},
		{"GET", "/", "192.0.2.7", nil, 200},
		{"GET", "/", "LAB.example:80", nil, 200},
		{"GET", "/", "evil.example", nil, 403},
		{"GET", "/app.js", "evil.example:8461", nil, 403},
		{"GET", "/", "localhost.evil.example", nil, 403},
		{"GET", "/", "127.0.0.1.evil.example", nil, 403},
		{"GET", "/", "", nil, 403},
		{"POST", "/session", "evil.example", nil, 403},
		{"POST", "/session", "localhost", map[string]string{"Origin": "http://evil.example"}, 403},
		{"POST", "/session", "localhost:1", map[string]string{"Origin": "http://localhost:2"}, 403},
		{"POST", "/session", "localhost", map[string]string{"Origin": "null"}, 403},
		{"POST", "/session", "localhost", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		{"POST", "/session", "localhost", map[string]string{"Sec-Fetch-Site": "same-site"}, 403},
		{"POST", "/session", "localhost", map[string]string{"Content-Type": "text/plain"}, 415},
		{"POST", "/session", "localhost", map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, 415},
		{"POST", "/session/0123/herd", "localhost", map[string]string{"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}, 404},
		{"POST", "/session/0123/settings", "localhost", nil, 404},
		{"POST", "/session/0123/explode", "localhost", nil, 404},
		{"GET", "/session", "localhost", nil, 404},
		{"DELETE", "/session", "localhost", nil, 405},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // what is not refused is a stream
		r := httptest.NewRequestWithContext(ctx, tt.method, tt.path, strings.NewReader("{}"))
		r.Host = tt.host
		r.Header.Set("Content-Type", "application/json")
		for name, value := range tt.header {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		cancel()
		if w.Code != tt.status {
			t.Errorf("%s %s, Host %q, %v: %d %s; expected %d", tt.method, tt.path, tt.host, tt.header, w.Code, w.Body, tt.status)
		}
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff",
			"Cross-Origin-Resource-Policy": "same-origin", "Referrer-Policy": "no-referrer",
		} {
			if got := w.Header().Get(name); !strings.Contains(got, want) {
				t.Errorf("%s %s: %s is %q", tt.method, tt.path, name, got)
			}
		}
		if w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Error("other sites may read the answer")
		}
	}
}

// TestLongBody: more than is needed is not read.
func TestLongBody(t *testing.T) {
	t.Parallel()
	_, url := serve(t, options{})
	if status, text := post(t, url+"session", `{"callers": `+strings.Repeat(" ", 5000)+`12}`); status != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %s", status, text)
	}
}

// TestPagesAreBounded: one page too many is told so; a place is free when a page has left.
func TestPagesAreBounded(t *testing.T) {
	t.Parallel()
	h, url := serve(t, options{MaxSessions: 2})
	first, second := join(t, url, "{}"), join(t, url, "{}")
	if status, text := post(t, url+"session", "{}"); status != http.StatusServiceUnavailable || !strings.Contains(text, "2 pages are open") {
		t.Errorf("%d %s", status, text)
	}
	second.do("expire", "{}") // goes on
	first.leave()
	poll(t, "a page has left", func() bool { return h.Sessions() == 1 })
	third := join(t, url, "{}")
	if third.hello.ID == first.hello.ID || third.hello.ID == second.hello.ID || len(third.hello.ID) != 32 {
		t.Errorf("sessions %s, %s, %s", first.hello.ID, second.hello.ID, third.hello.ID)
	}
	if status, _ := post(t, first.url+"herd", "{}"); status != http.StatusNotFound {
		t.Errorf("a page that has left can still send a herd: %d", status)
	}
}

// TestNothingIsLeft. Interleaving: the page leaves while a herd waits for loads that are paused,
// and traffic of four modes runs; all of it ends, in every mode, and the private server with it.
func TestNothingIsLeft(t *testing.T) {
	stores(t, func(t *testing.T, url string) {
		p := join(t, url, `{"callers": 50, "processes": 4}`)
		p.do("herd", "{}")
		p.over()
		p.do("pause", "{}")
		p.do("herd", "{}")
		p.until("the herd waits", func(f frame) bool { return f.Arms[live.ModeNaive].Running == 50 })
		p.leave()
		poll(t, "no goroutine of the page is left", func() bool { return ours() == "" })
	})
}

// ours is a goroutine of the page, its caches or its clients; empty if there is none. The
// package's tests have another path.
func ours() string {
	buf := make([]byte, 4<<20)
	for _, stack := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		for _, mark := range []string{"cmd/onefill/live.", "onefill/onefill.(", "internal/recipe", "redisstore.", "rueidis"} {
			if strings.Contains(stack, mark) {
				return stack
			}
		}
	}
	return ""
}

func poll(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s\n%s", what, ours())
		}
	}
}

// TestClose: pages that are open are told, sessions end, later ones are refused; twice is fine.
func TestClose(t *testing.T) {
	t.Parallel()
	h, url := serve(t, options{})
	p := join(t, url, "{}")
	must(t, h.Close())
	must(t, h.Close())
	p.until("the page is told", func(f frame) bool { return strings.Contains(f.End, "stopped") })
	if h.Sessions() != 0 {
		t.Errorf("%d sessions", h.Sessions())
	}
	if status, _ := post(t, url+"session", "{}"); status != http.StatusServiceUnavailable {
		t.Errorf("a page after Close: %d", status)
	}
}

// TestMounted: the page works at any path of another server.
func TestMounted(t *testing.T) {
	t.Parallel()
	url := serveBelow(t, "/tools/onefill/")
	checkLoads(t, join(t, url, quiet).herd(), 12, 3, 1, 1)
	r, err := http.Get(url)
	must(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	must(t, err)
	if !strings.Contains(string(text), "<title>onefill live</title>") {
		t.Errorf("%d %s", r.StatusCode, text)
	}
}

// TestGivenRedis: a server that was given is used under names of its own, and never stopped.
func TestGivenRedis(t *testing.T) {
	t.Parallel()
	srv := servertest.Redis(t, servers.RedisOptions{})
	_, url := serve(t, options{RedisURL: srv.URL()})
	slash, err := live.New(options{RedisURL: srv.URL() + "/"}) // as every other command takes it
	must(t, err)
	must(t, slash.Close())
	p := join(t, url, quiet)
	checkLoads(t, p.herd(), 12, 3, 1, 1)
	if p.hello.MayKill || !strings.Contains(p.hello.Store, "given") {
		t.Errorf("%+v", p.hello)
	}
	if status, text := post(t, p.url+"kill", "{}"); status != http.StatusConflict || !strings.Contains(text, "given") {
		t.Errorf("kill: %d %s", status, text)
	}
	checkLoads(t, p.herd(), 12, 3, 1, 1)

	// The server goes away by itself: new caches cannot be made, which is said, and can be made again
	// when it is back.
	must(t, srv.Kill())
	const four = `{"traffic": false, "load_ms": 1200, "processes": 4}`
	if status, text := post(t, p.url+"settings", four); status != http.StatusServiceUnavailable || !strings.Contains(text, "open the caches") {
		t.Errorf("without the server: %d %s", status, text)
	}
	p.do("herd", "{}") // of no mode
	p.do("expire", "{}")
	must(t, srv.RestartEmpty(t.Context()))
	p.until("the herd of no mode is over", func(f frame) bool {
		return f.State.Herds == p.herds && !f.State.Herd && len(f.Arms) == 0
	})
	p.do("settings", four)
	p.herd() // in which connections to the server that is back are made, each in its time
	checkLoads(t, p.herd(), 12, 4, 1, 1)
}

// TestCannotBeFlushed: a server around the page whose ResponseWriter hides Flush is named as
// what is wrong, instead of streams that end after their first line.
func TestCannotBeFlushed(t *testing.T) {
	t.Parallel()
	h, err := live.New(options{})
	must(t, err)
	defer h.Close()
	type plain struct{ http.ResponseWriter }
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(plain{w}, r) }))
	defer s.Close()
	if status, text := post(t, s.URL+"/session", "{}"); status != http.StatusInternalServerError || !strings.Contains(text, "Unwrap") {
		t.Errorf("%d %s", status, text)
	}
}

func TestBadOptions(t *testing.T) {
	for _, tt := range []struct {
		o    options
		says string
	}{
		{options{Store: "etcd"}, `Options.Store: unknown store "etcd"; known: memory, redis`},
		{options{Store: "memory", RedisURL: "redis://x"}, `Options.RedisURL: excludes the store "memory"`},
		{options{RedisURL: "redis://:secret@127.0.0.1:1"}, "127.0.0.1:1"},
		{options{RedisURL: "redis://:secret@%zz"}, "Options.RedisURL"},
		{options{RedisURL: "redis://:a/secret@127.0.0.1:1"}, "Options.RedisURL"}, // / is to be written as %2F
		{options{RedisURL: "redis:/:secret@127.0.0.1:1"}, "Options.RedisURL"},
		{options{MaxSessions: -1}, "Options.MaxSessions: -1 is negative"},
		{options{Hosts: []string{"lab.example:8461"}}, `Options.Hosts: "lab.example:8461" is no name`},
		{options{Hosts: []string{""}}, `Options.Hosts: "" is no name`},
	} {
		_, err := live.New(tt.o)
		if err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: %v; expected %q, and no password", tt.o, err, tt.says)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := live.New(options{Store: live.StoreRedis}); err == nil || !strings.Contains(err.Error(), "redis-server is not on PATH") {
		t.Errorf("without redis-server: %v", err)
	}
}

// TestPageNeedsNobody: no other host, nothing that the policy forbids, and every file that is named
// is there.
func TestPageNeedsNobody(t *testing.T) {
	t.Parallel()
	page := os.DirFS("page")
	forbidden := regexp.MustCompile(`(?i)(https?:)?//[a-z0-9.-]+\.[a-z]{2,}|\son[a-z]+\s*=\s*["']|\sstyle="|<style|<script>|javascript:|\beval\(|innerHTML`)
	named := regexp.MustCompile(`(?:src|href)="([^"#]+)"|from "\./([^"]+)"`)
	err := fs.WalkDir(page, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(page, name)
		must(t, err)
		found := forbidden.FindAllString(strings.ReplaceAll(string(text), `xmlns="http://www.w3.org/2000/svg"`, ""), -1)
		if len(found) > 0 {
			t.Errorf("%s has %q", name, found)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			if _, err := fs.Stat(page, m[1]+m[2]); err != nil {
				t.Errorf("%s names %s, which is not there", name, m[1]+m[2])
			}
		}
		return nil
	})
	must(t, err)
	if !forbidden.MatchString(`<p onclick="x()">`) || !forbidden.MatchString(`"https://cdn.example/x.js"`) || !forbidden.MatchString(`<p style="x">`) {
		t.Error("what is forbidden would not be found")
	}
}

func ExampleNew() {
	page, err := live.New(live.Options{})
	if err != nil {
		panic(err)
	}
	defer page.Close()
	mux := http.NewServeMux()
	mux.Handle("/onefill/", http.StripPrefix("/onefill", page))
	r := httptest.NewRequest("GET", "http://localhost/onefill/", nil)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	fmt.Println(w.Code, w.Header().Get("Content-Type"))
	// Output: 200 text/html; charset=utf-8
}
