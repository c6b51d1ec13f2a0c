package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

// TestLabOutages plays what happens to the store, on the embedded one. What onefill must
// give is asserted by the lab; here is that it has been put to the test.
func TestLabOutages(t *testing.T) {
	t.Parallel() // it mostly waits
	got := playLab(t, "--embedded", "--scenario", "S7,killed,frozen,cold", "--mode", "naive,onefill", "--load", "150ms")
	if len(got) != 8 {
		t.Errorf("played %d", len(got))
	}
	expectWaves(t, got)
	for _, scenario := range []string{"killed", "frozen", "cold"} {
		expectOutage(t, got, scenario)
	}
}

// TestLabKilledRedis is the same on real servers, and with the lock recipe, which has no
// answer without its store.
func TestLabKilledRedis(t *testing.T) {
	t.Parallel()
	servertest.Redis(t, servers.RedisOptions{}) // says what to install, or skips where that is allowed
	got := playLab(t, "--scenario", "S7,killed")
	expectWaves(t, got)
	expectOutage(t, got, "killed")
	if r := got["S7 local"]; r.Loads != 9 {
		t.Errorf("S7: %d loads with one for each process and wave", r.Loads)
	}
	if r := got["S7 lock"]; r.Errors != 36 || r.Loads != 0 {
		t.Errorf("S7: the lock recipe had %d errors and %d loads", r.Errors, r.Loads)
	}
	if r := got["killed lock"]; r.Outage == nil || r.Outage.Meanwhile.Failed < r.Outage.Meanwhile.Calls*9/10 {
		t.Errorf("killed: the lock recipe served callers: %+v", r)
	}
}

func TestLabFrozenMemcached(t *testing.T) {
	t.Parallel()
	servertest.Memcached(t, servers.MemcachedOptions{})
	got := playLab(t, "--store", "memcached", "--scenario", "S7,frozen", "--mode", "naive,onefill")
	expectWaves(t, got)
	expectOutage(t, got, "frozen")
}

// expectWaves: plain cache-aside loads for each caller each time, onefill once in each
// process; the known key is served from memory.
func expectWaves(t *testing.T, got map[string]labResult) {
	t.Helper()
	loads := func(r labResult) (each []int) {
		for _, w := range r.Waves {
			each = append(each, w.Loads)
		}
		return each
	}
	if r := got["S7 naive"]; !slices.Equal(loads(r), []int{12, 12, 12}) || r.Errors != 0 {
		t.Errorf("S7 naive: loads %v, %d errors", loads(r), r.Errors)
	}
	r := got["S7 onefill"]
	if !slices.Equal(loads(r), []int{3, 0, 0}) || !r.Ok || !r.Asserted || r.Errors != 0 || r.MaxInFlight == nil || *r.MaxInFlight > 3 {
		t.Errorf("S7 onefill: loads %v: %+v", loads(r), r)
	}
	for _, w := range r.Waves {
		if w.Calls.Calls != 12 {
			t.Errorf("S7 onefill: %d callers in the wave %s", w.Calls.Calls, w.Phase)
		}
	}
}

// expectOutage: naive asked the database for more than it can work on; onefill kept to
// its limits, served everybody and recovered.
func expectOutage(t *testing.T, got map[string]labResult, scenario string) {
	t.Helper()
	naive, onefill := got[scenario+" naive"], got[scenario+" onefill"]
	if naive.Outage == nil || onefill.Outage == nil {
		t.Errorf("%s: no figures: %+v, %+v", scenario, naive, onefill)
		return
	}
	if o := naive.Outage; o.MaxInFlight <= o.Workers || naive.Ok {
		t.Errorf("%s naive: %d operations at once, for %d workers", scenario, o.MaxInFlight, o.Workers)
	}
	o := onefill.Outage
	if !onefill.Ok || !onefill.Asserted || onefill.Errors != 0 || o.MaxInFlight > o.Limit || o.MaxInFlightDown > o.LimitDegraded || o.RecoveredMS == nil {
		t.Errorf("%s onefill: %+v", scenario, onefill)
	}
	if o.Meanwhile.Calls == 0 || len(o.Moments) != 2 || len(o.Series.Calls) < 20 ||
		len(o.Series.InFlight) != len(o.Series.Calls) || len(o.Series.P99MS) != len(o.Series.Calls) {
		t.Errorf("%s onefill: moments %v, %d calls meanwhile, series of %d", scenario, o.Moments, o.Meanwhile.Calls, len(o.Series.Calls))
	}
	if slices.Max(o.Series.InFlight) > o.Limit {
		t.Errorf("%s onefill: the series has %v", scenario, o.Series.InFlight)
	}
}

// TestGivenStoreIsNotKilled: what would harm a given store is left out, and the output
// says so; asked for alone it is bad input.
func TestGivenStoreIsNotKilled(t *testing.T) {
	t.Parallel()
	redis := servertest.Redis(t, servers.RedisOptions{})
	client := somebodyElse(t, redis)
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	stdout, err := exec.CommandContext(t.Context(), exe, "lab", "--scenario", "S1,S7,killed", "--mode", "onefill", "--load", "20ms",
		"--redis", redis.URL(), "--out", out).Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stdout)
	}
	page, err := os.ReadFile(filepath.Join(out, "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "Not played: S7 and killed"; !strings.Contains(string(stdout), want) || !bytes.Contains(page, []byte(want)) {
		t.Errorf("table or report lacks %q:\n%s", want, stdout)
	}
	code, _, stderr := run(t, "lab", "--scenario", "cold", "--redis", redis.URL(), "--out", t.TempDir())
	if code != exitInput || !strings.Contains(stderr, "--scenario: nothing is left to play") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
	if got, err := client.Do(t.Context(), client.B().Get().Key("mine").Build()).ToString(); got != "1" || err != nil {
		t.Errorf("what the given server held is %q now, %v", got, err)
	}
}
