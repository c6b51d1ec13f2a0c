package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/onefill/onefill/cmd/onefill/live"
	"github.com/spf13/cobra"
)

const liveLong = `A web page that shows what becomes of a miss: callers ask for one key at the same
moment, with plain cache-aside (naive), in-process coalescing (local), the common
lock recipe (lock) and onefill beside each other. Sliders set how many callers and
processes there are and what a load takes; buttons expire the key, pause the loads,
kill the store and make the database fail.

The caches are onefill's own, on memory or on Redis: --store redis starts a private redis-server
for each open page. An existing one is used only if --redis names it, or --given says that it is
that of ONEFILL_REDIS, which may hold a password: the page is for playing. There it uses keys of
its own that expire, and kills nothing. The processes are simulated (caches beside each other in
this program), and so is the database; "onefill lab" has neither simulated.

The page listens on 127.0.0.1. Whoever can reach it can make this program work, so
give --listen another address only in a network that you trust; a name under which
it is to be reached there must be given with --host.

`

const liveExit = `Exit codes: 0 it was ended (Ctrl-C), 1 it could not go on, 2 bad input, or an
address or a server that cannot be used.`

func newLive() *cobra.Command {
	var listen string
	var asJSON, given bool
	var options live.Options
	cmd := &cobra.Command{
		Use:   "live",
		Short: "Serves a page that shows, live, how often four kinds of cache ask the database",
		Long:  liveLong + liveExit,
		Example: "  onefill live\n" +
			"  onefill live --listen 127.0.0.1:0 --store redis\n" +
			"  ONEFILL_REDIS=redis://:password@localhost:6379 onefill live --given",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := withoutSecret(cmd.Flags(), "redis"); err != nil {
				return badInput("%w, and add --given", err)
			}
			if given {
				if options.RedisURL != "" {
					return badInput("--given: excludes --redis")
				}
				if options.RedisURL = os.Getenv(envName("redis")); options.RedisURL == "" {
					return badInput("--given: %s is not set", envName("redis"))
				}
			}
			if options.RedisURL == "" && os.Getenv(envName("redis")) != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s is left alone; --given plays with it.\n", envName("redis"))
			}
			if options.RedisURL != "" && !cmd.Flags().Changed("store") {
				options.Store = live.StoreRedis
			}
			return runLive(cmd, listen, asJSON, given, options)
		},
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:8461", "address, host:port; port 0 takes a free one")
	f.BoolVar(&asJSON, "json", false, "print the page's address, and what its store is, as JSON")
	f.StringVar(&options.Store, "store", live.StoreMemory, "shared cache, of "+live.StoreMemory+", "+live.StoreRedis)
	f.StringVar(&options.RedisURL, "redis", "", "URL of an existing Redis or Valkey, without a password; implies --store redis")
	f.BoolVar(&given, "given", false, "use the Redis or Valkey of "+envName("redis")+"; implies --store redis")
	f.StringSliceVar(&options.Hosts, "host", nil, "names, beside localhost and IP addresses, under which the page may be asked for")
	f.IntVar(&options.MaxSessions, "pages", 8, "pages that may be open at once")
	byHand(f, "redis", "given")                                                                            // ONEFILL_REDIS is of the application's server as a rule, which nobody means to play with
	byHand(f, "store")                                                                                     // ONEFILL_STORE is the lab's, which knows others
	_ = cmd.RegisterFlagCompletionFunc("store", completeFlag([]string{live.StoreMemory, live.StoreRedis})) // fails for flags that are not there
	return cmd
}

// runLive serves the page until the context ends, which is how it is meant to end.
func runLive(cmd *cobra.Command, listen string, asJSON, given bool, options live.Options) error {
	page, err := live.New(options)
	if cmd.Context().Err() != nil { // it asks the server, and knows no context
		return errors.Join(cmd.Context().Err(), err)
	}
	if err != nil {
		return &exitError{exitInput, byFlag(err, given)}
	}
	defer page.Close()
	var config net.ListenConfig
	l, err := config.Listen(cmd.Context(), "tcp", listen)
	if err != nil {
		return &exitError{exitInput, fmt.Errorf("--listen: %w", err)}
	}
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	url := fmt.Sprintf("http://%s/", reachable(addr))
	if err := sayLive(cmd.OutOrStdout(), cmd.ErrOrStderr(), liveLine{url, options.Store, liveServer(options)}, asJSON); err != nil {
		return err
	}
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

// liveLine is what --json prints.
type liveLine struct {
	URL    string `json:"url"`
	Store  string `json:"store"`
	Server string `json:"server,omitempty"` // the address of one that is given
}

// liveServer is the address of a server that is given, without what else its URL says.
func liveServer(options live.Options) string {
	if options.RedisURL == "" {
		return ""
	}
	option, err := redisOption(options.RedisURL)
	if err != nil {
		return "" // it has been used
	}
	return strings.Join(option.InitAddress, ",")
}

// sayLive says where the page is, and what it plays with.
func sayLive(stdout, stderr io.Writer, line liveLine, asJSON bool) (err error) {
	if asJSON {
		err = printJSON(stdout, line)
	} else {
		_, err = fmt.Fprintln(stdout, line.URL)
	}
	switch {
	case line.Server != "":
		fmt.Fprintf(stderr, "The store is the Redis at %s, which was given.\n", line.Server)
	case line.Store == live.StoreRedis:
		fmt.Fprintln(stderr, "The store is a private redis-server, one for each open page.")
	default:
		fmt.Fprintln(stderr, "The store is simulated, in this program's memory.")
	}
	fmt.Fprintln(stderr, "Ctrl-C ends it.")
	return err
}

// byFlag names the flag instead of the option that it sets. given: --given has set the URL.
func byFlag(err error, given bool) error {
	var option *live.OptionError
	if !errors.As(err, &option) {
		return err
	}
	flag := map[string]string{"Store": "store", "RedisURL": "redis", "MaxSessions": "pages", "Hosts": "host"}[option.Option]
	if given && flag == "redis" {
		flag = "given"
	}
	return fmt.Errorf("--%s: %w", flag, option.Err)
}

// reachable is the address to open: one that means all addresses is none.
func reachable(addr netip.AddrPort) netip.AddrPort {
	if addr.Addr().IsUnspecified() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), addr.Port())
	}
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}
