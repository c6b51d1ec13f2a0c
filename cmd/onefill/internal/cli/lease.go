package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/onefill/onefill/store"
	"github.com/spf13/cobra"
)

func newLease() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lease",
		Short: "Ends the lease of a key",
		Long:  "A lease is the right to load a key, held by one load in the whole fleet; it ends by itself when its\nholder is dead.\n\n" + queueExitHelp,
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLeaseBreak())
	return cmd
}

const leaseBreakLong = `The lease of the key is voided, for example that of a load that hangs while its process goes
on to renew it. The holder's load runs on, but what it brings is refused, by the store and
by its own process's memory; those who already wait for it in that process get it. Those who
wait in other processes are woken, and one of them loads at once. The value that the store
has stays as it is.

It asks before it does so; --yes does not, for scripts.

`

func newLeaseBreak() *cobra.Command {
	var k keyFlags
	var yes bool
	cmd := &cobra.Command{
		Use:   "break --cache NAME KEY",
		Short: "Voids the lease of a key: its holder's load is refused, and somebody else may load",
		Long:  leaseBreakLong + keyHelp + storeHelp + "Exit codes: 0 the lease is broken, or there is none; 1 it is not, since the answer was no, since\nanother lease has taken its place, or since the store could not be asked; 2 bad input,\n130 interrupted.",
		Example: "  ONEFILL_REDIS=redis://localhost onefill lease break --cache users 42\n" +
			"  onefill lease break --cache users --memcached host1:11211 --yes 42",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := k.parse(cmd, args); err != nil {
				return err
			}
			if !yes && !isTerminal(cmd.InOrStdin()) {
				return badInput("lease break: it asks before it breaks a lease, and standard input is no terminal; give --yes")
			}
			return k.with(cmd.Context(), func(ctx context.Context, in store.Inspector) error {
				return k.breakLease(ctx, cmd, in, yes)
			})
		},
	}
	k.register(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	byHand(cmd.Flags(), "yes")
	return cmd
}

// breakLine is what --json prints.
type breakLine struct {
	Cache  string     `json:"cache"`
	Key    string     `json:"key"`
	Server string     `json:"server"`
	Broken bool       `json:"broken"`
	Lease  *leaseLine `json:"lease"` // that was there, null if none was
}

func (k *keyFlags) breakLease(ctx context.Context, cmd *cobra.Command, in store.Inspector, yes bool) error {
	l, err := k.look(ctx, in)
	if err != nil {
		return err
	}
	line := breakLine{Cache: k.cache, Key: k.key, Server: l.holding.Server, Lease: l.line().Lease}
	if line.Lease == nil {
		return k.broken(cmd.OutOrStdout(), line)
	}
	id := "" // with --yes whichever is there is meant
	if !yes {
		id = line.Lease.ID
		question := fmt.Sprintf("Break the lease of %q of %s at %s (%s), held by %s? [y/N] ", k.key, k.cache, line.Server, line.Lease.ID, line.Lease.held())
		if err := confirm(ctx, cmd.InOrStdin(), cmd.ErrOrStderr(), question); err != nil {
			return err
		}
	}
	line.Broken, err = bounded(ctx, k.timeout, func(ctx context.Context) (bool, error) { return in.BreakLease(ctx, k.key, id) })
	if err != nil {
		return err
	}
	if !line.Broken && !yes {
		return errors.New("the lease that was shown has ended or another has taken its place meanwhile; nothing was done, look again")
	}
	return k.broken(cmd.OutOrStdout(), line)
}

func (k *keyFlags) broken(w io.Writer, line breakLine) (err error) {
	switch {
	case k.asJSON:
		return printJSON(w, line)
	case line.Broken:
		_, err = fmt.Fprintf(w, "broken: the lease of %q of %s (%s), held by %s; what its holder brings is refused\n", k.key, k.cache, line.Lease.ID, line.Lease.held())
	default:
		_, err = fmt.Fprintf(w, "nobody holds a lease of %q of %s\n", k.key, k.cache)
	}
	return err
}

// confirm asks a question that only y or yes answers with yes.
func confirm(ctx context.Context, in io.Reader, out io.Writer, question string) error {
	fmt.Fprint(out, question)
	answer := make(chan string, 1)
	go func() { // a terminal's read knows no context
		line, _ := bufio.NewReader(in).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case text := <-answer:
		if text == "y" || text == "yes" {
			return nil
		}
		return errors.New("not done: the answer was no")
	case <-ctx.Done():
		fmt.Fprintln(out)
		return ctx.Err()
	}
}
