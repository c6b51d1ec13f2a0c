package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestExitCodesOfEveryCommand holds every command, on real servers, against what docs/commands.md and its own help
// say of exit codes: 0 done, 1 not done or something was found wrong, 2 bad input. A server that cannot be reached is
// a failure, 1, of those who look after servers that run, and 2 for lab, live and bench, which cannot begin. Of each
// command there is a line for each code that it can be brought to.
func TestExitCodesOfEveryCommand(t *testing.T) {
	testQueue(t)
	a := startApp(t)
	dir := t.TempDir()
	trace := filepath.Join(dir, "trace")
	must(t, os.WriteFile(trace, []byte("a\nb\na\na\n"), 0o600))
	names := strings.NewReplacer("REDIS", startRedis(t).Addr(), "MEMCACHED", startMemcached(t), "DEAD", "127.0.0.1:1", "APP", a.server.URL,
		"TRACE", trace, "DIR", dir, "NOWHERE", "postgres://127.0.0.1:1/x")
	// Codes that are not here: 0 of lab, live and bench, which have tests of their own; 1 of lab, bench, live and
	// migrate print, for which something has to break while it runs.
	table := map[string]map[int][]string{
		"inspect": {
			exitOK:     {"--cache users --redis redis://REDIS 1", "--cache users --memcached MEMCACHED 1"},
			exitFailed: {"--cache users --redis redis://DEAD 1", "--cache users --memcached DEAD 1", "--cache users --memcached MEMCACHED,DEAD 1"},
			exitInput:  {"--redis redis://REDIS 1", "--cache users 1", "--cache users --redis redis://REDIS", "--cache users --redis http://REDIS 1", "--cache users --memcached MEMCACHED, 1"},
		},
		"why": {
			exitOK:     {"--cache users --redis redis://REDIS 1", "--cache users --memcached MEMCACHED 1"},
			exitFailed: {"--cache users --redis redis://DEAD 1"},
			exitInput:  {"--cache users --redis redis://REDIS --stale-for -1s 1", "--cache users --memcached MEMCACHED,MEMCACHED 1", "--cache users --memcached localhost 1"},
		},
		"lease break": {
			exitOK:     {"--cache users --redis redis://REDIS --yes 1", "--cache users --memcached MEMCACHED --yes 1"},
			exitFailed: {"--cache users --redis redis://DEAD --yes 1"},
			exitInput:  {"--cache users --redis redis://REDIS --yes", "--cache users --redis redis://REDIS --yes 1 2"},
		},
		"invalidate": {
			exitOK:     {"--cache users --redis redis://REDIS 1 2", "--cache users --memcached MEMCACHED 1", "--cache users --through-queue 1"},
			exitFailed: {"--cache users --redis redis://DEAD 1", "--cache users --through-queue --postgres NOWHERE 1"},
			exitInput:  {"--cache users --redis redis://REDIS", "--cache users --redis redis://REDIS --refresh 1", "--cache users --memcached MEMCACHED,,DEAD 1", "--cache users --through-queue --json-keys {"},
		},
		"doctor": {
			exitOK:     {"--redis redis://REDIS --round-trips 2 --store-timeout 5s", "--memcached MEMCACHED --round-trips 2 --store-timeout 5s"},
			exitFailed: {"--redis redis://DEAD", "--memcached MEMCACHED,DEAD", "--memcached REDIS", "--redis redis://REDIS --round-trips 2 --strict"},
			exitInput:  {"--round-trips 0", "--redis http://REDIS", "--memcached MEMCACHED,MEMCACHED", "--memcached localhost", "--postgres postgres://h:port/x", "--sqs nonsense"},
		},
		"watch": {
			exitFailed: {"--app http://DEAD", "--app http://REDIS --timeout 200ms"},
			exitInput:  {"", "--app nonsense", "--app APP --count -1"},
		},
		"top": {
			exitOK:     {"--once --app APP"},
			exitFailed: {"--once --app http://DEAD", "--once --app APP,http://DEAD"},
			exitInput:  {"", "--once --app APP --keys 0", "--once --app ftp://x"},
		},
		"queue status":  {exitOK: {""}, exitFailed: {"--postgres NOWHERE", "--schema nobody"}, exitInput: {"--timeout 0", "--postgres postgres://u:p@h/x", "now"}},
		"queue lag":     {exitOK: {"", "--max 1h"}, exitFailed: {"--postgres NOWHERE"}, exitInput: {"--max -1s", "--max soon"}},
		"dead list":     {exitOK: {""}, exitFailed: {"--postgres NOWHERE"}, exitInput: {"--max -1", "1"}},
		"dead show":     {exitFailed: {"999", "one", "--postgres NOWHERE 1"}, exitInput: {""}},
		"dead replay":   {exitOK: {"--all"}, exitFailed: {"999", "--postgres NOWHERE 1"}, exitInput: {"", "--all 1"}},
		"dead drop":     {exitOK: {"--all"}, exitFailed: {"999", "--postgres NOWHERE 1"}, exitInput: {"", "--all 1"}},
		"migrate up":    {exitOK: {""}, exitFailed: {"--postgres NOWHERE"}, exitInput: {"now", "--timeout 0"}},
		"migrate down":  {exitOK: {"--force"}, exitFailed: {"--postgres NOWHERE"}, exitInput: {"now"}},
		"migrate print": {exitOK: {""}, exitInput: {"now"}},
		"lab":           {exitInput: {"--redis redis://DEAD", "--memcached DEAD", "--memcached MEMCACHED,DEAD", "--memcached localhost", "--postgres NOWHERE", "--callers 0"}},
		"live":          {exitInput: {"--redis redis://DEAD", "--listen nonsense", "--given"}},
		"bench":         {exitInput: {"--redis redis://DEAD", "--memcached DEAD", "--memcached MEMCACHED,DEAD", "--memcached localhost", "--memcached MEMCACHED,MEMCACHED", "--memcached REDIS", "--rounds 0"}},
		"size": {
			exitOK:     {"--trace TRACE --target 0.4"},
			exitFailed: {"--trace TRACE --target 0.4 --svg DIR"},
			exitInput:  {"--trace TRACE --target 0.9", "--trace DIR/none --target 0.4", "--trace TRACE --target 2"},
		},
	}
	visit(newRoot(), func(cmd *cobra.Command) {
		name := strings.TrimPrefix(cmd.CommandPath(), "onefill ")
		cases := table[name]
		delete(table, name)
		if len(cases) == 0 {
			t.Errorf("%s has no line here", name)
		}
		for _, want := range []int{exitInput, exitFailed, exitOK} { // so that migrate down comes last, with 0
			for _, args := range cases[want] {
				args := strings.Fields(name + " " + names.Replace(args))
				code, stdout, stderr := run(t, args...)
				if code != want {
					t.Errorf("%s: exit code %d, expected %d\n%s%s", strings.Join(args, " "), code, want, stdout, stderr)
				}
				if want == exitInput && stdout != "" || want != exitOK && strings.Count("\n"+stderr, "\nonefill: ") != 1 {
					t.Errorf("%s: on standard output %q, on standard error %q", strings.Join(args, " "), stdout, stderr)
				}
			}
		}
	})
	for name := range table {
		t.Errorf("%s is no command", name)
	}
}
