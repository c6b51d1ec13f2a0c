package memcachestore

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
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
// A caller that finds nobody else on it writes and reads itself (alone.go), since to wake
// two goroutines, and to be woken, takes a quarter of a round trip. All others have two
// goroutines at their service: write, which also watches that answers come, and read. One
// goroutine writes at a time, and one reads: writes and reads say that there is one.
type conn struct {
	nc    net.Conn
	life  life          // of the server behind it
	stall time.Duration // without an answer: dead

	kick chan struct{} // there is something to write
	turn chan struct{} // read is who reads
	dead chan struct{}

	opaque  atomic.Uint32
	replies atomic.Uint32 // that have come

	row    atomic.Int32 // how many replies are due
	large  atomic.Int32 // how many large values are being written or read
	silent atomic.Bool  // no reply has come for a while, though one was due; of checkStall

	in    reading   // of who reads
	armed time.Time // the last write deadline was set; of who writes

	// mu guards what follows. Nothing blocks under it.
	mu      sync.Mutex
	waiting []*request // not written yet
	flight  row        // written, or being written, in order
	beyond  int        // how many replies are due beyond one for each request
	writes  bool
	reads   bool   // false only when the row is empty: nothing waits, nothing is in flight
	trips   uint32 // that callers have made alone
	err     error  // why it is dead
}

// reading is what belongs to the goroutine that reads, and is handed on with the task.
type reading struct {
	parser
	// begun: what follows is of the flight's first request. The request itself belongs to
	// its caller again as soon as the connection has failed.
	begun  bool
	opaque uint32 // of the next reply
	many   *manyReads
	// ends is the end of the context that interrupts the reading; forget undoes that.
	ends   <-chan struct{}
	forget func() bool
}

// maxRow bounds the requests that wait for one connection.
const maxRow = 16 << 10

// maxBatch bounds what is copied together to be written at once.
const maxBatch = 64 << 10

func newConn(nc net.Conn, br *bufio.Reader, l life, stall time.Duration) *conn {
	c := &conn{nc: nc, life: l, stall: stall, reads: true,
		kick: make(chan struct{}, 1), turn: make(chan struct{}, 1), dead: make(chan struct{})}
	c.in.parser = parser{br: br, limit: l.itemMax, large: &c.large}
	c.turn <- struct{}{}
	go c.write()
	go c.read()
	return c
}

// light says whether a request more would soon have its reply: the server answers, as far as is
// known, no large value is in its way, nor so many others that there is nothing more to be won by
// having them travel together.
func (c *conn) light() bool {
	return c.row.Load() < enough && c.large.Load() == 0 && !c.silent.Load()
}

const (
	enough = 128
	// largeValue is where a value's time on the wire is more than a round trip.
	largeValue = 64 << 10
)

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
	r := newRequest()
	r.opaque, r.late = c.mark(1), late
	r.text = build(r.text, r.opaque)
	return c.roundTrip(ctx, r)
}

// mark returns the first of n opaque numbers in a row, none of which is 0.
func (c *conn) mark(n uint32) uint32 {
	for {
		if last := c.opaque.Add(n); last >= n {
			return last - n + 1
		}
	}
}

// noop asks whether the server answers.
func (c *conn) noop(ctx context.Context) error {
	r := newRequest()
	r.text = append(r.text, "mn"+crlf...)
	_, err := c.roundTrip(ctx, r)
	return err
}

// roundTrip sends a request and waits until it is finished. The request is used up.
func (c *conn) roundTrip(ctx context.Context, r *request) (reply, error) {
	if err := ctx.Err(); err != nil {
		return reply{}, fmt.Errorf("not asked: %w", err)
	}
	alone, err := c.enqueue(r)
	switch {
	case err != nil:
		return reply{}, err
	case alone:
		err = c.fetch(ctx, r)
	default:
		err = r.wait(ctx)
	}
	if err != nil {
		return reply{}, err
	}
	rep, err := r.reply, r.err
	r.free()
	if err == nil && rep.code == codeRefused {
		err = refusal(rep.message)
	}
	return rep, err
}

// enqueue puts the request into the row. Alone: nobody else is on the connection, and the
// caller is who writes and reads.
func (c *conn) enqueue(r *request) (alone bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return false, c.err
	case len(c.waiting)+c.flight.len() >= maxRow:
		return false, errBusy
	case !c.writes && !c.reads && len(r.text) <= maxAlone:
		c.writes, c.reads = true, true
		c.trips++
		r.state.Store(sent)
		c.flight.push(r)
		c.count(r, 1)
		return true, nil
	}
	c.waiting = append(c.waiting, r)
	c.count(r, 1)
	if !c.writes {
		poke(c.kick)
	}
	if !c.reads {
		c.reads = true
		c.turn <- struct{}{} // there is room: who reads has taken it out
	}
	return false, nil
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// count tells light how many replies are due, after r has come (sign 1) or gone (-1).
func (c *conn) count(r *request, sign int) {
	if r.many != nil {
		c.beyond += sign * (len(r.many.items) - 1)
	}
	c.row.Store(int32(len(c.waiting) + c.flight.len() + c.beyond))
}

// write writes what waits, in as few packets as there are.
func (c *conn) write() {
	watch := time.NewTicker(max(c.stall/4, time.Millisecond))
	defer watch.Stop()
	var since stalling
	var out []byte
	for {
		select {
		case <-c.dead:
			return
		case <-watch.C:
			c.checkStall(&since)
			continue
		case <-c.kick:
		}
		for mine := false; ; {
			var big []byte
			if out, big, mine = c.launch(out[:0], mine); !mine {
				break
			}
			if !c.send(out) || !c.send(big) {
				return
			}
		}
	}
}

// launch moves what waits into flight, but for those whose callers have left: they
// are never sent. It returns what is to be written, what is big apart from what could be
// copied before it. mine: write is who writes.
func (c *conn) launch(out []byte, mine bool) (_, big []byte, _ bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.writes && !mine { // who writes will say that something waits
		return out, nil, false
	}
	c.writes = len(c.waiting) > 0
	moved, gone := 0, []*request(nil)
	for _, r := range c.waiting {
		if big != nil || len(out) >= maxBatch {
			break
		}
		moved++
		if !r.state.CompareAndSwap(queued, sent) {
			gone = append(gone, r)
			continue
		}
		c.flight.push(r)
		if len(r.text) > maxKeptText { // so nobody writes another request over it
			big = r.text
		} else {
			out = append(out, r.text...)
		}
	}
	rest := copy(c.waiting, c.waiting[moved:])
	clear(c.waiting[rest:])
	c.waiting = c.waiting[:rest]
	for _, r := range gone {
		c.count(r, -1)
	}
	return out, big, c.writes
}

// send writes. The deadline is set a few times only while it lasts, so it may come a
// little early.
func (c *conn) send(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	if now := time.Now(); now.Sub(c.armed) > c.stall/4 {
		c.armed = now
		c.nc.SetWriteDeadline(now.Add(c.stall))
	}
	if len(b) >= largeValue {
		c.large.Add(1)
		defer c.large.Add(-1)
	}
	if _, err := c.nc.Write(b); err != nil {
		c.fail(fmt.Errorf("write: %w", err))
		return false
	}
	return true
}

// stalling is what checkStall has seen: at which time how many replies had come, and that
// more were due.
type stalling struct {
	since   time.Time // zero: none was due
	replies uint32
}

// checkStall ends a connection over which no answer has come for too long: the
// server hangs, or the other end is gone without a word. It looks a few times in a stall, and
// from the second look without an answer on the connection counts as silent, so that new requests
// go to others, if there are any. That is taken back here as well, a look late, so that it costs
// nothing for each reply.
func (c *conn) checkStall(seen *stalling) {
	c.mu.Lock()
	due := c.flight.len() > 0
	c.mu.Unlock()
	now, replies := time.Now(), c.replies.Load()
	silent := !seen.since.IsZero() && seen.replies == replies // so what was due then is due still
	c.silent.Store(silent)
	switch {
	case !due:
		seen.since = time.Time{}
	case !silent:
		*seen = stalling{now, replies}
	case now.Sub(seen.since) > c.stall*7/8: // nearly four looks
		c.fail(errStalled)
	}
}

// idleAfter is how long after the last caller that was alone read takes over, which sees at
// once when the server ends the connection.
const idleAfter = 5 * time.Millisecond

// read reads the replies while several callers are on the connection, and waits for
// the first byte of one while nobody is: so the end of an idle connection is seen at once.
func (c *conn) read() {
	idle := time.NewTimer(idleAfter)
	defer idle.Stop()
	for c.awaitTurn(idle) {
		for over := false; !over; {
			var err error
			if over, err = c.receive(false); err != nil && !c.interrupted(err) {
				c.watch(context.Background())
				return
			}
		}
	}
}

// awaitTurn waits until read is who reads; false: the connection is dead.
func (c *conn) awaitTurn(idle *time.Timer) bool {
	for trips := uint32(0); ; {
		idle.Reset(idleAfter)
		select {
		case <-c.turn:
			return true
		case <-c.dead:
		case <-idle.C:
		}
		c.mu.Lock()
		handed := len(c.turn) > 0
		takes := !c.reads && (c.err != nil || c.trips == trips)
		c.reads, trips = c.reads || takes, c.trips
		dead := c.err != nil
		c.mu.Unlock()
		if takes || dead && handed {
			c.watch(context.Background()) // what has ended long ago is not to be kept
		}
		if takes || dead {
			return !dead
		}
	}
}

// receive reads a reply and gives it to the request that is due. Over: the caller reads no
// more, since nobody is on the connection, or, if he is alone, since he has his reply. An
// error ends the connection, unless it was interrupted: then receive goes on when it is
// called again.
func (c *conn) receive(alone bool) (over bool, err error) {
	in := &c.in
	if !in.begun {
		if _, err := in.br.Peek(1); err != nil {
			return false, c.broken(err)
		}
		if err := c.begin(); err != nil {
			return false, err
		}
	}
	rep, err := in.next()
	if err == nil && rep.code != codeRefused && (rep.opaque != in.opaque || (rep.code == codeNoop) != (in.opaque == 0)) {
		err = fmt.Errorf("%w: it belongs to another request (%d, not %d)", errProtocol, rep.opaque, in.opaque)
	}
	if err != nil {
		return false, c.broken(err)
	}
	c.replies.Add(1)
	many := in.many
	if many != nil && !many.put(rep) {
		in.opaque++
		return false, nil
	}
	r, over, err := c.landed(alone)
	if r == nil {
		return false, err
	}
	if many == nil {
		r.reply = rep
	}
	if err != nil {
		_ = c.broken(err) // before the caller, who has his reply, can ask something else here
	}
	r.finish(nil)
	return over, nil
}

// begin looks whose reply comes next.
func (c *conn) begin() error {
	c.mu.Lock()
	err, asked := c.err, c.flight.len() > 0
	if asked {
		c.in.expect(c.flight.first())
	}
	c.mu.Unlock()
	if err == nil && !asked {
		err = c.broken(c.in.unasked())
	}
	return err
}

// unasked is about what has been read and not been asked for, if there is something.
func (in *reading) unasked() error {
	if in.br.Buffered() == 0 {
		return nil
	}
	line, _ := in.br.Peek(in.br.Buffered())
	return fmt.Errorf("nothing was asked: %w", surprise(line))
}

func (in *reading) expect(r *request) { in.begun, in.opaque, in.many = true, r.opaque, r.many }

// landed takes the first request out of the row, and settles who reads the next reply. r is nil
// if the connection has failed. Else err says why the connection is to end after this reply: if
// more has come with it, the next request would take that for its own reply.
func (c *conn) landed(alone bool) (r *request, over bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, false, c.err // fail has emptied the row, and finishes the request
	}
	r = c.flight.pop()
	c.count(r, -1)
	if c.in.begun = c.flight.len() > 0; c.in.begun {
		c.in.expect(c.flight.first())
	} else {
		c.in.many, err = nil, c.in.unasked()
	}
	return r, c.stepBack(alone), err
}

// stepBack ends the caller's reading if nobody is on the connection, or hands it on to read
// if the caller was alone.
func (c *conn) stepBack(alone bool) (over bool) {
	switch {
	case len(c.waiting)+c.flight.len() == 0:
		c.reads = false
	case alone:
		c.turn <- struct{}{} // there is room: who reads has taken it out
	default:
		return false
	}
	return true
}

// broken fails the connection, unless err is an interruption.
func (c *conn) broken(err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("read: %w", lostIt(err))
		c.fail(err)
	}
	return err
}

// fail ends the connection: every request on it fails with err.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	lost := append(c.flight.empty(), c.waiting...)
	c.waiting = nil
	close(c.dead)
	c.mu.Unlock()
	hangUp(c.nc)
	for _, r := range lost {
		r.finish(err)
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
