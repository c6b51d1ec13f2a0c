// Command middleware puts package httpcache in front of a handler that is expensive.
//
//	go run ./examples/middleware
//
// It uses REDIS_URL, or starts a private server.
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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/onefill/onefill/examples/httpcache"
	"github.com/onefill/onefill/examples/internal/demo"
	"github.com/onefill/onefill/redisstore"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "address of the service")
	slow := flag.Duration("slow", 200*time.Millisecond, "how long a report takes")
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
	url, stopServer, err := demo.Redis(ctx)
	if err != nil {
		return err
	}
	defer stopServer()
	shared, err := redisstore.Open(url)
	if err != nil {
		return err
	}
	defer shared.Close()

	var made atomic.Int64
	pages, err := httpcache.New(report(slow, &made), httpcache.Options{
		Name: "reports", Store: shared, TTL: 30 * time.Second, StaleFor: time.Minute, StaleOnError: time.Hour,
		Query: []string{"page"}, Headers: []string{"Accept-Language"}, AnyHost: true,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pages.Close()) }()

	mux := http.NewServeMux()
	mux.Handle("/reports/{year}", pages)
	mux.HandleFunc("GET /made", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, made.Load()) })
	return demo.Serve(ctx, "reports", listen, &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second})
}

// report is the expensive handler. It knows nothing of the cache.
func report(slow time.Duration, made *atomic.Int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.WriteHeader(http.StatusNoContent) // a change: the pages of this path are removed
			return
		}
		n := made.Add(1)
		select {
		case <-time.After(slow):
		case <-r.Context().Done():
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "report %s, page %q, in %q: made %d times so far\n", r.PathValue("year"), r.FormValue("page"), r.Header.Get("Accept-Language"), n)
	})
}
