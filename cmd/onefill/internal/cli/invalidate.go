package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/invalidation"
	"github.com/onefill/onefill/pgqueue"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/store"
	"github.com/spf13/cobra"
)

const invalidateLong = `The keys are removed from the shared cache at once, and every process that can be told is
told. A key is given as it is in the store: a string or number as it is, of other types
what Options.Key makes of it. - reads keys from standard input, one a line.

--through-queue enqueues a job for each key in PostgreSQL instead, and a worker of the
application does it. There the key is the application's: a string or number as it is, of
other types as JSON, with --json-keys. Only so can the key be loaded again, --refresh.

` + storeHelp

type invalidateFlags struct {
	database
	storeFlags
	throughQueue, jsonKeys bool
	expire, refresh        bool
}

func newInvalidate() *cobra.Command {
	var o invalidateFlags
	cmd := &cobra.Command{
		Use:   "invalidate --cache NAME KEY...",
		Short: "Removes keys from a cache, directly or through the queue",
		Long:  invalidateLong + databaseHelp + queueExitHelp,
		Example: "  ONEFILL_REDIS=redis://localhost onefill invalidate --cache users 42 43\n" +
			"  onefill invalidate --cache users --memcached host1:11211,host2:11211 - < keys.txt\n" +
			"  onefill invalidate --cache users --through-queue --refresh 42",
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := o.check(cmd, args)
			if err != nil {
				return err
			}
			if o.throughQueue {
				return o.enqueue(cmd, keys)
			}
			return o.direct(cmd, keys)
		},
	}
	o.database.register(cmd)
	f := cmd.Flags()
	o.storeFlags.register(f)
	f.BoolVar(&o.throughQueue, "through-queue", false, "enqueue jobs instead")
	f.BoolVar(&o.expire, "expire", false, "make the keys stale instead of removing them")
	f.BoolVar(&o.refresh, "refresh", false, "have the keys loaded again; needs --through-queue")
	f.BoolVar(&o.jsonKeys, "json-keys", false, "keys are JSON; needs --through-queue")
	byHand(f, "expire", "refresh", "json-keys", "through-queue")
	return cmd
}

// check returns the keys, or what is wrong with the command line.
func (o *invalidateFlags) check(cmd *cobra.Command, args []string) ([]string, error) {
	if err := o.checkCache(); err != nil {
		return nil, err
	}
	switch {
	case o.expire && o.refresh:
		return nil, badInput("--expire: excludes --refresh")
	case o.refresh && !o.throughQueue:
		return nil, badInput("--refresh: needs --through-queue: only the application can load")
	case o.jsonKeys && !o.throughQueue:
		return nil, badInput("--json-keys: needs --through-queue: the store has strings")
	case o.timeout <= 0:
		return nil, badInput("--timeout: %v; it must be positive", o.timeout)
	}
	if !o.throughQueue { // the stores of the environment are not asked
		if err := o.storeFlags.check(cmd.Flags()); err != nil {
			return nil, err
		}
	}
	keys := args
	if len(args) == 1 && args[0] == "-" {
		var err error
		if keys, err = readKeys(cmd.InOrStdin()); err != nil {
			return nil, err
		}
	}
	if len(keys) == 0 {
		return nil, badInput("no key is given")
	}
	for i, key := range keys {
		if key == "" {
			return nil, badInput("key %d is empty; every key has a name", i+1)
		}
	}
	return keys, withoutSecret(cmd.Flags(), "redis")
}

// readKeys reads lines; empty ones are none.
func readKeys(r io.Reader) (keys []string, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 2*onefill.MaxKeyBytes)
	for lines.Scan() {
		if key := strings.TrimSuffix(lines.Text(), "\r"); key != "" {
			keys = append(keys, key)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, &exitError{exitInput, fmt.Errorf("standard input, after %d keys: %w", len(keys), err)}
	}
	return keys, nil
}

// kind is that of the job, which names also what is done directly.
func (o *invalidateFlags) kind() string {
	switch {
	case o.expire:
		return invalidation.KindExpire
	case o.refresh:
		return invalidation.KindRefresh
	}
	return invalidation.KindInvalidate
}

// invalidateLine is what --json prints.
type invalidateLine struct {
	Cache   string   `json:"cache"`
	Kind    string   `json:"kind"`
	Through string   `json:"through"` // redis, memcached, queue
	Keys    int      `json:"keys"`
	IDs     []string `json:"ids,omitempty"` // of the jobs
}

func (o *invalidateFlags) print(w io.Writer, line invalidateLine) error {
	line.Cache, line.Kind = o.cache, o.kind()
	if o.asJSON {
		return printJSON(w, line)
	}
	verb := map[string]string{invalidation.KindInvalidate: "invalidated", invalidation.KindExpire: "expired"}[line.Kind]
	if o.throughQueue {
		verb = "enqueued"
	}
	noun := "keys"
	if line.Keys == 1 {
		noun = "key"
	}
	_, err := fmt.Fprintf(w, "%s %d %s of %s\n", verb, line.Keys, noun, line.Cache)
	return err
}

// hasty is a store that is attached to within --timeout, and not beyond an interrupt: New
// takes no context, and is more patient.
type hasty struct {
	store.Store
	command context.Context
	most    time.Duration
}

func (h hasty) Attach(ctx context.Context, cfg store.Config) (store.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, h.most)
	defer cancel()
	defer context.AfterFunc(h.command, cancel)()
	return h.Store.Attach(ctx, cfg)
}

// direct asks the store.
func (o *invalidateFlags) direct(cmd *cobra.Command, keys []string) error {
	st, through, closeStore, err := o.storeFlags.open()
	if err != nil {
		return err
	}
	defer closeStore()
	cache, err := onefill.New(onefill.Options[string, []byte]{Name: o.cache, Store: hasty{st, cmd.Context(), o.timeout}, StoreTimeout: o.timeout, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer cache.Close()
	write := cache.Invalidate
	if o.expire {
		write = cache.Expire
	}
	if err := write(cmd.Context(), keys...); err != nil {
		return err
	}
	return o.print(cmd.OutOrStdout(), invalidateLine{Through: through, Keys: len(keys)})
}

// enqueue leaves it to a worker.
func (o *invalidateFlags) enqueue(cmd *cobra.Command, keys []string) error {
	jobs, err := o.jobs(keys)
	if err != nil {
		return &exitError{exitInput, err}
	}
	return o.with(cmd, func(ctx context.Context, q *pgqueue.Queue) error {
		ids, err := ask(ctx, &o.database, func(ctx context.Context) ([]string, error) { return q.Enqueue(ctx, jobs...) })
		if err != nil {
			return err
		}
		return o.print(cmd.OutOrStdout(), invalidateLine{Through: "queue", Keys: len(keys), IDs: ids})
	})
}

func (o *invalidateFlags) jobs(keys []string) ([]queue.Job, error) {
	if !o.jsonKeys {
		return jobsOf(o.kind(), o.cache, keys)
	}
	ks := make([]jsonKey, len(keys))
	for i, key := range keys {
		var b bytes.Buffer
		if err := json.Compact(&b, []byte(key)); err != nil {
			return nil, fmt.Errorf("--json-keys: key %d, %.80q, is not JSON: %w", i+1, key, err)
		}
		ks[i] = jsonKey(b.String())
	}
	return jobsOf(o.kind(), o.cache, ks)
}

func jobsOf[K comparable](kind, cache string, keys []K) ([]queue.Job, error) {
	switch kind {
	case invalidation.KindExpire:
		return invalidation.Expire(cache, keys...)
	case invalidation.KindRefresh:
		return invalidation.Refresh(cache, keys...)
	}
	return invalidation.Invalidate(cache, keys...)
}

// jsonKey is a key as its JSON.
type jsonKey string

func (k jsonKey) MarshalJSON() ([]byte, error) { return []byte(k), nil }

func (k *jsonKey) UnmarshalJSON(text []byte) error {
	if k == nil {
		return errors.New("no key")
	}
	*k = jsonKey(text)
	return nil
}
