package cli

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

// TestLabOnPrivateMemcached is the headline on memcached: a lease of 2 s and, in S4,
// a load of 3.2 s, as its clock counts seconds.
func TestLabOnPrivateMemcached(t *testing.T) {
	t.Parallel()                                        // it mostly waits
	servertest.Memcached(t, servers.MemcachedOptions{}) // says what to install, or skips where that is allowed
	got := playLab(t, "--store", "memcached", "--scenario", "S1,S2,S3,S4,S5,S6,release", "--mode", "naive,onefill")
	expectLoads(t, got, map[string]int{
		"S1 naive": 12, "S1 onefill": 1,
		"S2 naive": 12, "S2 onefill": 1,
		"S3 naive": 12, "S3 onefill": 1,
		"S4 naive": 12, "S4 onefill": 1,
		"S5 naive": 12, "S5 onefill": 2,
		"S6 naive": 12, "S6 onefill": 1,
		"release onefill": 0,
	})
	for name, r := range got {
		if r.Store != "memcached" || r.StoreVersion == "" || r.Origin != "postgres" || r.Processes != 3 || r.Callers != 12 || r.LeaseMS != 2000 {
			t.Errorf("%s: not on real servers, or not the defaults: %+v", name, r)
		}
		if r.Mode == "onefill" && (!r.Ok || !r.Asserted || !r.Identical) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := got["S4 onefill"]; r.LoadMS != 3200 {
		t.Errorf("S4: a load of %v ms", r.LoadMS)
	}
	if r := got["S5 onefill"]; r.StoreHolds != "new" || r.StaleAnswers == nil || *r.StaleAnswers != 0 {
		t.Errorf("S5: %+v", r)
	}
	if r := got["S5 naive"]; r.StoreHolds != "old" || r.Ok {
		t.Errorf("S5: plain cache-aside lets the old load publish: %+v", r)
	}
	if r := got["S1 naive"]; r.Commands != 24 {
		t.Errorf("S1 naive: %d commands counted; 12 get and 12 set were sent", r.Commands)
	}
	t.Logf("S1 onefill: %d commands of 3 processes", got["S1 onefill"].Commands)
}

// TestLabOnGivenMemcached also plays the recipes, and looks at what is left there:
// nothing but what was, and the adapter's one item.
func TestLabOnGivenMemcached(t *testing.T) {
	t.Parallel() // it mostly waits
	server := servertest.Memcached(t, servers.MemcachedOptions{})
	conn := dialMemcached(t, server)
	if got := conn.say("set mine 0 0 1\r\n1", "\n"); got != "STORED" {
		t.Fatal(got)
	}
	got := playLab(t, "--scenario", "S1,S5,S6,release", "--mode", "local,lock,onefill", "--load", "150ms", "--memcached", server.Addr())
	expectLoads(t, got, map[string]int{
		"S1 local": 3, "S1 lock": 1, "S1 onefill": 1,
		"S5 local": 3, "S5 lock": got["S5 lock"].Loads, "S5 onefill": 2,
		"S6 local": 3, "S6 lock": got["S6 lock"].Loads, "S6 onefill": 1,
		"release lock": 0, "release onefill": 0,
	})
	if r := got["release lock"]; r.Freed == nil || !*r.Freed || r.Ok {
		t.Errorf("release: the lock recipe frees another's lock: %+v", r)
	}
	if r := got["release onefill"]; r.Freed == nil || *r.Freed || !r.Ok {
		t.Errorf("release: %+v", r)
	}
	stats := conn.say("stats", "END")
	if !strings.Contains(stats, "STAT curr_items 2\r\n") || conn.say("touch mine 0", "\n") != "TOUCHED" || conn.say("mg of::life", "\n") != "HD" {
		t.Errorf("memcached should hold what was there and of::life; it says:\n%s", stats)
	}
}

// TestLabWithoutMemcached: nothing stands in for it; the message says what to do.
func TestLabWithoutMemcached(t *testing.T) {
	exe, err := program() // needs PATH as it is
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir()) // memcached is looked for on PATH only
	out, err := exec.CommandContext(t.Context(), exe, "lab", "--store", "memcached", "--out", t.TempDir()).CombinedOutput()
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != exitFailed {
		t.Errorf("ended with %v", err)
	}
	for _, want := range []string{"memcached is not installed", "apt-get install memcached", "--memcached"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output lacks %q: %s", want, out)
		}
	}
}

// memcachedConn speaks the text protocol.
type memcachedConn struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func dialMemcached(t *testing.T, server *servers.Server) *memcachedConn {
	t.Helper()
	conn, err := net.Dial("tcp", server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(2 * time.Minute))
	return &memcachedConn{t, conn, bufio.NewReader(conn)}
}

// say sends a command and returns the answer up to end, or its first line if end is
// a line's.
func (c *memcachedConn) say(command, end string) string {
	c.t.Helper()
	if _, err := fmt.Fprint(c.conn, command+"\r\n"); err != nil {
		c.t.Fatal(err)
	}
	var all strings.Builder
	for {
		line, err := c.in.ReadString('\n')
		if err != nil && err != io.EOF {
			c.t.Fatal(err)
		}
		text := strings.TrimRight(line, "\r\n")
		if end == "\n" {
			return text
		}
		if text == end || err == io.EOF {
			return all.String()
		}
		all.WriteString(line)
	}
}
