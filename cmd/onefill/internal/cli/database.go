package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/onefill/onefill/pgqueue"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const (
	queueExitHelp = `Exit codes: 0 done, 1 not done, or not all of it: the server could not be asked or
has refused; 2 bad input, 130 interrupted.`

	databaseHelp = `The database is that of ONEFILL_POSTGRES, postgres://user:password@host/database,
or of --postgres, which takes no password: the command line can be read by others.
PGPASSWORD and ~/.pgpass work as they do for psql.

`
	asJSONUsage = "print JSON, and nothing else"
)

// database are the flags of the commands that work on the queue.
type database struct {
	url, schema string
	timeout     time.Duration
	asJSON      bool
}

func (d *database) register(cmd *cobra.Command) {
	f := cmd.Flags()
	registerPostgres(f, &d.url, &d.schema)
	f.DurationVar(&d.timeout, "timeout", 30*time.Second, "bound on each question to the server")
	f.BoolVar(&d.asJSON, "json", false, asJSONUsage)
}

func registerPostgres(f *pflag.FlagSet, url, schema *string) {
	f.StringVar(url, "postgres", "", "URL of the PostgreSQL, without a password; ONEFILL_POSTGRES may hold one")
	f.StringVar(schema, "schema", pgqueue.DefaultSchema, "PostgreSQL schema that the tables are in")
}

// open makes the queue; it does not talk to the server.
func (d *database) open(cmd *cobra.Command) (*pgqueue.Queue, error) {
	if err := withoutSecret(cmd.Flags(), "postgres"); err != nil {
		return nil, err
	}
	switch {
	case d.url == "":
		return nil, &exitError{exitInput, errors.New("--postgres: no database is given; set ONEFILL_POSTGRES to postgres://user:password@host/database")}
	case d.timeout <= 0:
		return nil, &exitError{exitInput, fmt.Errorf("--timeout: %v; it must be positive", d.timeout)}
	}
	return openQueue(d.url, d.schema)
}

func openQueue(url, schema string) (*pgqueue.Queue, error) {
	q, err := pgqueue.Open(url, pgqueue.Schema(schema), pgqueue.Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, &exitError{exitInput, err}
	}
	return q, nil
}

// with runs fn with the queue.
func (d *database) with(cmd *cobra.Command, fn func(ctx context.Context, q *pgqueue.Queue) error) error {
	q, err := d.open(cmd)
	if err != nil {
		return err
	}
	defer q.Close()
	return fn(cmd.Context(), q)
}

// ask bounds one question.
func ask[T any](ctx context.Context, d *database, question func(context.Context) (T, error)) (T, error) {
	return bounded(ctx, d.timeout, question)
}

// printJSON prints one line.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
