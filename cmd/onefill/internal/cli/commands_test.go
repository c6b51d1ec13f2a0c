package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// docs/commands.md is about every command that can be called, with an example and every
// flag as --help has it, and about none that is not there. What differs is printed as it
// should be.
func TestCommandsPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "commands.md"))
	must(t, err)
	sections := map[string]string{}
	var order []string
	for part := range strings.SplitSeq("\n"+string(text), "\n## ") {
		title, body, _ := strings.Cut(part, "\n")
		sections[title] = body
		order = append(order, title)
	}
	known := map[string]bool{}
	visit(newRoot(), func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		known[path] = true
		body, ok := sections[path]
		if !ok {
			t.Errorf("docs/commands.md has no section of its own for this:\n\n## %s\n\n%s.\n\n%s", path, cmd.Short, flagTable(cmd))
			return
		}
		if !strings.Contains(body, "$ "+path+" ") && !strings.Contains(body, "$ "+path+"\n") {
			t.Errorf("## %s has no example: a line that begins with $ %s", path, path)
		}
		if want := flagTable(cmd); !strings.Contains(body, want) {
			t.Errorf("## %s lacks this table, or has another one:\n%s", path, want)
		}
	})
	for _, title := range order[1:] {
		if strings.HasPrefix(title, "onefill") && !known[title] && title != "onefill completion" {
			t.Errorf("docs/commands.md is about %q, which is no command", title)
		}
	}
	if !strings.Contains(sections["onefill completion"], "$ onefill completion bash") {
		t.Error("docs/commands.md does not tell of completion")
	}
}

// visit calls do for every command that does something of its own.
func visit(cmd *cobra.Command, do func(*cobra.Command)) {
	if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" {
		return
	}
	if !cmd.HasSubCommands() {
		do(cmd)
	}
	for _, sub := range cmd.Commands() {
		visit(sub, do)
	}
}

// flagTable is the table of a command's flags.
func flagTable(cmd *cobra.Command) string {
	var rows []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := strings.TrimSpace("--" + f.Name + " " + kind)
		fallback := f.DefValue
		if slices.Contains([]string{"", "0", "0s", "false", "[]"}, fallback) {
			fallback = ""
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", name, fallback, strings.ReplaceAll(usage, "|", `\|`)))
	})
	if len(rows) == 0 {
		return ""
	}
	return "| flag | default | meaning |\n|---|---|---|\n" + strings.Join(rows, "")
}

// Every command prints JSON, says what its exit codes mean, and has its flags from the
// environment.
func TestEveryCommand(t *testing.T) {
	exits := regexp.MustCompile(`(?s)Exit codes?:.*0 .*1 .*2 `)
	visit(newRoot(), func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if cmd.Flags().Lookup("json") == nil {
			t.Errorf("%s has no --json", path)
		}
		if !exits.MatchString(cmd.Long) {
			t.Errorf("the help of %s does not say what the exit codes 0, 1 and 2 mean", path)
		}
		for line := range strings.Lines(ok(t, append(strings.Fields(path)[1:], "--help")...)) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > helpWidth {
				t.Errorf("a line of the help of %s has %d columns: %s", path, n, line)
			}
		}
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: %q", path, cmd.Short)
		}
	})
}
