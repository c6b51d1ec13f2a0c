// Command pgredis is a small service as one would deploy it: users lie in PostgreSQL, a cache that all
// processes share in Redis, and a change reaches the cache twice. A job is enqueued in the transaction that makes it:
// that is the guarantee, which holds whoever dies and whatever is down, and takes some milliseconds. And after the
// commit the handler invalidates directly, as well as it can: whoever gets the answer to a change reads what was
// written, through this process at once, through another one as soon as it has heard of it. What that costs is
// a load more for a change if somebody reads between the two.
//
//	go run ./examples/pgredis
//
// It uses POSTGRES_URL and REDIS_URL, or starts private servers. Everything it makes in the database lies in
// the schemas onefill_example and onefill_example_queue.
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/onefill/onefill"
	"github.com/onefill/onefill/examples/internal/demo"
	"github.com/onefill/onefill/invalidation"
	"github.com/onefill/onefill/pgqueue"
	"github.com/onefill/onefill/promonefill"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/redisstore"
	"github.com/onefill/onefill/watch"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

type config struct {
	listen, debug string
	slow          time.Duration
}

func main() {
	var cfg config
	flag.StringVar(&cfg.listen, "listen", "127.0.0.1:8080", "address of the service")
	flag.StringVar(&cfg.debug, "debug", "127.0.0.1:6060", "private address of /metrics and /debug/onefill: it shows keys")
	flag.DurationVar(&cfg.slow, "slow", 200*time.Millisecond, "how long the query of a user takes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, cfg); err != nil {
		slog.Error("failed", "err", err)
		os.Exit(1)
	}
	slog.Info("stopped")
}

// run starts everything in the order in which it depends on each other; the deferred calls stop it in the
// opposite order: first those who ask, then the worker, the cache, its store, the database.
func run(ctx context.Context, cfg config) (err error) {
	pgURL, stopPostgres, err := demo.Postgres(ctx)
	if err != nil {
		return err
	}
	defer stopPostgres()
	redisURL, stopRedis, err := demo.Redis(ctx)
	if err != nil {
		return err
	}
	defer stopRedis()

	pool, err := pgxpool.New(ctx, pgURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	jobs, err := pgqueue.New(pool, pgqueue.Schema("onefill_example_queue"), pgqueue.PollInterval(50*time.Millisecond))
	if err != nil {
		return err
	}
	defer jobs.Close()
	users := &users{pool: pool, jobs: jobs, slow: cfg.slow}
	if err := users.prepare(ctx); err != nil {
		return err
	}
	shared, err := redisstore.Open(redisURL)
	if err != nil {
		return err
	}
	defer shared.Close()

	metrics, err := promonefill.New(promonefill.Options{})
	if err != nil {
		return err
	}
	recorder := watch.New(watch.Options{})
	cache, err := onefill.New(onefill.Options[int64, user]{
		Name: "users", Store: shared, Load: users.load,
		TTL: time.Minute, StaleOnError: 10 * time.Minute, LoadTimeout: 5 * time.Second,
		Observer: onefill.Observers(recorder, metrics),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cache.Close()) }()
	if err := metrics.Add("users", cache); err != nil {
		return err
	}

	handlers, err := invalidation.Handlers(invalidation.For("users", cache))
	if err != nil {
		return err
	}
	queues, err := promonefill.NewQueues(promonefill.QueueOptions{})
	if err != nil {
		return err
	}
	worker, err := queue.NewWorker(queue.WorkerOptions{
		Queue: jobs, Handlers: handlers, Observer: queues.Observer("onefill", invalidation.KindInvalidate),
	})
	if err != nil {
		return err
	}
	if err := worker.Start(context.WithoutCancel(ctx)); err != nil { // Stop ends it, after the requests
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, worker.Stop(end))
	}()
	registry := prometheus.NewRegistry()
	err = errors.Join(
		queues.AddWorker("onefill", worker), queues.AddQueue("onefill", jobs),
		registry.Register(metrics), registry.Register(queues),
	)
	if err != nil {
		return err
	}
	return serve(ctx, cfg, &api{users, cache}, recorder, registry)
}

// serve serves both ports until ctx ends, or one of them fails.
func serve(ctx context.Context, cfg config, a *api, recorder *watch.Recorder, registry *prometheus.Registry) error {
	debug := http.NewServeMux()
	debug.Handle("GET /debug/onefill", recorder)
	debug.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	private := &http.Server{Handler: debug, ReadHeaderTimeout: 5 * time.Second}
	private.RegisterOnShutdown(recorder.Close) // or the streams would hold it up
	public := &http.Server{Handler: a.routes(), ReadHeaderTimeout: 5 * time.Second}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var both sync.WaitGroup
	errs := make([]error, 2)
	both.Go(func() { defer cancel(); errs[0] = demo.Serve(ctx, "debug", cfg.debug, private) })
	both.Go(func() { defer cancel(); errs[1] = demo.Serve(ctx, "users", cfg.listen, public) })
	both.Wait()
	return errors.Join(errs...)
}
