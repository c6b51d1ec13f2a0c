package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/onefill/onefill/pgqueue"
	"github.com/onefill/onefill/queue"
	"github.com/spf13/cobra"
)

func newQueue() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "Says how the queue in PostgreSQL is doing",
		Long:  databaseHelp + queueExitHelp,
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newQueueStatus(), newQueueLag())
	return cmd
}

// statusLine is what --json prints. Lag is since when the oldest job that is due has been so.
type statusLine struct {
	Ready    int64   `json:"ready"`
	NotReady int64   `json:"not_ready"`
	Dead     int64   `json:"dead"`
	LagMS    float64 `json:"lag_ms"`
	Schema   string  `json:"schema"`
}

func newQueueStatus() *cobra.Command {
	var d database
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Checks that the queue is fit for a worker, and counts jobs and dead letters",
		Long: "ready jobs could be claimed now; not ready ones are claimed by somebody, or their delay is not\n" +
			"over; the lag is since when the oldest ready one has been so. Numbers above 100,000 are\n" +
			"estimates.\n\n" + databaseHelp + queueExitHelp,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.with(cmd, func(ctx context.Context, q *pgqueue.Queue) error {
				s, err := d.stats(ctx, q)
				if err != nil {
					return err
				}
				w := cmd.OutOrStdout()
				if d.asJSON {
					return printJSON(w, statusLine{s.Ready, s.NotReady, s.Dead, milliseconds(s.Lag), d.schema})
				}
				_, err = fmt.Fprintf(w, "ready      %d\nnot ready  %d\ndead       %d\nlag        %v\n", s.Ready, s.NotReady, s.Dead, s.Lag)
				return err
			})
		},
	}
	d.register(cmd)
	return cmd
}

// stats checks the queue first: its errors say what to do.
func (d *database) stats(ctx context.Context, q *pgqueue.Queue) (queue.Stats, error) {
	if _, err := ask(ctx, d, func(ctx context.Context) (struct{}, error) { return struct{}{}, q.Check(ctx) }); err != nil {
		return queue.Stats{}, err
	}
	return ask(ctx, d, q.Stats)
}

func newQueueLag() *cobra.Command {
	var d database
	var most time.Duration
	cmd := &cobra.Command{
		Use:   "lag",
		Short: "Prints for how long the oldest job that is due has been so",
		Long: "With --max it fails with exit code 1 if that is longer, for health checks.\n\n" +
			databaseHelp + queueExitHelp,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if most < 0 {
				return &exitError{exitInput, fmt.Errorf("--max: %v; it must not be negative", most)}
			}
			return d.with(cmd, func(ctx context.Context, q *pgqueue.Queue) error {
				s, err := d.stats(ctx, q)
				if err != nil {
					return err
				}
				late := most > 0 && s.Lag > most
				if d.asJSON {
					err = printJSON(cmd.OutOrStdout(), map[string]any{"lag_ms": milliseconds(s.Lag), "ok": !late})
				} else {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), s.Lag)
				}
				if late {
					return &exitError{exitFailed, fmt.Errorf("the oldest job has been due for %v, --max is %v", s.Lag, most)}
				}
				return err
			})
		},
	}
	d.register(cmd)
	cmd.Flags().DurationVar(&most, "max", 0, "longest lag that is fine (default: any)")
	byHand(cmd.Flags(), "max")
	return cmd
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
