package faultproxy

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// conn is one client's connection and the proxy's own to the server. Each direction
// has a reader, which notes when bytes came, and a writer, which passes them on when
// the faults of that moment let them: a change reaches what is under way.
type conn struct {
	p              *Proxy
	client, server *net.TCPConn
	once           sync.Once
	dead           chan struct{} // closed at the end

	// Guarded by p.mu.
	torn      [2]bool // has lost bytes in this direction
	abandoned bool    // the server's side is gone, the client has not been told
	loss      *Loss   // the request has gone through, and its reply is to be lost
}

// chunk is what one read brought.
type chunk struct {
	data   []byte
	at     time.Time
	jitter float64 // its part of Faults.Jitter
}

const (
	chunkBytes = 32 << 10
	queued     = 64 // chunks; then the reader stops reading, and TCP slows the sender
)

func (c *conn) pass() {
	var ways sync.WaitGroup
	ways.Go(func() { c.way(Requests, c.client, c.server) })
	ways.Go(func() { c.way(Replies, c.server, c.client) })
	ways.Wait()
	c.end(FIN)
}

// way is one direction: it returns when from has ended and all has been passed on.
func (c *conn) way(d Direction, from, to *net.TCPConn) {
	queue := make(chan chunk, queued)
	var reader sync.WaitGroup
	reader.Go(func() { c.read(d, from, queue) })
	defer reader.Wait()
	for ch := range queue {
		ok := c.deliver(d, to, ch)
		c.p.mu.Lock()
		c.p.waiting[d] -= len(ch.data)
		c.p.mu.Unlock()
		if !ok {
			c.end(RST)
		}
	}
	switch {
	case d == Requests && c.isAbandoned():
		c.end(RST) // the client has gone, too
	case c.silent(d):
		<-c.dead // the end is swallowed as well
	}
	_ = to.CloseWrite()
}

// read queues what comes from one side. It stops at the end of the connection.
func (c *conn) read(d Direction, from *net.TCPConn, queue chan<- chunk) {
	defer close(queue)
	for {
		buf := make([]byte, chunkBytes)
		n, err := from.Read(buf)
		if n > 0 && c.lost(d) {
			return
		}
		if n > 0 {
			c.p.mu.Lock()
			c.p.waiting[d] += n
			c.p.mu.Unlock()
			queue <- chunk{buf[:n], time.Now(), rand.Float64()} // taken to the end, also when dead
		}
		switch {
		case err == io.EOF:
			return
		case err != nil:
			if !c.silent(d) {
				c.end(RST)
			}
			return
		}
	}
}

// deliver passes a chunk on in its time. False: the connection has ended.
func (c *conn) deliver(d Direction, to *net.TCPConn, ch chunk) bool {
	rest := ch.data
	if d == Requests {
		c.arm(rest)
	}
	next := ch.at // when the rest may go
	for len(rest) > 0 {
		f, changed := c.p.state(d)
		due := ch.at.Add(f.Latency + time.Duration(ch.jitter*float64(f.Jitter)))
		if due.Before(next) {
			due = next
		}
		switch wait := time.Until(due); {
		case f.BlackHole || c.isAbandoned():
			c.tear(d)
			return true
		case f.Stall:
			if !c.wait(changed, nil) {
				return false
			}
		case wait > 0:
			t := time.NewTimer(wait)
			alive := c.wait(changed, t.C)
			t.Stop()
			if !alive {
				return false
			}
		default:
			n := share(f.BytesPerSecond, len(rest))
			if _, err := to.Write(rest[:n]); err != nil {
				return c.isAbandoned()
			}
			rest = rest[n:]
			if f.BytesPerSecond > 0 {
				next = time.Now().Add(time.Duration(n) * time.Second / time.Duration(f.BytesPerSecond))
			}
		}
	}
	if left := time.Until(next); left > 0 { // the next chunk waits for this one's time
		t := time.NewTimer(left)
		defer t.Stop()
		return c.wait(nil, t.C)
	}
	return true
}

// share is what may be written at a time: with a limit, about a fiftieth of a second's.
func share(perSecond, n int) int {
	if perSecond <= 0 {
		return n
	}
	return min(n, max(1, perSecond/50))
}

// wait returns at a change or a tick, false if the connection has ended.
func (c *conn) wait(changed <-chan struct{}, tick <-chan time.Time) bool {
	select {
	case <-c.dead:
		return false
	case <-changed:
	case <-tick:
	}
	return true
}

func (c *conn) tear(d Direction) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	c.torn[d] = true
}

// silent says whether the end of a direction goes unheard, and remembers it.
func (c *conn) silent(d Direction) bool {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	if c.p.faults[d].BlackHole {
		c.torn[d] = true
	}
	return c.torn[d] || c.abandoned
}

func (c *conn) isAbandoned() bool {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	return c.abandoned
}

// abandon ends the server's side only.
func (c *conn) abandon() {
	c.p.mu.Lock()
	c.abandoned = true
	c.p.mu.Unlock()
	c.server.Close()
}

// end ends both sides. Only the first call counts.
func (c *conn) end(way Way) {
	c.once.Do(func() {
		c.p.mu.Lock()
		delete(c.p.conns, c)
		c.p.mu.Unlock()
		close(c.dead)
		if way == RST {
			reset(c.client)
			reset(c.server)
			return
		}
		_ = c.client.CloseWrite()
		_ = c.server.CloseWrite()
		c.client.Close()
		c.server.Close()
	})
}
