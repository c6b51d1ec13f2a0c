package cli

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/cmd/onefill/live"
)

func TestLiveBadInput(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { busy.Close() })
	for _, tt := range []struct{ args, says string }{
		{"live --store etcd", `--store: unknown store "etcd"; known: memory, redis`},
		{"live --store memory --redis redis://127.0.0.1:1", "--redis: excludes the store"},
		{"live --redis redis://127.0.0.1:1", "--redis: cannot use the server"},
		{"live --redis redis://u:secret@127.0.0.1:1", "ONEFILL_REDIS"},
		{"live --pages -1", "--pages: -1 is negative"},
		{"live --host lab.example:8461", `--host: "lab.example:8461" is no name`},
		{"live --listen nonsense", "--listen"},
		{"live --listen " + busy.Addr().String(), "address already in use"},
		{"live now", `unknown command "now"`},
	} {
		t.Run(tt.args, func(t *testing.T) {
			code, stdout, stderr := run(t, strings.Fields(tt.args)...)
			if code != exitInput || stdout != "" || !strings.Contains(stderr, tt.says) || strings.Contains(stderr, "secret") {
				t.Errorf("exit code %d, stdout %q, stderr %q; expected %d, nothing, %q and no password", code, stdout, stderr, exitInput, tt.says)
			}
		})
	}
}

// TestLiveEnvironment: a password in the environment is not shown, however badly it is written;
// what is typed goes before the environment; an interruption is no bad input.
func TestLiveEnvironment(t *testing.T) {
	for _, url := range []string{"redis://:secret/x@127.0.0.1:1", "redis://:secret#x@127.0.0.1:1", "redis://:a:secret?x@127.0.0.1:1", "redis:/:secret@127.0.0.1:1"} {
		t.Setenv("ONEFILL_REDIS", url)
		for _, args := range [][]string{{"live", "--given", "--listen", "127.0.0.1:0"}, {"lab", "--scenario", "S1", "--out", t.TempDir()}, {"bench"}, {"doctor"}, {"inspect", "--cache", "users", "1"}} {
			code, stdout, stderr := run(t, args...)
			if code != exitInput || strings.Contains(stdout+stderr, "secret") {
				t.Errorf("%s with %s: exit code %d, %q, %q", args, url, code, stdout, stderr)
			}
		}
	}
	t.Setenv("ONEFILL_REDIS", "redis://127.0.0.1:1")
	t.Setenv("ONEFILL_STORE", "memcached") // the lab's
	fails(t, exitInput, "--listen", "live", "--store", "memory", "--listen", "nonsense")
	fails(t, exitInput, "--given: excludes --redis", "live", "--given", "--redis", "redis://127.0.0.1:1")
	fails(t, exitInput, "--given: cannot use the server", "live", "--given")
	fails(t, exitInput, "--redis: cannot use the server", "live", "--redis", "redis://127.0.0.1:1")
	t.Setenv("ONEFILL_REDIS", "")
	fails(t, exitInput, "--given: ONEFILL_REDIS is not set", "live", "--given")
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	var out bytes.Buffer
	if code := Run(ctx, []string{"live"}, strings.NewReader(""), &out, &out); code != exitInterrupted {
		t.Errorf("interrupted: exit code %d, %s", code, out.String())
	}
}

// TestLiveLeavesTheEnvironmentsServer: ONEFILL_REDIS names a server with the application's data. Without a word about
// it the page plays in memory, with --given on that server, and both is said.
func TestLiveLeavesTheEnvironmentsServer(t *testing.T) {
	server := startRedis(t)
	t.Setenv("ONEFILL_REDIS", strings.Replace(server.URL(), "redis://", "redis://default:@", 1))
	for _, tt := range []struct {
		args  []string
		store string
		says  string
	}{
		{nil, live.StoreMemory, "simulated, in this program's memory"},
		{[]string{"--store", "redis"}, live.StoreRedis, "a private redis-server"},
		{[]string{"--given"}, live.StoreRedis, "the Redis at " + server.Addr() + ", which was given"},
		{[]string{"--redis", server.URL()}, live.StoreRedis, "the Redis at " + server.Addr() + ", which was given"},
	} {
		ctx, interrupt := context.WithCancel(t.Context())
		stdout, write := io.Pipe()
		var stderr bytes.Buffer
		code := make(chan int, 1)
		go func() {
			code <- Run(ctx, append([]string{"live", "--json", "--listen", "127.0.0.1:0"}, tt.args...), strings.NewReader(""), write, &stderr)
			write.Close()
		}()
		text, err := bufio.NewReader(stdout).ReadString('\n')
		must(t, err)
		interrupt()
		if got := <-code; got != exitOK {
			t.Errorf("%q: exit code %d", tt.args, got)
		}
		line := read[liveLine](t, text)
		if line.Store != tt.store || (line.Server == server.Addr()) != strings.Contains(tt.says, "given") || !strings.Contains(stderr.String(), tt.says) {
			t.Errorf("%q: %+v, %q", tt.args, line, stderr.String())
		}
	}
}

// TestLiveServes: the command prints its address, serves the page and a session there, and ends in
// order when it is interrupted, although the page is still open.
func TestLiveServes(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	read, stdout := io.Pipe()
	code := make(chan int, 1)
	go func() {
		var stderr bytes.Buffer
		code <- Run(ctx, []string{"live", "--listen", "127.0.0.1:0"}, strings.NewReader(""), stdout, &stderr)
	}()
	line, err := bufio.NewReader(read).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "http://127.0.0.1:") {
		t.Fatalf("%q, %v", line, err)
	}
	url := strings.TrimSpace(line)
	page, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer page.Body.Close()
	if text, err := io.ReadAll(page.Body); err != nil || !strings.Contains(string(text), "onefill live") {
		t.Errorf("%v, %s", err, text)
	}
	session, err := http.Post(url+"session", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Body.Close()
	lines := bufio.NewReader(session.Body)
	if hello, err := lines.ReadString('\n'); err != nil || !strings.Contains(hello, `"store":"memory`) {
		t.Errorf("%q, %v", hello, err)
	}
	interrupt()
	select {
	case got := <-code:
		if got != exitOK {
			t.Errorf("exit code %d", got)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("interrupted, it did not end")
	}
	if rest, _ := io.ReadAll(lines); !strings.Contains(string(rest), "being stopped") {
		t.Errorf("the page was not told: %s", rest)
	}
}
