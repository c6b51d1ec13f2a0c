package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/memcached"
	"github.com/onefill/onefill/memcachestore"
	"github.com/onefill/onefill/redisstore"
	"github.com/onefill/onefill/store"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const storeHelp = `The store is that of ONEFILL_REDIS or --redis, or of ONEFILL_MEMCACHED or --memcached, and
--memcached names the servers exactly as the application does, with commas between them, since
that decides who has a key. --redis takes no password, ONEFILL_REDIS does.

`

// storeFlags say which cache it is, and which store it lies in.
type storeFlags struct {
	cache, redis, memcached string

	servers []string // those of memcached, when they have been checked
}

func (s *storeFlags) register(f *pflag.FlagSet) {
	f.StringVar(&s.cache, "cache", "", "name of the cache (Options.Name)")
	s.registerServers(f)
	notBeside(f, "redis", "memcached")
}

func (s *storeFlags) registerServers(f *pflag.FlagSet) {
	f.StringVar(&s.redis, "redis", "", "URL of the Redis or Valkey, without a password; ONEFILL_REDIS may hold one")
	f.StringVar(&s.memcached, "memcached", "", "addresses of the memcached servers, comma-separated")
}

func badInput(format string, args ...any) error {
	return &exitError{exitInput, fmt.Errorf(format, args...)}
}

// check finds out whether exactly one store is given.
func (s *storeFlags) check(flags *pflag.FlagSet) error {
	switch {
	case s.redis != "" && s.memcached != "":
		return badInput("--redis: excludes --memcached")
	case s.redis == "" && s.memcached == "":
		return badInput("--redis, --memcached: no store is given; set ONEFILL_REDIS to redis://user:password@host:6379, or give --memcached host:11211")
	}
	return s.checkServers(flags)
}

// checkServers reads what names the servers, as far as they are named.
func (s *storeFlags) checkServers(flags *pflag.FlagSet) (err error) {
	if s.memcached != "" {
		if s.servers, err = memcached.ParseList(s.memcached); err != nil {
			return badInput("--memcached: %w", err)
		}
	}
	return withoutSecret(flags, "redis")
}

func (s *storeFlags) checkCache() error {
	if err := store.ValidName(s.cache); err != nil {
		return badInput("--cache: %w", err)
	}
	return nil
}

// open makes the store; it does not talk to the server.
func (s *storeFlags) open(opts ...redisstore.Option) (st store.Store, through string, closeStore func(), err error) {
	if s.memcached != "" {
		m := memcachestore.New(s.servers...)
		return m, "memcached", func() { m.Close() }, nil
	}
	r, err := redisstore.Open(s.redis, opts...)
	if err != nil {
		return nil, "", nil, badInput("--redis: %w", err)
	}
	return r, "redis", func() { r.Close() }, nil
}

// keyFlags are the flags of the commands that are about one key in the store.
type keyFlags struct {
	storeFlags
	timeout time.Duration
	asJSON  bool
	key     string
}

func (k *keyFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	k.storeFlags.register(f)
	f.DurationVar(&k.timeout, "timeout", 5*time.Second, "bound on each question to the server")
	f.BoolVar(&k.asJSON, "json", false, asJSONUsage)
}

// parse checks the command line, whose one argument is the key.
func (k *keyFlags) parse(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return badInput("no key is given: %s", cmd.UseLine())
	case len(args) > 1:
		return badInput("%d keys are given; it takes one", len(args))
	case args[0] == "":
		return badInput("the key is empty; every key has a name")
	case k.timeout <= 0:
		return badInput("--timeout: %v; it must be positive", k.timeout)
	}
	k.key = args[0]
	if err := k.checkCache(); err != nil {
		return err
	}
	return k.storeFlags.check(cmd.Flags())
}

// with runs fn with a session of the cache. Each question in it is bounded by bound.
func (k *keyFlags) with(ctx context.Context, fn func(ctx context.Context, in store.Inspector) error) error {
	st, through, closeStore, err := k.open(redisstore.NoTracking()) // it asks once, and listens to nobody
	if err != nil {
		return err
	}
	defer closeStore()
	session, err := bounded(ctx, k.timeout, func(ctx context.Context) (store.Session, error) {
		return st.Attach(ctx, store.Config{Name: k.cache})
	})
	if err != nil {
		return err
	}
	defer session.Close()
	in, ok := session.(store.Inspector)
	if !ok {
		return errors.New(through + ": the store cannot be looked into")
	}
	return fn(ctx, in)
}

// bounded runs one question within a time of its own.
func bounded[T any](ctx context.Context, most time.Duration, question func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return question(ctx)
}
