package cli

import (
	"strings"

	"github.com/onefill/onefill/cmd/onefill/internal/lab"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// values are what some flags can be. A flag that is in neither of these tables completes to
// nothing: file names would be wrong for it.
var values = map[string][]string{
	"scenario": lab.ScenarioIDs(),
	"mode":     lab.Modes,
	"store":    lab.StoreKinds,
	"codec":    {"json\tof everything but []byte and string", "raw\tof []byte and string"},
}

// files are flags that name files or directories.
var files = map[string]bool{"out": true, "svg": true, "trace": true}

// completions makes the command tree complete what is typed: subcommands, flags, and the
// values above. Keys are in the store, which is not asked for them: it may hold many.
func completions(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" { // whose errors are bad input, as everywhere
			cmd.Args = noArgs
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
	complete(root)
}

func complete(cmd *cobra.Command) {
	if !cmd.HasSubCommands() && cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if _, has := cmd.GetFlagCompletionFunc(f.Name); has || files[f.Name] || f.NoOptDefVal != "" {
			return
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, completeFlag(values[f.Name])) // fails for flags that are not there
	})
	for _, sub := range cmd.Commands() {
		complete(sub)
	}
}

// completeFlag completes one of the values, or the last of several that are separated by
// commas.
func completeFlag(values []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		before := typed[:strings.LastIndexByte(typed, ',')+1]
		var all []cobra.Completion
		for _, v := range values {
			if strings.HasPrefix(before+v, typed) {
				all = append(all, before+v)
			}
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}
