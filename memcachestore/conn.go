package memcachestore

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// conn is one connection, used by any number of callers at once: their requests are
// written in the order in which they come, and the server answers in that order. A
// caller that leaves early leaves its place in the row behind; its reply is read and
// thrown away. Whatever the server says that was not expected ends the connection,
// and with it every request on it.
//
// Two goroutines serve it: write, which also watches that answers come, and read.
// Both end when dead is closed.
type conn struct {
	nc    net.Conn
	br    *bufio.Reader // read by read only
	life  life          // of the server behind it
	limit int           // bytes of a reply's value
	stall time.Duration // without an answer: dead

	kick chan struct{} // there is something to write
	dead chan struct{}

	opaque atomic.Uint32

	// mu guards what follows. Nothing blocks under it.
	mu      sync.Mutex
	waiting []*request // not written yet
	flight  []*request // written, in order
	since   time.Time  // when flight's first request became the first
	err     error      // why it is dead
}

// request is one command and its place in the row.
type request struct {
	text   []byte
	opaque uint32 // 0: the reply has none
	state  atomic.Uint32
	done   chan struct{}
	reply  reply
	err    error
	// late, if set, gets the reply that came after its caller had left. It must not
	// block: it runs in the goroutine that reads.
	late func(reply)
}

// The states of a request. A request goes from queued to sent to finished, or from
// one of the first two to abandoned.
const (
	queued uint32 = iota
	sent
	finished
	abandoned
)

// maxRow bounds the requests that wait for one connection.
const maxRow = 16 << 10

func newConn(nc net.Conn, br *bufio.Reader, l life, stall time.Duration) *conn {
	c := &conn{nc: nc, br: br, life: l, limit: l.itemMax, stall: stall,
		kick: make(chan struct{}, 1), dead: make(chan struct{})}
	go c.write()
	go c.read()
	return c
}

func (c *conn) alive() bool {
	select {
	case <-c.dead:
		return false
	default:
		return true
	}
}

// do sends one request and waits for its reply. build appends the command; a reply
// of SERVER_ERROR is an error.
func (c *conn) do(ctx context.Context, build func(b []byte, opaque uint32) []byte, late func(reply)) (reply, error) {
	if err := ctx.Err(); err != nil {
		return reply{}, fmt.Errorf("not asked: %w", err)
	}
	opaque := max(c.opaque.Add(1), 1)
	r := &request{opaque: opaque, text: build(nil, opaque), done: make(chan struct{}), late: late}
	return c.roundTrip(ctx, r)
}

// noop asks whether the server answers.
func (c *conn) noop(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("not asked: %w", err)
	}
	_, err := c.roundTrip(ctx, &request{text: []byte("mn" + crlf), done: make(chan struct{})})
	return err
}

func (c *conn) roundTrip(ctx context.Context, r *request) (reply, error) {
	if err := c.enqueue(r); err != nil {
		return reply{}, err
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		if r.state.CompareAndSwap(queued, abandoned) {
			r.text = nil // nobody will write it, and a connection that is stuck may keep r for long
			return reply{}, ended(ctx)
		}
		if r.state.CompareAndSwap(sent, abandoned) {
			return reply{}, ended(ctx)
		}
		<-r.done // it has just been answered
	}
	if r.err == nil && r.reply.code == codeRefused {
		return reply{}, refusal(r.reply.message)
	}
	return r.reply, r.err
}

func (c *conn) enqueue(r *request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return c.err
	case len(c.waiting)+len(c.flight) >= maxRow:
		return errBusy
	}
	c.waiting = append(c.waiting, r)
	select {
	case c.kick <- struct{}{}:
	default:
	}
	return nil
}

// finish gives the request its outcome.
func (r *request) finish(rep reply, err error) {
	r.reply, r.err = rep, err
	if r.state.CompareAndSwap(sent, finished) || r.state.CompareAndSwap(queued, finished) {
		close(r.done)
		return
	}
	if r.late != nil && err == nil {
		r.late(rep)
	}
}

// write writes what waits, in as few packets as there are.
func (c *conn) write() {
	bw := bufio.NewWriterSize(c.nc, 32<<10)
	watch := time.NewTicker(max(c.stall/4, time.Millisecond))
	defer watch.Stop()
	for {
		select {
		case <-c.dead:
			return
		case <-watch.C:
			c.checkStall()
			continue
		case <-c.kick:
		}
		for batch := c.launch(); len(batch) > 0; batch = c.launch() {
			c.nc.SetWriteDeadline(time.Now().Add(c.stall))
			for _, r := range batch {
				if _, err := bw.Write(r.text); err != nil {
					c.fail(fmt.Errorf("write: %w", err))
					return
				}
				r.text = nil
			}
		}
		if err := bw.Flush(); err != nil {
			c.fail(fmt.Errorf("write: %w", err))
			return
		}
	}
}

// launch moves what waits into flight, but for those whose callers have left: they
// are never sent.
func (c *conn) launch() []*request {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil
	}
	batch := c.waiting[:0]
	for _, r := range c.waiting {
		if r.state.CompareAndSwap(queued, sent) {
			batch = append(batch, r)
		}
	}
	c.waiting = nil
	if len(c.flight) == 0 {
		c.since = time.Now()
	}
	c.flight = append(c.flight, batch...)
	return batch
}

// checkStall ends a connection over which no answer has come for too long: the
// server hangs, or the other end is gone without a word.
func (c *conn) checkStall() {
	c.mu.Lock()
	stalled := len(c.flight) > 0 && time.Since(c.since) > c.stall
	c.mu.Unlock()
	if stalled {
		c.fail(errStalled)
	}
}

// read reads the replies. It waits for the first byte of one also when none is due:
// so the end of an idle connection is seen at once.
func (c *conn) read() {
	for {
		if _, err := c.br.Peek(1); err != nil {
			c.fail(fmt.Errorf("read: %w", lostIt(err)))
			return
		}
		r := c.first()
		if r == nil {
			line, _ := c.br.Peek(c.br.Buffered())
			c.fail(fmt.Errorf("nothing was asked: %w", surprise(line)))
			return
		}
		rep, err := readReply(c.br, c.limit)
		if err == nil && rep.code != codeRefused && (rep.opaque != r.opaque || (rep.code == codeNoop) != (r.opaque == 0)) {
			err = fmt.Errorf("%w: it belongs to another request (%d, not %d)", errProtocol, rep.opaque, r.opaque)
		}
		if err != nil {
			c.fail(fmt.Errorf("read: %w", lostIt(err))) // r is still in flight
			return
		}
		if !c.landed() {
			return // fail has had it, and finishes it
		}
		r.finish(rep, nil)
	}
}

func (c *conn) first() *request {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.flight) == 0 {
		return nil
	}
	return c.flight[0]
}

func (c *conn) landed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false // fail has emptied it
	}
	c.flight[0] = nil
	c.flight = c.flight[1:]
	c.since = time.Now()
	return true
}

// fail ends the connection: every request on it fails with err.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	lost := append(c.flight, c.waiting...)
	c.flight, c.waiting = nil, nil
	close(c.dead)
	c.mu.Unlock()
	hangUp(c.nc)
	for _, r := range lost {
		if r != nil {
			r.finish(reply{}, err)
		}
	}
}

// hangUp ends a connection at once: what was not delivered is not to arrive after its
// request has been repeated. TLS is not told, as its farewell would wait for a peer that
// takes nothing.
func hangUp(nc net.Conn) {
	if over, ok := nc.(*tls.Conn); ok {
		nc = over.NetConn()
	}
	if tcp, ok := nc.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	nc.Close()
}

// lostIt makes the end of a connection readable.
func lostIt(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the server has closed the connection: %w", err)
	}
	return err
}
