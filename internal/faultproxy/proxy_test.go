package faultproxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	soon  = 100 * time.Millisecond // for what must not happen in this time
	limit = 10 * time.Second       // for what must happen
)

// echo is a server that answers each chunk with the same bytes in upper case, and
// notes what it has got.
type echo struct {
	l    net.Listener
	done sync.WaitGroup

	mu    sync.Mutex
	got   bytes.Buffer
	conns map[net.Conn]bool
	ended []error // how its clients' connections have ended
}

func startEcho(t *testing.T) *echo {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	e := &echo{l: l, conns: map[net.Conn]bool{}}
	e.done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			e.mu.Lock()
			e.conns[c] = true
			e.mu.Unlock()
			e.done.Go(func() { e.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		e.mu.Lock()
		for c := range e.conns {
			c.Close()
		}
		e.mu.Unlock()
		e.done.Wait()
	})
	return e
}

func (e *echo) serve(c net.Conn) {
	defer c.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		e.mu.Lock()
		e.got.Write(buf[:n])
		if err != nil {
			e.ended = append(e.ended, err)
			e.mu.Unlock()
			return
		}
		e.mu.Unlock()
		if _, err := c.Write(bytes.ToUpper(buf[:n])); err != nil {
			return
		}
	}
}

func (e *echo) has() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.got.String()
}

func (e *echo) ends() []error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]error(nil), e.ended...)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// between starts a server and a proxy to it. The proxy must leave no goroutine.
func between(t *testing.T) (*echo, *Proxy) {
	t.Helper()
	e := startEcho(t)
	p, err := Start(e.l.Addr().String())
	must(t, err)
	t.Cleanup(func() {
		p.Stop()
		p.Stop()
		if n := p.Open(); n != 0 {
			t.Errorf("%d connections are open after Stop", n)
		}
		if left := goroutines(); left != "" {
			t.Errorf("goroutines are left after Stop:\n%s", left)
		}
	})
	return e, p
}

// goroutines returns the stacks of a proxy's goroutines. Tests here do not run in
// parallel.
func goroutines() string {
	var all bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&all, 2)
	var left []string
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(stack, "faultproxy.(*Proxy)") || strings.Contains(stack, "faultproxy.(*conn)") {
			left = append(left, stack)
		}
	}
	return strings.Join(left, "\n\n")
}

type client struct {
	t testing.TB
	net.Conn
}

func dial(t testing.TB, p *Proxy) *client {
	t.Helper()
	c, err := net.DialTimeout("tcp", p.Addr(), limit)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return &client{t, c}
}

func (c *client) say(text string) {
	c.t.Helper()
	_, err := io.WriteString(c, text)
	must(c.t, err)
}

// hear reads as many bytes as text has.
func (c *client) hear(text string) {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(limit))
	buf := make([]byte, len(text))
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != text {
		c.t.Fatalf("heard %q, %v; want %q", buf, err, text)
	}
}

// quiet wants nothing to come for a while, and the connection to stay open.
func (c *client) quiet() {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(soon))
	if n, err := c.Read(make([]byte, 100)); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("%d bytes, %v; want silence", n, err)
	}
}

// ends wants the connection to end in one way.
func (c *client) ends(way Way) {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(limit))
	_, err := c.Read(make([]byte, 100))
	if got := endedBy(err); got != way {
		c.t.Fatalf("the connection ended with %v", err)
	}
}

func endedBy(err error) Way {
	switch {
	case err == io.EOF:
		return FIN
	case errors.Is(err, syscall.ECONNRESET):
		return RST
	}
	return -1
}

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !ok(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain: %s", limit, what)
		}
	}
}

func TestPassesOn(t *testing.T) {
	e, p := between(t)
	c := dial(t, p)
	c.say("hello")
	c.hear("HELLO")
	big := strings.Repeat("0123456789abcdef", 64<<10) // a megabyte, in many chunks
	go c.Write([]byte(big))
	c.hear(strings.ToUpper(big))
	if got := e.has(); got != "hello"+big {
		t.Errorf("the server got %d bytes", len(got))
	}
	// The client's end reaches the server, and the server's the client.
	c.Conn.(*net.TCPConn).CloseWrite()
	c.ends(FIN)
	until(t, "the connection is gone", func() bool { return p.Open() == 0 })
	if n := p.Accepted(); n != 1 {
		t.Errorf("%d connections accepted", n)
	}
}

func TestLatency(t *testing.T) {
	_, p := between(t)
	const each = 60 * time.Millisecond
	for _, tt := range []struct {
		name  string
		ways  []Direction
		least time.Duration
	}{
		{"none", nil, 0}, {"requests", []Direction{Requests}, each}, {"replies", []Direction{Replies}, each}, {"both", []Direction{Requests, Replies}, 2 * each},
	} {
		p.Heal()
		for _, d := range tt.ways {
			p.Set(d, Faults{Latency: each})
		}
		c := dial(t, p)
		start := time.Now()
		c.say("a")
		c.hear("A")
		took := time.Since(start)
		if took < tt.least {
			t.Errorf("%s: the answer took %v, want %v at least", tt.name, took, tt.least)
		}
		if most := tt.least + each; took > most {
			t.Logf("%s: the answer took %v; on an idle machine it takes about %v", tt.name, took, tt.least)
		}
	}
}

// Latency delays, it does not thin: what is sent at once comes at once, in order,
// though each chunk has its own jitter.
func TestJitterKeepsTheOrder(t *testing.T) {
	_, p := between(t)
	p.SetBoth(Faults{Latency: 5 * time.Millisecond, Jitter: 20 * time.Millisecond})
	c := dial(t, p)
	var want strings.Builder
	go func() {
		for i := range 200 {
			fmt.Fprintf(c, "%d,", i)
		}
	}()
	for i := range 200 {
		fmt.Fprintf(&want, "%d,", i)
	}
	start := time.Now()
	c.hear(want.String())
	if took := time.Since(start); took > 200*5*time.Millisecond {
		t.Errorf("200 chunks took %v: they were delayed one after the other", took)
	}
}

func TestBandwidth(t *testing.T) {
	_, p := between(t)
	p.Set(Requests, Faults{BytesPerSecond: 20_000})
	c := dial(t, p)
	text := strings.Repeat("x", 4_000)
	start := time.Now()
	c.say(text)
	c.hear(strings.ToUpper(text))
	if took := time.Since(start); took < 150*time.Millisecond {
		t.Errorf("4,000 bytes at 20,000 a second took %v", took)
	}
	// Lifted while bytes are under way, it holds nobody up any more.
	p.Set(Requests, Faults{BytesPerSecond: 1})
	c.say("yyy")
	until(t, "the rest waits", func() bool { return p.Waiting(Requests) > 0 })
	p.Heal()
	c.hear("YYY")
}

func TestCut(t *testing.T) {
	for name, way := range map[string]Way{"RST": RST, "FIN": FIN} {
		t.Run(name, func(t *testing.T) {
			e, p := between(t)
			a, b := dial(t, p), dial(t, p)
			for _, c := range []*client{a, b} {
				c.say("x")
				c.hear("X")
			}
			p.Cut(way)
			a.ends(way)
			b.ends(way)
			until(t, "the server has lost both", func() bool { return len(e.ends()) == 2 })
			for _, err := range e.ends() {
				if endedBy(err) != way {
					t.Errorf("it reaches the server as %v", err)
				}
			}
			again := dial(t, p)
			again.say("y")
			again.hear("Y")
		})
	}
}

// A stall delivers late what a black hole loses.
func TestStall(t *testing.T) {
	e, p := between(t)
	c := dial(t, p)
	p.Set(Requests, Faults{Stall: true})
	c.say("late")
	until(t, "the request is held", func() bool { return p.Waiting(Requests) == 4 })
	c.quiet()
	if got := e.has(); got != "" {
		t.Errorf("the server got %q", got)
	}
	p.Heal()
	c.hear("LATE")

	p.Set(Replies, Faults{Stall: true})
	c.say("two")
	until(t, "the server has answered", func() bool { return p.Waiting(Replies) == 3 })
	if got := e.has(); got != "latetwo" {
		t.Errorf("the server got %q", got)
	}
	c.quiet()
	p.Cut(RST)
	c.ends(RST)
	p.Heal()
}

// What a client has sent before it leaves in order arrives after a stall, as bytes in
// the network do.
func TestStallOutlivesTheClient(t *testing.T) {
	e, p := between(t)
	p.Set(Requests, Faults{Stall: true})
	c := dial(t, p)
	c.say("last words")
	c.Conn.(*net.TCPConn).CloseWrite()
	until(t, "they are held", func() bool { return p.Waiting(Requests) > 0 })
	p.Heal()
	until(t, "they arrive", func() bool { return e.has() == "last words" })
	c.hear("LAST WORDS")
}

func TestBlackHole(t *testing.T) {
	e, p := between(t)
	silent, other := dial(t, p), dial(t, p)
	for _, c := range []*client{silent, other} {
		c.say("x")
		c.hear("X")
	}
	p.SetBoth(Faults{BlackHole: true})
	fresh := dial(t, p) // connects all the same
	for _, c := range []*client{silent, fresh} {
		c.say("lost")
		c.quiet()
	}
	gone := dial(t, p)
	gone.say("lost")
	reset(gone.Conn.(*net.TCPConn)) // nor does the server hear of the end of a client
	until(t, "all has been swallowed", func() bool { return p.Waiting(Requests) == 0 })
	if ends := e.ends(); len(ends) != 0 {
		t.Errorf("the server has heard of ends: %v", ends)
	}
	p.Heal()
	silent.ends(RST)
	fresh.ends(RST)
	other.say("y") // has lost nothing
	other.hear("Y")
	if got := e.has(); got != "xxy" {
		t.Errorf("the server got %q", got)
	}
}

// Swallowed replies: the server has applied what was asked.
func TestBlackHoleOfReplies(t *testing.T) {
	e, p := between(t)
	c := dial(t, p)
	p.Set(Replies, Faults{BlackHole: true})
	c.say("apply")
	until(t, "it is applied", func() bool { return e.has() == "apply" })
	c.quiet()
	p.Heal()
	c.ends(RST)
}

func TestHalfOpen(t *testing.T) {
	e, p := between(t)
	c := dial(t, p)
	c.say("x")
	c.hear("X")
	p.HalfOpen()
	until(t, "the server has lost it", func() bool { return len(e.ends()) == 1 })
	c.say("anybody there?")
	c.quiet()
	again := dial(t, p) // a new connection is a whole one
	again.say("y")
	again.hear("Y")
	if got := e.has(); got != "xy" {
		t.Errorf("the server got %q", got)
	}
	c.Close()
	until(t, "its rest is gone", func() bool { return p.Open() == 1 })
}

func TestLoseReply(t *testing.T) {
	e, p := between(t)
	c, other := dial(t, p), dial(t, p)
	loss := p.LoseReply(func(request []byte) bool { return bytes.Contains(request, []byte("fill")) })
	for _, c := range []*client{c, other} {
		c.say("get")
		c.hear("GET")
	}
	c.say("fill 1")
	c.ends(RST)
	<-loss.Done()
	if got := e.has(); got != "getgetfill 1" {
		t.Errorf("the server got %q", got)
	}
	other.say("fill 2") // it happens once
	other.hear("FILL 2")
}

func TestSetTarget(t *testing.T) {
	first, p := between(t)
	second := startEcho(t)
	old := dial(t, p)
	old.say("1")
	old.hear("1")
	p.SetTarget(second.l.Addr().String())
	old.say("2") // stays where it is
	old.hear("2")
	p.Cut(RST)
	renewed := dial(t, p)
	renewed.say("3")
	renewed.hear("3")
	if first.has() != "12" || second.has() != "3" {
		t.Errorf("the servers got %q and %q", first.has(), second.has())
	}
}

// A connection that is being made when its server is replaced, or when connections begin
// to be refused, is one of neither the past nor the future: a Cut would miss it. The
// interleaving: a client has connected, and the connect to the server hangs | the change |
// the connect gets through.
func TestChangedWhileConnecting(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("connects can be made to hang on Linux only")
	}
	for name, change := range map[string]func(p *Proxy){
		"another target": func(p *Proxy) { p.SetTarget("127.0.0.1:1") },
		"refusal":        func(p *Proxy) { p.Refuse(true) },
	} {
		t.Run(name, func(t *testing.T) {
			e, server := between(t)
			p, err := Start(server.Addr())
			must(t, err)
			t.Cleanup(p.Stop)
			must(t, server.HangConnects(true))
			c := dial(t, p)
			c.say("x")
			until(t, "the proxy dials", func() bool { return p.Accepted() == 1 })
			change(p)
			server.Heal()
			c.ends(RST)
			if got := e.has(); got != "" {
				t.Errorf("the server got %q", got)
			}
		})
	}
}

func TestDeadTargetAndRefusal(t *testing.T) {
	e, p := between(t)
	p.Refuse(true)
	refused(t, p)
	p.Heal()
	e.l.Close()
	refused(t, p)
}

// refused wants a connection to be reset at once, possibly before it was seen.
func refused(t *testing.T, p *Proxy) {
	t.Helper()
	c, err := net.DialTimeout("tcp", p.Addr(), limit)
	if err == nil {
		defer c.Close()
		(&client{t, c}).ends(RST)
	} else if endedBy(err) != RST {
		t.Error(err)
	}
}

func TestHangConnects(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("connects can be made to hang on Linux only")
	}
	_, p := between(t)
	c := dial(t, p)
	must(t, p.HangConnects(true))
	must(t, p.HangConnects(true))
	c.say("x") // open connections are not disturbed
	c.hear("X")
	if _, err := net.DialTimeout("tcp", p.Addr(), soon); !isTimeout(err) {
		t.Errorf("connect: %v, want a time-out", err)
	}
	p.Heal()
	again := dial(t, p)
	again.say("y")
	again.hear("Y")
	must(t, p.HangConnects(true)) // Stop ends it as well
}

// Everything at once, by several goroutines: nothing is left when it stops.
func TestStopUnderFaults(t *testing.T) {
	_, p := between(t)
	stop := make(chan struct{})
	var users sync.WaitGroup
	for range 8 {
		users.Go(func() {
			buf := make([]byte, 1<<10)
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := net.DialTimeout("tcp", p.Addr(), soon)
				if err != nil {
					continue
				}
				c.SetDeadline(time.Now().Add(20 * time.Millisecond))
				for err == nil {
					if _, err = c.Write(buf); err == nil {
						_, err = c.Read(buf)
					}
				}
				c.Close()
			}
		})
	}
	faults := []func(){
		func() { p.SetBoth(Faults{Latency: time.Millisecond, Jitter: 5 * time.Millisecond}) },
		func() { p.SetBoth(Faults{Stall: true}) }, func() { p.SetBoth(Faults{BlackHole: true}) },
		func() { p.SetBoth(Faults{BytesPerSecond: 10_000}) },
		func() { p.Cut(RST) }, func() { p.Cut(FIN) }, p.HalfOpen, p.Heal, func() { p.Refuse(true) },
		func() { p.LoseReply(func([]byte) bool { return true }) },
	}
	for i := range 20 * len(faults) {
		faults[i%len(faults)]()
		before := p.Accepted()
		until(t, "somebody connects", func() bool { return p.Accepted() > before })
	}
	p.SetBoth(Faults{Stall: true})
	p.Stop() // while they are at it
	close(stop)
	users.Wait()
}
