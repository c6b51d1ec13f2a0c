// Command memcached is the smallest service on memcached: a slow calculation, whose results the
// processes share.
//
//	go run ./examples/memcached
//
// It uses the servers of MEMCACHED (host:port,host:port), or starts a private one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/examples/internal/demo"
	"github.com/onefill/onefill/memcachestore"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "address of the service")
	slow := flag.Duration("slow", 200*time.Millisecond, "how long a calculation takes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, *slow); err != nil {
		slog.Error("failed", "err", err)
		os.Exit(1)
	}
	slog.Info("stopped")
}

func run(ctx context.Context, listen string, slow time.Duration) (err error) {
	addrs, stopServer, err := demo.Memcached(ctx)
	if err != nil {
		return err
	}
	defer stopServer()
	shared := memcachestore.New(strings.Split(addrs, ",")...)
	defer shared.Close()

	var calculations atomic.Int64
	sums, err := onefill.New(onefill.Options[int, string]{
		Name: "sums", Store: shared, TTL: time.Minute,
		// memcached tells nobody of changes: so long may a process not know of one. A
		// onefill.Options.Bus makes that milliseconds.
		Local: onefill.LocalOptions{TTL: 2 * time.Second},
		Load: func(ctx context.Context, n int) (string, error) {
			calculations.Add(1)
			return sum(ctx, n, slow)
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sums.Close()) }()

	mux := http.NewServeMux()
	mux.HandleFunc("GET /sum/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.PathValue("n"))
		if err != nil || n < 0 || n > 1e9 {
			http.Error(w, "a number from 0 to 1000000000 is needed", http.StatusBadRequest)
			return
		}
		s, err := sums.Get(r.Context(), n)
		if err != nil {
			slog.Error("a request failed", "n", n, "err", err)
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, s)
	})
	mux.HandleFunc("DELETE /sum/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.PathValue("n"))
		if err != nil {
			http.Error(w, "a number is needed", http.StatusBadRequest)
			return
		}
		if err := sums.Invalidate(r.Context(), n); err != nil { // its text names servers: it is for the log
			slog.Error("a request failed", "n", n, "err", err)
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /calculations", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, calculations.Load()) })
	return demo.Serve(ctx, "sums", listen, &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second})
}

// sum adds up the numbers from 1 to n, slowly.
func sum(ctx context.Context, n int, slow time.Duration) (string, error) {
	select {
	case <-time.After(slow):
		return fmt.Sprintf("the sum of 1 to %d is %d", n, n*(n+1)/2), nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
