package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	. "github.com/onefill/onefill/examples/internal/exampletest"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/watch"
)

func TestExample(t *testing.T) {
	path := Build(t)
	t.Run("service", func(t *testing.T) { testService(t, path) })
	t.Run("one command", func(t *testing.T) { testOneCommand(t, path) })
}

// testService runs two processes of the service on one PostgreSQL and one Redis, and lets PostgreSQL's own
// log say which queries have reached it.
func testService(t *testing.T, path string) {
	postgres := servertest.Postgres(t, servers.PostgresOptions{Settings: []string{"log_statement=all"}})
	redis := servertest.Redis(t, servers.RedisOptions{})
	queries := func(id string) (n int) {
		log, err := os.ReadFile(filepath.Join(postgres.Dir(), "log"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(log)) { // the statement, and in the next line its parameters
			if strings.Contains(line, "parameters: $1 = '"+id+"', $2 = '0.3'") {
				n++
			}
		}
		return n
	}
	env := []string{"POSTGRES_URL=" + postgres.URL(), "REDIS_URL=" + redis.URL()}
	args := []string{"-listen", "127.0.0.1:0", "-debug", "127.0.0.1:0", "-slow", "300ms"}
	a, b := Start(t, path, env, 2, args...), Start(t, path, env, 2, args...)
	users := []string{a.URLs["users"] + "/users/42", b.URLs["users"] + "/users/42"}

	if got := Herd(t, 50, users...); got != `{"id":42,"name":"user 42"}`+"\n" {
		t.Errorf("%q", got)
	}
	if n := queries("42"); n != 1 {
		t.Errorf("50 requests in two processes made %d queries", n)
	}
	checkPages(t, a, b)

	// A change reaches both processes by the queue.
	if status, text, _ := Do(t, http.MethodPut, users[0]+"/name", "Ann"); status != http.StatusNoContent {
		t.Errorf("PUT: %d %s", status, text)
	}
	for _, url := range users {
		Until(t, "the new name is there", func() bool { return strings.Contains(Get(t, url), `"Ann"`) })
	}
	if n := queries("42"); n != 2 {
		t.Errorf("%d queries after one change", n)
	}
	Until(t, "the metrics have the job", func() bool {
		job := `onefill_job_attempts_count{kind="onefill.invalidate",outcome="done",queue="onefill"} 1`
		return strings.Contains(Get(t, a.URLs["debug"]+"/metrics")+Get(t, b.URLs["debug"]+"/metrics"), job)
	})

	// A row that does not exist is an answer, which is cached as well.
	for range 3 {
		for _, base := range []string{a.URLs["users"], b.URLs["users"]} {
			if status, _, _ := Do(t, http.MethodGet, base+"/users/4711", ""); status != http.StatusNotFound {
				t.Errorf("a user who does not exist: %d", status)
			}
		}
	}
	if n := queries("4711"); n != 1 {
		t.Errorf("%d queries for a row that does not exist", n)
	}
	for path, want := range map[string]int{"/users/x": 400, "/nothing": 404} {
		if status, _, _ := Do(t, http.MethodGet, a.URLs["users"]+path, ""); status != want {
			t.Errorf("%s: %d", path, status)
		}
	}

	stopWhileItWorks(t, a)
	b.Stop(t)
}

// checkPages looks at the private port: the herd is there as a miss group of each process, and in the metrics.
func checkPages(t *testing.T, a, b *Program) {
	t.Helper()
	outcomes := make(map[watch.Outcome]int)
	for _, p := range []*Program{a, b} {
		var s watch.Snapshot
		Until(t, "the group is known, which comes after the answers", func() bool {
			if err := json.Unmarshal([]byte(Get(t, p.URLs["debug"]+"/debug/onefill?key=42")), &s); err != nil {
				t.Fatal(err)
			}
			return len(s.Recent) > 0
		})
		if len(s.Recent) != 1 || s.Recent[0].Callers != 25 || s.Recent[0].Loads != 1 || s.Recent[0].TookMS < 290 {
			t.Fatalf("%+v", s.Recent)
		}
		outcomes[s.Recent[0].Outcome]++
		metrics := Get(t, p.URLs["debug"]+"/metrics")
		if !strings.Contains(metrics, `cache="users"`) || !strings.Contains(metrics, `queue="onefill"`) {
			t.Errorf("the metrics lack the cache or the queue:\n%.2000s", metrics)
		}
	}
	if outcomes[watch.Loaded] != 1 || outcomes[watch.LeaseWait] != 1 {
		t.Errorf("%v: one process should have loaded, and the other one waited for it", outcomes)
	}
}

// stopWhileItWorks sends the signal while a request waits for its query: it is answered, and then the
// process ends.
func stopWhileItWorks(t *testing.T, p *Program) {
	t.Helper()
	var all sync.WaitGroup
	all.Go(func() {
		if got := Get(t, p.URLs["users"]+"/users/7"); got != `{"id":7,"name":"user 7"}`+"\n" {
			t.Errorf("a request during the stop: %q", got)
		}
	})
	Until(t, "the request waits", func() bool {
		var s watch.Snapshot
		err := json.Unmarshal([]byte(Get(t, p.URLs["debug"]+"/debug/onefill?key=7")), &s)
		return err == nil && len(s.Live) == 1
	})
	p.Signal(t)
	all.Wait()
	p.Ended(t)
}

// testOneCommand: without any setting it starts its own servers, and stops them.
func testOneCommand(t *testing.T, path string) {
	p := Start(t, path, []string{"POSTGRES_URL=", "REDIS_URL="}, 2, "-listen", "127.0.0.1:0", "-debug", "127.0.0.1:0")
	if got := Get(t, p.URLs["users"]+"/users/1"); got != `{"id":1,"name":"user 1"}`+"\n" {
		t.Errorf("%q", got)
	}
	p.Stop(t)
}
