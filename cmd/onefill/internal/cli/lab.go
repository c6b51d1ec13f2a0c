package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/onefill/onefill/cmd/onefill/internal/lab"
	"github.com/spf13/cobra"
)

const labLong = `Reader processes miss the same keys at the same moment; the database counts what
reaches it. Each scenario is played with plain cache-aside (naive), in-process
coalescing (local), the common lock recipe (lock) and onefill.

Servers: private ones are started where redis-server and postgres are installed,
and stopped afterwards. --redis and --postgres take existing ones: the lab uses
names of its own there and removes them. Otherwise miniredis and SQLite, which
are built in, stand in; the output says so.

--store memcached plays it on memcached, on a private one or the one that
--memcached names. For memcached nothing stands in. Its clock counts seconds, so
the lease lasts whole seconds, two at least.

In S7 the store is killed, and the callers come three times. In killed, frozen and
cold there are calls at even intervals for many keys, before a database that works
on a few operations at once: the store is killed and comes back, hangs (SIGSTOP) and
goes on, or restarts empty. The report has plots of what happens meanwhile, and
--json has it as series, a figure for every 50 ms. The lab does that to a store of
its own only: with --redis or --memcached these four are left out.

In commit writers change rows, and are killed at random moments, as are the workers of
the queue; Redis is stopped and started with its data. At the end every cached value is
compared with its row. It needs PostgreSQL and a Redis of the lab's own.

The lab asserts what onefill guarantees; for the other modes it reports what
happened. It writes report.html, plots and the raw logs to a directory. All of it
takes about a minute.

Figures: loads are counted in a row of the database by each operation itself.
Commands are what the store's server executed, so everybody who uses a given
server counts: by Redis's INFO commandstats, where a script counts, and each
command in it; by memcached's stats.

`

// hidden is the command of a reader process.
const hidden = "lab-reader"

func newLab() *cobra.Command {
	cfg := lab.Defaults()
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Proves on real servers that many readers of an absent key cost the database one load",
		Long:  labLong + exitHelp,
		Example: "  onefill lab\n" +
			"  onefill lab --scenario S1,S5 --mode naive,onefill --callers 100\n" +
			"  onefill lab --redis redis://localhost:6379 --postgres postgres://localhost/test\n" +
			"  onefill lab --store memcached",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range []string{"redis", "postgres"} {
				if err := withoutSecret(cmd.Flags(), name); err != nil {
					return err
				}
			}
			cfg.Scenarios = lab.Select(cfg.Scenarios, lab.ScenarioIDs())
			cfg.Modes = lab.Select(cfg.Modes, lab.Modes)
			if cfg.Memcached != "" && cfg.Redis == "" && !cmd.Flags().Changed("store") {
				cfg.Store = lab.StoreMemcached
			}
			if !cmd.Flags().Changed("lease") {
				cfg.Lease = lab.DefaultLease(cfg.Store)
			}
			return runLab(cmd, cfg, asJSON)
		},
	}
	f := cmd.Flags()
	f.IntVar(&cfg.Processes, "processes", cfg.Processes, "reader processes")
	f.IntVar(&cfg.Callers, "callers", cfg.Callers, "callers in all processes together")
	f.DurationVar(&cfg.Load, "load", cfg.Load, "what one operation of the database takes")
	f.DurationVar(&cfg.Lease, "lease", cfg.Lease, "onefill's LeaseTTL, and the lock recipe's expiry (default with memcached: "+lab.DefaultLease(lab.StoreMemcached).String()+")")
	f.DurationVar(&cfg.Timeout, "timeout", cfg.Timeout, "bound on every caller's wait")
	f.StringSliceVar(&cfg.Scenarios, "scenario", cfg.Scenarios, "scenarios to play, of "+strings.Join(lab.ScenarioIDs(), ", "))
	f.StringSliceVar(&cfg.Modes, "mode", cfg.Modes, "modes to play them in, of "+strings.Join(lab.Modes, ", "))
	f.StringVar(&cfg.Store, "store", cfg.Store, "shared cache, of "+strings.Join(lab.StoreKinds, ", "))
	f.StringVar(&cfg.Redis, "redis", "", "URL of an existing Redis or Valkey, without a password; ONEFILL_REDIS may hold one")
	f.StringVar(&cfg.Memcached, "memcached", "", "address of an existing memcached, host:port or unix:/path; implies --store memcached")
	f.StringVar(&cfg.Postgres, "postgres", "", "URL of an existing PostgreSQL, without a password; needs the right to create a schema")
	f.BoolVar(&cfg.Embedded, "embedded", false, "use the built-in miniredis and SQLite whatever is installed")
	f.StringVar(&cfg.Out, "out", "", "directory for report and logs (default: a new one among the temporary files)")
	f.BoolVar(&asJSON, "json", false, "print one JSON object for each scenario and mode, a line each, and nothing else")
	return cmd
}

func runLab(cmd *cobra.Command, cfg lab.Config, asJSON bool) error {
	stdout, stderr := cmd.OutOrStdout(), cmd.ErrOrStderr()
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program, to run it as readers: %w", err)
	}
	bar := newProgress(stderr)
	listener := lab.Listener{Step: bar.step}
	if asJSON {
		lines := json.NewEncoder(stdout)
		listener.Result = func(r lab.Result) { lines.Encode(r) }
	}
	report, err := lab.Run(cmd.Context(), cfg, []string{exe, hidden}, listener)
	bar.done()
	if report == nil || len(report.Results) == 0 {
		return err
	}
	if !asJSON {
		report.Table(stdout, colorful(stdout))
	}
	files, writeErr := report.WriteFiles()
	if writeErr != nil {
		writeErr = fmt.Errorf("write the report: %w", writeErr)
	} else {
		where := stderr
		if !asJSON {
			where = stdout
		}
		fmt.Fprintf(where, "report %s\n", files[0])
	}
	if err != nil {
		return err
	}
	if failures := report.Failures(); len(failures) > 0 {
		return &exitError{exitFailed, fmt.Errorf("%d failed:\n  %s", len(failures), strings.Join(failures, "\n  "))}
	}
	return writeErr
}

func newReader() *cobra.Command {
	return &cobra.Command{
		Use:    hidden,
		Short:  "A reader process of the lab",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return lab.RunWorker(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

// colorful says whether w shows colours: a terminal, and NO_COLOR not set.
func colorful(w io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(w)
}

// isTerminal is for a reader or a writer.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull) // a character device, too, and what cron gives
	return err != nil || !os.SameFile(info, null)
}
