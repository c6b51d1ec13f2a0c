package lab

import (
	"context"
	"fmt"
	"strconv"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/memcachestore"
	"github.com/onefill/onefill/store"
)

func openSharedMemcached(addr string) (store.Store, func() error, error) {
	s := memcachestore.New(addr)
	return s, s.Close, nil
}

// startPrivateMemcached starts a server of the lab's own.
func startPrivateMemcached(ctx context.Context) (*storeServer, error) {
	srv, err := servers.Memcached(ctx, "", servers.MemcachedOptions{})
	if err != nil {
		return nil, err
	}
	s, err := attachMemcached(ctx, srv.Addr())
	if err != nil {
		srv.Stop()
		return nil, err
	}
	s.private, s.damage = true, &damaged{faults: processFaults{srv}}
	disconnect := s.close
	s.close = func() { disconnect(); srv.Stop() }
	return s, nil
}

// attachMemcached uses a server that runs, and leaves nothing there but the adapter's
// own item, "of::life". The adapter is asked first: it knows which servers will do, and
// says why one will not.
func attachMemcached(ctx context.Context, addr string) (*storeServer, error) {
	shared := memcachestore.New(addr)
	session, err := shared.Attach(ctx, store.Config{Name: "lab"})
	if err == nil {
		session.Close()
	}
	shared.Close()
	if err != nil {
		return nil, err
	}
	plain, err := openPlainMemcached(ctx, addr)
	if err != nil {
		return nil, err
	}
	version, err := plain.version(ctx)
	if err != nil {
		plain.Close()
		return nil, err
	}
	return &storeServer{
		name: "memcached", version: version,
		spec: storeSpec{Kind: StoreMemcached, URL: addr},
		commands: func(ctx context.Context) (map[string]int64, error) {
			stats, err := plain.stats(ctx)
			if err != nil {
				return nil, err
			}
			return memcachedCalls(stats)
		},
		close: plain.Close,
	}, nil
}

// memcachedCalls reads the calls out of stats. Meta commands are counted as what
// they do: mg as get, ms as set, md as delete.
func memcachedCalls(stats map[string]string) (map[string]int64, error) {
	calls := make(map[string]int64)
	for _, counter := range []struct{ stat, command string }{
		{"cmd_get", "get"}, {"cmd_set", "set"}, {"cmd_touch", "touch"},
		{"delete_hits", "delete"}, {"delete_misses", "delete"},
	} {
		n, err := strconv.ParseInt(stats[counter.stat], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("stats: %s is %q", counter.stat, stats[counter.stat])
		}
		calls[counter.command] += n
	}
	return calls, nil
}
