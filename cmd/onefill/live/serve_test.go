package live_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/cmd/onefill/live"
)

type options = live.Options

// serve serves a page until the test ends.
func serve(t *testing.T, o live.Options) (*live.Handler, string) {
	t.Helper()
	h, err := live.New(o)
	must(t, err)
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		h.Close() // first: streams keep the server
		s.Close()
	})
	return h, s.URL + "/"
}

// serveBelow serves a page at a path of another server.
func serveBelow(t *testing.T, path string) string {
	t.Helper()
	h, err := live.New(options{})
	must(t, err)
	mux := http.NewServeMux()
	mux.Handle(path, http.StripPrefix(strings.TrimSuffix(path, "/"), h))
	s := httptest.NewServer(mux)
	t.Cleanup(func() {
		h.Close()
		s.Close()
	})
	return s.URL + path
}

// needRedis skips the test where no Redis can be started.
func needRedis(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil || os.Getenv("ONEFILL_SKIP_SERVERS") == "1" {
		t.Skip("SKIPPED: no redis-server on PATH, or ONEFILL_SKIP_SERVERS=1")
	}
}

// post sends JSON as the page does; it returns the status and the answer.
func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	r, err := http.Post(url, "application/json", strings.NewReader(body))
	must(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	must(t, err)
	return r.StatusCode, string(text)
}

// frame is what the tests read of a frame.
type frame struct {
	End   string
	State struct {
		Down    bool `json:"store_down"`
		Paused  bool
		Failing bool
		Herd    bool
		Herds   int
	}
	Arms map[string]struct {
		N                live.Counters
		Waiting, Running int
		Bars             []struct {
			I uint64
			L string
			E float64
		}
		Herd *struct {
			Callers, Loads, Flights, Coalesced, Waits, Stale, Errors int
			Done                                                     bool
			P99MS                                                    float64 `json:"p99_ms"`
		}
	}
}

// page is a session, as the page has it.
type page struct {
	t     *testing.T
	url   string // of its controls
	lines *bufio.Reader
	leave func()
	herds int // sent
	hello struct {
		ID       string
		Store    string
		MayKill  bool `json:"may_kill"`
		Settings live.Settings
	}
}

// join opens a session with settings, which are JSON.
func join(t *testing.T, base, settings string) *page {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"session", strings.NewReader(settings))
	must(t, err)
	request.Header.Set("Content-Type", "application/json")
	r, err := http.DefaultClient.Do(request)
	must(t, err)
	p := &page{t: t, lines: bufio.NewReader(r.Body), leave: func() { cancel(); r.Body.Close() }}
	t.Cleanup(p.leave)
	if r.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(r.Body)
		t.Fatalf("a session: %d %s", r.StatusCode, text)
	}
	line, err := p.lines.ReadBytes('\n')
	must(t, err)
	must(t, json.Unmarshal(line, &p.hello))
	p.url = base + "session/" + p.hello.ID + "/"
	return p
}

// do sends a control that must be obeyed.
func (p *page) do(what, body string) {
	p.t.Helper()
	if status, text := post(p.t, p.url+what, body); status != http.StatusNoContent {
		p.t.Fatalf("%s %s: %d %s", what, body, status, text)
	}
	if what == "herd" {
		p.herds++
	}
}

// until reads frames until one is as it should be.
func (p *page) until(what string, holds func(frame) bool) frame {
	p.t.Helper()
	var f frame
	for deadline := time.Now().Add(40 * time.Second); time.Now().Before(deadline); {
		line, err := p.lines.ReadBytes('\n')
		must(p.t, err)
		f = frame{}
		must(p.t, json.Unmarshal(line, &f))
		if holds(f) {
			return f
		}
	}
	p.t.Fatalf("%s: never; the last frame was %+v", what, f)
	return f
}

// herd sends a herd and waits for its end.
func (p *page) herd() frame {
	p.t.Helper()
	p.do("herd", "{}")
	return p.over()
}

// over waits for the end of the herd that was sent last: frames that were made before it began
// tell the end of the one before.
func (p *page) over() frame {
	p.t.Helper()
	return p.until("a herd is over", func(f frame) bool {
		for _, a := range f.Arms {
			if a.Herd == nil || !a.Herd.Done {
				return false
			}
		}
		return f.State.Herds == p.herds && !f.State.Herd && len(f.Arms) > 0
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
