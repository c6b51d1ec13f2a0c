// Package demo is what the examples have in common and what is not about caches: private servers
// where none are given, and the start and the end of an HTTP server.
package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/onefill/onefill/internal/servers"
)

// Redis is the URL of the environment's Redis, or that of a private one, which stop ends.
func Redis(ctx context.Context) (url string, stop func(), err error) {
	return given("REDIS_URL", func() (*servers.Server, error) { return servers.Redis(ctx, "", servers.RedisOptions{}) })
}

// Memcached is the same for the addresses of memcached, comma-separated.
func Memcached(ctx context.Context) (addrs string, stop func(), err error) {
	return given("MEMCACHED", func() (*servers.Server, error) { return servers.Memcached(ctx, "", servers.MemcachedOptions{}) })
}

// Postgres is the same for PostgreSQL.
func Postgres(ctx context.Context) (url string, stop func(), err error) {
	return given("POSTGRES_URL", func() (*servers.Server, error) { return servers.Postgres(ctx, "", servers.PostgresOptions{}) })
}

func given(env string, start func() (*servers.Server, error)) (string, func(), error) {
	if url := os.Getenv(env); url != "" {
		return url, func() {}, nil
	}
	s, err := start()
	if err != nil {
		return "", nil, fmt.Errorf("%s is not set, and a private server cannot be started: %w", env, err)
	}
	slog.Info("started a private server, for "+env+" is not set", "server", s.Name(), "version", s.Version(), "url", s.URL())
	return s.URL(), func() { s.Stop() }, nil
}

// Serve serves until ctx ends, and then until the requests that run are answered, for ten seconds at
// most. It says on which address; "127.0.0.1:0" finds a free port.
func Serve(ctx context.Context, name, addr string, s *http.Server) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	slog.Info("listening", "server", name, "url", "http://"+l.Addr().String())
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		stopped <- s.Shutdown(end)
	}()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}
