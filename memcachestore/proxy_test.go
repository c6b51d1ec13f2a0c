package memcachestore

import (
	"io"
	"net"
	"sync"
	"testing"
)

// proxy stands between a store and its server and does what networks do: it delays,
// cuts, falls silent, and says what the server has not said.
//
// It is not internal/faultproxy, which knows no chunks to count and keeps what it holds
// back: this one lets so many replies pass, fills the buffers of those who send, has
// listeners of any kind (TLS), and speaks for the server.
type proxy struct {
	t  testing.TB
	l  net.Listener
	up string // network address of the server

	mu      sync.Mutex
	changed *sync.Cond
	held    map[direction]bool
	passing map[direction]int // chunks that pass although held
	heldIn  map[direction]int // bytes that wait
	conns   map[net.Conn]net.Conn
	refuses bool
	closed  bool
}

type direction string

const (
	requests direction = "requests"
	replies  direction = "replies"
)

func startProxy(t testing.TB, up string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	return serveProxy(t, l, up)
}

func serveProxy(t testing.TB, l net.Listener, up string) *proxy {
	p := &proxy{t: t, l: l, up: up, held: map[direction]bool{}, passing: map[direction]int{}, heldIn: map[direction]int{}, conns: map[net.Conn]net.Conn{}}
	p.changed = sync.NewCond(&p.mu)
	go p.accept()
	t.Cleanup(func() {
		p.l.Close()
		p.mu.Lock()
		p.closed = true
		p.changed.Broadcast()
		p.mu.Unlock()
		p.cut()
	})
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

func (p *proxy) accept() {
	for {
		down, err := p.l.Accept()
		if err != nil {
			return
		}
		up, err := net.Dial("tcp", p.up)
		p.mu.Lock()
		if err != nil || p.refuses {
			down.Close()
			if err == nil {
				up.Close()
			}
			p.mu.Unlock()
			continue
		}
		p.conns[down] = up
		p.mu.Unlock()
		go p.copy(up, down, requests)
		go p.copy(down, up, replies)
	}
}

func (p *proxy) copy(to, from net.Conn, d direction) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		if p.passing[d] > 0 && n > 0 {
			p.passing[d]--
			p.mu.Unlock()
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
			continue
		}
		p.heldIn[d] += n
		p.changed.Broadcast()
		for p.held[d] && !p.closed {
			p.changed.Wait()
		}
		p.heldIn[d] -= n
		p.mu.Unlock()
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

// hold stops one direction until the returned function is called.
func (p *proxy) hold(d direction) (release func()) { return p.holdAfter(d, 0) }

// holdAfter is hold after so many chunks more: short replies are one each, as long as
// one request is sent at a time.
func (p *proxy) holdAfter(d direction, chunks int) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[d], p.passing[d] = true, chunks
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.held[d], p.passing[d] = false, 0
		p.changed.Broadcast()
	}
}

// awaitHeld waits until bytes are held back in one direction.
func (p *proxy) awaitHeld(d direction) {
	p.t.Helper()
	eventually(p.t, "held "+string(d), func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.heldIn[d] > 0
	})
}

// cut ends all connections. What is held back is lost.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for down, up := range p.conns {
		down.Close()
		up.Close()
	}
	clear(p.conns)
}

// refuse makes it end new connections at once, or not any more.
func (p *proxy) refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = on
}

// inject says something to all clients.
func (p *proxy) inject(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for down := range p.conns {
		io.WriteString(down, text)
	}
}
