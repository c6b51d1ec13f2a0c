package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onefill/onefill/invalidation"
	"github.com/onefill/onefill/pgqueue"
	"github.com/onefill/onefill/queue"
)

// cacheName is the name of onefill's cache in a run.
func cacheName(run string) string { return "lab-" + run }

// until is something that runs until it is told to end.
func (w *worker) until(run func(stop <-chan struct{})) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		run(stop)
	}()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leaves = append(w.leaves, sync.OnceFunc(func() { close(stop); <-done }))
}

// leave ends what opWrite and opWork have started.
func (w *worker) leave() {
	w.mu.Lock()
	leaves := w.leaves
	w.mu.Unlock()
	for _, end := range leaves {
		end()
	}
}

// writer changes rows, and tells the cache of it in its mode's way.
type writer struct {
	commitSetup
	process workerSetup
	pg      *postgres
	q       *pgqueue.Queue
	store   reader // naive's way to the store, once it could be reached
}

func (w *worker) postgres() (workerSetup, *postgres, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pg, ok := w.origin.(*postgres)
	if !ok {
		return w.setup, nil, errors.New("the origin is not PostgreSQL")
	}
	return w.setup, pg, nil
}

func (w *worker) startWriting(ctx context.Context, c command) error {
	process, pg, err := w.postgres()
	if err != nil {
		return err
	}
	q, err := pg.queue()
	if err != nil {
		return err
	}
	wr := &writer{commitSetup: *c.Commit, process: process, pg: pg, q: q}
	w.until(func(stop <-chan struct{}) { wr.run(ctx, stop) })
	return nil
}

// run writes at even intervals. What fails is not tried again: it is the writer's caller who
// hears of it.
func (wr *writer) run(ctx context.Context, stop <-chan struct{}) {
	tick := time.NewTicker(time.Duration(float64(time.Second) / wr.PerSecond))
	defer tick.Stop()
	write := wr.publishAfter
	if wr.Mode == ModeOnefill {
		write = wr.enqueueWith
	}
	for {
		select {
		case <-stop:
			if wr.store != nil {
				wr.store.Close()
			}
			return
		case <-tick.C:
		}
		_ = write(ctx, trafficKey(wr.Cell, rand.IntN(wr.Keys)))
	}
}

// enqueueWith commits the row and the job together.
func (wr *writer) enqueueWith(ctx context.Context, key string) error {
	jobs, err := invalidation.Invalidate(cacheName(wr.process.Run), key)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, wr.pg.pool, func(tx pgx.Tx) error {
		if err := wr.pg.change(ctx, tx, key); err != nil {
			return err
		}
		_, err := wr.q.EnqueueTx(ctx, tx, jobs...)
		return err
	})
}

// publishAfter commits the row, and then deletes the key.
func (wr *writer) publishAfter(ctx context.Context, key string) error {
	if err := pgx.BeginFunc(ctx, wr.pg.pool, func(tx pgx.Tx) error { return wr.pg.change(ctx, tx, key) }); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, wr.Policy.StoreTimeout)
	defer cancel()
	if wr.store == nil {
		store, err := openReader(ctx, wr.Mode, wr.process.Store, readerConfig{run: wr.process.Run, policy: wr.Policy})
		if err != nil {
			return err
		}
		wr.store = store
	}
	return wr.store.Invalidate(ctx, key)
}

// startWorking applies jobs to the cache of this run.
func (w *worker) startWorking(ctx context.Context, c command) error {
	process, pg, err := w.postgres()
	if err != nil {
		return err
	}
	q, err := pg.queue()
	if err != nil {
		return err
	}
	w.until(func(stop <-chan struct{}) {
		cache := openPatiently(ctx, stop, process, *c.Commit)
		if cache == nil {
			return
		}
		defer cache.Close()
		applyJobs(ctx, stop, cacheName(process.Run), cache, q)
	})
	return nil
}

// openPatiently opens the cache; the store may be away for the moment.
func openPatiently(ctx context.Context, stop <-chan struct{}, process workerSetup, s commitSetup) *cached {
	for {
		cache, err := openOnefill(ctx, process.Store, readerConfig{
			run: process.Run, ttl: micros(s.TTLUS), lease: micros(s.LeaseUS), timeout: micros(s.TimeoutUS), push: s.Push, policy: s.Policy,
			load: func(context.Context, string) (string, error) { return "", errNoRow }, // it only invalidates
		})
		if err == nil {
			return cache
		}
		timer := time.NewTimer(50 * time.Millisecond)
		select {
		case <-timer.C:
		case <-stop:
			timer.Stop()
			return nil
		}
	}
}

// applyJobs works until it is told to end, or ends the process, which the parent hears of.
func applyJobs(ctx context.Context, stop <-chan struct{}, name string, cache *cached, q *pgqueue.Queue) {
	handlers, err := invalidation.Handlers(invalidation.For(name, cache.cache))
	if err != nil {
		panic(err)
	}
	worker, err := queue.NewWorker(queue.WorkerOptions{Queue: q, Handlers: handlers, Concurrency: 2, Lease: workerLease, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	if err := worker.Start(ctx); err != nil {
		panic(err)
	}
	<-stop
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace/2)
	defer cancel()
	worker.Stop(stopCtx)
}

// compare asks the cache, and the store past it, for every key. The store is looked at first,
// since the cache fills it.
func (cell *workerCell) compare(ctx context.Context, keys int, r *reply) error {
	r.Rows, r.Stored = make([]string, keys), make([]string, keys)
	for i := range keys {
		payload, found, err := cell.reader.Stored(ctx, trafficKey(cell.key, i))
		if err != nil {
			return fmt.Errorf("look into the store: %w", err)
		}
		if found {
			l, err := decodeLoaded(payload)
			if err != nil {
				return err
			}
			r.Stored[i] = l.Row
		}
	}
	for i := range keys {
		switch c := cell.call(ctx, -1, phaseVerify, trafficKey(cell.key, i)); c.Kind {
		case KindValue:
			r.Rows[i] = c.Row
		default:
			r.Unread++
			r.Why = c.Error
		}
	}
	return nil
}
