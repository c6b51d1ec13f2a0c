package memcachestore

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onefill/onefill/store"
)

// proxied is a session with one connection, through a proxy, and one past it.
func proxied(t *testing.T) (*proxy, *rig, *rig) {
	t.Helper()
	addr := shared.Get(t).Addr()
	p := startProxy(t, addr)
	r := attach(t, openWith(t, Options{Addrs: []string{p.addr()}, Conns: 1, StallTimeout: time.Second}))
	return p, r, attachAs(t, open(t, addr), r.name)
}

// soon is a context that ends soon.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// heals waits until the session works again.
func (r *rig) heals() {
	r.t.Helper()
	eventually(r.t, "the store answers again", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return r.Ping(ctx) == nil
	})
}

// Whatever is not what memcached says ends the connection: the request in flight
// fails, and the next one gets its own answer over a new connection.
func TestGarbage(t *testing.T) {
	for name, garbage := range map[string]string{
		"noise":                    "\x00\x01\x02\r\n",
		"another protocol":         "-ERR wrong number of arguments\r\n",
		"another request's answer": "VA 7 c1 t-1 f3239169 O4000000000\r\nforeign\r\n",
		"no opaque":                "VA 7 c1 t-1 f3239169\r\nforeign\r\n",
		"an answer to mn":          "MN\r\n",
		"a larger value than any":  "VA 99999999 c1 t-1 f3239169 O1\r\n",
		"an endless line":          strings.Repeat("x", 1<<20),
		"an error of the client":   "CLIENT_ERROR bad data chunk\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			p, r, _ := proxied(t)
			r.set("k", "mine")
			// Get is sent | the proxy holds the server's answer and gives its own.
			release := p.hold(replies)
			errs := make(chan error, 1)
			go func() {
				item, err := r.Get(r.ctx, "k")
				if err == nil {
					err = fmt.Errorf("answered %q", item.Data)
				}
				errs <- err
			}()
			p.awaitHeld(replies)
			p.inject(garbage)
			if err := <-errs; !errors.Is(err, errProtocol) || !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("Get = %v, want an unexpected answer, unavailable", err)
			}
			release()
			r.heals()
			r.holds("k", "mine")
		})
	}
}

// Bytes that nobody has asked for end an idle connection, before they could be taken
// for an answer.
func TestUnaskedBytes(t *testing.T) {
	p, r, _ := proxied(t)
	r.set("k", "mine")
	before := r.connection()
	p.inject("HD c5 O3\r\n")
	eventually(t, "the connection ends", func() bool { return !before.alive() })
	r.holds("k", "mine")
}

// chatty is a connection to a server that says more than it is asked, once more is set.
func chatty(t *testing.T) (c *conn, more *atomic.Bool) {
	more = new(atomic.Bool)
	return answers(t, func(_ int, opaque string) string {
		if more.Load() {
			return "EN " + opaque + "\r\nHD c5 O3\r\n"
		}
		return "EN " + opaque + "\r\n"
	}), more
}

// endsUnasked waits until the connection has ended because of bytes that nobody has asked for.
func (c *conn) endsUnasked(t *testing.T) {
	t.Helper()
	eventually(t, "the connection ends", func() bool { return !c.alive() })
	c.mu.Lock()
	defer c.mu.Unlock()
	if !errors.Is(c.err, errProtocol) || !strings.Contains(c.err.Error(), "nothing was asked") {
		t.Errorf("the connection has ended: %v", c.err)
	}
}

// The same where they come together with an answer: who has asked gets it, but the connection has
// ended before he can ask again. Forced: read gives the answer to a caller who does not take it
// until the connection has ended.
func TestUnaskedBytesBehindAnAnswer(t *testing.T) {
	c, more := chatty(t)
	more.Store(true)
	r := newRequest()
	r.done = make(chan struct{}) // without room
	r.opaque = c.mark(1)
	r.text = appendGet(r.text, "k", 0, 0, r.opaque)
	if alone, err := c.enqueue(r); alone || err != nil {
		t.Fatalf("alone: %t, %v, though read waits for the first byte of a new connection", alone, err)
	}
	c.endsUnasked(t)
	<-r.done
	if r.err != nil || r.reply.code != codeMiss {
		t.Errorf("the answer is %+v, %v", r.reply, r.err)
	}
}

// The same for a caller who is alone. There has not been time for read to take over.
func TestUnaskedBytesBehindAnAnswerAlone(t *testing.T) {
	eventually(t, "a caller is alone", func() bool {
		c, more := chatty(t)
		ask := func() {
			t.Helper()
			_, err := c.do(background(t), func(b []byte, o uint32) []byte { return appendGet(b, "k", 0, 0, o) }, nil)
			ok(t, err)
		}
		c.awaitReads(t, false, ask)
		c.mu.Lock()
		before := c.trips
		c.mu.Unlock()
		more.Store(true)
		ask()
		if c.alive() {
			t.Error("the next request could go to this connection")
		}
		c.endsUnasked(t)
		return c.trips > before
	})
}

// A large value counts while it is being written, another one does not. Forced: the other end has
// taken the first byte, and a pipe keeps the writer until the last one is taken.
func TestLargeValueIsBeingWritten(t *testing.T) {
	for size, want := range map[int]int32{largeValue - 1: 0, largeValue: 1} {
		ours, theirs := net.Pipe()
		c := newConn(ours, bufio.NewReader(ours), life{}, time.Minute)
		errs := make(chan error, 1)
		go func() {
			r := newRequest()
			r.text = make([]byte, size)
			errs <- second(c.roundTrip(background(t), r))
		}()
		ok(t, second(io.ReadFull(theirs, make([]byte, 1))))
		if n := c.large.Load(); n != want || c.light() != (want == 0) {
			t.Errorf("%d bytes: %d large values, light: %t", size, n, c.light())
		}
		ok(t, second(io.ReadFull(theirs, make([]byte, size-1))))
		ok(t, second(fmt.Fprint(theirs, "MN\r\n")))
		ok(t, <-errs)
		eventually(t, "it has been written", func() bool { return c.large.Load() == 0 && c.light() })
		c.fail(errStoreClosed)
	}
}

func (r *rig) connection() *conn {
	n := r.Session.(*session).st.ring.nodes[0]
	return n.slots[0].conn.Load()
}

// Callers who leave take nobody's answer along: the answers to their requests come
// later, in their places, and are thrown away.
func TestAbandonedRequests(t *testing.T) {
	p, r, _ := proxied(t)
	for i := range 10 {
		r.set(fmt.Sprint(i), fmt.Sprint("value ", i))
	}
	conn := r.connection()
	release := p.hold(replies)
	for i := range 10 {
		if i%2 == 0 {
			ctx, cancel := context.WithTimeout(r.ctx, 20*time.Millisecond)
			_, err := r.Get(ctx, fmt.Sprint(i))
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("Get = %v, want a deadline", err)
			}
		}
	}
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			item, err := r.Get(r.ctx, fmt.Sprint(i))
			if err != nil || string(item.Data) != fmt.Sprint("value ", i) {
				t.Errorf("Get(%d) = %q, %v", i, item.Data, err)
			}
		})
	}
	p.awaitHeld(replies)
	release()
	wg.Wait()
	if !conn.alive() {
		t.Error("the connection was given up although every answer came in time")
	}
}

// A server that accepts requests and answers none: each call ends with its context,
// the connection is given up after StallTimeout, and a new one is made.
func TestStalledConnection(t *testing.T) {
	t.Parallel()
	p, r, _ := proxied(t)
	r.set("k", "v")
	conn := r.connection()
	release := p.hold(replies)
	start := time.Now()
	if _, err := r.Get(soon(t), "k"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Get = %v, want an unavailable error", err)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("Get took %v with a deadline of 100 ms", took)
	}
	// Without a deadline of its own a call ends with the connection.
	if _, err := r.Get(r.ctx, "k"); !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, errStalled) {
		t.Errorf("Get = %v, want that the server has stopped answering", err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the connection was given up after %v", took)
	}
	if conn.alive() {
		t.Error("the connection is still used")
	}
	release()
	r.heals()
	r.holds("k", "v")
}

// The other end takes nothing any more: the writer is bounded too, and so is what
// waits for it.
func TestHalfOpenConnection(t *testing.T) {
	t.Parallel()
	p, r, _ := proxied(t)
	release := p.hold(requests)
	big := make([]byte, 512<<10) // fills the buffers between us and the proxy
	start := time.Now()
	for range 20 {
		if _, err := r.Set(soon(t), "k", big, long); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("Set = %v, want an unavailable error", err)
		}
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("20 calls of 100 ms took %v", took)
	}
	// A call without a deadline of its own ends with the connection: with this one, on
	// which the writer is stuck, or with the attempt to make the next one.
	start = time.Now()
	if _, err := r.Get(r.ctx, "k"); !errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) && r.ctx.Err() != nil {
		t.Errorf("Get = %v, want an unavailable error", err)
	}
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("a call without a deadline took %v", took)
	}
	release()
	r.heals()
	r.set("k", "v")
	r.holds("k", "v")
}

// The same through TLS, whose farewell must not be waited for: the peer takes nothing
// any more.
func TestHalfOpenTLSConnection(t *testing.T) {
	t.Parallel()
	cert, pool := certificate(t)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}})
	ok(t, err)
	p := serveProxy(t, l, shared.Get(t).Addr())
	r := attach(t, openWith(t, Options{Addrs: []string{p.addr()}, Conns: 1, StallTimeout: time.Second, TLS: &tls.Config{RootCAs: pool}}))
	defer p.hold(requests)()
	for range 8 { // fills the buffers between us and the proxy
		if _, err := r.Set(soon(t), "k", make([]byte, 512<<10), long); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("Set = %v, want an unavailable error", err)
		}
	}
	start := time.Now()
	if _, err := r.Get(r.ctx, "k"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Get = %v, want an unavailable error", err)
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("a call without a deadline took %v, want about a second", took)
	}
}

// Large requests whose callers have left do not lie about in memory until a connection
// that is stuck is given up, only what is being written does.
func TestAbandonedTexts(t *testing.T) {
	t.Parallel()
	p := startProxy(t, shared.Get(t).Addr())
	r := attach(t, openWith(t, Options{Addrs: []string{p.addr()}, Conns: 1, StallTimeout: time.Minute}))
	conn := r.connection()
	release := p.hold(requests)
	for range 20 { // the first ones fill the buffers between us and the proxy
		if _, err := r.Set(soon(t), "k", make([]byte, 512<<10), long); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("Set = %v, want an unavailable error", err)
		}
	}
	conn.mu.Lock()
	waiting, bytes := len(conn.waiting), 0
	for _, r := range conn.waiting {
		bytes += len(r.text)
	}
	conn.mu.Unlock()
	if waiting == 0 || bytes > 0 {
		t.Errorf("%d requests wait with %d bytes, want some, with none", waiting, bytes)
	}
	release()
	r.heals()
}

// The row of a connection that does not move, and is not given up yet, is bounded.
func TestFullRow(t *testing.T) {
	p := startProxy(t, shared.Get(t).Addr())
	r := attach(t, openWith(t, Options{Addrs: []string{p.addr()}, Conns: 1, StallTimeout: time.Minute}))
	defer p.hold(replies)()
	ctx, cancel := context.WithCancel(r.ctx)
	var wg sync.WaitGroup
	var busy atomic.Int32
	for range maxRow + 100 {
		wg.Go(func() {
			if _, err := r.Get(ctx, "k"); errors.Is(err, errBusy) && errors.Is(err, store.ErrUnavailable) {
				busy.Add(1)
			}
		})
	}
	eventually(t, "the row is full", func() bool { return busy.Load() >= 100 })
	cancel()
	wg.Wait()
	if busy.Load() != 100 {
		t.Errorf("%d requests were refused, want 100", busy.Load())
	}
}

// Many callers share one connection; each gets its own answer.
func TestPipeline(t *testing.T) {
	r := attach(t, openWith(t, Options{Addrs: []string{shared.Get(t).Addr()}, Conns: 1}))
	var wg sync.WaitGroup
	for worker := range 32 {
		wg.Go(func() {
			for i := range 50 {
				key := fmt.Sprint(worker, "-", i)
				value := strings.Repeat(key, 1+i*worker)
				if _, err := r.Set(r.ctx, key, []byte(value), long); err != nil {
					t.Errorf("Set: %v", err)
				}
				if item, err := r.Get(r.ctx, key); err != nil || string(item.Data) != value {
					t.Errorf("Get(%s) = %d bytes, %v, want %d", key, len(item.Data), err, len(value))
				}
			}
		})
	}
	wg.Wait()
}

// One of two connections cannot be made: the other one carries everything.
func TestOneConnectionIsEnough(t *testing.T) {
	p := startProxy(t, shared.Get(t).Addr())
	r := attach(t, openWith(t, Options{Addrs: []string{p.addr()}, Conns: 2})) // makes one
	p.refuse(true)
	for i := range 100 {
		r.set(fmt.Sprint(i), "v")
	}
	p.refuse(false)
	eventually(t, "both are there", func() bool {
		r.holds("1", "v")
		n := r.Session.(*session).st.ring.nodes[0]
		return n.slots[0].alive() != nil && n.slots[1].alive() != nil
	})
}

// After a failed attempt to connect the next callers are told at once, until it is
// tried again.
func TestBackOff(t *testing.T) {
	t.Parallel()
	p, r, _ := proxied(t)
	p.refuse(true)
	p.cut()
	eventually(t, "attempts fail", func() bool {
		_, err := r.Get(r.ctx, "k")
		return err != nil && strings.Contains(err.Error(), "not tried again yet")
	})
	start := time.Now()
	for range 1000 {
		if _, err := r.Get(r.ctx, "k"); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("Get = %v, want an unavailable error", err)
		}
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("1,000 calls of a server that is down took %v", took)
	}
	p.refuse(false)
	r.heals()
}
