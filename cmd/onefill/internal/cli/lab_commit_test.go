package cli

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

// TestLabCommit: writers and workers are killed, Redis comes and goes. Onefill with the queue
// has no stale value at the end; publishing after the commit leaves some, which is also what
// shows that the scenario puts anything to the test.
func TestLabCommit(t *testing.T) {
	t.Parallel()                                // it mostly waits
	servertest.Redis(t, servers.RedisOptions{}) // says what to install, or skips where that is allowed
	got := playLab(t, "--scenario", "commit", "--mode", "naive,lock,onefill")
	if len(got) != 2 {
		t.Errorf("played %d; the scenario is for naive and onefill", len(got))
	}
	naive, onefill := got["commit naive"], got["commit onefill"]
	if naive.Commit == nil || onefill.Commit == nil {
		t.Fatalf("no figures: %+v, %+v", naive, onefill)
	}
	if o := naive.Commit; o.StaleKeys == 0 || naive.Ok || naive.Asserted {
		t.Errorf("naive: %+v", o)
	}
	o := onefill.Commit
	if o.StaleKeys != 0 || o.StaleAnswers != 0 || o.Unread != 0 || o.JobsLeft != 0 || o.Dead != 0 || o.DrainedMS == nil || !onefill.Ok || !onefill.Asserted {
		t.Errorf("onefill: %+v, %v", o, onefill.Failed)
	}
	if o.Commits < 50 || o.WritersKilled == 0 || o.WorkersKilled == 0 || o.StoreStops != 2 {
		t.Errorf("not put to the test: %+v", o)
	}
}

// TestLabCommitNeedsServers: without PostgreSQL and a Redis that keeps its data it is left
// out, and the output says so.
func TestLabCommitNeedsServers(t *testing.T) {
	t.Parallel()
	code, _, stderr := run(t, "lab", "--scenario", "commit", "--embedded", "--out", t.TempDir())
	if code != exitInput || !strings.Contains(stderr, "Not played: commit, which needs a Redis of the lab's own") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), exe, "lab", "--scenario", "S1,commit", "--mode", "onefill", "--embedded", "--load", "20ms", "--out", t.TempDir()).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "note: Not played: commit") {
		t.Errorf("%v\n%s", err, out)
	}
}
