package memcachestore

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
)

// patient is a session with one connection, through a proxy, that is not given up.
func patient(t *testing.T, addr string) (*proxy, *rig, *conn) {
	t.Helper()
	p := startProxy(t, addr)
	r := attach(t, openWith(t, Options{Addrs: []string{p.addr()}, Conns: 1, StallTimeout: time.Minute}))
	return p, r, r.connection()
}

// goesAlone makes r do what ask says while nobody else is on the connection, which is tried
// again if read was faster to take the connection.
func (c *conn) goesAlone(t *testing.T, use func(), ask func()) {
	t.Helper()
	eventually(t, "a caller is alone", func() bool {
		c.awaitReads(t, false, use)
		c.mu.Lock()
		before := c.trips
		c.mu.Unlock()
		ask()
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.trips != before
	})
}

// A caller who reads himself leaves when his context ends, however it ends, and with every
// context: one that was watched before, and has ended since, interrupts nobody a second time.
// Forced: the proxy holds the answer | the context ends.
func TestAloneLeaves(t *testing.T) {
	p, r, c := patient(t, shared.Get(t).Addr())
	r.set("k", "v")
	use := func() { r.holds("k", "v") }
	for range 3 {
		c.goesAlone(t, use, func() {
			ctx, cancel := context.WithCancel(r.ctx)
			defer cancel()
			ok(t, second(r.Get(ctx, "k"))) // it is watched from now on
			release := p.hold(replies)
			errs := make(chan error, 1)
			go func() { errs <- second(r.Get(context.WithValue(ctx, c, 1), "k")) }()
			p.awaitHeld(replies)
			cancel()
			select {
			case err := <-errs:
				if !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrUnavailable) {
					t.Errorf("Get = %v", err)
				}
			case <-time.After(patience):
				t.Error("who has left waits still")
			}
			release()
		})
		r.holds("k", "v")
	}
	if r.connection() != c {
		t.Error("the connection was given up")
	}
}

// strange is a context that package context knows nothing of.
type strange struct {
	context.Context
	asked func() // after Err, which has not seen what it does
	ran   chan struct{}

	mu            sync.Mutex
	starts, stops int
}

func strangeContext(ctx context.Context) *strange {
	return &strange{Context: ctx, asked: func() {}, ran: make(chan struct{})}
}

func (s *strange) Value(any) any { return nil }

func (s *strange) Err() error {
	err := s.Context.Err()
	s.asked()
	return err
}

// AfterFunc is what context.AfterFunc uses, if a context has it.
func (s *strange) AfterFunc(f func()) func() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starts++
	stop := context.AfterFunc(s.Context, func() {
		f()
		close(s.ran)
	})
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stops++
		return stop()
	}
}

// The end of a context may have interrupted somebody else, who has made nothing of it, before
// the caller reads. Forced: the context is watched, as it was used before | the caller asks
// whether it has ended: no | it ends, and the interruption is used up | the caller reads, and
// the answer does not come.
func TestAloneAfterTheInterruption(t *testing.T) {
	p, r, c := patient(t, shared.Get(t).Addr())
	r.set("k", "v")
	forced := false
	c.goesAlone(t, func() { r.holds("k", "v") }, func() {
		inner, cancel := context.WithCancel(r.ctx)
		defer cancel()
		ctx, asked := strangeContext(inner), 0
		ok(t, second(r.Get(ctx, "k")))
		if ctx.starts == 0 {
			return // it was not alone
		}
		release := p.hold(replies)
		defer release()
		ctx.asked = func() {
			if asked++; asked == 2 { // for a connection and for the round trip
				cancel()
				<-ctx.ran
				c.nc.SetReadDeadline(time.Time{})
				forced = true
			}
		}
		errs := make(chan error, 1)
		go func() { errs <- second(r.Get(ctx, "k")) }()
		select {
		case err := <-errs:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("Get = %v", err)
			}
		case <-time.After(patience):
			t.Error("who has left waits still")
		}
	})
	if !forced {
		t.Error("it has never come to that")
	}
	r.holds("k", "v")
}

// An interruption that was meant for somebody before disturbs nobody.
func TestLateInterruption(t *testing.T) {
	p, r, c := patient(t, shared.Get(t).Addr())
	r.set("k", "v")
	for _, alone := range []bool{true, false} {
		ask := func() {
			release := p.hold(replies)
			done := make(chan struct{})
			go func() {
				defer close(done)
				r.holds("k", "v")
			}()
			p.awaitHeld(replies)
			for range 3 {
				c.interrupt()
			}
			release()
			<-done
		}
		if alone {
			c.goesAlone(t, func() { r.holds("k", "v") }, ask)
		} else {
			c.awaitReads(t, true, nil)
			ask()
		}
	}
	if r.connection() != c || !c.alive() {
		t.Error("the connection was given up")
	}
}

// Who comes while a caller is alone has his request written at once, and gets his own answer,
// also if the first one leaves. Forced: the proxy holds the answer to the first one | others
// ask | the server has been asked by all of them | the first one leaves, or does not | the
// answers pass.
func TestBehindOneWhoIsAlone(t *testing.T) {
	t.Parallel()
	server := servertest.Memcached(t, servers.MemcachedOptions{})
	p, r, c := patient(t, server.Addr())
	const others = 5
	for i := range others {
		r.set(fmt.Sprint(i), fmt.Sprint(i))
	}
	r.set("first", "first")
	for _, leaves := range []bool{false, true} {
		c.goesAlone(t, func() { r.holds("first", "first") }, func() {
			ctx, cancel := context.WithCancel(r.ctx)
			defer cancel()
			release, before := p.hold(replies), asked(t, server.Addr())
			var wg sync.WaitGroup
			first := make(chan struct{})
			wg.Go(func() {
				defer close(first)
				if item, err := r.Get(ctx, "first"); leaves != (err != nil) || !leaves && string(item.Data) != "first" {
					t.Errorf("the first one gets %q, %v", item.Data, err)
				}
			})
			p.awaitHeld(replies)
			for i := range others {
				wg.Go(func() { r.holds(fmt.Sprint(i), fmt.Sprint(i)) })
			}
			eventually(t, "all have asked", func() bool { return asked(t, server.Addr())-before == others+1 })
			if leaves {
				cancel()
				<-first
			}
			release()
			wg.Wait()
		})
	}
}

// gated is a connection whose first write waits.
type gated struct {
	net.Conn
	gate   chan struct{}
	mu     sync.Mutex
	writes []string
}

func (g *gated) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(" first ")) {
		<-g.gate
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writes = append(g.writes, strings.Fields(string(b))[1])
	return g.Conn.Write(b)
}

// Requests are written in the order of the row, in which the replies are awaited. Forced: a
// caller who is alone has begun to write, and is held up | another one asks | write wakes, as it
// may by a kick from before, and leaves the writing to the first one | the first one goes on. The
// test is write, so nobody has woken it when the first one has written but he.
func TestOrderBehindOneWhoIsAlone(t *testing.T) {
	c := answers(t, func(_ int, opaque string) string { return "EN " + opaque + "\r\n" })
	g := &gated{Conn: c.nc, gate: make(chan struct{})}
	c.nc = g // before anything is written
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ask := func(key string) error {
		return second(c.do(ctx, func(b []byte, o uint32) []byte { return appendGet(b, key, 0, 0, o) }, nil))
	}
	c.goesAlone(t, func() { ok(t, ask("before")) }, func() {
		g.mu.Lock()
		g.writes = nil
		g.mu.Unlock()
		errs := make(chan error, 2)
		go func() { errs <- ask("first") }()
		eventually(t, "the first one is in the row", func() bool { return c.row.Load() == 1 })
		go func() { errs <- ask("second") }()
		eventually(t, "the second one is in the row", func() bool { return c.row.Load() == 2 })
		if _, _, mine := c.launch(nil, false); mine {
			t.Error("two write at once")
		}
		close(g.gate)
		ok(t, <-errs)
		ok(t, <-errs)
		if got := strings.Join(g.writes, " "); got != "first second" && got != "first" {
			t.Errorf("written: %s", got)
		}
		g.gate = make(chan struct{})
	})
}

// A caller who writes himself does not wait for a server that takes nothing: he writes what fits
// into the system's buffer, and leaves more to write. Forced: the proxy takes nothing.
func TestAloneWritesWhatFits(t *testing.T) {
	for _, size := range []int{maxAlone, 32 << 20} {
		p, r, c := patient(t, shared.Get(t).Addr())
		r.set("k", "v")
		c.awaitReads(t, false, func() { r.holds("k", "v") })
		p.hold(requests)
		start := time.Now()
		_, err := c.do(soon(t), func(b []byte, _ uint32) []byte { return append(b, make([]byte, size)...) }, nil)
		if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > patience {
			t.Errorf("%d bytes: %v after %v, want a deadline after 100 ms", size, err, took)
		}
		c.fail(errStoreClosed)
	}
}

// The deadline of a write is that of this write: a connection lasts longer than StallTimeout.
func TestConnectionOutlastsStallTimeout(t *testing.T) {
	t.Parallel()
	const stall = time.Second
	r := attach(t, openWith(t, Options{Addrs: []string{shared.Get(t).Addr()}, Conns: 1, StallTimeout: stall}))
	r.set("k", "v")
	for start := time.Now(); time.Since(start) < stall*5/4; {
		r.holds("k", "v")
	}
}

// afterRead is a connection on which something happens when a read has brought something.
type afterRead struct {
	net.Conn
	then func()
}

func (a *afterRead) Read(b []byte) (int, error) {
	n, err := a.Conn.Read(b)
	if n > 0 {
		a.then()
	}
	return n, err
}

// A write that has timed out is no interruption of who reads, though both are told by the same
// error. Forced: an answer has come | a write times out, and the connection fails | read looks
// whose answer it is.
func TestWriteTimeoutIsNoInterruption(t *testing.T) {
	before := runtime.NumGoroutine()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	nc := &afterRead{Conn: ours}
	c := newConn(nc, bufio.NewReader(nc), life{}, time.Minute)
	nc.then = func() { c.fail(fmt.Errorf("write: %w", os.ErrDeadlineExceeded)) }
	fmt.Fprint(theirs, "MN\r\n")
	eventually(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= before })
}

// The same where the caller reads, and a second answer is behind the first one: it is not given
// to a request that has had its own.
func TestWriteTimeoutIsNoInterruptionAlone(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	nc := &afterRead{Conn: ours}
	c := &conn{nc: nc, stall: time.Minute, dead: make(chan struct{})} // nobody reads, nor writes
	c.in.parser = parser{br: bufio.NewReader(nc)}
	timeout := fmt.Errorf("write: %w", os.ErrDeadlineExceeded)
	nc.then = func() { c.fail(timeout) }
	go func() {
		line, _ := bufio.NewReader(theirs).ReadString('\n')
		f := strings.Fields(line)
		fmt.Fprintf(theirs, "EN %[1]s\r\nEN %[1]s\r\n", f[len(f)-1])
	}()
	r, m := newRequest(), &manyReads{items: make([]store.Item, 1)}
	r.opaque, r.many = c.mark(1), m
	r.text = appendGet(r.text, "k", 0, 0, r.opaque)
	if _, err := c.roundTrip(context.Background(), r); !errors.Is(err, timeout) {
		t.Errorf("the caller gets %v", err)
	}
}

// Few callers are alone now and then: each gets his own answer.
func TestAloneNowAndThen(t *testing.T) {
	r := attach(t, openWith(t, Options{Addrs: []string{shared.Get(t).Addr()}, Conns: 1}))
	const keys = 50
	for i := range keys {
		r.set(fmt.Sprint(i), strings.Repeat(fmt.Sprint(i, " "), 1+i*i))
	}
	c := r.connection()
	c.mu.Lock()
	before := c.trips
	c.mu.Unlock()
	var wg sync.WaitGroup
	for worker := range 3 {
		wg.Go(func() {
			for i := range 600 {
				ctx, cancel := context.WithCancel(r.ctx)
				if i%7 == 0 { // some leave
					go cancel()
				}
				key := (i*7 + worker) % keys
				item, err := r.Get(ctx, fmt.Sprint(key))
				if want := strings.Repeat(fmt.Sprint(key, " "), 1+key*key); err == nil && string(item.Data) != want {
					t.Errorf("Get(%d) = %.40q", key, item.Data)
				} else if err != nil && i%7 != 0 {
					t.Errorf("Get(%d): %v", key, err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.trips == before || c.err != nil || r.connection() != c {
		t.Errorf("%d callers were alone, and the connection: %v", c.trips-before, c.err)
	}
}

// A context is not watched when nobody uses the connection any more, or it has failed: it would
// keep the connection, and perhaps a goroutine, for as long as it lasts. In between it is
// watched once.
func TestContextsAreForgotten(t *testing.T) {
	for _, fails := range []bool{false, true} {
		p, r, c := patient(t, shared.Get(t).Addr())
		r.set("k", "v")
		inner, cancel := context.WithCancel(r.ctx)
		defer cancel()
		ctx := strangeContext(inner)
		c.goesAlone(t, func() { r.holds("k", "v") }, func() {
			for range 3 {
				ok(t, second(r.Get(ctx, "k")))
			}
		})
		if fails {
			p.cut()
		}
		eventually(t, "it is forgotten", func() bool {
			ctx.mu.Lock()
			defer ctx.mu.Unlock()
			return ctx.starts > 0 && ctx.starts == ctx.stops
		})
		if ctx.starts > 2 {
			t.Errorf("it was watched %d times", ctx.starts)
		}
	}
}

// twoConnections is a session with two connections that are not given up.
func twoConnections(t *testing.T, addr string) (r *rig, n *node, first, other *conn) {
	t.Helper()
	r = attach(t, openWith(t, Options{Addrs: []string{addr}, Conns: 2, StallTimeout: time.Hour}))
	n = r.Session.(*session).st.ring.nodes[0]
	eventually(t, "both are there", func() bool {
		r.absent("k")
		return n.slots[0].alive() != nil && n.slots[1].alive() != nil
	})
	return r, n, n.slots[0].alive(), n.slots[1].alive()
}

// picks checks which connection is taken: want, or all of them by turns.
func (n *node) picks(t *testing.T, want ...*conn) {
	t.Helper()
	seen := map[*conn]bool{}
	for range 6 {
		c, err := n.get(background(t))
		if err != nil || !slices.Contains(want, c) {
			t.Errorf("another connection, %v", err)
		}
		seen[c] = true
	}
	if len(seen) != len(want) {
		t.Errorf("%d connections are taken, want %d", len(seen), len(want))
	}
}

// A caller does not wait behind a large value, nor behind very many others, if there is a
// connection without; else all use the first one.
func TestTheLighterConnection(t *testing.T) {
	_, n, first, other := twoConnections(t, shared.Get(t).Addr())
	n.picks(t, first)
	first.large.Add(1)
	n.picks(t, other)
	other.row.Store(enough)
	n.picks(t, first, other)
	first.large.Add(-1)
	n.picks(t, first)
	first.row.Store(enough - 1)
	n.picks(t, first)
	first.row.Store(enough)
	n.picks(t, first, other)
	other.row.Store(0)
	n.picks(t, other)
}

// A connection that is dead without a word does not take all callers along until StallTimeout is
// over: those who come when it has been silent for a while use another one, until it answers
// again. Forced: the proxy holds the answer | a look at the connection, and a second one | the
// answer passes | a third look. The looks are the test's, since the next one by itself comes late.
func TestTheSilentConnection(t *testing.T) {
	p := startProxy(t, shared.Get(t).Addr())
	r, n, first, other := twoConnections(t, p.addr())
	seen := stalling{replies: first.replies.Load()} // as on a new connection, where both are 0
	first.checkStall(&seen)
	first.checkStall(&seen)
	n.picks(t, first) // nothing was due
	release := p.hold(replies)
	answer := make(chan error, 1)
	go func() { answer <- second(r.Get(r.ctx, "k")) }()
	p.awaitHeld(replies)
	first.checkStall(&seen)
	n.picks(t, first) // it may just have been asked
	first.checkStall(&seen)
	n.picks(t, other)
	other.large.Add(1)
	n.picks(t, first, other) // none is better: half of the callers lose nothing
	other.large.Add(-1)
	release()
	ok(t, <-answer)
	first.checkStall(&seen)
	n.picks(t, first)
}

// A reply that is interrupted anywhere is read on.
func TestInterruptedReplies(t *testing.T) {
	for _, text := range []string{"VA 5 c7 t-1 f7 O9\r\na\r\nb\x00\r\n", "VA 0 c1 O1 W\r\n\r\n", "HD c2 O3\r\n", "MN\r\n", "SERVER_ERROR no\r\n"} {
		want, err := readReply(bufio.NewReader(strings.NewReader(text)), 5)
		ok(t, err)
		p := parser{br: bufio.NewReader(&stutter{r: iotest.OneByteReader(strings.NewReader(text + text))}), limit: 5}
		for range 2 {
			got, err := p.next()
			for errors.Is(err, os.ErrDeadlineExceeded) {
				got, err = p.next()
			}
			if err != nil || !sameReply(got, want) {
				t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
			}
		}
	}
}

// stutter times out before each read.
type stutter struct {
	r    interface{ Read(b []byte) (int, error) }
	then bool
}

func (s *stutter) Read(b []byte) (int, error) {
	if s.then = !s.then; s.then {
		return 0, os.ErrDeadlineExceeded
	}
	return s.r.Read(b)
}

// No request's number is 0, which is that of none, also after 2^32 of them.
func TestMarks(t *testing.T) {
	var c conn
	for _, n := range []uint32{1, 3, readsAtOnce} {
		c.opaque.Store(1<<32 - 1 - 2*n)
		for range 6 {
			first := c.mark(n)
			for i := range n {
				if first+i == 0 {
					t.Errorf("%d numbers from %d", n, first)
				}
			}
		}
	}
}

// Who has left before his request was written leaves nothing behind: a GetMany counts as many
// replies, and none of them is due any more. Forced: a first request is being written, and is held
// up | a GetMany queues up behind it, and is abandoned | the first one goes on.
func TestAbandonedInTheQueue(t *testing.T) {
	c := answers(t, func(_ int, opaque string) string { return "EN " + opaque + "\r\n" })
	g := &gated{Conn: c.nc, gate: make(chan struct{})}
	c.nc = g // before anything is written
	first := make(chan error, 1)
	go func() {
		_, err := c.do(background(t), func(b []byte, o uint32) []byte { return appendGet(b, "first", 0, 0, o) }, nil)
		first <- err
	}()
	eventually(t, "the first one is being written", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.writes && c.flight.len() == 1
	})
	ctx, cancel := context.WithCancel(background(t))
	many := make(chan error, 1)
	go func() {
		r, m := newRequest(), &manyReads{items: make([]store.Item, 0, 5)}
		r.opaque, r.many = c.mark(5), m
		for i := range uint32(5) {
			r.text = appendGet(r.text, "many", 0, 0, r.opaque+i)
			m.expect("")
		}
		many <- second(c.roundTrip(ctx, r))
	}()
	eventually(t, "the others are in the row", func() bool { return c.row.Load() == 6 })
	cancel()
	if err := <-many; !errors.Is(err, context.Canceled) {
		t.Errorf("who has left gets %v", err)
	}
	close(g.gate)
	ok(t, <-first)
	eventually(t, "nothing is due", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.row.Load() == 0 && c.beyond == 0 && len(c.waiting) == 0
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	if got := strings.Join(g.writes, " "); got != "first" {
		t.Errorf("written: %s", got)
	}
}
