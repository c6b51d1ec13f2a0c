package integration

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/onefill/onefill"
)

// work is what a process does in TestHistory until it is cancelled or killed.
type work struct {
	Keys             []string
	Readers, Writers int
	// Between two operations of one goroutine, on average.
	ReadEvery, WriteEvery time.Duration
	Log                   string // a file of this process alone
}

// history works until ctx ends.
func (c *child) history(ctx context.Context, w *work) error {
	file, err := os.OpenFile(w.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	j := &journal{file}
	c.listen(func(e onefill.Event) {
		switch e.Kind {
		case onefill.EventStoreError:
			j.add("store %d", time.Now().UnixNano())
		case onefill.EventStoreDown:
			j.add("down %d", time.Now().UnixNano())
		}
	})
	defer c.listen(nil)
	var running sync.WaitGroup
	for range w.Readers {
		running.Go(func() { c.repeat(ctx, w.Keys, w.ReadEvery, func(key string) { c.readOnce(j, key) }) })
	}
	for range w.Writers {
		running.Go(func() { c.repeat(ctx, w.Keys, w.WriteEvery, func(key string) { c.writeOnce(ctx, j, key) }) })
	}
	running.Wait()
	return nil
}

func (c *child) listen(heard func(onefill.Event)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = heard
}

// repeat does something with one key after another until ctx ends.
func (c *child) repeat(ctx context.Context, keys []string, every time.Duration, do func(key string)) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		do(keys[rand.IntN(len(keys))])
		pause.Reset(time.Duration(rand.Int64N(int64(2 * every))))
	}
}

func (c *child) readOnce(j *journal, key string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := c.get(ctx, key)
	if r.Class != "" {
		j.add("failed %d %d %s %s", r.Start.UnixNano(), r.end().UnixNano(), key, r.Class)
		return
	}
	j.add("get %d %d %s %d", r.Start.UnixNano(), r.end().UnixNano(), key, r.Row.Version)
}

// writeOnce commits the next version of a row and then tells the cache, as often as it
// takes: the queue would do the same. Writers of one row take turns: Set is only right
// where rows are set in the order of their commits.
func (c *child) writeOnce(ctx context.Context, j *journal, key string) {
	conn, err := c.source.pool.Acquire(ctx)
	if err != nil {
		return // the test ends
	}
	defer conn.Release()
	turn := int64(hash(key))
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, turn); err != nil {
		return
	}
	defer conn.Exec(context.Background(), `SELECT pg_advisory_unlock($1)`, turn)
	var r row
	// From here on the writer goes on to the end although the test may have ended.
	err = conn.QueryRow(context.Background(), `UPDATE origin SET version = version + 1, value = 'v' || (version + 1)
		WHERE key = $1 RETURNING version, value`, key).Scan(&r.Version, &r.Value)
	if err != nil {
		fmt.Fprintln(os.Stderr, "panic: the writer:", err)
		os.Exit(3)
	}
	set := rand.IntN(4) == 0
	for {
		j.add("try %d %s %d", time.Now().UnixNano(), key, r.Version)
		if set {
			err = c.cache.Set(context.Background(), key, r)
		} else {
			err = c.cache.Invalidate(context.Background(), key)
		}
		if err == nil {
			break
		}
		if errors.Is(err, onefill.ErrClosed) {
			return
		}
		set = false // what a failed Set has left is removed, not guessed at
	}
	j.add("ack %d %s %d", time.Now().UnixNano(), key, r.Version)
}

func hash(key string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(key))
	return h.Sum32()
}
