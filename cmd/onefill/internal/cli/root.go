// Package cli is the command tree of onefill.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/onefill/onefill/cmd/onefill/internal/lab"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The exit codes. The help of every command says what they mean there.
const (
	exitOK          = 0
	exitFailed      = 1
	exitInput       = 2
	exitInterrupted = 130
)

const exitHelp = `Exit codes: 0 everything held, 1 a guarantee failed or the run could not be
finished, 2 bad input or a given server that cannot be used, 130 interrupted.`

// helpWidth is how many columns the help takes.
const helpWidth = 100

// exitError ends the program with a code. Without err nothing more is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// Run executes the program with args and returns its exit code.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	completions(root) // now, as it remembers where to write
	err := root.ExecuteContext(ctx)
	code, text := exitFor(ctx, err)
	if text != "" {
		fmt.Fprintln(stderr, "onefill: "+strings.TrimPrefix(text, "onefill: ")) // the library's errors begin with it, too
	}
	return code
}

func exitFor(ctx context.Context, err error) (code int, text string) {
	var exit *exitError
	var input *lab.InputError
	switch {
	case err == nil:
		return exitOK, ""
	case errors.As(err, &exit):
		return exit.code, exit.Error()
	case ctx.Err() != nil: // whatever it was that ended because of it
		return exitInterrupted, "interrupted"
	case errors.As(err, &input):
		return exitInput, err.Error()
	}
	return exitFailed, err.Error()
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "onefill",
		Short:         "Shows what the cache library onefill does, looks into its stores, and looks after its queue",
		Long:          "onefill shows what the cache library onefill does, on real servers, looks into the stores\nof running applications, and looks after their queue in PostgreSQL.\n\n" + exitHelp,
		Version:       version(),
		Args:          noArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return flagsFromEnv(cmd.Flags(), os.LookupEnv)
		},
	}
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", helpWidth)))
	root.SetVersionTemplate("onefill {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &exitError{exitInput, err} })
	root.AddCommand(newLab(), newReader(), newSize(), newMigrate(), newQueue(), newDead(), newInvalidate(),
		newInspect(), newWhy(), newLease(), newDoctor())
	root.AddCommand(newWatch(), newTop(), newLive())
	root.AddCommand(newBench(), newBenchChild())
	return root
}

// version is that of the module, as the build has noted it, and the Go that it is built with.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "of unknown version"
	}
	return strings.Trim(info.Main.Version, "()") + ", " + info.GoVersion
}

// noArgs refuses arguments as bad input.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &exitError{exitInput, fmt.Errorf("unknown command %q for %q; %q lists what there is", args[0], cmd.CommandPath(), cmd.CommandPath()+" --help")}
}

// fromEnv marks a flag that the environment has set.
const fromEnv = "onefill_from_environment"

// byHand marks flags that the environment does not set: what they do is to be meant where
// it is typed, or their name says another thing in another command.
func byHand(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		flags.SetAnnotation(name, notFromEnv, nil)
	}
}

const notFromEnv = "onefill_not_from_environment"

// notBeside marks flags that exclude each other: where one is typed, the environment does not
// set the others.
func notBeside(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		flags.SetAnnotation(name, excludes, names)
	}
}

const excludes = "onefill_excludes"

// typed says whether a flag was given on the command line.
func typed(flags *pflag.FlagSet, name string) bool {
	f := flags.Lookup(name)
	return f != nil && f.Changed && f.Annotations[fromEnv] == nil
}

// envName is the environment variable that sets a flag: ONEFILL_ and its name.
func envName(flag string) string {
	return "ONEFILL_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// flagsFromEnv sets the flags that were not given on the command line from the
// environment.
func flagsFromEnv(flags *pflag.FlagSet, lookup func(string) (string, bool)) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		value, ok := lookup(envName(f.Name))
		if _, by := f.Annotations[notFromEnv]; by || slices.ContainsFunc(f.Annotations[excludes], func(name string) bool { return typed(flags, name) }) {
			return
		}
		if !ok || value == "" || f.Changed || f.Name == "help" || err != nil {
			return
		}
		if setErr := flags.Set(f.Name, value); setErr != nil {
			err = &exitError{exitInput, fmt.Errorf("%s: %w", envName(f.Name), setErr)}
			return
		}
		if f.Annotations == nil {
			f.Annotations = map[string][]string{}
		}
		f.Annotations[fromEnv] = []string{envName(f.Name)}
	})
	return err
}
