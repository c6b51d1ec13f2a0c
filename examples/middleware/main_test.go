package main

import (
	"net/http"
	"strings"
	"testing"

	. "github.com/onefill/onefill/examples/internal/exampletest"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

func TestExample(t *testing.T) {
	path := Build(t)
	t.Run("service", func(t *testing.T) { testService(t, path) })
	t.Run("one command", func(t *testing.T) { testOneCommand(t, path) })
}

// testService: fifty requests in two processes are one call of the handler; what names the client
// is not in the page, and a change removes it from both.
func testService(t *testing.T, path string) {
	redis := servertest.Redis(t, servers.RedisOptions{})
	env := []string{"REDIS_URL=" + redis.URL()}
	a := Start(t, path, env, 1, "-listen", "127.0.0.1:0", "-slow", "300ms")
	b := Start(t, path, env, 1, "-listen", "127.0.0.1:0", "-slow", "300ms")
	urls := []string{a.URLs["reports"] + "/reports/2026?page=1", b.URLs["reports"] + "/reports/2026?utm=x&page=1"}
	page := Herd(t, 50, urls...)
	if !strings.HasPrefix(page, `report 2026, page "1", in "": made 1 times`) {
		t.Errorf("%q", page)
	}
	made := func() string { return Get(t, a.URLs["reports"]+"/made") + Get(t, b.URLs["reports"]+"/made") }
	if n := made(); n != "1\n0\n" && n != "0\n1\n" {
		t.Errorf("made in the two processes: %q", n)
	}
	_, text, h := Do(t, http.MethodGet, urls[0], "", "Range", "bytes=0-5", "Accept-Encoding", "identity")
	if text != "report" || !strings.HasPrefix(h.Get("Cache-Status"), "onefill; hit; ttl=") || h.Get("Content-Range") == "" {
		t.Errorf("%q, %v", text, h)
	}
	_, text, h = Do(t, http.MethodGet, urls[0], "", "Accept-Language", "de")
	if !strings.Contains(text, `in "de"`) || !strings.Contains(h.Get("Cache-Status"), "fwd=uri-miss") {
		t.Errorf("%q, %v", text, h)
	}
	_, _, h = Do(t, http.MethodGet, urls[0], "", "Cookie", "session=alice")
	if !strings.Contains(h.Get("Cache-Status"), "fwd=bypass; detail=credentials") {
		t.Errorf("%v", h)
	}
	if status, _, _ := Do(t, http.MethodPut, a.URLs["reports"]+"/reports/2026", "new figures"); status != http.StatusNoContent {
		t.Errorf("PUT: %d", status)
	}
	Until(t, "the page is made again", func() bool { return Get(t, urls[0]) != page && Get(t, urls[1]) != page })
	a.Stop(t)
	b.Stop(t)
}

// testOneCommand: without any setting it starts its own server, and stops it.
func testOneCommand(t *testing.T, path string) {
	p := Start(t, path, []string{"REDIS_URL="}, 1, "-listen", "127.0.0.1:0")
	Get(t, p.URLs["reports"]+"/reports/2025")
	p.Stop(t)
}
