package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/watch"
)

// app is an application: a cache, and a port where its Recorder can be asked.
type app struct {
	recorder *watch.Recorder
	cache    *onefill.Cache[string, string]
	server   *httptest.Server
	open     chan struct{} // the loader waits for it
}

func startApp(t *testing.T) *app {
	t.Helper()
	a := &app{recorder: watch.New(watch.Options{}), open: make(chan struct{})}
	c, err := onefill.New(onefill.Options[string, string]{
		Name: "users", Observer: a.recorder, Logger: slog.New(slog.DiscardHandler),
		Load: func(ctx context.Context, key string) (string, error) {
			<-a.open
			if key == "broken" {
				return "", fmt.Errorf("no \x1b[31mtable")
			}
			return "v", nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	a.cache = c
	a.server = httptest.NewServer(a.recorder)
	t.Cleanup(func() {
		a.recorder.Close()
		a.server.Close()
		c.Close()
	})
	return a
}

// herd makes n callers wait for a key, lets the load go on, and waits until the Recorder knows of the group's
// end: the flight tells of it when the callers have their answer already.
func (a *app) herd(t *testing.T, n int, key string) {
	t.Helper()
	known := func() int { return len(a.recorder.Snapshot(0, watch.Filter{Key: key}).Recent) }
	before := known()
	var all sync.WaitGroup
	for range n {
		all.Go(func() { a.cache.Get(t.Context(), key) })
	}
	until(t, "everybody waits", func() bool {
		live := a.recorder.Live(0, watch.Filter{Key: key})
		return len(live) == 1 && live[0].Waiting == n && live[0].Outcome == watch.Loading
	})
	a.open <- struct{}{}
	all.Wait()
	until(t, "the group is known", func() bool { return known() > before })
}

// until polls a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for tick := time.NewTicker(time.Millisecond); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited 20 s until %s", what)
		}
	}
}

// command is a command that runs meanwhile.
type command struct {
	stop           context.CancelFunc
	mu             sync.Mutex
	stdout, stderr bytes.Buffer
	done           chan int
}

type locked struct {
	c *command
	b *bytes.Buffer
}

func (l locked) Write(p []byte) (int, error) {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	return l.b.Write(p)
}

func begin(t *testing.T, args ...string) *command {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	c := &command{stop: stop, done: make(chan int, 1)}
	go func() { c.done <- Run(ctx, args, strings.NewReader(""), locked{c, &c.stdout}, locked{c, &c.stderr}) }()
	t.Cleanup(stop)
	return c
}

func (c *command) output() (stdout, stderr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stdout.String(), c.stderr.String()
}

// says waits until the output has a text.
func (c *command) says(t *testing.T, text string) {
	t.Helper()
	until(t, fmt.Sprintf("the command says %q", text), func() bool {
		stdout, stderr := c.output()
		return strings.Contains(stdout, text) || strings.Contains(stderr, text)
	})
}

func (c *command) end(t *testing.T) (code int, stdout, stderr string) {
	t.Helper()
	select {
	case code = <-c.done:
	case <-time.After(20 * time.Second):
		t.Fatal("the command does not end")
	}
	stdout, stderr = c.output()
	return code, stdout, stderr
}

// followed waits until somebody reads the stream: from then on nothing is missed.
func (a *app) followed(t *testing.T) {
	t.Helper()
	until(t, "the stream is read", func() bool { return a.recorder.Followers() > 0 })
}

func TestWatchShowsGroups(t *testing.T) {
	a := startApp(t)
	c := begin(t, "watch", "--app", a.server.URL)
	a.followed(t)
	a.herd(t, 12, "k\x1b[2J")
	a.herd(t, 1, "broken")
	c.says(t, "table\n")
	c.stop()
	code, stdout, stderr := c.end(t)
	if code != exitInterrupted || stderr != "onefill: interrupted\n" {
		t.Errorf("exit code %d, %q", code, stderr)
	}
	// Where the machine is so busy that a herd takes more than a second, it is shown before, too.
	got := slices.DeleteFunc(strings.Split(stdout, "\n"), func(line string) bool { return strings.HasSuffix(line, "  loading") })
	if len(got) != 3 {
		t.Fatalf("%q", stdout)
	}
	for i, want := range [][]string{{"users", `k\x1b[2J`, "12 callers", "1 load ", "loaded"}, {"broken", "1 caller ", "1 load ", `error: onefill: loading "broken": no \x1b[31mtable`}} {
		for _, part := range want {
			if !strings.Contains(got[i], part) {
				t.Errorf("line %d, %q, has no %q", i+1, got[i], part)
			}
		}
	}
	if strings.ContainsRune(stdout, '\x1b') {
		t.Error("what others have named steers the terminal")
	}
}

func TestWatchJSONAndFilters(t *testing.T) {
	a := startApp(t)
	c := begin(t, "watch", "--app", a.server.URL, "--json", "--cache", "users", "--key", "b", "--count", "1")
	a.followed(t)
	a.herd(t, 2, "a")
	a.herd(t, 3, "b")
	code, stdout, _ := c.end(t)
	line := read[watchLine](t, stdout)
	// On a busy machine the herd may take so long that it is shown while it goes on.
	whole := line.Outcome == watch.Loaded && line.Callers == 3 && line.Loads == 1 || line.Outcome == watch.Loading && line.TookMS >= 1000
	if code != exitOK || line.Key != "b" || !whole || line.App == "" {
		t.Errorf("exit code %d, %+v", code, line)
	}
}

// TestWatchShowsWhatHangs: a group that goes on for more than a second is shown while it does.
func TestWatchShowsWhatHangs(t *testing.T) {
	a := startApp(t)
	c := begin(t, "watch", "--app", a.server.URL)
	a.followed(t)
	go a.cache.Get(t.Context(), "hangs")
	c.says(t, "loading")
	a.open <- struct{}{}
	c.says(t, "loaded")
	c.stop()
	if code, _, stderr := c.end(t); code != exitInterrupted || stderr != "onefill: interrupted\n" {
		t.Errorf("after Ctrl-C: exit code %d, %q", code, stderr)
	}
}

// TestWatchReconnects: the application is stopped and started again on its port. The command
// says so, and goes on.
func TestWatchReconnects(t *testing.T) {
	a := startApp(t)
	serve := func(addr string) (string, func()) {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: a.recorder}
		go s.Serve(l)
		return l.Addr().String(), func() { s.Close() }
	}
	addr, stop := serve("127.0.0.1:0")
	c := begin(t, "watch", "--app", "http://"+addr, "--count", "2")
	a.followed(t)
	a.herd(t, 1, "before")
	c.says(t, "before")
	stop()
	c.says(t, "trying again")
	_, stop = serve(addr)
	defer stop()
	c.says(t, "connected again")
	a.herd(t, 1, "after")
	if code, stdout, _ := c.end(t); code != exitOK || !strings.Contains(stdout, "after") {
		t.Errorf("exit code %d, %q", code, stdout)
	}
}

// TestAppsThatDoNotAnswer: what is wrong is said, in exit code and text, without the password.
func TestAppsThatDoNotAnswer(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	defer other.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	forbidden := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Host = "app.example"
		watch.New(watch.Options{}).ServeHTTP(w, r)
	}))
	defer forbidden.Close()
	for _, cmd := range []string{"watch", "top"} {
		fails(t, exitInput, "ONEFILL_APP", cmd)
		fails(t, exitInput, "no http:// URL", cmd, "--app", "localhost:6060")
		fails(t, exitInput, "--timeout", cmd, "--app", other.URL, "--timeout", "0")
		fails(t, exitFailed, "no watch.Recorder", cmd, "--app", other.URL)
		fails(t, exitFailed, "refused", cmd, "--app", gone.URL)
		fails(t, exitFailed, "watch.Options.Hosts", cmd, "--app", forbidden.URL)
		_, _, stderr := run(t, cmd, "--app", "http://u:secret@127.0.0.1:1")
		if !strings.Contains(stderr, "ONEFILL_APP") || strings.Contains(stderr, "secret") {
			t.Errorf("%s: a password on the command line: %q", cmd, stderr)
		}
		t.Run(cmd, func(t *testing.T) {
			t.Setenv("ONEFILL_APP", "http://u:secret@"+gone.Listener.Addr().String())
			if _, _, stderr := run(t, cmd); !strings.Contains(stderr, "refused") || strings.Contains(stderr, "secret") {
				t.Errorf("%s: a password in the environment: %q", cmd, stderr)
			}
		})
	}
	fails(t, exitInput, "--count", "watch", "--app", other.URL, "--count", "-1")
	fails(t, exitInput, "--keys", "top", "--app", other.URL, "--keys", "0")
	fails(t, exitInput, "--interval", "top", "--app", other.URL, "--interval", "1ms")
}

// TestWatchSaysWhoIsSilent: an application takes the connection, and says nothing.
func TestWatchSaysWhoIsSilent(t *testing.T) {
	gone := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-gone }))
	defer silent.Close()
	defer close(gone)
	fails(t, exitFailed, silent.Listener.Addr().String()+": nothing was heard for 100ms", "watch", "--app", silent.URL, "--timeout", "100ms")
}

// full is a disk that is.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// TestWatchCannotPrint: an output that takes nothing ends the command. Asking the application again does not help.
func TestWatchCannotPrint(t *testing.T) {
	a := startApp(t)
	code := make(chan int, 1)
	var stderr bytes.Buffer
	go func() {
		code <- Run(t.Context(), []string{"watch", "--app", a.server.URL}, strings.NewReader(""), full{}, &stderr)
	}()
	a.followed(t)
	a.herd(t, 1, "k")
	select {
	case c := <-code:
		if c != exitFailed || !strings.Contains(stderr.String(), "no space left") || strings.Contains(stderr.String(), "again") {
			t.Errorf("exit code %d, %q", c, stderr.String())
		}
	case <-time.After(20 * time.Second):
		t.Error("it does not end")
	}
}

// TestWatchTellsLoadsFromWaits: what this process has loaded, and what it has waited for, are two things, also
// where the row does not exist.
func TestWatchTellsLoadsFromWaits(t *testing.T) {
	w := watching{apps: apps{urls: []string{"http://127.0.0.1"}}}
	for want, g := range map[string]watch.Group{
		"  load     250ms  1 load   loaded\n":     {LoadMS: 250, Loads: 1, Outcome: watch.Loaded},
		"  wait     250ms  1 load   lease wait\n": {LeaseMS: 250, Loads: 1, Outcome: watch.LeaseWait},
		"  wait     250ms  1 load   not found\n":  {LeaseMS: 250, Loads: 1, Outcome: watch.NotFound},
		"  load     100ms  2 loads  loaded\n":     {LeaseMS: 250, LoadMS: 100, Loads: 2, Outcome: watch.Loaded},
		"                  0 loads  error\n":      {Outcome: watch.Failed},
	} {
		if got := w.text("http://127.0.0.1", &g); !strings.HasSuffix(got, want) {
			t.Errorf("%q, expected %q", got, want)
		}
	}
}

// TestTextIsPlain: nothing that an application sends steers the terminal.
func TestTextIsPlain(t *testing.T) {
	w := watching{apps: apps{urls: []string{"http://127.0.0.1"}}}
	esc := "\x1b[2J"
	if s := w.text("http://127.0.0.1", &watch.Group{Cache: esc, Key: esc, Outcome: watch.Outcome(esc), Error: esc}); strings.ContainsRune(s, '\x1b') {
		t.Errorf("%q", s)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			http.ReadRequest(bufio.NewReader(c))
			io.WriteString(c, "HTTP/1.1 418 "+esc+"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			c.Close()
		}
	}()
	for _, cmd := range []string{"watch", "top"} {
		if _, _, stderr := run(t, cmd, "--app", "http://"+l.Addr().String()); !strings.Contains(stderr, "418") || strings.ContainsRune(stderr, '\x1b') {
			t.Errorf("%s: %q", cmd, stderr)
		}
	}
}

// TestTopAddsUp: two applications have missed the same key; top shows one row for it.
func TestTopAddsUp(t *testing.T) {
	a, b := startApp(t), startApp(t)
	a.herd(t, 5, "k")
	b.herd(t, 7, "k")
	b.herd(t, 1, "broken")
	b.recorder.Observe(onefill.Event{Kind: onefill.EventMiss, Cache: "users", Key: "lost", N: 3, Callers: 1})
	apps := a.server.URL + "," + b.server.URL
	r := read[topReport](t, ok(t, "top", "--app", apps, "--once", "--json", "--keys", "2"))
	if len(r.Apps) != 2 || len(r.Caches) != 1 || r.Caches[0].Groups != 4 || r.Caches[0].GroupLoads != 6 || r.Caches[0].LoadsPerGroup != 1.5 || r.Caches[0].LoadErrors != 1 {
		t.Errorf("%+v", r)
	}
	if len(r.Hot) != 2 || r.Hot[0].Key != "k" || r.Hot[0].CallsPerSec < 0.1 || r.Hot[0].CallsPerSec > 12 {
		t.Errorf("hot: %+v", r.Hot)
	}
	if len(r.Missed) != 2 || r.Missed[0].Key != "k" || r.Missed[0].Groups != 2 || r.Missed[0].Loads != 2 || r.Missed[0].LoadsPerGroup != 1 {
		t.Errorf("missed: %+v", r.Missed)
	}
	if len(r.Extra) != 1 || r.Extra[0].Key != "lost" || r.Extra[0].LoadsPerGroup != 3 || r.Extra[0].Groups != 1 {
		t.Errorf("extra: %+v", r.Extra)
	}
	if len(r.Slow) != 2 {
		t.Errorf("slow: %+v", r.Slow)
	}
	page := ok(t, "top", "--app", apps, "--once")
	for _, want := range []string{"2 of 2 processes answer", "1.50", "users  k\n", "users  lost\n", "users  broken\n"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}
	if strings.ContainsRune(page, '\x1b') {
		t.Error("a page that is not for a terminal has control sequences")
	}
}

// TestTopSaysWhoIsGone: one of two applications does not answer. The other is shown, and the
// exit code says that it is not all.
func TestTopSaysWhoIsGone(t *testing.T) {
	a := startApp(t)
	gone := httptest.NewServer(nil)
	gone.Close()
	page := fails(t, exitFailed, "refused", "top", "--app", a.server.URL+","+gone.URL, "--once")
	if !strings.Contains(page, "1 of 2 processes answer") || !strings.Contains(page, gone.Listener.Addr().String()) || !strings.Contains(page, "none, as it should be") {
		t.Error(page)
	}
}

// TestTopGoesOn: without --once it is printed again until it is interrupted.
func TestTopGoesOn(t *testing.T) {
	a := startApp(t)
	c := begin(t, "top", "--app", a.server.URL, "--interval", "100ms", "--json")
	until(t, "three pages are there", func() bool { stdout, _ := c.output(); return strings.Count(stdout, "\n") >= 3 })
	c.stop()
	if code, _, _ := c.end(t); code != exitInterrupted {
		t.Errorf("exit code %d", code)
	}
}

// TestTopOnATerminal: each page goes over the one before.
func TestTopOnATerminal(t *testing.T) {
	p := topPage{terminal: true}
	one, two := p.draw(topReport{}, true), p.draw(topReport{}, false)
	if !strings.HasPrefix(one, clearScreen+goHome) || !strings.HasPrefix(two, goHome) || !strings.HasSuffix(two, clearBelow+wrapOn) || strings.Count(two, "\n"+clearLine) != strings.Count(two, "\n") {
		t.Errorf("%q, %q", one, two)
	}
}
