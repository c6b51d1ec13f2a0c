package bench

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

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
		addr := cfg.URL
		if strings.Contains(addr, ",") {
			return s, nil
		}
		stats, err := memcachedStats(ctx, addr)
		if err != nil {
			return nil, err
		}
		s.version = stats["version"]
		s.commands = func(ctx context.Context) (n int64, ok bool) {
			stats, err := memcachedStats(ctx, addr)
			for _, name := range []string{"cmd_get", "cmd_set", "cmd_touch", "delete_hits", "delete_misses"} {
				one, parseErr := strconv.ParseInt(stats[name], 10, 64)
				if parseErr != nil {
					return 0, false
				}
				n += one
			}
			return n, err == nil
		}
		return s, nil
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

func memcachedStats(ctx context.Context, addr string) (map[string]string, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, addr = "unix", path
	}
	d := net.Dialer{Timeout: 5 * time.Second}
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(conn, "stats\r\n"); err != nil {
		return nil, err
	}
	stats := make(map[string]string)
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		name, value, ok := strings.Cut(strings.TrimPrefix(lines.Text(), "STAT "), " ")
		if !ok {
			return stats, nil // END
		}
		stats[name] = value
	}
	return nil, fmt.Errorf("%s: stats did not end: %w", addr, cmp.Or(lines.Err(), io.ErrUnexpectedEOF))
}

// Remote names the servers of a store that are not on this machine by their address: what is measured
// there may be in use.
func Remote(kind, url string) (hosts []string) {
	addrs := strings.Split(url, ",")
	if kind == "redis" {
		option, err := recipe.RedisOption(url)
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
