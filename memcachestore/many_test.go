package memcachestore

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
)

func (r *rig) many(ctx context.Context, keys ...string) ([]store.Item, error) {
	return r.Session.(store.ManyReader).GetMany(ctx, keys)
}

// holdsMany reads the keys, whose values are their names followed by x.
func (r *rig) holdsMany(keys []string) {
	r.t.Helper()
	items, err := r.many(r.ctx, keys...)
	if err != nil || len(items) != len(keys) {
		r.t.Fatalf("GetMany of %d = %d items, %v", len(keys), len(items), err)
	}
	for i, key := range keys {
		if got := strings.TrimRight(string(items[i].Data), "x"); !items[i].Found || got != key {
			r.t.Fatalf("%.40q = %v, %.40q", key, items[i].Found, got)
		}
	}
}

// GetMany finds of each key what Get finds, whatever lies there, and does as little to it.
func TestGetManyIsGet(t *testing.T) {
	r := attach(t, open(t, shared.Get(t).Addr()))
	hashed, long2 := "with a space", strings.Repeat("long", 200)
	for _, key := range []string{"value", hashed, long2} {
		r.set(key, envelope(key))
	}
	r.set("empty", "")
	r.failsFor("failure", "", long)
	r.failsFor("failure over a value", envelope("old"), long)
	stale := envelope("stale")
	r.set("leased", stale)
	stub, over := r.wins("stub", nil), r.wins("leased", mark(stale))
	item, _, _ := itemKey(sha, r.name, "stranger")
	if got := dialWire(t, shared.Get(t).Addr()).say("ms %s 7 T60\r\nforeign", item); got != "HD" {
		t.Fatal(got)
	}
	keys := []string{"value", "absent", hashed, "stub", long2, "empty", "failure", "failure over a value", "leased", "stranger",
		"absent and hashed", "value", strings.Repeat("k", maxKey), ""}
	want := make([]store.Item, len(keys))
	found := 0
	for i, key := range keys {
		var err error
		want[i], err = r.Get(r.ctx, key)
		ok(t, err)
		if want[i].Found {
			found++
		}
	}
	got, err := r.many(r.ctx, keys...)
	if err != nil || len(got) != len(keys) || found < 8 {
		t.Fatalf("GetMany = %d items, %v; Get has found %d", len(got), err, found)
	}
	for i, key := range keys {
		if got[i].Found != want[i].Found || !bytes.Equal(got[i].Data, want[i].Data) {
			t.Errorf("GetMany finds %v %.40q under %.40q, Get %v %.40q", got[i].Found, got[i].Data, key, want[i].Found, want[i].Data)
		}
	}
	r.fill(stub, "filled", true)
	r.fill(over, "filled", true)
	r.release(r.wins("absent", nil))
	// No server has a key that is too long, which Get says.
	if got, err := r.many(r.ctx, "value", strings.Repeat("k", maxKey+1)); err != nil || !got[0].Found || got[1].Found {
		t.Errorf("GetMany of a key that is too long = %v, %v", got, err)
	}
}

func (r *rig) release(l store.Lease) {
	r.t.Helper()
	if ok, err := l.Release(r.ctx); !ok || err != nil {
		r.t.Fatalf("Release = %v, %v", ok, err)
	}
}

// Two keys of one hash are told apart by the key that is kept.
func TestGetManyOfAHashCollision(t *testing.T) {
	st := open(t, shared.Get(t).Addr())
	st.hash = func(string) [32]byte { return [32]byte{1} }
	r := attach(t, st)
	r.set("plain", "plain")
	r.set("a b", "first")
	r.set("c d", "second")
	items, err := r.many(r.ctx, "plain", "a b", "c d")
	if err != nil || !items[0].Found || items[1].Found || string(items[2].Data) != "second" {
		t.Errorf("GetMany = %v, %v", items, err)
	}
}

// All keys are asked for before the first answer has come, up to 256 of them, and the next
// 256 then. Forced: the proxy holds the answers.
func TestGetManyIsPipelined(t *testing.T) {
	t.Parallel()
	server := servertest.Memcached(t, servers.MemcachedOptions{})
	p := startProxy(t, server.Addr())
	r := attach(t, openWith(t, Options{Addrs: []string{p.addr()}, Conns: 1, StallTimeout: time.Minute}))
	var keys []string
	for i := range readsAtOnce + 50 {
		key := fmt.Sprint(i) + strings.Repeat("k", i%200) // some of the requests are large
		keys = append(keys, key)
		r.set(key, key)
	}
	for _, n := range []int{2, 100, readsAtOnce, len(keys)} {
		before, most := asked(t, server.Addr()), int64(min(n, readsAtOnce))
		release := p.hold(replies)
		errs := make(chan error, 1)
		go func() { errs <- second(r.many(r.ctx, keys[:n]...)) }()
		eventually(t, "all are asked for", func() bool { return asked(t, server.Addr())-before >= most })
		if got := asked(t, server.Addr()) - before; got != most {
			t.Errorf("%d keys: the server was asked %d times, want %d", n, got, most)
		}
		if due := r.connection().row.Load(); int64(due) != most { // so others take another connection
			t.Errorf("%d replies are due, want %d", due, most)
		}
		release()
		ok(t, <-errs)
		if due := r.connection().row.Load(); due != 0 {
			t.Errorf("%d replies are due when all have come", due)
		}
	}
	r.holdsMany(keys)
}

// Values that fit into no buffer: neither side waits for the other one, as replies are read
// while requests are written. Small ones find their way meanwhile.
func TestGetManyOfLargeValues(t *testing.T) {
	t.Parallel()
	server := servertest.Memcached(t, servers.MemcachedOptions{Args: []string{"-m", "256"}})
	r := attach(t, open(t, server.Addr()))
	var keys []string
	for i := range 60 {
		keys = append(keys, fmt.Sprint(i)+strings.Repeat("k", 200))
		r.set(keys[i], keys[i]+strings.Repeat("x", 1<<20-reservedBytes-300))
	}
	r.set("small", "small")
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { r.holdsMany(keys) })
		wg.Go(func() {
			for range 100 {
				r.holds("small", "small")
			}
		})
	}
	wg.Wait()
}

// Keys of several servers are not what the contract allows; they are found all the same.
// The error names the server that is down.
func TestGetManyOfSeveralServers(t *testing.T) {
	t.Parallel()
	var addrs []string
	var all []*servers.Server
	for range 2 {
		s := servertest.Memcached(t, servers.MemcachedOptions{})
		all, addrs = append(all, s), append(addrs, s.Addr())
	}
	r := attach(t, open(t, addrs...))
	byServer := map[string][]string{}
	var keys []string
	for i := range 100 {
		key := fmt.Sprint("key", i)
		r.set(key, key)
		at := r.Session.(*session).Server(key)
		keys, byServer[at] = append(keys, key), append(byServer[at], key)
	}
	r.holdsMany(keys)
	ok(t, all[1].Kill())
	for range 3 {
		_, err := r.many(r.ctx, byServer[addrs[1]]...)
		var e *store.Error
		if !errors.As(err, &e) || e.Service != "memcached" || e.Addr != addrs[1] || e.Op != "get many" || !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("GetMany of a server that is down = %v", err)
		}
	}
	r.holdsMany(byServer[addrs[0]])
	ok(t, r.Close())
	if _, err := r.many(r.ctx, keys...); !errors.Is(err, errSessionClosed) || !strings.Contains(err.Error(), addrs[0]) {
		t.Errorf("GetMany after Close = %v", err)
	}
}

// large fills the proxied server with values of which some replies are one chunk and more.
func large(r *rig) (keys []string) {
	for i := range 8 {
		keys = append(keys, fmt.Sprint("large", i))
		r.set(keys[i], keys[i]+strings.Repeat("x", 500_000))
	}
	return keys
}

// The connection ends in the middle of the replies: nothing of them counts, and the next call
// gets its own over a new one.
func TestGetManyCutShort(t *testing.T) {
	p, r, _ := proxied(t)
	keys := large(r)
	p.holdAfter(replies, 5)
	errs := make(chan error, 1)
	go func() {
		items, err := r.many(r.ctx, keys...)
		if items != nil {
			err = fmt.Errorf("%d items, %w", len(items), err)
		}
		errs <- err
	}()
	p.awaitHeld(replies)
	release := p.hold(replies)
	p.cut()
	release()
	if err := <-errs; !errors.Is(err, store.ErrUnavailable) || strings.Contains(err.Error(), "items") {
		t.Errorf("GetMany = %v, want an unavailable error and no items", err)
	}
	r.heals()
	r.holdsMany(keys)
}

// The context ends in the middle of a value: the caller leaves at once, the rest of the
// replies is read and thrown away, and who comes next on the same connection gets his own.
// Forced: three chunks pass the proxy, in which the first value has begun and not ended | the
// context ends | others ask | the rest passes. Who leaves has read himself, as he was alone,
// or has read do it, as it did already.
func TestGetManyLeftInTheMiddle(t *testing.T) {
	for _, alone := range []bool{true, false} {
		t.Run(fmt.Sprint("alone ", alone), func(t *testing.T) {
			p, _, direct := proxied(t)
			st := openWith(t, Options{Addrs: []string{p.addr()}, Conns: 1, StallTimeout: time.Minute})
			r := attachAs(t, st, direct.name)
			keys, c := large(direct), r.connection()
			direct.set("small", "small")
			was := !alone
			for tries := 0; was != alone; tries++ {
				if tries == 20 {
					t.Fatal("it was never as it should be")
				}
				was = leftInTheMiddle(p, r, c, keys, alone)
			}
		})
	}
}

func leftInTheMiddle(p *proxy, r *rig, c *conn, keys []string, alone bool) (was bool) {
	t := r.t
	t.Helper()
	c.awaitReads(t, !alone, func() { r.absent("nothing") })
	c.mu.Lock()
	before := c.trips
	c.mu.Unlock()
	release := p.holdAfter(replies, 3)
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	errs := make(chan error, 1)
	go func() { errs <- second(r.many(ctx, keys...)) }()
	eventually(t, "some of a value has come", func() bool { return c.large.Load() > 0 })
	cancel()
	select {
	case err := <-errs:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("GetMany = %v", err)
		}
	case <-time.After(patience):
		t.Fatal("who has left waits still")
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { r.holds("small", "small") })
		wg.Go(func() { r.holdsMany(keys) })
	}
	release()
	wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.connection() != c || c.err != nil || c.large.Load() != 0 {
		t.Errorf("the connection was given up: %v; it has %d large values", c.err, c.large.Load())
	}
	return c.trips != before
}

// awaitReads waits until read reads on a connection that nobody uses, or does not, which is so
// for a moment after use.
func (c *conn) awaitReads(t testing.TB, reads bool, use func()) {
	t.Helper()
	eventually(t, "who reads", func() bool {
		if !reads {
			use()
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.reads == reads && !c.writes && c.flight.len() == 0
	})
}

// A server that cannot read one of the items says so in the place of its reply. The others'
// replies are read all the same, and the next request gets its own.
func TestGetManyRefused(t *testing.T) {
	c := answers(t, func(n int, opaque string) string {
		if n%5 == 3 {
			return "SERVER_ERROR out of memory writing get response\r\n"
		}
		return "VA 1 c5 t-1 f3239169 " + opaque + "\r\nx\r\n"
	})
	for range 3 {
		r, m := newRequest(), &manyReads{items: make([]store.Item, 0, 5)}
		r.opaque, r.many = c.mark(5), m
		for i := range uint32(5) {
			r.text = appendGet(r.text, "k", 0, 0, r.opaque+i)
			m.expect("")
		}
		_, err := c.roundTrip(context.Background(), r)
		var refused refusal
		if err != nil || !errors.As(m.err, &refused) || m.got != 5 {
			t.Fatalf("%d items, %v, %v", m.got, err, m.err)
		}
	}
}

// answers is a connection to a server that answers the nth request by what answer says.
func answers(t *testing.T, answer func(n int, opaque string) string) *conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		lines := bufio.NewScanner(nc)
		for n := 0; lines.Scan(); n++ {
			f := strings.Fields(lines.Text())
			if _, err := fmt.Fprint(nc, answer(n, f[len(f)-1])); err != nil {
				return
			}
		}
	}()
	nc, err := net.Dial("tcp", l.Addr().String())
	ok(t, err)
	c := newConn(nc, bufio.NewReader(nc), life{itemMax: 1 << 20, explicit: true}, 3*time.Second)
	t.Cleanup(func() { c.fail(errStoreClosed) })
	return c
}
