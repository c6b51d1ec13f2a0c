package lab

import (
	"context"

	"github.com/onefill/onefill/cmd/onefill/internal/memcached"
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
			return memcached.Calls(stats)
		},
		close: plain.Close,
	}, nil
}
