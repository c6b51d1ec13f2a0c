package memcachestore

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// capricious is a server that answers in pieces, late, or not at all, with refusals, with what
// nobody asked for, and that cuts and freezes its connections. What lies under a key follows
// from the key.
type capricious struct {
	t    *testing.T
	l    net.Listener
	over chan struct{}
	wg   sync.WaitGroup

	answered, cuts, freezes, lies atomic.Int64
}

func startCapricious(t *testing.T, config *tls.Config) *capricious {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	s := &capricious{t: t, l: l, over: make(chan struct{})}
	s.wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			if rand.IntN(3) == 0 { // both sides' buffers fill
				nc.(*net.TCPConn).SetReadBuffer(4 << 10)
				nc.(*net.TCPConn).SetWriteBuffer(4 << 10)
			}
			if config != nil {
				nc = tls.Server(nc, config)
			}
			s.wg.Go(func() { s.serve(nc) })
		}
	})
	return s
}

func (s *capricious) stop() {
	close(s.over)
	s.l.Close()
	s.wg.Wait()
}

// valueOf is what lies under an item's key: some are larger than what the buffers take.
func valueOf(item string) []byte {
	h := hashKey(item)
	n := int(h % 40)
	switch h % 60 {
	case 0, 1:
		n = 20_000 + int(h%5000)
	case 2:
		n = 150_000
	case 3, 4, 5, 6:
		n = 1000
	}
	return append([]byte(item+"|"), bytes.Repeat([]byte(item[len(item)-4:]), n/4)...)
}

func (s *capricious) pause(d time.Duration) {
	select {
	case <-s.over:
	case <-time.After(d):
	}
}

var errCut = errors.New("cut")

func (s *capricious) serve(nc net.Conn) {
	done := make(chan struct{})
	defer close(done)
	s.wg.Go(func() {
		select {
		case <-s.over:
		case <-done:
		}
		hangUp(nc)
	})
	br := bufio.NewReader(nc)
	for met := 0; ; {
		line, err := br.ReadString('\n')
		if err != nil {
			return
		}
		f := strings.Fields(line)
		reply := ""
		opaque := f[len(f)-1]
		switch f[0] {
		case "version":
			reply = "VERSION 1.6.45\r\n"
		case "stats":
			reply = "STAT time 1800000000\r\nEND\r\n"
			if len(f) == 2 {
				reply = "STAT item_size_max 1048576\r\nEND\r\n"
			}
		case "mn":
			reply = "MN\r\n"
		case "md":
			reply = "HD " + opaque + "\r\n"
		case "mg":
			value := valueOf(f[1])
			reply = fmt.Sprintf("VA %d c5 t-1 f0 %s\r\n%s\r\n", len(value), opaque, value)
		case "ms":
			n, _ := strconv.Atoi(f[2])
			body := make([]byte, n+2)
			if _, err := io.ReadFull(br, body); err != nil {
				return
			}
			if f[1] != bootKey && (len(body) < headBytes || !bytes.Equal(body[headBytes:n], valueOf(f[1]))) {
				s.t.Errorf("%s is set to another's value: %.60q", f[1], body)
			}
			reply = "HD c6 " + opaque + "\r\n"
		default:
			s.t.Errorf("the server reads %.60q", line)
			return
		}
		if met++; met > 6 { // version, stats, stats, ms, mg, mn: all of Attach
			if reply, err = s.mood(reply, f[0] != "mn"); err != nil {
				return
			}
		}
		if s.write(nc, reply, met > 6) != nil {
			return
		}
		s.answered.Add(1)
	}
}

// mood is what the server makes of a reply.
func (s *capricious) mood(reply string, meta bool) (string, error) {
	switch n := rand.IntN(4000); {
	case n < 3: // in the middle of something
		s.cuts.Add(1)
		return "", errCut
	case n < 4:
		s.freezes.Add(1)
		s.pause(400 * time.Millisecond)
	case n < 25:
		s.pause(time.Duration(rand.IntN(30)) * time.Millisecond)
	case n < 50 && meta:
		return "SERVER_ERROR out of mood\r\n", nil
	case n < 52:
		s.lies.Add(1)
		return "VA 7 c1 t-1 f0 O4000000000\r\nforeign\r\n" + reply, nil
	case n < 54:
		s.lies.Add(1)
		return reply + reply, nil
	}
	return reply, nil
}

// write writes in pieces; now and then it stops half way.
func (s *capricious) write(nc net.Conn, reply string, met bool) error {
	for b := []byte(reply); len(b) > 0; {
		n := len(b)
		if met && rand.IntN(3) == 0 {
			n = 1 + rand.IntN(min(n, 60_000))
		}
		if _, err := nc.Write(b[:n]); err != nil {
			return err
		}
		if b = b[n:]; len(b) == 0 || !met {
			continue
		}
		switch n := rand.IntN(8000); {
		case n < 4:
			s.cuts.Add(1)
			return errCut
		case n < 5:
			s.freezes.Add(1)
			s.pause(400 * time.Millisecond)
		case n < 200:
			s.pause(time.Duration(rand.IntN(2000)) * time.Microsecond)
		}
	}
	return nil
}

// fickle is a caller, whose contexts end at any time, or never.
type fickle struct {
	*rig
	shared          context.Context // with which some of the calls are made
	answers, misses *atomic.Int64
}

// aContext returns one that ends after some time, is canceled by somebody, or does not end.
func (f *fickle) aContext() (ctx context.Context, cancel func(), bound time.Duration) {
	// Without an end: an attempt to connect, two lost connections, and what the race detector costs.
	const endless = 6 * time.Second
	d := time.Duration(rand.IntN(8000)) * time.Microsecond
	switch rand.IntN(5) {
	case 0:
		ctx, cancel := context.WithTimeout(context.Background(), d)
		return ctx, cancel, d
	case 1:
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(d, cancel)
		return ctx, cancel, d
	case 2:
		return f.shared, func() {}, endless
	case 3:
		ctx, cancel := context.WithTimeout(f.shared, 10*d)
		return ctx, cancel, 10 * d
	}
	return context.Background(), func() {}, endless
}

func (f *fickle) call() {
	const slack = 2 * time.Second // not of the store's making: 2 cores, -race
	ctx, cancel, bound := f.aContext()
	defer cancel()
	start, key := time.Now(), fmt.Sprintf("key%04d", rand.IntN(300))
	var err error
	what := "Get"
	switch rand.IntN(10) {
	case 0:
		what = "Ping"
		err = f.Ping(ctx)
	case 1, 2:
		what = "Set"
		_, err = f.Set(ctx, key, valueOf(f.item(key)), long)
	case 3, 4:
		what = "GetMany"
		keys := make([]string, 1+rand.IntN(1+rand.IntN(1+rand.IntN(300))))
		for i := range keys {
			keys[i] = fmt.Sprintf("key%04d", rand.IntN(300))
		}
		items, e := f.many(ctx, keys...)
		for i := range items {
			f.check(keys[i], items[i].Found, items[i].Data)
		}
		err = e
	case 5:
		what = "Invalidate"
		err = f.Invalidate(ctx, key)
	default:
		item, e := f.Get(ctx, key)
		if err = e; e == nil {
			f.check(key, item.Found, item.Data)
		}
	}
	if took := time.Since(start); took > bound+slack {
		f.t.Errorf("%s took %v, want %v at most: %v", what, took, bound, err)
	}
	if err != nil {
		f.misses.Add(1)
	} else {
		f.answers.Add(1)
	}
}

func (f *fickle) item(key string) string { return plainPrefix + f.name + ":" + key }

func (f *fickle) check(key string, found bool, data []byte) {
	if want := valueOf(f.item(key)); !found || !bytes.Equal(data, want) {
		f.t.Errorf("%s is answered with %.60q (%d bytes, found %v), want %.60q (%d)", key, data, len(data), found, want, len(want))
	}
}

// Whatever the server does: each caller gets the answer to what he has asked, or an error, at
// the end of his context or within the bounds of Options; the server reads whole requests; after
// Close, in the middle of it all, nobody waits and no goroutine is left. ONEFILL_STRESS is for how
// long each of the four crowds calls.
func TestCapriciousServer(t *testing.T) {
	lasts := 500 * time.Millisecond
	if d, err := time.ParseDuration(os.Getenv("ONEFILL_STRESS")); err == nil {
		lasts = d
	}
	cert, pool := certificate(t)
	for _, secret := range []bool{false, true} {
		for _, callers := range []int{1, 2, 8, 100} {
			t.Run(fmt.Sprintf("TLS %v, %d callers", secret, callers), func(t *testing.T) {
				before := runtime.NumGoroutine()
				o, config := Options{StallTimeout: 200 * time.Millisecond, DialTimeout: time.Second}, (*tls.Config)(nil)
				if secret {
					config, o.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}, &tls.Config{RootCAs: pool}
				}
				s := startCapricious(t, config)
				o.Addrs = []string{s.l.Addr().String()}
				st := openWith(t, o)
				r := attach(t, st)
				over, closed := time.Now().Add(lasts), make(chan struct{})
				var answers, misses, trips atomic.Int64
				shared, cancel := context.WithCancel(context.Background())
				defer cancel()
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() {
						f := &fickle{rig: r, shared: shared, answers: &answers, misses: &misses}
						for {
							select {
							case <-closed:
								return
							default:
								f.call()
							}
						}
					})
				}
				for time.Now().Before(over) {
					s.pause(5 * time.Millisecond)
					if c := r.connection(); c != nil {
						c.mu.Lock()
						trips.Store(max(trips.Load(), int64(c.trips)))
						c.mu.Unlock()
					}
				}
				ok(t, st.Close())
				began := time.Now()
				close(closed)
				wg.Wait()
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("after Close it took %v until nobody waited", took)
				}
				s.stop()
				cancel()
				eventually(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= before })
				t.Logf("%d answers, %d errors, most alone on one connection %d; the server: %d answers, %d cuts, %d freezes, %d lies",
					answers.Load(), misses.Load(), trips.Load(), s.answered.Load(), s.cuts.Load(), s.freezes.Load(), s.lies.Load())
				if answers.Load() == 0 {
					t.Error("nobody was answered")
				}
			})
		}
	}
}
