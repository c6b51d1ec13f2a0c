package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/onefill/onefill/watch"
	"github.com/spf13/cobra"
)

const topLong = `Of the last minute it shows the keys with the most calls, those whose loads took the most time,
those that missed most, and those whose miss groups waited for more than one load, which should be
none; and of each cache, since its process began, how many loads a miss group has cost.

Calls in the process are counted from one in 64, picked at random: ± is two standard deviations of
that, and what the bounded memory of the Recorder does not know. Other figures are exact unless they
have a ±. Several processes are added up.

On a terminal the page is drawn again every --interval, until Ctrl-C, with as many keys of each kind
as it has lines for, --keys at most; elsewhere it is printed again.

`

const topExitHelp = `Exit codes: 0 done, with --once, 1 an application does not answer, 2 bad input, 130 interrupted.`

// topping is one run of the command.
type topping struct {
	apps
	keys     int
	interval time.Duration
	once     bool
}

func newTop() *cobra.Command {
	var t topping
	cmd := &cobra.Command{
		Use:   "top --app URL",
		Short: "Shows the hot keys and the slow loads of running applications",
		Long:  topLong + appHelp + topExitHelp,
		Example: "  onefill top --app http://127.0.0.1:6060/debug/onefill\n" +
			"  onefill top --once --json --app http://a:6060/debug/onefill,http://b:6060/debug/onefill",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case t.keys <= 0:
				return &exitError{exitInput, fmt.Errorf("--keys: %d; it must be positive", t.keys)}
			case t.interval < 100*time.Millisecond:
				return &exitError{exitInput, fmt.Errorf("--interval: %v; 100ms is the shortest", t.interval)}
			}
			if err := t.check(cmd); err != nil {
				return err
			}
			return t.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	t.register(cmd)
	f := cmd.Flags()
	f.IntVar(&t.keys, "keys", 10, "how many keys of each kind")
	f.DurationVar(&t.interval, "interval", 2*time.Second, "time from one page to the next")
	f.BoolVar(&t.once, "once", false, "one page")
	byHand(f, "keys", "interval", "once")
	return cmd
}

func (t *topping) run(ctx context.Context, w io.Writer) error {
	page := topPage{colorful: colorful(w), terminal: isTerminal(w) && !t.once && !t.asJSON}
	var resized <-chan os.Signal
	if page.terminal {
		page.size = func() (columns, lines int) { return terminalSize(w) }
		var stop func()
		resized, stop = onResize()
		defer stop()
	}
	tick := time.NewTicker(t.interval)
	defer tick.Stop()
	for first := true; ; first = false {
		sum, failed := t.look(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if failed != nil && (first && len(sum.answers) == 0) {
			return failed // a wrong URL, most likely
		}
		var err error
		if t.asJSON {
			err = printJSON(w, sum.report(t.keys))
		} else {
			_, err = io.WriteString(w, page.draw(sum.report(t.keys), first))
		}
		switch {
		case err != nil:
			return err
		case t.once:
			return failed
		}
		if err := page.wait(ctx, w, tick.C, resized, sum.report(t.keys)); err != nil {
			return err
		}
	}
}

// look asks all applications at once, and adds up what those that answer say. The error is that
// of one that does not.
func (t *topping) look(ctx context.Context) (sum *topSum, failed error) {
	snapshots, errs := make([]watch.Snapshot, len(t.urls)), make([]error, len(t.urls))
	var all sync.WaitGroup
	for i, app := range t.urls {
		all.Go(func() {
			// More than is shown: what is second everywhere may be first in the sum.
			snapshots[i], errs[i] = t.snapshot(ctx, app, max(10*t.keys, 100))
		})
	}
	all.Wait()
	sum = newTopSum()
	for i, app := range t.urls {
		if errs[i] != nil {
			sum.absent = append(sum.absent, topApp{App: appName(app), Error: errs[i].Error()})
			failed = errs[i]
			continue
		}
		sum.add(appName(app), &snapshots[i])
	}
	return sum, failed
}
