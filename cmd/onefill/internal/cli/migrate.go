package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/onefill/onefill/pgqueue"
	"github.com/spf13/cobra"
)

const migrateLong = `The tables of the queue are made by this command, and never by a program that uses
them. "print" writes the SQL for those who have a way of their own to apply it.

`

func newMigrate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Makes the tables of the queue in PostgreSQL, or takes them back",
		Long:  migrateLong + databaseHelp + queueExitHelp,
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newMigrateUp(), newMigrateDown(), newMigratePrint())
	return cmd
}

func newMigrateUp() *cobra.Command {
	var d database
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Brings the tables to the version that this program needs",
		Long:  "All that is missing is done in one transaction; nothing if nothing is.\n\n" + databaseHelp + queueExitHelp,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.with(cmd, func(ctx context.Context, q *pgqueue.Queue) error {
				done, err := ask(ctx, &d, q.MigrateUp)
				if err != nil {
					return err
				}
				return d.migrated(cmd.OutOrStdout(), "applied", done)
			})
		},
	}
	d.register(cmd)
	return cmd
}

func newMigrateDown() *cobra.Command {
	var d database
	var force bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Takes the newest migration back",
		Long: "Taking back the first one removes the tables. That is refused while there are jobs, or dead\n" +
			"letters that were not replayed, unless --force throws them away.\n\n" + databaseHelp + queueExitHelp,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.with(cmd, func(ctx context.Context, q *pgqueue.Queue) error {
				done, err := ask(ctx, &d, func(ctx context.Context) ([]string, error) { return q.MigrateDown(ctx, force) })
				if err != nil {
					return err
				}
				return d.migrated(cmd.OutOrStdout(), "reverted", done)
			})
		},
	}
	d.register(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "throw away jobs and dead letters")
	byHand(cmd.Flags(), "force")
	return cmd
}

func (d *database) migrated(w io.Writer, verb string, done []string) error {
	if d.asJSON {
		if done == nil {
			done = []string{}
		}
		return printJSON(w, map[string]any{verb: done, "schema": d.schema})
	}
	for _, m := range done {
		fmt.Fprintf(w, "%s %s\n", verb, m)
	}
	if len(done) == 0 {
		fmt.Fprintf(w, "nothing to do in schema %s\n", d.schema)
	}
	return nil
}

func newMigratePrint() *cobra.Command {
	var schema string
	var down, asJSON bool
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Prints the SQL that up runs on an empty database",
		Long:  "The script notes the version as up does, so that up can go on from there.\n\n" + queueExitHelp,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			script, err := pgqueue.Script(!down, pgqueue.Schema(schema))
			if err != nil {
				return &exitError{exitInput, errors.Unwrap(err)}
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), map[string]any{"schema": schema, "sql": script})
			}
			_, err = io.WriteString(cmd.OutOrStdout(), script)
			return err
		},
	}
	cmd.Flags().StringVar(&schema, "schema", pgqueue.DefaultSchema, "PostgreSQL schema that the tables are in")
	cmd.Flags().BoolVar(&down, "down", false, "print what removes all tables instead")
	cmd.Flags().BoolVar(&asJSON, "json", false, asJSONUsage)
	return cmd
}
