package cli

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(t.Context(), args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// TestBadInput: exit code 2, a message that names the flag and what is allowed,
// nothing on standard output, no password.
func TestBadInput(t *testing.T) {
	for _, tt := range []struct{ args, says string }{
		{"lab --callers 2", "--callers"},
		{"lab --callers many", "--callers"},
		{"lab --load 0", "--load: 0s; allowed is 1ms"},
		{"lab --scenario S1,S9", `unknown scenario "S9"; known: S1, S2, S3, S4, S5, S6, S7, release, killed, frozen, cold, commit`},
		{"lab --mode fast", `unknown mode "fast"; known: naive, local, lock, onefill`},
		{"lab --embedded --redis redis://x", "excludes --redis"},
		{"lab --embedded --store memcached", "--embedded: there is no built-in memcached"},
		{"lab --store etcd", `unknown store "etcd"; known: redis, memcached`},
		{"lab --redis redis://x --memcached x:1", "--memcached: excludes --redis"},
		{"lab --store redis --memcached x:1", "--memcached: excludes --store redis"},
		{"lab --store memcached --lease 1500ms", "--lease: 1.5s; memcached takes whole seconds, 2s at least"},
		{"lab --memcached localhost", "--memcached: \"localhost\": missing port in address; write host:port"},
		{"lab --memcached a:1,b:2", "--memcached: 2 servers are given; the lab takes one"},
		{"lab --memcached 127.0.0.1:1", "127.0.0.1:1"},
		{"lab --out /dev/null/x", "--out"},
		{"lab --nonsense", "--nonsense"},
		{"lab now", `unknown command "now"`},
		{"la", `unknown command "la"`},
		{"lab --redis redis://u:secret@127.0.0.1:1", "--redis: a password on the command line"},
		{"lab --redis redis://u@127.0.0.1:1", "--redis: cannot use the server at 127.0.0.1:1"},
		{"lab --redis http://u:secret@127.0.0.1:1", "--redis"},
		{"lab --redis redis://u:secret@%zz", "--redis"},
		{"lab --postgres postgres://u:secret@127.0.0.1:1/x --mode onefill", "--postgres: a password on the command line"},
		{"lab --postgres postgres://u@127.0.0.1:1/x --mode onefill", "--postgres: cannot use the server at 127.0.0.1:1"},
		{"lab --postgres postgres://u:secret@h:port/x", "--postgres"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			code, stdout, stderr := run(t, strings.Fields(tt.args)...)
			if code != exitInput || stdout != "" {
				t.Errorf("exit code %d, expected %d; on standard output: %q", code, exitInput, stdout)
			}
			if !strings.Contains(stderr, tt.says) || strings.Contains(stderr, "secret") {
				t.Errorf("stderr %q; expected %q and no password", stderr, tt.says)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	code, stdout, stderr := run(t, "--version")
	if code != exitOK || stderr != "" || !strings.HasPrefix(stdout, "onefill ") || !strings.HasSuffix(stdout, runtime.Version()+"\n") {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
}

func TestHelpNamesExitCodesAndScenarios(t *testing.T) {
	code, stdout, _ := run(t, "lab", "--help")
	if code != exitOK {
		t.Errorf("exit code %d", code)
	}
	stdout = strings.Join(strings.Fields(stdout), " ") // wherever lines are broken
	for _, want := range []string{"Exit codes: 0", "S1, S2, S3, S4, S5, S6, S7, release, killed, frozen, cold, commit", "naive, local, lock, onefill", "--embedded", "--json", "--memcached", "redis, memcached"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the help has no %q", want)
		}
	}
	if strings.Contains(stdout, hidden) {
		t.Error("the help shows the hidden command")
	}
}

func TestExitCodes(t *testing.T) {
	if code, _ := exitFor(t.Context(), errors.New("x")); code != exitFailed {
		t.Errorf("an error: %d", code)
	}
	if code, text := exitFor(t.Context(), &exitError{exitFailed, errors.New("S1 onefill: 2 loads")}); code != exitFailed || text != "S1 onefill: 2 loads" {
		t.Errorf("a broken guarantee: %d %q", code, text)
	}
}

func TestFlagsFromEnvironment(t *testing.T) {
	env := map[string]string{"ONEFILL_CALLERS": "7", "ONEFILL_DRY_RUN": "true", "ONEFILL_OUT": "env"}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
	callers, dry, out := flags.Int("callers", 1, ""), flags.Bool("dry-run", false, ""), flags.String("out", "", "")
	if err := flags.Parse([]string{"--out", "given"}); err != nil {
		t.Fatal(err)
	}
	if err := flagsFromEnv(flags, lookup); err != nil {
		t.Fatal(err)
	}
	if *callers != 7 || !*dry || *out != "given" {
		t.Errorf("callers %d, dry-run %v, out %q; the command line goes before the environment", *callers, *dry, *out)
	}
	env["ONEFILL_CALLERS"] = "x"
	again := pflag.NewFlagSet("x", pflag.ContinueOnError)
	again.Int("callers", 1, "")
	if err := flagsFromEnv(again, lookup); err == nil || !strings.Contains(err.Error(), "ONEFILL_CALLERS") {
		t.Errorf("a bad value gave %v, which does not name the variable", err)
	}
}

// TestProgressOffATerminal: whole lines, with all the words of a step; the first, then one a tenth of the work, and
// one after five seconds in which there was none.
func TestProgressOffATerminal(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b)
	now := p.told
	p.now = func() time.Time { return now }
	p.step("starting servers and readers", 0, 40)
	for i := 1; i <= 9; i++ {
		p.step(fmt.Sprintf("S%d the key is absent, naive", i), i, 40)
	}
	now = now.Add(progressEvery)
	p.step("S10 slow, lock", 10, 40)
	p.tick("still slow")
	now = now.Add(progressEvery)
	p.tick("S10 1,234 of 5,000 keys")
	p.done()
	const want = "starting servers and readers\n[4/40] S4 the key is absent, naive\n[8/40] S8 the key is absent, naive\n" +
		"[10/40] S10 slow, lock\nS10 1,234 of 5,000 keys\n"
	if got := b.String(); got != want {
		t.Errorf("%q\nwant\n%q", got, want)
	}
}
