package memcachestore

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
)

// shared serves the tests that neither restart nor freeze nor fill it.
var shared = servertest.SharedMemcached(servers.MemcachedOptions{})

// TestMain lets more tests run at a time than there are cores: most of them wait for
// a server's clock, which counts seconds.
func TestMain(m *testing.M) {
	flag.Parse()
	if !given("test.parallel") && !given("test.fuzz") {
		flag.Set("test.parallel", "16")
	}
	code := m.Run()
	shared.Stop()
	os.Exit(code)
}

func given(name string) bool {
	found := false
	flag.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

// patience bounds every wait of a test for something that should come soon.
const patience = 15 * time.Second

// long is a TTL that outlasts every test.
const long = 10 * time.Minute

func open(t testing.TB, addrs ...string) *Store { return openWith(t, Options{Addrs: addrs}) }

func openWith(t testing.TB, o Options) *Store {
	t.Helper()
	st := NewWith(o)
	t.Cleanup(func() { st.Close() })
	return st
}

// background is a context that ends when the test has no more patience.
func background(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	t.Cleanup(cancel)
	return ctx
}

// rig is a session with helpers that fail the test.
type rig struct {
	store.Session
	t    testing.TB
	ctx  context.Context
	name string
}

// attach makes a session under a name of its own.
func attach(t testing.TB, st *Store) *rig {
	t.Helper()
	return attachAs(t, st, "t"+store.NewToken().String()[:16])
}

func attachAs(t testing.TB, st *Store, name string) *rig {
	t.Helper()
	r := &rig{t: t, ctx: background(t), name: name}
	s, err := st.Attach(r.ctx, store.Config{Name: name, Grace: time.Minute})
	ok(t, err)
	r.Session = s
	t.Cleanup(func() { s.Close() })
	return r
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) set(key, data string) {
	r.t.Helper()
	if stored, err := r.Set(r.ctx, key, []byte(data), long); err != nil || !stored {
		r.t.Fatalf("Set(%.40q) = %v, %v", key, stored, err)
	}
}

func (r *rig) holds(key, data string) {
	r.t.Helper()
	item, err := r.Get(r.ctx, key)
	if err != nil || !item.Found || string(item.Data) != data {
		r.t.Fatalf("Get(%.40q) = %v, %.40q, %v; want %.40q", key, item.Found, item.Data, err, data)
	}
}

func (r *rig) absent(key string) {
	r.t.Helper()
	if item, err := r.Get(r.ctx, key); err != nil || item.Found {
		r.t.Fatalf("Get(%.40q) = %v, %.40q, %v; want a miss", key, item.Found, item.Data, err)
	}
}

func (r *rig) ask(key string, seen []byte) store.Answer {
	r.t.Helper()
	a, err := r.Acquire(r.ctx, key, store.Request{Token: store.NewToken(), TTL: long, Seen: seen})
	ok(r.t, err)
	return a
}

func (r *rig) wins(key string, seen []byte) store.Lease {
	r.t.Helper()
	a := r.ask(key, seen)
	if a.State != store.Won {
		r.t.Fatalf("Acquire(%.40q) = %v, want won", key, a.State)
	}
	return a.Lease
}

func (r *rig) finds(key string, seen []byte, want store.State) store.Answer {
	r.t.Helper()
	a := r.ask(key, seen)
	if a.State != want {
		r.t.Fatalf("Acquire(%.40q) = %v, want %v", key, a.State, want)
	}
	return a
}

func (r *rig) fill(l store.Lease, data string, want bool) {
	r.t.Helper()
	if got, err := l.Fill(r.ctx, []byte(data), long); err != nil || got != want {
		r.t.Fatalf("Fill = %v, %v, want %v", got, err, want)
	}
}

// eventually polls until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// wire is a plain connection to a server, for what a test says itself.
type wire struct {
	t  testing.TB
	nc net.Conn
	br *bufio.Reader
}

func dialWire(t testing.TB, addr string) *wire {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	ok(t, err)
	t.Cleanup(func() { nc.Close() })
	return &wire{t, nc, bufio.NewReader(nc)}
}

// say sends a command and returns the first line of the answer; a value's bytes are
// read too, and appended after a space.
func (w *wire) say(format string, args ...any) string {
	w.t.Helper()
	w.nc.SetDeadline(time.Now().Add(patience))
	_, err := fmt.Fprintf(w.nc, format+"\r\n", args...)
	ok(w.t, err)
	line, err := w.br.ReadString('\n')
	ok(w.t, err)
	line = strings.TrimRight(line, "\r\n")
	if rest, found := strings.CutPrefix(line, "VA "); found {
		size, err := strconv.Atoi(strings.Fields(rest)[0])
		ok(w.t, err)
		body := make([]byte, size+2)
		for at := 0; at < len(body); {
			n, err := w.br.Read(body[at:])
			ok(w.t, err)
			at += n
		}
		line += " " + string(body[:size])
	}
	return strings.TrimRight(line, " ")
}

// stats asks for the server's counters.
func (w *wire) stats() map[string]string {
	w.t.Helper()
	w.nc.SetDeadline(time.Now().Add(patience))
	_, err := fmt.Fprint(w.nc, "stats\r\n")
	ok(w.t, err)
	stats, err := readStats(w.br)
	ok(w.t, err)
	return stats
}

// asked counts what a server was asked so far: mg, ms and md. A new connection of a
// store costs one mg and one ms.
func asked(t testing.TB, addr string) int64 {
	t.Helper()
	w := dialWire(t, addr)
	defer w.nc.Close()
	stats, sum := w.stats(), int64(0)
	for _, name := range []string{"cmd_get", "cmd_set", "delete_hits", "delete_misses"} {
		n, err := strconv.ParseInt(stats[name], 10, 64)
		ok(t, err)
		sum += n
	}
	return sum
}
