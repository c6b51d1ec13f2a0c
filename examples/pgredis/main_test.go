package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	. "github.com/onefill/onefill/examples/internal/exampletest"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/pgqueue"
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

	checkChanges(t, postgres.URL(), a, b)

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

// checkChanges changes user 42 in the two ways by which a change reaches the cache, each without the other.
func checkChanges(t *testing.T, url string, a, b *Program) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	urls := []string{a.URLs["users"] + "/users/42", b.URLs["users"] + "/users/42"}
	bothRead := func(name string) {
		t.Helper()
		for _, url := range urls {
			Until(t, name+" is read", func() bool { return strings.Contains(Get(t, url), `"`+name+`"`) })
		}
	}

	// The jobs are held up for an hour. The client reads what it wrote, at the first attempt.
	exec(`CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.run_at := now() + interval '1 hour'; RETURN NEW; END $$;
		CREATE TRIGGER hold BEFORE INSERT ON onefill_example_queue.jobs FOR EACH ROW EXECUTE FUNCTION hold()`)
	for _, name := range []string{"Ann", "Bea"} {
		if status, text, _ := Do(t, http.MethodPut, urls[0]+"/name", name); status != http.StatusNoContent {
			t.Errorf("PUT: %d %s", status, text)
		}
		if got := Get(t, urls[0]); !strings.Contains(got, `"`+name+`"`) {
			t.Errorf("who has written %s reads %s", name, got)
		}
		bothRead(name)
	}
	exec(`DROP TRIGGER hold ON onefill_example_queue.jobs; UPDATE onefill_example_queue.jobs SET run_at = now()`)
	jobsDone := func(n int) {
		t.Helper()
		Until(t, "the metrics have the jobs", func() bool {
			done := 0
			for _, p := range []*Program{a, b} {
				m := jobsCount.FindStringSubmatch(Get(t, p.URLs["debug"]+"/metrics"))
				if m != nil {
					count, _ := strconv.Atoi(m[1])
					done += count
				}
			}
			return done == n
		})
	}
	jobsDone(2)
	bothRead("Bea") // and are in both caches again

	// A writer dies right after its commit: nobody invalidates but the job.
	jobs, err := pgqueue.New(pool, pgqueue.Schema("onefill_example_queue"))
	if err != nil {
		t.Fatal(err)
	}
	defer jobs.Close()
	if err := (&users{pool: pool, jobs: jobs}).rename(t.Context(), 42, "Cleo"); err != nil {
		t.Fatal(err)
	}
	bothRead("Cleo")
	jobsDone(3)
}

var jobsCount = regexp.MustCompile(`onefill_job_attempts_count\{kind="onefill.invalidate",outcome="done",queue="onefill"\} (\d+)`)

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
