package main

import (
	"net/http"
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

// testService: fifty requests in two processes are one calculation, as they count it themselves.
func testService(t *testing.T, path string) {
	memcached := servertest.Memcached(t, servers.MemcachedOptions{})
	env := []string{"MEMCACHED=" + memcached.Addr()}
	a := Start(t, path, env, 1, "-listen", "127.0.0.1:0", "-slow", "300ms")
	b := Start(t, path, env, 1, "-listen", "127.0.0.1:0", "-slow", "300ms")
	urls := []string{a.URLs["sums"] + "/sum/100", b.URLs["sums"] + "/sum/100"}
	if got := Herd(t, 50, urls...); got != "the sum of 1 to 100 is 5050\n" {
		t.Errorf("%q", got)
	}
	calculations := func() string {
		return Get(t, a.URLs["sums"]+"/calculations") + Get(t, b.URLs["sums"]+"/calculations")
	}
	if n := calculations(); n != "1\n0\n" && n != "0\n1\n" {
		t.Errorf("calculations of the two processes: %q", n)
	}
	if status, text, _ := Do(t, http.MethodDelete, urls[0], ""); status != http.StatusNoContent {
		t.Errorf("DELETE: %d %s", status, text)
	}
	Get(t, urls[0])
	if n := calculations(); n != "2\n0\n" && n != "1\n1\n" {
		t.Errorf("after a DELETE, calculations of the two processes: %q", n)
	}
	if status, _, _ := Do(t, http.MethodGet, a.URLs["sums"]+"/sum/x", ""); status != http.StatusBadRequest {
		t.Errorf("status %d", status)
	}
	if status, _, _ := Do(t, http.MethodDelete, a.URLs["sums"]+"/sum/x", ""); status != http.StatusBadRequest {
		t.Errorf("DELETE: status %d", status)
	}
	a.Stop(t)
	b.Stop(t)
}

// testOneCommand: without any setting it starts its own server, and stops it.
func testOneCommand(t *testing.T, path string) {
	p := Start(t, path, []string{"MEMCACHED="}, 1, "-listen", "127.0.0.1:0")
	Get(t, p.URLs["sums"]+"/sum/1")
	p.Stop(t)
}
