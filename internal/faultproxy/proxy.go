// Package faultproxy stands between a client and a server and does what networks
// do: it delays, thins, cuts, falls silent, loses a reply, and sends connections
// to another server. Faults can be changed while connections are open. It is for
// tests: it knows no protocol and listens on 127.0.0.1 only.
package faultproxy

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// Direction is one of the two ways through a proxy.
type Direction int

// The directions.
const (
	Requests Direction = iota // from the client to the server
	Replies                   // from the server to the client
)

func (d Direction) String() string {
	if d == Requests {
		return "requests"
	}
	return "replies"
}

// Faults are what happens to the bytes of one direction. The zero value passes them
// on.
type Faults struct {
	// Latency delays each chunk of bytes, and Jitter by up to as much more, at random.
	// The order stays.
	Latency, Jitter time.Duration
	// BytesPerSecond limits each connection; 0 is no limit.
	BytesPerSecond int
	// Stall holds bytes back until it ends; then they arrive, late. This is what TCP
	// makes of a network that loses packets for a while.
	Stall bool
	// BlackHole swallows bytes, and the end of a connection, without a word. The
	// connections that have lost bytes are reset when it ends, as nothing that came
	// after the gap would make sense.
	BlackHole bool
}

// Way is how a connection ends.
type Way int

// The ways.
const (
	RST Way = iota // at once, as a crash or a firewall does it
	FIN            // in order, as a server that is shut down does it
)

// Proxy is a listening proxy. It is safe for concurrent use.
type Proxy struct {
	listener *net.TCPListener
	running  sync.WaitGroup
	hanging  sync.Mutex    // one change of HangConnects at a time; before mu
	asleep   chan struct{} // told when nobody accepts any more, once for each time

	mu      sync.Mutex // guards what follows: nothing blocks under it
	target  string
	faults  [2]Faults
	loses   *Loss // armed, or nil
	refuses bool
	fillers []net.Conn    // hold the kernel's queue of connections full while connects hang
	changed chan struct{} // closed and made anew when any of the above changes
	conns   map[*conn]struct{}
	waiting [2]int // bytes read and not passed on yet
	total   int    // connections accepted
	stopped bool
}

// Start makes a proxy to target, which is asked only when a client connects.
func Start(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	p := &Proxy{listener: l.(*net.TCPListener), target: target, changed: make(chan struct{}), asleep: make(chan struct{}, 1), conns: map[*conn]struct{}{}}
	p.running.Go(p.accept)
	return p, nil
}

// Addr is where clients connect.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Stop ends the proxy and all connections, and returns when none of its goroutines
// is left. Stopping twice is fine.
func (p *Proxy) Stop() {
	p.hanging.Lock()
	p.mu.Lock()
	p.stopped = true
	p.notify()
	fillers := p.fillers
	p.fillers = nil
	p.mu.Unlock()
	p.hanging.Unlock()
	p.listener.Close()
	closeAll(fillers)
	p.Cut(RST)
	p.running.Wait()
}

// Set replaces the faults of one direction.
func (p *Proxy) Set(d Direction, f Faults) {
	p.mu.Lock()
	healed := p.faults[d].BlackHole && !f.BlackHole
	p.faults[d] = f
	p.notify()
	var torn []*conn
	for c := range p.conns {
		if healed && c.torn[d] {
			torn = append(torn, c)
		}
	}
	p.mu.Unlock()
	for _, c := range torn {
		c.end(RST)
	}
}

// SetBoth replaces the faults of both directions.
func (p *Proxy) SetBoth(f Faults) {
	p.Set(Requests, f)
	p.Set(Replies, f)
}

// Heal ends every fault but those of connections that are cut already.
func (p *Proxy) Heal() {
	p.SetBoth(Faults{})
	p.Refuse(false)
	p.lose(nil)
	if err := p.HangConnects(false); err != nil {
		panic(err) // the listener's own descriptor refuses what it took before
	}
}

// SetTarget sends the connections of the future to another server. Those that are
// open stay where they are; a failover cuts them, too. One that is being made at that
// moment is reset, so that none is left at the old server after a Cut.
func (p *Proxy) SetTarget(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = addr
}

// Refuse makes new connections end at once, or not any more.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = on
}

// Cut ends all connections. Bytes that were held back are lost.
func (p *Proxy) Cut(way Way) {
	for _, c := range p.open() {
		c.end(way)
	}
}

// HalfOpen ends all connections on the server's side only, and does not tell the
// clients: what they send is swallowed, as by a firewall that has forgotten them.
func (p *Proxy) HalfOpen() {
	for _, c := range p.open() {
		c.abandon()
	}
}

func (p *Proxy) open() (all []*conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		all = append(all, c)
	}
	return all
}

// Open is how many connections are open, Accepted how many there have been.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Accepted is how many connections were made so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}

// Waiting is how many bytes have come in one direction and are held back, by any
// fault. Under a Stall of replies it tells that the server has answered.
func (p *Proxy) Waiting(d Direction) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting[d]
}

// notify tells those who wait that something has changed. The lock is held.
func (p *Proxy) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) state(d Direction) (f Faults, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults[d], p.changed
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.AcceptTCP()
		if err == nil {
			p.running.Go(func() { p.serve(client) })
			continue
		}
		if !isTimeout(err) {
			return // stopped
		}
		p.asleep <- struct{}{}
		if !p.sleep() {
			return
		}
	}
}

// sleep waits as long as connects hang. False: the proxy has been stopped.
func (p *Proxy) sleep() bool {
	for {
		p.mu.Lock()
		hang, stopped, changed := p.fillers != nil, p.stopped, p.changed
		p.mu.Unlock()
		if !hang || stopped {
			return !stopped
		}
		<-changed
	}
}

// serve connects to the server for a client, and passes on until either ends.
func (p *Proxy) serve(client *net.TCPConn) {
	p.mu.Lock()
	p.total++
	target, refuses := p.target, p.refuses
	p.mu.Unlock()
	if refuses {
		reset(client)
		return
	}
	const patience = 5 * time.Second // a listening server of this machine answers at once
	server, err := net.DialTimeout("tcp", target, patience)
	if err != nil {
		reset(client) // as if nobody listened
		return
	}
	c := &conn{p: p, client: client, server: server.(*net.TCPConn), dead: make(chan struct{})}
	p.mu.Lock()
	passes := p.target == target && !p.refuses && !p.stopped // still: it may have changed while this dialled
	if passes {
		p.conns[c] = struct{}{}
	}
	p.mu.Unlock()
	if !passes {
		reset(client)
		reset(c.server)
		return
	}
	c.pass()
}

func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // its failure would make the end a FIN
	c.Close()
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		c.Close()
	}
}
