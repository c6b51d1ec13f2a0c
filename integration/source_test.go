package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onefill/onefill"
)

// row is what is cached: a row of the table origin.
type row struct {
	Value   string
	Version int64
}

// source is the loader of a process: it asks PostgreSQL. Its fields say what
// happened in this process; the table says what happened in all of them.
type source struct {
	pool *pgxpool.Pool
	// tell hears of each load's begin, after the row has been read, and end. It may
	// be nil.
	tell func(begin bool, key string, r row)

	gauge // of loads
}

var errOrigin = errors.New("the origin fails on purpose")

// load counts itself in the row and reads it, in one committed statement. Then it
// takes the time that the row says, waits at the row's gate, and fails if the row
// says so: what it returns may be old by then.
func (s *source) load(ctx context.Context, key string) (row, error) {
	s.enter()
	defer s.leave()
	var (
		value *string
		r     row
		wait  float64
		gate  *int64
		fails bool
	)
	err := s.pool.QueryRow(ctx, `UPDATE origin SET loads = loads + 1 WHERE key = $1
		RETURNING value, version, wait, gate, fails`, key).Scan(&value, &r.Version, &wait, &gate, &fails)
	if errors.Is(err, pgx.ErrNoRows) {
		return row{}, fmt.Errorf("the test has not made the key %q", key)
	}
	if err != nil {
		return row{}, err
	}
	if value != nil {
		r.Value = *value
	}
	if s.tell != nil {
		s.tell(true, key, r)
		defer s.tell(false, key, r)
	}
	if wait > 0 {
		if _, err := s.pool.Exec(ctx, `SELECT pg_sleep($1)`, wait); err != nil {
			return row{}, err
		}
	}
	if gate != nil {
		// The lock ends with the statement.
		if _, err := s.pool.Exec(ctx, `SELECT pg_advisory_xact_lock_shared($1)`, *gate); err != nil {
			return row{}, err
		}
	}
	switch {
	case fails:
		return row{}, errOrigin
	case value == nil:
		return row{}, onefill.ErrNotFound
	}
	return r, nil
}

// gauge counts loads that run.
type gauge struct {
	mu            sync.Mutex // guards what follows
	running, most int
}

func (g *gauge) enter() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running++
	g.most = max(g.most, g.running)
}

func (g *gauge) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
}

// peak returns the most loads at once since the last call.
func (g *gauge) peak() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	most := g.most
	g.most = g.running
	return most
}

// openPool connects n connections.
func openPool(ctx context.Context, url string, n int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(n)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conns := make([]*pgxpool.Conn, 0, n)
	defer func() {
		for _, c := range conns {
			c.Release()
		}
	}()
	for range n {
		c, err := pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		conns = append(conns, c)
	}
	return pool, nil
}
