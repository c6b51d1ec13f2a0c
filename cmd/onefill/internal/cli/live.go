package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/onefill/onefill/cmd/onefill/live"
	"github.com/spf13/cobra"
)

const liveLong = `A web page that shows what becomes of a miss: callers ask for one key at the same
moment, with plain cache-aside (naive), in-process coalescing (local), the common
lock recipe (lock) and onefill beside each other. Sliders set how many callers and
processes there are and what a load takes; buttons expire the key, pause the loads,
kill the store and make the database fail.

The caches are onefill's own, on memory or on Redis: --store redis starts a private
redis-server for each open page, --redis takes an existing one, where the page uses
keys of its own that expire, and kills nothing. The processes are simulated (caches
beside each other in this program), and so is the database; "onefill lab" has
neither simulated.

The page listens on 127.0.0.1. Whoever can reach it can make this program work, so
give --listen another address only in a network that you trust; a name under which
it is to be reached there must be given with --host.

`

const liveExit = `Exit codes: 0 it was ended (Ctrl-C), 1 it could not go on, 2 bad input, or an
address or a server that cannot be used.`

func newLive() *cobra.Command {
	var listen string
	var asJSON bool
	var options live.Options
	cmd := &cobra.Command{
		Use:   "live",
		Short: "Serves a page that shows, while it happens, how often four kinds of cache ask the database",
		Long:  liveLong + liveExit,
		Example: "  onefill live\n" +
			"  onefill live --listen 127.0.0.1:0 --store redis\n" +
			"  ONEFILL_REDIS=redis://:password@localhost:6379 onefill live",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := withoutSecret(cmd.Flags(), "redis"); err != nil {
				return err
			}
			switch given := cmd.Flags().Changed("store"); {
			case options.RedisURL != "" && !given:
				options.Store = live.StoreRedis
			case options.Store == live.StoreMemory && !typed(cmd.Flags(), "redis"):
				options.RedisURL = "" // the environment's
			}
			return runLive(cmd, listen, asJSON, options)
		},
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:8461", "address, host:port; port 0 takes a free one")
	f.BoolVar(&asJSON, "json", false, "print the page's address as JSON")
	f.StringVar(&options.Store, "store", live.StoreMemory, "shared cache, of "+live.StoreMemory+", "+live.StoreRedis)
	f.StringVar(&options.RedisURL, "redis", "", "URL of an existing Redis or Valkey; implies --store redis")
	f.StringSliceVar(&options.Hosts, "host", nil, "names, beside localhost and IP addresses, under which the page may be asked for")
	f.IntVar(&options.MaxSessions, "pages", 8, "pages that may be open at once")
	byHand(f, "store")                                                                                     // ONEFILL_STORE is the lab's, which knows others
	_ = cmd.RegisterFlagCompletionFunc("store", completeFlag([]string{live.StoreMemory, live.StoreRedis})) // fails for flags that are not there
	return cmd
}

// runLive serves the page until the context ends, which is how it is meant to end.
func runLive(cmd *cobra.Command, listen string, asJSON bool, options live.Options) error {
	page, err := live.New(options)
	if cmd.Context().Err() != nil { // it asks the server, and knows no context
		return errors.Join(cmd.Context().Err(), err)
	}
	if err != nil {
		return &exitError{exitInput, byFlag(err)}
	}
	defer page.Close()
	var config net.ListenConfig
	l, err := config.Listen(cmd.Context(), "tcp", listen)
	if err != nil {
		return &exitError{exitInput, fmt.Errorf("--listen: %w", err)}
	}
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	url := fmt.Sprintf("http://%s/", reachable(addr))
	if asJSON {
		url = fmt.Sprintf(`{"url":%q}`, url)
	}
	fmt.Fprintln(cmd.OutOrStdout(), url)
	fmt.Fprintln(cmd.ErrOrStderr(), "Ctrl-C ends it.")
	if !addr.Addr().IsLoopback() {
		fmt.Fprintln(cmd.ErrOrStderr(), "It can be reached from other machines: whoever can may make this program work.")
	}
	server := &http.Server{Handler: page, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 32 << 10}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-cmd.Context().Done():
	}
	page.Close() // first, so that no stream keeps the server
	ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return server.Close()
}

// byFlag names the flag instead of the option that it sets.
func byFlag(err error) error {
	var option *live.OptionError
	if !errors.As(err, &option) {
		return err
	}
	flag := map[string]string{"Store": "store", "RedisURL": "redis", "MaxSessions": "pages", "Hosts": "host"}[option.Option]
	return fmt.Errorf("--%s: %w", flag, option.Err)
}

// reachable is the address to open: one that means all addresses is none.
func reachable(addr netip.AddrPort) netip.AddrPort {
	if addr.Addr().IsUnspecified() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), addr.Port())
	}
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}
