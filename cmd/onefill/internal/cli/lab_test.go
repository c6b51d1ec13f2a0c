package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/redis/rueidis"
)

// program builds the command once, with the race detector where the test has it,
// and returns its path. TestMain removes it.
var program = sync.OnceValues(func() (string, error) {
	args := []string{"build", "-o", filepath.Join(buildDir, "onefill")}
	if raceEnabled {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, "../..")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return filepath.Join(buildDir, "onefill"), nil
})

var buildDir string

func TestMain(m *testing.M) {
	var err error
	if buildDir, err = os.MkdirTemp("", "onefill-cli-"); err != nil {
		panic(err)
	}
	code := m.Run()
	sharedPostgres.Stop()
	stopShared()
	os.RemoveAll(buildDir)
	os.Exit(code)
}

type labResult struct {
	Scenario, Mode, Store, Origin string
	Processes, Callers            int
	Loads, Errors                 int
	Identical, Ok, Asserted       bool
	NotFound                      int     `json:"not_found"`
	ElapsedMS                     float64 `json:"elapsed_ms"`
	LoadMS                        float64 `json:"load_ms"`
	LeaseMS                       float64 `json:"lease_ms"`
	StoreVersion                  string  `json:"store_version"`
	StoreHolds                    string  `json:"store_holds"`
	StaleAnswers                  *int    `json:"stale_answers"`
	Freed                         *bool   `json:"freed_anothers_lease"`
	Commands                      int64
	Failed                        []string
	MaxInFlight                   *int `json:"max_in_flight"`
	Waves                         []struct {
		Phase string
		Loads int
		Calls labTally
	}
	Commit *struct {
		Commits       int
		WritersKilled int      `json:"writers_killed"`
		WorkersKilled int      `json:"workers_killed"`
		StoreStops    int      `json:"store_stops"`
		StaleKeys     int      `json:"stale_keys"`
		StaleAnswers  int      `json:"stale_answers"`
		Unread        int      `json:"unread"`
		JobsLeft      int      `json:"jobs_left"`
		Dead          int      `json:"dead"`
		DrainedMS     *float64 `json:"drained_ms"`
	}
	Outage *struct {
		Workers         int `json:"origin_workers"`
		Limit           int
		LimitDegraded   int `json:"limit_degraded"`
		MaxInFlight     int `json:"max_in_flight"`
		MaxInFlightDown int `json:"max_in_flight_down"`
		Meanwhile       labTally
		Moments         []struct{ What string }
		RecoveredMS     *float64 `json:"recovered_ms"`
		Series          struct {
			InFlight []int `json:"in_flight"`
			Calls    []int
			P99MS    []float64 `json:"p99_ms"`
		}
	}
}

type labTally struct{ Calls, Failed, Cached, Stale int }

func (r labResult) name() string { return r.Scenario + " " + r.Mode }

// playLab runs "onefill lab --json" and returns its lines by scenario and mode.
func playLab(t *testing.T, args ...string) map[string]labResult {
	t.Helper()
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, exe, append([]string{"lab", "--json", "--out", t.TempDir()}, args...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = append(os.Environ(), "GORACE=halt_on_error=1") // a race in a reader ends it, and so the lab
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, stdout.String(), stderr.String())
	}
	results := make(map[string]labResult)
	for line := range strings.Lines(stdout.String()) {
		var r labResult
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("standard output holds %q: %v", line, err)
		}
		results[r.name()] = r
	}
	return results
}

// expectLoads compares the loads of each scenario and mode, and that no more and
// no fewer were played.
func expectLoads(t *testing.T, got map[string]labResult, want map[string]int) {
	t.Helper()
	for name, loads := range want {
		if r, ok := got[name]; !ok || r.Loads != loads {
			t.Errorf("%s: %d loads, expected %d: %+v", name, r.Loads, loads, r)
		}
	}
	if len(got) != len(want) {
		t.Errorf("played %v", slices.Sorted(maps.Keys(got)))
	}
}

// TestLabOnPrivateServers is the headline: twelve readers in three processes at a
// barrier cost PostgreSQL twelve loads with plain cache-aside, and one with onefill.
func TestLabOnPrivateServers(t *testing.T) {
	servertest.Redis(t, servers.RedisOptions{}) // says what to install, or skips where that is allowed
	got := playLab(t, "--scenario", "S1,S2,S3,release", "--lease", "600ms")
	// The recipe's lock is not renewed: that one load is enough holds while the machine lets
	// it end before the lock does.
	lock := got["S1 lock"].Loads
	if r := got["S1 lock"]; r.ElapsedMS < r.LeaseMS {
		lock = 1
	}
	expectLoads(t, got, map[string]int{
		"S1 naive": 12, "S1 local": 3, "S1 lock": lock, "S1 onefill": 1,
		"S2 naive": 12, "S2 local": 3, "S2 lock": 12, "S2 onefill": 1,
		"S3 naive": 12, "S3 local": 3, "S3 lock": 12, "S3 onefill": 1,
		"release lock": 0, "release onefill": 0,
	})
	for name, r := range got {
		if r.Store != "redis" && r.Store != "valkey" || r.Origin != "postgres" || r.StoreVersion == "" || r.Processes != 3 || r.Callers != 12 {
			t.Errorf("%s: not on real servers, or not the defaults: %+v", name, r)
		}
		if r.Mode == "onefill" && (!r.Ok || !r.Asserted || !r.Identical) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := got["S2 onefill"]; r.NotFound != 12 || r.Errors != 0 {
		t.Errorf("S2: %d callers were told that there is no such row, %d failed", r.NotFound, r.Errors)
	}
	if r := got["S3 onefill"]; r.Errors != 12 || r.ElapsedMS >= r.LeaseMS {
		t.Errorf("S3: %d callers got the error, after %v ms; who waits for the lease's end waits %v ms", r.Errors, r.ElapsedMS, r.LeaseMS)
	}
	if r := got["release lock"]; r.Freed == nil || !*r.Freed || r.Ok {
		t.Errorf("release: the lock recipe frees another's lock: %+v", r)
	}
	if r := got["release onefill"]; r.Freed == nil || *r.Freed {
		t.Errorf("release: %+v", r)
	}
	if r := got["S1 naive"]; r.Commands < 24 {
		t.Errorf("S1 naive: %d commands counted; 12 GET and 12 SET were sent", r.Commands)
	}
}

// TestLabOnGivenServers also looks at what is left there: nothing but what was.
func TestLabOnGivenServers(t *testing.T) {
	redis := servertest.Redis(t, servers.RedisOptions{})
	postgres := servertest.Postgres(t, servers.PostgresOptions{})
	client := somebodyElse(t, redis)

	// A lease must be lost only to what the scenarios do: one of this length outlasts
	// the pauses of a busy machine, so that S5 has two loads and not one more.
	got := playLab(t, "--scenario", "S4,S5,S6", "--lease", "600ms", "--redis", redis.URL()+"/", "--postgres", postgres.URL())
	expectLoads(t, got, map[string]int{
		"S4 naive": 12, "S4 local": 3, "S4 lock": 12, "S4 onefill": 1,
		"S5 naive": 12, "S5 local": 3, "S5 lock": got["S5 lock"].Loads, "S5 onefill": 2,
		"S6 naive": 12, "S6 local": 3, "S6 lock": got["S6 lock"].Loads, "S6 onefill": 1,
	})
	if r := got["S5 naive"]; r.StoreHolds != "old" || r.Ok {
		t.Errorf("S5: plain cache-aside lets the old load publish: %+v", r)
	}
	if r := got["S5 onefill"]; r.StoreHolds != "new" || r.StaleAnswers == nil || *r.StaleAnswers != 0 {
		t.Errorf("S5: %+v", r)
	}
	if r := got["S6 local"]; r.Errors != 3 {
		t.Errorf("S6: singleflight on the first caller's context fails its 3 companions, not %d", r.Errors)
	}
	if r := got["S6 onefill"]; r.Errors != 0 {
		t.Errorf("S6: %+v", r)
	}

	scan := client.B().Scan().Cursor(0).Count(10_000).Build()
	left, err := client.Do(t.Context(), scan).AsScanEntry()
	if err != nil || !slices.Equal(left.Elements, []string{"mine"}) {
		t.Errorf("left in Redis: %v, %v", left.Elements, err)
	}
	db, err := pgx.Connect(t.Context(), postgres.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.WithoutCancel(t.Context()))
	var schemas int
	if err := db.QueryRow(t.Context(), `SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'onefill%'`).Scan(&schemas); err != nil || schemas != 0 {
		t.Errorf("%d schemas left in PostgreSQL, %v", schemas, err)
	}
}

// somebodyElse is a client of a given server, who has stored "mine" there.
func somebodyElse(t *testing.T, redis *servers.Server) rueidis.Client {
	t.Helper()
	opt, err := rueidis.ParseURL(redis.URL())
	if err != nil {
		t.Fatal(err)
	}
	opt.DisableCache = true
	client, err := rueidis.NewClient(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if err := client.Do(t.Context(), client.B().Set().Key("mine").Value("1").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	return client
}

func TestLabEmbedded(t *testing.T) {
	got := playLab(t, "--embedded", "--scenario", "S1,S2,S3,S4,S5,S6,release", "--load", "150ms", "--lease", "300ms", "--processes", "2", "--callers", "6")
	expectLoads(t, got, map[string]int{
		"S1 naive": 6, "S1 local": 2, "S1 lock": 1, "S1 onefill": 1,
		"S2 naive": 6, "S2 local": 2, "S2 lock": 6, "S2 onefill": 1,
		"S3 naive": 6, "S3 local": 2, "S3 lock": 6, "S3 onefill": 1,
		"S4 naive": 6, "S4 local": 2, "S4 lock": 6, "S4 onefill": 1,
		"S5 naive": 6, "S5 local": 2, "S5 lock": got["S5 lock"].Loads, "S5 onefill": 2,
		"S6 naive": 6, "S6 local": 2, "S6 lock": got["S6 lock"].Loads, "S6 onefill": 1,
		"release lock": 0, "release onefill": 0,
	})
	for name, r := range got {
		if r.Store != "miniredis" || r.Origin != "sqlite" {
			t.Errorf("%s: not embedded: %+v", name, r)
		}
	}
}

// TestLabWithoutPrograms: what is not installed is replaced, and the output says so.
func TestLabWithoutPrograms(t *testing.T) {
	out := t.TempDir()
	exe, err := program() // needs PATH as it is
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir()) // redis-server is looked for on PATH only
	stdout, err := exec.CommandContext(t.Context(), exe, "lab", "--scenario", "S1", "--mode", "onefill", "--load", "20ms", "--out", out).Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stdout)
	}
	page, err := os.ReadFile(filepath.Join(out, "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"redis-server is not installed", "miniredis", "(embedded)", "no pushes", "1 load"} {
		if !strings.Contains(string(stdout), want) || !bytes.Contains(page, []byte(want)) {
			t.Errorf("table or report lacks %q:\n%s", want, stdout)
		}
	}
}

func TestCallersThatTheDatabaseHasNoRoomFor(t *testing.T) {
	postgres := servertest.Postgres(t, servers.PostgresOptions{Settings: []string{"max_connections=20"}})
	code, _, stderr := run(t, "lab", "--callers", "50", "--postgres", postgres.URL(), "--out", t.TempDir())
	if code != exitInput || !strings.Contains(stderr, "--callers") || !strings.Contains(stderr, postgres.Addr()) || !strings.Contains(stderr, "of 20") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}

// TestInterrupt forces: the readers run, S4 has begun | SIGINT. The lab stops its
// readers and its servers and says so.
func TestInterrupt(t *testing.T) {
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	redis := servertest.Redis(t, servers.RedisOptions{})
	cmd := exec.Command(exe, "lab", "--scenario", "S4", "--lease", "20s", "--timeout", "5m", "--redis", redis.URL(), "--out", t.TempDir())
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer kill.Stop()
	var said strings.Builder
	buf := make([]byte, 1024)
	interrupted := false
	for {
		n, readErr := stderr.Read(buf)
		said.Write(buf[:n])
		if !interrupted && strings.Contains(said.String(), "] S4 ") {
			interrupted = true
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
		}
		if readErr != nil {
			break
		}
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted || !strings.Contains(said.String(), "interrupted") {
		t.Errorf("exit code %d, stderr %q", code, said.String())
	}
	// Readers that were still there would be connected.
	expectNoClients(t, redis.URL())
}

// expectNoClients waits until nobody but the asker is connected.
func expectNoClients(t *testing.T, url string) {
	t.Helper()
	opt, err := rueidis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	opt.DisableCache, opt.PipelineMultiplex = true, -1
	client, err := rueidis.NewClient(opt)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); ; <-tick.C {
		list, err := client.Do(t.Context(), client.B().ClientList().Build()).ToString()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(list, "\n") <= 1 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still connected:\n%s", list)
		}
	}
}
