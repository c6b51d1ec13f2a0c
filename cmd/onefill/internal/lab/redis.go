package lab

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/redisstore"
	"github.com/onefill/onefill/store"
)

func openSharedRedis(url string) (store.Store, func() error, error) {
	s, err := redisstore.Open(url)
	if err != nil {
		return nil, nil, err
	}
	return s, func() error { s.Close(); return nil }, nil
}

// startPrivateRedis starts a server of the lab's own.
func startPrivateRedis(ctx context.Context) (*storeServer, error) {
	srv, err := servers.Redis(ctx, "", servers.RedisOptions{})
	if err != nil {
		return nil, err
	}
	s, err := attachRedis(ctx, srv.URL())
	if err != nil {
		srv.Stop()
		return nil, err
	}
	s.private, s.damage = true, &damaged{faults: redisFaults{processFaults{srv}}}
	disconnect := s.close
	s.close = func() { disconnect(); srv.Stop() }
	return s, nil
}

// redisFaults are those of a Redis, which keeps its data if it is asked to.
type redisFaults struct{ processFaults }

// stop makes the server save its data and end, in one step: nothing that it has answered
// is lost.
func (f redisFaults) stop(ctx context.Context) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", f.server.Addr())
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		conn.SetDeadline(deadline)
	}
	if _, err := conn.Write([]byte("SHUTDOWN SAVE\r\n")); err != nil {
		return err
	}
	if refusal, err := io.ReadAll(conn); err != nil || len(refusal) > 0 { // it answers by ending
		return fmt.Errorf("SHUTDOWN SAVE: %q, %w", refusal, cmp.Or(err, errors.New("refused")))
	}
	return f.server.Kill() // of what has ended: waits for it
}

func (f redisFaults) start(ctx context.Context) error { return f.server.Restart(ctx) }

// attachRedis uses a server that runs, and changes nothing there.
func attachRedis(ctx context.Context, url string) (*storeServer, error) {
	plain, err := recipe.OpenRedis(ctx, url)
	if err != nil {
		return nil, err
	}
	info := func(ctx context.Context, section string) (map[string]string, error) {
		text, err := plain.Client.Do(ctx, plain.Client.B().Info().Section(section).Build()).ToString()
		return parseInfo(text), err
	}
	about, err := info(ctx, "server")
	if err != nil {
		plain.Close()
		return nil, err
	}
	s := &storeServer{
		name: "redis", version: about["redis_version"], push: true,
		spec:  storeSpec{Kind: StoreRedis, URL: url},
		close: plain.Close,
	}
	if v := about["valkey_version"]; v != "" {
		s.name, s.version = "valkey", v
	}
	s.commands = func(ctx context.Context) (map[string]int64, error) {
		stats, err := info(ctx, "commandstats")
		if err != nil {
			return nil, err
		}
		return commandCalls(stats)
	}
	return s, nil
}

// parseInfo reads INFO's lines of name:value.
func parseInfo(text string) map[string]string {
	fields := make(map[string]string)
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// commandCalls reads the calls out of cmdstat_get:calls=12,usec=40,...
func commandCalls(stats map[string]string) (map[string]int64, error) {
	calls := make(map[string]int64)
	for name, value := range stats {
		command, ok := strings.CutPrefix(name, "cmdstat_")
		if !ok {
			continue
		}
		first, _, _ := strings.Cut(value, ",")
		n, err := strconv.ParseInt(strings.TrimPrefix(first, "calls="), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("INFO commandstats: %s:%s: %w", name, value, err)
		}
		calls[command] = n
	}
	return calls, nil
}
