package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/faultproxy"
)

// examination is what the doctor has said, by check. Where several servers have the check
// it is the last one's.
type examination struct {
	code   int
	stderr string
	all    []finding
	by     map[string]finding
}

func examine(t *testing.T, args ...string) examination {
	t.Helper()
	code, stdout, stderr := run(t, append([]string{"doctor", "--json"}, args...)...)
	e := examination{code: code, stderr: stderr, by: map[string]finding{}}
	for line := range strings.Lines(stdout) {
		var f finding
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		e.all = append(e.all, f)
		e.by[f.Check] = f
		if f.Server == "" || f.Found == "" || (f.Level == levelFail || f.Level == levelWarn) && f.Advice == "" {
			t.Errorf("a finding lacks something: %+v", f)
		}
	}
	return e
}

// finds checks the level of a check, a part of what was found, and that the exit code fits.
func (e *examination) finds(t *testing.T, check string, want level, says string) {
	t.Helper()
	f, ok := e.by[check]
	if !ok || f.Level != want || !strings.Contains(f.Found+" "+f.Advice, says) {
		t.Errorf("%s: %q, %s, %s; want %s and %q", check, f.Level, f.Found, f.Advice, want, says)
	}
	if failed := slices.ContainsFunc(e.all, func(f finding) bool { return f.Level == levelFail }); (e.code == exitFailed) != failed || !failed && e.code != exitOK {
		t.Errorf("exit code %d, and %+v", e.code, e.all)
	}
}

// allFine checks that nothing else than these is found wanting.
func (e *examination) allFine(t *testing.T, but ...string) {
	t.Helper()
	for _, f := range e.all {
		if f.Level != levelOK && !slices.Contains(but, f.Check) {
			t.Errorf("%s: %s, %s", f.Check, f.Level, f.Found)
		}
	}
	if e.code != exitOK {
		t.Errorf("exit code %d: %s", e.code, e.stderr)
	}
}

func TestDoctorBadInput(t *testing.T) {
	badInputs(t, []badInputCase{
		{"doctor", "no server is given; set ONEFILL_REDIS"},
		{"doctor now", "unknown command"},
		{"doctor --redis redis://u:secret@h", "ONEFILL_REDIS"},
		{"doctor --postgres postgres://u:secret@h/d", "ONEFILL_POSTGRES"},
		{"doctor --redis http://h", "--redis"},
		{"doctor --postgres postgres://h:port/d", "invalid port"},
		{"doctor --memcached h:1 --timeout 0", "--timeout"},
		{"doctor --memcached h:1 --round-trips 0", "--round-trips: 0"},
		{"doctor --memcached h:1 --max-lag 0", "--max-lag"},
	})
}

func TestClockResult(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		ahead, unsure time.Duration
		want          level
		says          string
	}{
		{0, time.Millisecond, levelOK, "that of this machine"},
		{900 * time.Millisecond, time.Millisecond, levelOK, "900ms ahead of this machine's, give or take 1ms"},
		{-2 * time.Second, time.Millisecond, levelWarn, "2s behind this machine's"},
		{time.Hour, time.Second, levelWarn, "1h0m0s ahead"},
		{2 * time.Second, 1500 * time.Millisecond, levelOK, "2s ahead"}, // it may be half a second
	} {
		if r := clockResult(now.Add(tt.ahead), now, tt.unsure); r.Level != tt.want || !strings.Contains(r.Found, tt.says) {
			t.Errorf("%v, %v: %+v", tt.ahead, tt.unsure, r)
		}
	}
}

func TestOlderThan(t *testing.T) {
	for version, want := range map[string]bool{"7.0.15": false, "8.0.1": false, "6.2.14": true, "10.1": false, "": true, "x": true} {
		if olderThan(version, 7) != want {
			t.Errorf("%q: %v", version, !want)
		}
	}
	for version, want := range map[string]bool{"1.6.13": true, "1.6.12": false, "1.6.18": true, "1.7.0": true, "1.5.19": false, "2.0": true, "1.6.17_x": true, "": false} {
		if n := (&memcachedNode{version: version}); n.atLeast(1, 6, 13) != want {
			t.Errorf("%q: %v", version, !want)
		}
	}
}

// Round trips that are slow, on a real server behind a slow wire.
func TestDoctorSlowServer(t *testing.T) {
	server := sharedRedis.Get(t)
	front, err := faultproxy.Start(server.Addr())
	must(t, err)
	defer front.Stop()
	front.Set(faultproxy.Replies, faultproxy.Faults{Latency: 100 * time.Millisecond})
	t.Setenv("ONEFILL_REDIS", strings.Replace(server.URL(), server.Addr(), front.Addr(), 1))
	// More than a quarter of the bound is slow. A busy machine adds to the latency.
	for bound, want := range map[string]level{"10s": levelOK, "390ms": levelWarn, "75ms": levelFail} {
		e := examine(t, "--round-trips", "5", "--store-timeout", bound)
		e.finds(t, "round-trips", want, "p99 ")
	}
}

// A server that hangs, or is not there, is a failure, within the time, and shows no password.
func TestDoctorUnreachable(t *testing.T) {
	server := startRedis(t)
	t.Setenv("ONEFILL_REDIS", strings.Replace(server.URL(), "redis://", "redis://:secret@", 1))
	t.Setenv("ONEFILL_MEMCACHED", "127.0.0.1:1, 127.0.0.1:2")
	t.Setenv("ONEFILL_POSTGRES", "postgres://u:secret@127.0.0.1:1/d")
	must(t, server.Pause())
	start := time.Now()
	e := examine(t, "--timeout", "100ms")
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	must(t, server.Continue())
	e.finds(t, "connect", levelFail, "")
	if len(e.all) != 4 || e.code != exitFailed || !strings.Contains(e.stderr, "4 checks failed") || !strings.Contains(e.all[0].Found, "deadline exceeded") {
		t.Errorf("%+v, %q", e.all, e.stderr)
	}
	for _, f := range e.all {
		if strings.Contains(f.Found+f.Advice+f.Server, "secret") {
			t.Errorf("the password is shown: %+v", f)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	if code := Run(ctx, []string{"doctor"}, strings.NewReader(""), &out, &errs); code != exitInterrupted || out.Len() > 0 {
		t.Errorf("interrupted: %d, %q, %q", code, out.String(), errs.String())
	}
}

func TestDoctorPrints(t *testing.T) {
	d := doctorFlags{}
	d.note("redis at h:1", "version", fine("7.0"))
	d.note("redis at h:1", "memory", warn(strings.Repeat("word ", 40), "no\nbound"))
	d.note("memcached at h:2", "cas", failed("Leave out -C.", "off"))
	d.note("memcached at h:2", "clock", unknown("not asked"))
	d.note("memcached at h:2", "queue", failed("", "%s", strings.Repeat("error ", 40)))
	var out bytes.Buffer
	err := d.report(&out)
	want := "redis at h:1\n  ok      version        7.0\n  warn    memory         no bound\n" + strings.Repeat(" ", 25) + strings.TrimSpace(strings.Repeat("word ", 15)) + "\n"
	if !strings.HasPrefix(out.String(), want) {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
	if !strings.Contains(out.String(), "memcached at h:2\n  fail    cas            off\n                         Leave out -C.\n  unknown clock          not asked\n  fail    queue          "+strings.TrimSpace(strings.Repeat("error ", 12))+"\n"+strings.Repeat(" ", 25)+"error") || !strings.HasSuffix(out.String(), "\n1 ok, 1 warning, 2 failed, 1 unknown\n") {
		t.Errorf("%s", out.String())
	}
	if err == nil || err.Error() != "2 checks failed" {
		t.Errorf("%v", err)
	}
	if got := painter(true)(levelFail); got != "\x1b[31mfail   \x1b[0m" {
		t.Errorf("%q", got)
	}
	strict := doctorFlags{strict: true}
	strict.note("redis at h:1", "memory", warn("advice", "found"))
	if err := strict.report(&out); err == nil || !strings.Contains(err.Error(), "1 warning, and --strict") {
		t.Errorf("%v", err)
	}
}
