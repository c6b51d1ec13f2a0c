package cli

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/bench"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/redis/rueidis"
)

// runBench runs the program itself, since it starts itself as the processes of the herd.
func runBench(t *testing.T, args ...string) bench.Report {
	t.Helper()
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, exe, append([]string{"bench", "--json", "--for", "100ms", "--rounds", "4", "--callers", "30", "--load", "100ms"}, args...)...)
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	return read[bench.Report](t, string(stdout))
}

// plausible checks what holds on any machine, however slow.
func plausible(t *testing.T, r bench.Report) {
	t.Helper()
	if r.LocalHitNS <= 0 || r.LocalHitNS > 1e6 || len(r.StoreHits) != 3 || r.Version == "" || r.KeysLeft != 0 {
		t.Errorf("%+v", r)
	}
	for _, l := range append(r.StoreHits, r.Miss, r.Many) {
		if l.Calls == 0 || l.P50US <= 0 || l.P99US < l.P50US || l.P50US < r.LocalHitNS/1000 {
			t.Errorf("%+v beside hits in local of %v ns", l, r.LocalHitNS)
		}
	}
	h := r.Herd
	if h.Loads != 4 || h.Errors != 0 || h.Callers != 30 || h.Processes != 3 || h.P99MS < h.P50MS || h.P50MS < 0 || h.Commands == nil || *h.Commands < 4 || *h.Commands > 200 {
		t.Errorf("%+v, %v commands", h, h.Commands)
	}
}

// TestBenchOnAGivenRedis: it measures, and leaves the keys of others and nothing else.
func TestBenchOnAGivenRedis(t *testing.T) {
	client := benchRedis(t)
	r := runBench(t)
	plausible(t, r)
	if r.Private || r.Invalidation == nil || r.Invalidation.Calls != 40 || r.Invalidation.P50US <= 0 {
		t.Errorf("%+v", r)
	}
	onlyTheirs(t, client)
}

// benchRedis is a given server, with a key of somebody else's.
func benchRedis(t *testing.T) rueidis.Client {
	t.Helper()
	server := servertest.Redis(t, servers.RedisOptions{})
	t.Setenv("ONEFILL_REDIS", server.URL())
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if err := client.Do(t.Context(), client.B().Set().Key("theirs").Value("1").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	return client
}

func onlyTheirs(t *testing.T, client rueidis.Client) {
	t.Helper()
	if n, err := client.Do(t.Context(), client.B().Dbsize().Build()).AsInt64(); n != 1 || err != nil {
		left, _ := client.Do(t.Context(), client.B().Scan().Cursor(0).Count(100).Build()).ToString()
		t.Errorf("%d keys are left (%v), expected theirs alone: %s", n, err, left)
	}
	if v, err := client.Do(t.Context(), client.B().Get().Key("theirs").Build()).ToString(); v != "1" || err != nil {
		t.Errorf("theirs is %q (%v)", v, err)
	}
}

// TestBenchInterrupted: it is interrupted while it measures misses, which write keys. They are removed
// all the same.
func TestBenchInterrupted(t *testing.T) {
	client := benchRedis(t)
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "bench", "--for", "5s")
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(pipe)
	for lines.Scan() && !strings.Contains(lines.Text(), "] misses") {
	}
	until(t, "it has written", func() bool {
		n, err := client.Do(t.Context(), client.B().Dbsize().Build()).AsInt64()
		return err == nil && n > 20
	})
	cmd.Process.Signal(syscall.SIGINT)
	rest := ""
	for lines.Scan() {
		rest += lines.Text() + "\n"
	}
	if cmd.Wait(); cmd.ProcessState.ExitCode() != exitInterrupted {
		t.Errorf("exit code %d\n%s", cmd.ProcessState.ExitCode(), rest)
	}
	onlyTheirs(t, client)
}

// TestBenchOnMemcached: a given one, which tells nobody of changes.
func TestBenchOnMemcached(t *testing.T) {
	server := servertest.Memcached(t, servers.MemcachedOptions{})
	r := runBench(t, "--memcached", server.Addr())
	plausible(t, r)
	if r.Invalidation != nil || r.LocalTTLMS != 5000 {
		t.Errorf("%+v", r)
	}
	conn, err := net.Dial("tcp", server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Write([]byte("stats\r\n"))
	items := ""
	for lines := bufio.NewScanner(conn); lines.Scan() && lines.Text() != "END"; {
		if n, ok := strings.CutPrefix(lines.Text(), "STAT curr_items "); ok {
			items = n
		}
	}
	if items != "1" { // the adapter's own, of::life
		t.Errorf("%s items are left", items)
	}
}

func TestBenchRefuses(t *testing.T) {
	for _, tt := range []struct{ args, says string }{
		{"bench --redis redis://10.0.0.5:6379", "--load-a-remote-server"},
		{"bench --redis redis://127.0.0.1:7000?addr=cache.example:7001", "cache.example is not on this machine"},
		{"bench --memcached localhost:11211,10.0.0.6:11211", "10.0.0.6 is not on this machine"},
		{"bench --redis redis://127.0.0.1:1", "cannot use the server"},
		{"bench --memcached 127.0.0.1:1", "cannot use the server"},
		{"bench --redis redis://u:secret@127.0.0.1:1", "ONEFILL_REDIS"},
		{"bench --redis redis://x --memcached y", "excludes"},
		{"bench --store memcached --redis redis://x", "--store: excludes"},
		{"bench --store etcd", "known: redis, memcached"},
		{"bench --callers 2", "--callers: 2; allowed is 3 to 1000"},
		{"bench --processes 17", "--processes: 17; allowed is 1 to 16"},
		{"bench --rounds 0", "--rounds"},
		{"bench --load 2s", "--load: 2s; allowed is 1ms to 1s"},
		{"bench --for 1m", "--for: 1m0s; allowed is 100ms to 5s"},
		{"bench now", "unknown command"},
	} {
		code, stdout, stderr := run(t, strings.Fields(tt.args)...)
		if code != exitInput || stdout != "" || !strings.Contains(stderr, tt.says) || strings.Contains(stderr, "secret") {
			t.Errorf("%s: exit code %d, %q, %q", tt.args, code, stdout, stderr)
		}
	}
}
