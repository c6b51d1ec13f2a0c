// Package servertest gives tests private servers. A test that needs a server
// that is not installed fails and says what to install; it is skipped only if
// the environment has ONEFILL_SKIP_SERVERS=1.
package servertest

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/onefill/onefill/internal/servers"
)

// Redis starts a Redis for this test alone.
func Redis(t testing.TB, opts servers.RedisOptions) *servers.Server {
	t.Helper()
	return start(t, func(ctx context.Context) (*servers.Server, error) { return servers.Redis(ctx, "", opts) })
}

// Memcached starts a memcached for this test alone.
func Memcached(t testing.TB, opts servers.MemcachedOptions) *servers.Server {
	t.Helper()
	return start(t, func(ctx context.Context) (*servers.Server, error) { return servers.Memcached(ctx, "", opts) })
}

// Postgres starts a Postgres for this test alone. It takes about a second.
func Postgres(t testing.TB, opts servers.PostgresOptions) *servers.Server {
	t.Helper()
	return start(t, func(ctx context.Context) (*servers.Server, error) { return servers.Postgres(ctx, "", opts) })
}

func start(t testing.TB, launch func(context.Context) (*servers.Server, error)) *servers.Server {
	t.Helper()
	s, err := launch(context.Background())
	check(t, err)
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("stop %s: %v", s.Name(), err)
		}
	})
	return s
}

func check(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, servers.ErrNotInstalled) && os.Getenv("ONEFILL_SKIP_SERVERS") == "1" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A Shared server is started by the first test that asks for it, and serves all
// tests of the binary, which must use keys of their own. TestMain stops it:
//
//	var redis = servertest.SharedRedis(servers.RedisOptions{})
//
//	func TestMain(m *testing.M) {
//		code := m.Run()
//		redis.Stop()
//		os.Exit(code)
//	}
//
// Without TestMain it ends with the process on Linux, and its directory stays.
type Shared struct {
	launch func(context.Context) (*servers.Server, error)
	once   sync.Once
	server *servers.Server
	err    error
}

// SharedRedis is a Redis for a whole test binary.
func SharedRedis(opts servers.RedisOptions) *Shared {
	return &Shared{launch: func(ctx context.Context) (*servers.Server, error) { return servers.Redis(ctx, "", opts) }}
}

// SharedMemcached is a memcached for a whole test binary.
func SharedMemcached(opts servers.MemcachedOptions) *Shared {
	return &Shared{launch: func(ctx context.Context) (*servers.Server, error) { return servers.Memcached(ctx, "", opts) }}
}

// SharedPostgres is a Postgres for a whole test binary.
func SharedPostgres(opts servers.PostgresOptions) *Shared {
	return &Shared{launch: func(ctx context.Context) (*servers.Server, error) { return servers.Postgres(ctx, "", opts) }}
}

// Get returns the server.
func (s *Shared) Get(t testing.TB) *servers.Server {
	t.Helper()
	s.once.Do(func() { s.server, s.err = s.launch(context.Background()) })
	check(t, s.err)
	return s.server
}

// Stop stops the server if any test has asked for it.
func (s *Shared) Stop() {
	if s.server != nil {
		s.server.Stop()
	}
}
