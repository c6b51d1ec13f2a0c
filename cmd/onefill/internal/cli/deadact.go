package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/onefill/onefill/pgqueue"
	"github.com/onefill/onefill/queue"
	"github.com/spf13/cobra"
)

// outcomeLine is what --json prints of each letter.
type outcomeLine struct {
	ID    string `json:"id"`
	NewID string `json:"new_id,omitempty"` // of the job that a replay has made
	Error string `json:"error,omitempty"`
}

// deadAction is what is done to letters: it returns the new IDs, where there are some, and
// an error of which queue.ErrorOf tells each letter's part.
type deadAction struct {
	use, short, long, done string
	do                     func(ctx context.Context, q queue.Queue, ids []string) ([]string, error)
}

func newDeadReplay() *cobra.Command {
	return newDeadAction(deadAction{
		use: "replay", done: "replayed",
		short: "Makes new jobs of dead letters",
		long: "Each becomes a job with a new ID and no attempts; the letter stays, marked, and is not replayed\n" +
			"again. Mend the cause first: a job that fails again ends here again.\n\n",
		do: func(ctx context.Context, q queue.Queue, ids []string) ([]string, error) {
			return q.ReplayDead(ctx, ids...)
		},
	})
}

func newDeadDrop() *cobra.Command {
	return newDeadAction(deadAction{
		use: "drop", done: "dropped",
		short: "Removes dead letters for good",
		long:  "What their jobs were to do is then never done.\n\n",
		do: func(ctx context.Context, q queue.Queue, ids []string) ([]string, error) {
			return make([]string, len(ids)), q.DropDead(ctx, ids...)
		},
	})
}

func newDeadAction(a deadAction) *cobra.Command {
	var d database
	var s selection
	var all bool
	cmd := &cobra.Command{
		Use:   a.use + " ID... | --all [--kind KIND] [--key KEY]",
		Short: a.short,
		Long:  a.long + "Letters are named by ID, or all that were not replayed are meant, or those of --kind and --key.\nWith --json a line each.\n\n" + databaseHelp + queueExitHelp,
		RunE: func(cmd *cobra.Command, ids []string) error {
			switch {
			case all && len(ids) > 0:
				return &exitError{exitInput, errors.New("--all: excludes IDs")}
			case !all && (s.kind != "" || s.key != ""):
				return &exitError{exitInput, errors.New("--kind and --key: need --all")}
			case !all && len(ids) == 0:
				return &exitError{exitInput, fmt.Errorf("%s: no ID is given, nor --all; %q lists them", cmd.CommandPath(), "onefill dead list")}
			}
			return d.with(cmd, func(ctx context.Context, q *pgqueue.Queue) error {
				run := &deadRun{d: &d, action: a, w: cmd.OutOrStdout(), q: q}
				if all {
					return run.all(ctx, s)
				}
				return run.finish(run.these(ctx, ids))
			})
		},
	}
	d.register(cmd)
	s.register(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "all dead letters that were not replayed")
	byHand(cmd.Flags(), "all")
	return cmd
}

// deadRun is one run of an action.
type deadRun struct {
	d            *database
	action       deadAction
	w            io.Writer
	q            queue.Queue
	done, failed int
	first        error
}

// all acts on the letters that there are when it begins: a job that is replayed may be dead
// again, as a new letter, before the next page is read.
func (r *deadRun) all(ctx context.Context, s selection) error {
	var ids []string
	_, err := r.d.letters(ctx, r.q, queue.DeadQuery{Kind: s.kind, Key: s.key}, 0, func(page []queue.DeadLetter) error {
		for i := range page {
			ids = append(ids, page[i].ID)
		}
		return nil
	})
	for part := range slices.Chunk(ids, deadPage) {
		if err == nil {
			err = r.these(ctx, part)
		}
	}
	return r.finish(err)
}

// these acts on letters. A letter that fails is noted; the error is one of the whole call.
func (r *deadRun) these(ctx context.Context, ids []string) error {
	newIDs, err := ask(ctx, r.d, func(ctx context.Context) ([]string, error) { return r.action.do(ctx, r.q, ids) })
	var each queue.Errors
	if err != nil && !errors.As(err, &each) {
		return err
	}
	for i, id := range ids {
		line := outcomeLine{ID: id, NewID: newIDs[i]}
		if failed := queue.ErrorOf(err, i); failed != nil {
			r.failed++
			line.Error, line.NewID = failed.Error(), ""
			if errors.Is(failed, queue.ErrUnknown) {
				line.Error = "no such dead letter, or it was replayed already"
			}
			if r.first == nil {
				r.first = fmt.Errorf("%s: %s", id, line.Error)
			}
		} else {
			r.done++
		}
		if err := r.print(line); err != nil {
			return err
		}
	}
	return nil
}

func (r *deadRun) print(line outcomeLine) (err error) {
	switch {
	case r.d.asJSON:
		err = printJSON(r.w, line)
	case line.Error != "": // standard error has it
	case line.NewID != "":
		_, err = fmt.Fprintf(r.w, "%s %s as %s\n", line.ID, r.action.done, line.NewID)
	default:
		_, err = fmt.Fprintf(r.w, "%s %s\n", line.ID, r.action.done)
	}
	return err
}

func (r *deadRun) finish(err error) error {
	if r.first != nil {
		return errors.Join(err, fmt.Errorf("%d of %d letters were not %s: %w", r.failed, r.failed+r.done, r.action.done, r.first))
	}
	if err == nil && r.done == 0 && !r.d.asJSON {
		_, err = fmt.Fprintln(r.w, "there is none")
	}
	return err
}
