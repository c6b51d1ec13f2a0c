package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/onefill/onefill/watch"
	"github.com/spf13/cobra"
)

const watchLong = `A miss group is everybody in one process who waited for the same load. Each line is one that has
ended: when, its cache and key, how many callers it had, how long it lasted, "load" and the
longest of its loads in this process, or "wait" and how long it waited for those of others, how
many loads they waited for (1 is what onefill is for), and how it ended:

  loaded        a load of this process brought the value
  lease wait    a load of another process brought it
  not found     the row does not exist, as a load of this process found, or of another
  fill refused  it was loaded, but the lease was lost meanwhile: whoever waited has it, nothing
                stored it
  stale         it could not be loaded, and an old value was served
  busy          there was no place at the origin in time
  timeout       LoadTimeout or WaitTimeout
  error         the load failed

One that goes on for more than a second gets a line of its own then: loading or waiting.

The stream of an application that goes away is opened again when it is back; what happened in
between is missing, and standard error says so. It ends with Ctrl-C, or after --count lines.

`

const watchExitHelp = `Exit codes: 0 --count groups were seen, 1 an application does not answer or ceased to be
one, 2 bad input, 130 interrupted.`

// watching is one run of the command.
type watching struct {
	apps
	count int

	stdout, stderr io.Writer
	colorful       bool
	mu             sync.Mutex // guards the output and what follows
	lines          int
}

func newWatch() *cobra.Command {
	var w watching
	cmd := &cobra.Command{
		Use:   "watch --app URL",
		Short: "Follows the miss groups of a running application, a line each",
		Long:  watchLong + appHelp + watchExitHelp,
		Example: "  onefill watch --app http://127.0.0.1:6060/debug/onefill\n" +
			"  onefill watch --cache users --app http://a:6060/debug/onefill,http://b:6060/debug/onefill\n" +
			"  ONEFILL_APP=http://127.0.0.1:6060/debug/onefill onefill watch --json | jq 'select(.loads > 1)'",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if w.count < 0 {
				return &exitError{exitInput, fmt.Errorf("--count: %d; it must not be negative", w.count)}
			}
			if err := w.check(cmd); err != nil {
				return err
			}
			w.stdout, w.stderr, w.colorful = cmd.OutOrStdout(), cmd.ErrOrStderr(), colorful(cmd.OutOrStdout())
			return w.run(cmd.Context())
		},
	}
	w.register(cmd)
	cmd.Flags().IntVar(&w.count, "count", 0, "end after so many lines (default: never)")
	byHand(cmd.Flags(), "count")
	return cmd
}

// errEnough ends the command well.
var errEnough = errors.New("enough")

// errOutput ends it, too: no application is to blame.
var errOutput = errors.New("the output cannot be written")

// run follows all applications until one ends it.
func (w *watching) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for _, app := range w.urls {
		all.Go(func() {
			cancel(w.follow(ctx, app))
		})
	}
	all.Wait()
	switch err := context.Cause(ctx); {
	case errors.Is(err, errEnough):
		return nil
	default:
		return err
	}
}

// The pauses between attempts to reach an application that was there.
const (
	firstPause = 250 * time.Millisecond
	lastPause  = 5 * time.Second
)

// follow follows one application over its restarts. Only one that has answered is
// waited for: the others are likely to be a wrong URL.
func (w *watching) follow(ctx context.Context, app string) error {
	answered, pause := false, firstPause
	connected := func() {
		if answered {
			w.say("%s: connected again", appName(app))
		}
		answered, pause = true, firstPause
	}
	for {
		err := w.stream(ctx, app, connected, func(g watch.Group) error { return w.print(app, g) })
		var refused *refusedError
		if ctx.Err() != nil || !answered || errors.As(err, &refused) || errors.Is(err, errEnough) || errors.Is(err, errOutput) {
			return err
		}
		if pause == firstPause {
			w.say("%v; trying again, what happens meanwhile is not seen", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
		pause = min(2*pause, lastPause)
	}
}

func (w *watching) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(w.stderr, format+"\n", args...)
}

// watchLine is what --json prints.
type watchLine struct {
	App string `json:"app"`
	watch.Group
}

// print prints a group, and returns errEnough after the last one that is wanted.
func (w *watching) print(app string, g watch.Group) (err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count > 0 && w.lines >= w.count {
		return errEnough
	}
	w.lines++
	if w.asJSON {
		out := json.NewEncoder(w.stdout)
		out.SetEscapeHTML(false)
		err = out.Encode(watchLine{appName(app), g})
	} else {
		_, err = io.WriteString(w.stdout, w.text(app, &g))
	}
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errOutput, err)
	case w.count > 0 && w.lines >= w.count:
		return errEnough
	}
	return nil
}

// text is a line of the output.
func (w *watching) text(app string, g *watch.Group) string {
	var b strings.Builder
	fmt.Fprint(&b, g.At.Local().Format("15:04:05.000"))
	if len(w.urls) > 1 {
		fmt.Fprintf(&b, "  %-15s", appName(app))
	}
	fmt.Fprintf(&b, "  %-12s  %-18s  %5d %s  %9s", plain(g.Cache), shorten(plain(g.Key), 60), g.Callers, inColumn(g.Callers, "caller "), since(g.TookMS))
	switch {
	case g.LoadMS > 0:
		fmt.Fprintf(&b, "  load %9s", since(g.LoadMS))
	case g.LeaseMS > 0:
		fmt.Fprintf(&b, "  wait %9s", since(g.LeaseMS))
	default:
		fmt.Fprintf(&b, "  %14s", "")
	}
	outcome := plain(string(g.Outcome))
	if color := outcomeColors[g.Outcome]; w.colorful && color != "" {
		outcome = color + outcome + "\x1b[0m"
	}
	fmt.Fprintf(&b, "  %d %s  %s", g.Loads, inColumn(g.Loads, "load "), outcome)
	if g.Background {
		b.WriteString(", a refresh")
	}
	if g.Error != "" {
		b.WriteString(": " + plain(g.Error))
	}
	b.WriteByte('\n')
	return b.String()
}

var outcomeColors = map[watch.Outcome]string{
	watch.FillRefused: "\x1b[33m", watch.Stale: "\x1b[33m", watch.Waiting: "\x1b[33m", watch.Loading: "\x1b[33m",
	watch.Busy: "\x1b[31m", watch.Timeout: "\x1b[31m", watch.Failed: "\x1b[31m",
}

// inColumn is a noun, which ends with a space, in a column.
func inColumn(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return strings.TrimSuffix(noun, " ") + "s"
}

// since is a time in three digits or so.
func since(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	if d >= time.Millisecond {
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}
