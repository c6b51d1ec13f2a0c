package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/bench"
	"github.com/onefill/onefill/internal/servers"
	"github.com/spf13/cobra"
)

const benchLong = `It measures, in less than a minute:

  local hit     a Get of a fresh value in this process, in a loop; the median of five runs
  store hit     a Get that finds a fresh value of 100 bytes in the store, by 1, 8 and 64 callers
                at once
  miss          a Get of an absent key, one after the other: a look, the lease, a load that costs
                nothing, and the fill
  GetMany 100   100 keys that the store has, one after the other
  herd          --callers in --processes miss a key at once, --rounds times: the loads (ideal:
                one a round), the wait beyond --load, and the commands that the server executed
                for a round
  invalidation  from the beginning of an Invalidate until another cache, on a connection of its own,
                does not answer from its memory any more; with a store that tells nobody of changes,
                memcached, that is up to Local.TTL, and nothing is measured

Times are those of the callers, with everything in between: this program, the network, the server.
p50 and p99 are of all calls; what a call waits for its turn on a busy machine counts. Callers ask
again as soon as they are answered, for --for each, so a server that others use feels it: one that
is not on this machine is measured with --load-a-remote-server only. (A tunnel to a remote one
looks local.) Nothing is flushed, and no key is touched but those of a cache with a random name,
onefill-bench-..., at most 20,000, which are removed at the end; what an interrupted run leaves
ends after five minutes.

Without --redis and --memcached a private server is started, and stopped afterwards.

`

const benchExitHelp = `Exit codes: 0 measured, 1 not all of it, or keys are left, 2 bad input or a given server that
cannot be used, 130 interrupted.`

// benchChild is the command of a process of a herd.
const benchChild = "bench-herd"

type benchFlags struct {
	storeFlags
	cfg    bench.Config
	remote bool
	asJSON bool
}

func newBench() *cobra.Command {
	o := benchFlags{cfg: bench.Config{Callers: 100, Processes: 3, Rounds: 20, Load: 50 * time.Millisecond, For: time.Second}}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measures hits, misses, herds and invalidations against your own server",
		Long:  benchLong + benchExitHelp,
		Example: "  onefill bench\n" +
			"  onefill bench --store memcached\n" +
			"  ONEFILL_REDIS=redis://:secret@10.0.0.5:6379 onefill bench --load-a-remote-server --json",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return o.run(cmd)
		},
	}
	f := cmd.Flags()
	o.registerServers(f)
	f.StringVar(&o.cfg.Store, "store", "redis", "private server to start where none is given, of redis, memcached")
	notBeside(f, "redis", "memcached", "store")
	f.IntVar(&o.cfg.Callers, "callers", o.cfg.Callers, fmt.Sprintf("callers of a herd, in all processes together, %d at most", bench.MostCallers))
	f.IntVar(&o.cfg.Processes, "processes", o.cfg.Processes, fmt.Sprintf("processes of a herd, %d at most", bench.MostProcesses))
	f.IntVar(&o.cfg.Rounds, "rounds", o.cfg.Rounds, fmt.Sprintf("herds, %d at most", bench.MostRounds))
	f.DurationVar(&o.cfg.Load, "load", o.cfg.Load, "what the load of a herd takes, 1s at most")
	f.DurationVar(&o.cfg.For, "for", o.cfg.For, "time for each measure, from 100ms to 5s")
	f.BoolVar(&o.remote, "load-a-remote-server", false, "measure a server that is not on this machine: others may use it")
	f.BoolVar(&o.asJSON, "json", false, asJSONUsage)
	byHand(f, "store", "callers", "processes", "rounds", "load", "for", "load-a-remote-server")
	return cmd
}

func newBenchChild() *cobra.Command {
	return &cobra.Command{
		Use: benchChild, Short: "A process of bench's herds", Hidden: true, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench.RunChild(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

// check says what is wrong with the command line.
func (o *benchFlags) check(cmd *cobra.Command) error {
	for _, n := range []struct {
		flag      string
		is, least int
		most      int
	}{
		{"processes", o.cfg.Processes, 1, bench.MostProcesses}, {"callers", o.cfg.Callers, o.cfg.Processes, bench.MostCallers}, {"rounds", o.cfg.Rounds, 1, bench.MostRounds},
	} {
		if n.is < n.least || n.is > n.most {
			return badInput("--%s: %d; allowed is %d to %d", n.flag, n.is, n.least, n.most)
		}
	}
	for _, d := range []struct {
		flag            string
		is, least, most time.Duration
	}{{"load", o.cfg.Load, time.Millisecond, time.Second}, {"for", o.cfg.For, 100 * time.Millisecond, 5 * time.Second}} {
		if d.is < d.least || d.is > d.most {
			return badInput("--%s: %v; allowed is %v to %v", d.flag, d.is, d.least, d.most)
		}
	}
	if o.cfg.Store != "redis" && o.cfg.Store != "memcached" {
		return badInput("--store: unknown store %q; known: redis, memcached", o.cfg.Store)
	}
	if o.redis == "" && o.memcached == "" {
		return nil
	}
	if cmd.Flags().Changed("store") {
		return badInput("--store: excludes --redis and --memcached: it says which private server is started")
	}
	if err := o.storeFlags.check(cmd.Flags()); err != nil {
		return err
	}
	o.cfg.Store, o.cfg.URL = "redis", o.redis
	if o.memcached != "" {
		o.cfg.Store, o.cfg.Servers = "memcached", o.servers
	}
	if hosts := o.cfg.Remote(); len(hosts) > 0 && !o.remote {
		return badInput("--%s: %s is not on this machine, and others may use it: it would be kept busy for some seconds; --load-a-remote-server allows that", o.cfg.Store, strings.Join(hosts, ", "))
	}
	return nil
}

func (o *benchFlags) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program, to run it as the processes of a herd: %w", err)
	}
	given := o.cfg.URL != "" || len(o.cfg.Servers) > 0
	bar := newProgress(cmd.ErrOrStderr())
	if !given {
		bar.step("starting a private "+o.cfg.Store, 0, 6)
		stop, err := o.startPrivate(ctx)
		if err != nil {
			return err
		}
		defer stop()
	}
	report, err := bench.Run(ctx, o.cfg, []string{exe, benchChild}, bar.step)
	bar.done()
	if report == nil || report.TookMS == 0 {
		if given && ctx.Err() == nil {
			return &exitError{exitInput, fmt.Errorf("--%s: cannot use the server: %w", o.cfg.Store, err)}
		}
		return err
	}
	w := cmd.OutOrStdout()
	if err == nil && o.asJSON {
		err = printJSON(w, report)
	} else if err == nil {
		err = benchTable(w, report)
	}
	if report.KeysLeft > 0 {
		err = errors.Join(err, fmt.Errorf("%d keys could not be removed; they end within 5 minutes: %s", report.KeysLeft, report.CleanupFailed))
	}
	return err
}

// startPrivate starts a server of the command's own.
func (o *benchFlags) startPrivate(ctx context.Context) (stop func(), err error) {
	var s *servers.Server
	if o.cfg.Store == "memcached" {
		s, err = servers.Memcached(ctx, "", servers.MemcachedOptions{})
	} else {
		s, err = servers.Redis(ctx, "", servers.RedisOptions{})
	}
	if errors.Is(err, servers.ErrNotInstalled) {
		err = fmt.Errorf("%w; --%s takes an existing server", err, o.cfg.Store)
	}
	if err != nil {
		return nil, err
	}
	o.cfg.URL, o.cfg.Servers, o.cfg.Private = s.URL(), []string{s.Addr()}, true
	return func() { s.Stop() }, nil
}

// benchTable prints the report for a person.
func benchTable(out io.Writer, r *bench.Report) error {
	how := map[bool]string{true: "private", false: "given"}[r.Private]
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s (%s) · %s · %d CPUs\n\n", r.Store, r.Version, how, r.Go, r.CPUs)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\tcallers\tp50\tp99\tcalls/s\t\n")
	fmt.Fprintf(w, "local hit\t1\t%.0f ns\t\t%.0f\t\n", r.LocalHitNS, 1e9/r.LocalHitNS)
	fmt.Fprintf(w, "\t%d\t\t\t%.0f\t\n", r.CPUs, r.LocalPerSec)
	row := func(name string, l bench.Latency) {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%.0f\t\n", name, l.Callers, since(l.P50US/1000), since(l.P99US/1000), l.PerSec)
	}
	for i, l := range r.StoreHits {
		row(map[bool]string{true: "store hit"}[i == 0], l)
	}
	row("miss", r.Miss)
	row("GetMany 100", r.Many)
	if l := r.Invalidation; l != nil {
		fmt.Fprintf(w, "invalidation\t\t%s\t%s\t\t\n", since(l.P50US/1000), since(l.P99US/1000))
	}
	w.Flush()
	if r.Invalidation == nil {
		fmt.Fprintf(&b, "\ninvalidation: the store tells nobody; other processes hear of it within Local.TTL, %s by default\n", since(r.LocalTTLMS))
	}
	h := r.Herd
	fmt.Fprintf(&b, "\nherd: %d callers in %d processes, load %s, %d rounds\n  %d loads, %d errors; beyond the load p50 %s, p99 %s",
		h.Callers, h.Processes, since(h.LoadMS), h.Rounds, h.Loads, h.Errors, since(h.P50MS), since(h.P99MS))
	if h.Commands != nil {
		fmt.Fprintf(&b, "; %.1f commands of the server a round", *h.Commands)
	}
	fmt.Fprintf(&b, "\n\n%s in all; the keys that were written are removed\n", since(r.TookMS))
	_, err := io.WriteString(out, b.String())
	return err
}
