package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Each shell gets a script that it can read, where it is installed.
func TestCompletionScripts(t *testing.T) {
	for shell, check := range map[string][]string{"bash": {"-n"}, "zsh": {"-n"}, "fish": {"--no-execute"}, "powershell": nil} {
		t.Run(shell, func(t *testing.T) {
			script := ok(t, "completion", shell)
			if !strings.Contains(script, "__complete") {
				t.Fatalf("%.200s", script)
			}
			path, err := exec.LookPath(shell)
			if err != nil || check == nil {
				t.Logf("not read by a %s: it is not installed", shell)
				return
			}
			file := filepath.Join(t.TempDir(), "script")
			must(t, os.WriteFile(file, []byte(script), 0o600))
			if out, err := exec.Command(path, append(check, file)...).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	fails(t, exitInput, `unknown command "tcsh"`, "completion", "tcsh")
}

// What is completed: commands, flags, values; never a file where none is meant.
func TestCompletes(t *testing.T) {
	for _, tt := range []struct{ typed, want string }{
		{"lease |", "break"},
		{"why --codec |", "json raw"},
		{"why --codec r|", "raw"},
		{"lab --store |", "redis memcached"},
		{"bench --store |", "redis memcached"},
		{"live --store |", "memory redis"},
		{"lab --scenario S1,re|", "S1,release"},
		{"lab --mode naive,|", "naive,naive naive,local naive,lock naive,onefill"},
		{"inspect --ra|", "--raw"},
		{"inspect |", ""},
		{"inspect --cache |", ""},
		{"inspect --timeout |", ""},
		{"doctor |", ""},
	} {
		args := append([]string{"__complete"}, strings.Fields(strings.TrimSuffix(tt.typed, "|"))...)
		if strings.HasSuffix(tt.typed, " |") {
			args = append(args, "")
		}
		_, out, _ := run(t, args...)
		rows := strings.Split(strings.TrimSpace(out), "\n")
		var got []string
		for _, row := range rows[:len(rows)-1] {
			value, _, _ := strings.Cut(row, "\t")
			got = append(got, value)
		}
		if strings.Join(got, " ") != tt.want || rows[len(rows)-1] != ":4" { // 4: no file names
			t.Errorf("%s: %q, %s; want %q", tt.typed, got, rows[len(rows)-1], tt.want)
		}
	}
	if _, out, _ := run(t, "__complete", "size", "--trace", ""); !strings.Contains(out, ":0") {
		t.Errorf("file names are not completed: %q", out)
	}
}

// Every flag that takes a file is one that there is.
func TestCompletionTables(t *testing.T) {
	seen := map[string]bool{}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { seen[f.Name] = true })
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(newRoot())
	for name := range files {
		if !seen[name] {
			t.Errorf("no command has a flag --%s", name)
		}
	}
	for name := range values {
		if !seen[name] {
			t.Errorf("no command has a flag --%s", name)
		}
	}
}
