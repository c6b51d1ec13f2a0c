package bench

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/memcached"
	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
	"github.com/redis/rueidis"
)

// server answers what the store's contract does not say: its version, and how many commands it has
// executed. Where that is forbidden, or there are several servers, it is left out.
type server struct {
	version  string
	commands func(context.Context) (int64, bool)
	close    func()
}

// askServer asks as little as it can: who measures a server that others use has no business
// to know more of it.
func askServer(ctx context.Context, cfg Config) (*server, error) {
	s := &server{commands: func(context.Context) (int64, bool) { return 0, false }, close: func() {}}
	if cfg.Store == "memcached" {
		return s, s.askMemcached(ctx, cfg.Servers)
	}
	option, err := recipe.RedisOption(cfg.URL)
	if err != nil || len(option.InitAddress) != 1 || option.Sentinel.MasterSet != "" {
		return s, nil // the store says what is wrong with the URL, or there are several
	}
	option.DisableCache, option.ForceSingleClient = true, true
	client, err := rueidis.NewClient(option)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(option.InitAddress, ","), err)
	}
	s.close = client.Close
	info := func(ctx context.Context, section string) string {
		text, _ := client.Do(ctx, client.B().Info().Section(section).Build()).ToString() // forbidden: left out
		return text
	}
	if m := redisVersion.FindStringSubmatch(info(ctx, "server")); m != nil {
		s.version = m[1]
	}
	s.commands = func(ctx context.Context) (n int64, ok bool) {
		for _, m := range commandCalls.FindAllStringSubmatch(info(ctx, "commandstats"), -1) {
			if calls, err := strconv.ParseInt(m[2], 10, 64); err == nil && m[1] != "info" {
				n, ok = n+calls, true
			}
		}
		return n, ok
	}
	return s, nil
}

var (
	redisVersion = regexp.MustCompile(`(?m)^redis_version:(\S+)`)
	commandCalls = regexp.MustCompile(`(?m)^cmdstat_([^:]+):calls=(\d+)`)
)

// askMemcached asks each server: one that does not answer is found before anything is measured, as its keys
// would not be cached, and everything else would look well.
func (s *server) askMemcached(ctx context.Context, addrs []string) error {
	conns := make([]*memcached.Conn, 0, len(addrs))
	s.close = func() {
		for _, c := range conns {
			c.Close()
		}
	}
	bound, cancel := context.WithTimeout(ctx, questionTimeout)
	defer cancel()
	var versions []string
	for _, addr := range addrs {
		c, version, err := memcached.Dial(bound, addr)
		if err != nil {
			s.close()
			return fmt.Errorf("memcached at %s: %w", addr, err)
		}
		conns, versions = append(conns, c), append(versions, version)
	}
	slices.Sort(versions)
	s.version = strings.Join(slices.Compact(versions), ", ")
	s.commands = func(ctx context.Context) (n int64, ok bool) {
		ctx, cancel := context.WithTimeout(ctx, questionTimeout)
		defer cancel()
		for _, c := range conns {
			stats, err := c.Stats(ctx, "stats")
			if err != nil {
				return 0, false
			}
			calls, err := memcached.Calls(stats)
			if err != nil {
				return 0, false
			}
			for _, one := range calls {
				n += one
			}
		}
		return n, true
	}
	return nil
}

// questionTimeout bounds a question about all servers.
const questionTimeout = 5 * time.Second

// Remote names the servers of a store that are not on this machine by their address: what is measured
// there may be in use.
func (c *Config) Remote() (hosts []string) {
	addrs := c.Servers
	if c.Store == "redis" {
		option, err := recipe.RedisOption(c.URL)
		if err != nil {
			return nil // opening it says so
		}
		addrs = option.InitAddress
	}
	for _, addr := range addrs {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			host = addr
		}
		ip, err := netip.ParseAddr(host)
		local := strings.HasPrefix(addr, "/") || strings.HasPrefix(addr, "unix:") || host == "localhost" || err == nil && ip.Unmap().IsLoopback()
		if !local {
			hosts = append(hosts, host)
		}
	}
	return hosts
}
