package memcachestore

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// node is one server and the connections to it.
type node struct {
	addr  address
	opts  *Options
	slots []slot
	turn  atomic.Uint32
	// known is what the last connection has learned, nil before the first.
	known atomic.Pointer[life]
	late  lateGrants
}

// slot holds one connection or the attempt to make one.
type slot struct {
	conn atomic.Pointer[conn] // changed under mu

	mu      sync.Mutex // nothing blocks under it
	dial    *dial
	failed  int       // attempts in a row
	next    time.Time // when the next one may be made
	lastErr error
	closed  bool
}

// dial is an attempt to connect. conn and err are set before done is closed.
type dial struct {
	done chan struct{}
	conn *conn
	err  error
}

// After a failed attempt the next one waits, twice as long each time, so that a
// server that is down costs its callers nothing.
const (
	shortestPause = 50 * time.Millisecond
	longestPause  = time.Second
)

func newNode(a address, opts *Options) *node {
	return &node{addr: a, opts: opts, slots: make([]slot, opts.Conns)}
}

// get returns a connection; one is made if there is none. It waits no longer than
// ctx, while the attempt itself goes on for those who come later.
func (n *node) get(ctx context.Context) (*conn, error) { return n.pick(ctx, false) }

// pick is get; with insist, an attempt is made also shortly after a failed one.
func (n *node) pick(ctx context.Context, insist bool) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("not asked: %w", err)
	}
	turn := int(n.turn.Add(1) % uint32(len(n.slots)))
	if c := n.slots[turn].alive(); c != nil {
		return n.lighter(c), nil
	}
	c, d, err := n.slots[turn].take(n, insist)
	if c != nil {
		return c, nil
	}
	if c := n.other(turn); c != nil {
		return c, nil // while this one is made, or not tried again yet
	}
	if d == nil {
		return nil, err
	}
	select {
	case <-d.done:
		return d.conn, d.err
	case <-ctx.Done():
		return nil, fmt.Errorf("connecting: %w", ended(ctx))
	}
}

// lighter returns the first connection that has room, or else c. On few connections more
// requests and replies travel together, and the server has the one that a single caller uses
// at hand.
func (n *node) lighter(c *conn) *conn {
	for i := range n.slots {
		if first := n.slots[i].alive(); first != nil && first.light() {
			return first
		}
	}
	return c
}

// other returns a connection of another slot, nil if there is none.
func (n *node) other(than int) *conn {
	for i := range n.slots {
		if i == than {
			continue
		}
		if c := n.slots[i].alive(); c != nil {
			return c
		}
	}
	return nil
}

func (s *slot) alive() *conn {
	if c := s.conn.Load(); c != nil && c.alive() {
		return c
	}
	return nil
}

// take returns the slot's connection, or the attempt to wait for, or why there is
// neither.
func (s *slot) take(n *node, insist bool) (*conn, *dial, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.alive()
	switch {
	case s.closed:
		return nil, nil, errStoreClosed
	case c != nil:
		return c, nil, nil
	case s.dial != nil:
		return nil, s.dial, nil
	}
	if !insist && s.failed > 0 && time.Now().Before(s.next) {
		return nil, nil, fmt.Errorf("not tried again yet: %w", s.lastErr)
	}
	d := &dial{done: make(chan struct{})}
	s.conn.Store(nil)
	s.dial = d
	go s.connect(n, d)
	return nil, d, nil
}

func (s *slot) connect(n *node, d *dial) {
	d.conn, d.err = n.connect()
	s.mu.Lock()
	s.dial = nil
	switch {
	case d.err != nil:
		s.failed, s.lastErr = s.failed+1, d.err
		s.next = time.Now().Add(min(shortestPause<<min(s.failed-1, 10), longestPause))
	case s.closed:
		d.conn.fail(errStoreClosed)
		d.conn, d.err = nil, errStoreClosed
	default:
		s.conn.Store(d.conn)
		s.failed, s.lastErr = 0, nil
	}
	s.mu.Unlock()
	close(d.done)
}

// connect dials, asks who is there, and starts the connection.
func (n *node) connect() (*conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), n.opts.DialTimeout)
	defer cancel()
	nc, err := n.dialNet(ctx)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	nc.SetDeadline(deadline)
	br := bufio.NewReaderSize(nc, 32<<10)
	l, err := meet(nc, br)
	if err != nil {
		hangUp(nc)
		return nil, err
	}
	nc.SetDeadline(time.Time{})
	n.known.Store(&l)
	return newConn(nc, br, l, n.opts.StallTimeout), nil
}

func (n *node) dialNet(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, n.addr.network, n.addr.target)
	if err != nil || n.opts.TLS == nil {
		return nc, err
	}
	config := n.opts.TLS.Clone()
	if config.ServerName == "" {
		config.ServerName = n.addr.host
	}
	tc := tls.Client(nc, config)
	if err := tc.HandshakeContext(ctx); err != nil {
		hangUp(nc)
		err = fmt.Errorf("TLS: %w", err)
		if isTLSError(err) {
			return nil, unfit{err}
		}
		return nil, err
	}
	return tc, nil
}

// isTLSError tells a peer that does not speak TLS, or is not to be trusted, from one
// that could not be reached.
func isTLSError(err error) bool {
	var (
		header *tls.CertificateVerificationError
		record tls.RecordHeaderError
		alert  tls.AlertError
	)
	return errors.As(err, &header) || errors.As(err, &record) || errors.As(err, &alert)
}

func (n *node) close() {
	for i := range n.slots {
		s := &n.slots[i]
		s.mu.Lock()
		s.closed = true
		c := s.conn.Load()
		s.mu.Unlock()
		if c != nil {
			c.fail(errStoreClosed)
		}
	}
}
