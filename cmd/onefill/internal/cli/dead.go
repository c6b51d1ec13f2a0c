package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/onefill/onefill/pgqueue"
	"github.com/onefill/onefill/queue"
	"github.com/spf13/cobra"
)

func newDead() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead",
		Short: "Lists, shows, replays and drops dead letters: jobs that nobody tries any more",
		Long:  databaseHelp + queueExitHelp,
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newDeadList(), newDeadShow(), newDeadReplay(), newDeadDrop())
	return cmd
}

// letterLine is what --json prints. list leaves the payload out.
type letterLine struct {
	ID         string          `json:"id"`
	Kind       string          `json:"kind"`
	Key        string          `json:"key"`
	Version    uint64          `json:"version,omitempty"`
	Attempts   int             `json:"attempts"`
	Reason     string          `json:"reason"`
	LastError  string          `json:"last_error"`
	Died       time.Time       `json:"died"`
	ReplayedAs string          `json:"replayed_as,omitempty"`
	DedupeKey  string          `json:"dedupe_key,omitempty"`
	Payload    json.RawMessage `json:"payload,omitempty"`
}

func lineOf(l *queue.DeadLetter) letterLine {
	return letterLine{ID: l.ID, Kind: l.Kind, Key: l.Key, Version: l.Version, Attempts: l.Attempts, Reason: l.Reason, LastError: l.LastError,
		Died: l.Died.UTC(), ReplayedAs: l.ReplayedAs}
}

// selection are the flags that pick letters.
type selection struct{ kind, key string }

func (s *selection) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.kind, "kind", "", "only jobs of this kind")
	cmd.Flags().StringVar(&s.key, "key", "", "only jobs of this key, such as users:42")
	byHand(cmd.Flags(), "kind", "key")
}

func newDeadList() *cobra.Command {
	var d database
	var s selection
	var replayed bool
	var most int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Lists dead letters, without their payloads",
		Long:  "With --json a line each.\n\n" + databaseHelp + queueExitHelp,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if most < 0 {
				return &exitError{exitInput, fmt.Errorf("--max: %d; 0 means all", most)}
			}
			return d.with(cmd, func(ctx context.Context, q *pgqueue.Queue) error {
				w := newLetterList(cmd.OutOrStdout(), d.asJSON)
				more, err := d.letters(ctx, q, queue.DeadQuery{Kind: s.kind, Key: s.key, Replayed: replayed}, most, w.add)
				if err == nil {
					err = w.end()
				}
				if more && !d.asJSON {
					fmt.Fprintf(cmd.ErrOrStderr(), "onefill: there are more than %d; --max 0 lists all\n", most)
				}
				return err
			})
		},
	}
	d.register(cmd)
	s.register(cmd)
	cmd.Flags().BoolVar(&replayed, "replayed", false, "also those that were replayed")
	cmd.Flags().IntVar(&most, "max", 100, "most letters to list, 0 for all")
	byHand(cmd.Flags(), "max")
	return cmd
}

const deadPage = 1000

// letters calls each for at most so many letters (0: all), a page at a time, and says
// whether there are more.
func (d *database) letters(ctx context.Context, q queue.Queue, query queue.DeadQuery, most int, each func([]queue.DeadLetter) error) (more bool, err error) {
	for n := 0; ; {
		query.Max = deadPage
		if most > 0 {
			query.Max = min(deadPage, most-n+1) // one more, to know whether there are more
		}
		page, err := ask(ctx, d, func(ctx context.Context) ([]queue.DeadLetter, error) { return q.ListDead(ctx, query) })
		if err != nil {
			return false, err
		}
		last := len(page) < query.Max
		if most > 0 && n+len(page) > most {
			page, last, more = page[:most-n], true, true
		}
		if len(page) > 0 {
			if err := each(page); err != nil {
				return false, err
			}
			query.After = page[len(page)-1].ID
		}
		if n += len(page); last {
			return more, nil
		}
	}
}

// letterList prints letters as a table or as JSON.
type letterList struct {
	w      io.Writer
	table  *tabwriter.Writer // nil for JSON
	titled bool
}

func newLetterList(w io.Writer, asJSON bool) *letterList {
	l := &letterList{w: w}
	if !asJSON {
		l.table = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	}
	return l
}

func (l *letterList) add(page []queue.DeadLetter) error {
	for i := range page {
		d := &page[i]
		if l.table == nil {
			if err := printJSON(l.w, lineOf(d)); err != nil {
				return err
			}
			continue
		}
		if !l.titled {
			fmt.Fprintln(l.table, "ID\tDIED\tATTEMPTS\tKIND\tKEY\tREPLAYED AS\tREASON")
			l.titled = true
		}
		fmt.Fprintf(l.table, "%s\t%s\t%d\t%s\t%q\t%s\t%q\n", d.ID, d.Died.UTC().Format(time.RFC3339), d.Attempts, d.Kind, d.Key, d.ReplayedAs, d.Reason)
	}
	return nil
}

func (l *letterList) end() error {
	if l.table == nil {
		return nil
	}
	return l.table.Flush()
}

func newDeadShow() *cobra.Command {
	var d database
	cmd := &cobra.Command{
		Use:   "show ID...",
		Short: "Shows dead letters with their payloads and last errors",
		Long:  "With --json a line each.\n\n" + databaseHelp + queueExitHelp,
		Args:  someIDs,
		RunE: func(cmd *cobra.Command, ids []string) error {
			return d.with(cmd, func(ctx context.Context, q *pgqueue.Queue) error {
				var missing []error
				for _, id := range ids {
					page, err := ask(ctx, &d, func(ctx context.Context) ([]queue.DeadLetter, error) {
						return q.ListDead(ctx, queue.DeadQuery{ID: id, Replayed: true})
					})
					switch {
					case err != nil:
						return err
					case len(page) == 0:
						missing = append(missing, fmt.Errorf("there is no dead letter %q", id))
					default:
						if err := d.show(cmd.OutOrStdout(), &page[0]); err != nil {
							return err
						}
					}
				}
				return errors.Join(missing...)
			})
		},
	}
	d.register(cmd)
	return cmd
}

func (d *database) show(w io.Writer, l *queue.DeadLetter) error {
	line := lineOf(l)
	line.Payload, line.DedupeKey = l.Payload, l.DedupeKey
	if d.asJSON {
		return printJSON(w, line)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range []struct {
		name  string
		value any
	}{
		{"id", l.ID}, {"kind", l.Kind}, {"key", fmt.Sprintf("%q", l.Key)}, {"version", l.Version}, {"attempts", l.Attempts}, {"died", line.Died.Format(time.RFC3339Nano)},
		{"replayed as", l.ReplayedAs}, {"dedupe key", fmt.Sprintf("%q", l.DedupeKey)}, {"reason", fmt.Sprintf("%q", l.Reason)},
		{"last error", fmt.Sprintf("%q", l.LastError)}, {"payload", string(l.Payload)},
	} {
		fmt.Fprintf(t, "%s\t%v\n", f.name, f.value)
	}
	fmt.Fprintln(t)
	return t.Flush()
}

// someIDs wants at least one argument.
func someIDs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return &exitError{exitInput, fmt.Errorf("%s: no ID is given; %q lists them", cmd.CommandPath(), "onefill dead list")}
	}
	return nil
}
