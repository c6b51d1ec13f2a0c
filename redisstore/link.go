package redisstore

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// conn is what commands are sent over. Where it pushes, all commands of one key go
// over one connection of it.
type conn struct {
	rueidis.CommandClient
	// client is whose connections they are: the store's own client or the user's.
	client rueidis.Client
	// push: the connection is tracked, and the store hears its pushes.
	push bool
	// borrowed: what rueidis does on it depends on the options of the user's client.
	borrowed bool
	// watch looks now and then who is behind the connections of a cluster client of the
	// user's, and is nil for others.
	watch *lookout
	// survey keeps the chart of a cluster, and is nil where there is none.
	survey *survey
	// failed is told of every command that ended without an answer before its context did,
	// and may be nil.
	failed func()
	// shut ends the connection if it is the store's own, and may be nil.
	shut func()
}

// link makes a conn when it is needed: at the first operation, and again after it
// has been given up. Attempts run one at a time in a goroutine of their own, since
// rueidis dials without a context: who waits for one waits no longer than its own
// context, and the attempt goes on for the others.
type link struct {
	dial func() (*conn, error)
	addr func() string

	current atomic.Pointer[conn]
	// pushes says what the last conn could do; it outlives the conn.
	pushes atomic.Bool

	// mu guards what follows; nothing waits under it.
	mu      sync.Mutex
	attempt *attempt // the one that runs, or nil
	lastErr error
	delay   time.Duration
	retryAt time.Time // not before then
	closed  bool
}

type attempt struct {
	done chan struct{}
	conn *conn
	err  error
}

// Back-off after a failed attempt: operations in between fail at once with the
// attempt's error.
const (
	minRetryDelay = 10 * time.Millisecond
	maxRetryDelay = time.Second
)

// get returns the conn, making it if need be.
func (l *link) get(ctx context.Context) (*conn, error) {
	if c := l.current.Load(); c != nil {
		return c, nil
	}
	a, err := l.join()
	if err != nil {
		return nil, err
	}
	select {
	case <-a.done:
		return a.conn, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("connect: %w", ctx.Err())
	}
}

// join returns the running attempt, or starts one unless it is too early.
func (l *link) join() (*attempt, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errStoreClosed
	}
	if l.attempt != nil {
		return l.attempt, nil
	}
	if c := l.current.Load(); c != nil {
		a := &attempt{done: make(chan struct{}), conn: c}
		close(a.done)
		return a, nil
	}
	if time.Now().Before(l.retryAt) {
		return nil, l.lastErr
	}
	l.attempt = &attempt{done: make(chan struct{})}
	go l.run(l.attempt)
	return l.attempt, nil
}

func (l *link) run(a *attempt) {
	c, err := l.safeDial()
	if !l.settle(a, c, err) && c != nil {
		c.close() // the store was closed meanwhile
	}
	close(a.done)
}

// settle records the outcome of an attempt. False means that its conn is not wanted.
func (l *link) settle(a *attempt, c *conn, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.attempt = nil
	if l.closed {
		a.err = errStoreClosed
		return false
	}
	a.conn, a.err = c, err
	if err != nil {
		l.delay = min(max(2*l.delay, minRetryDelay), maxRetryDelay)
		l.lastErr, l.retryAt = err, time.Now().Add(l.delay)
		return true
	}
	l.delay, l.lastErr, l.retryAt = 0, nil, time.Time{}
	l.pushes.Store(c.push)
	l.current.Store(c)
	return true
}

// safeDial turns rueidis' panics into errors: it panics where a server breaks the
// protocol, and the port may belong to any server.
func (l *link) safeDial() (c *conn, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: %v", notRedis, r)
		}
	}()
	c, err = l.dial()
	if err != nil && strings.Contains(err.Error(), "unknown message type") { // rueidis has no type for it
		err = fmt.Errorf("%s: %w", notRedis, err)
	}
	return c, err
}

const notRedis = "the server does not speak the Redis protocol"

// drop gives a conn up; the next operation makes another.
func (l *link) drop(c *conn) { l.current.CompareAndSwap(c, nil) }

func (l *link) close() {
	l.mu.Lock()
	l.closed = true
	c := l.current.Swap(nil)
	l.mu.Unlock()
	if c != nil {
		c.close()
	}
}

func (c *conn) close() {
	if c.shut != nil {
		c.shut()
	}
}
