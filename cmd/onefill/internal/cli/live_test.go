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
