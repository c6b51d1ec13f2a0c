package memcachestore

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
)

// attachFails checks that Attach fails soon, with an error that says all of says.
func attachFails(t *testing.T, st *Store, allowDown bool, says ...string) *store.Error {
	t.Helper()
	start := time.Now()
	_, err := st.Attach(background(t), store.Config{Name: "users", AllowDown: allowDown})
	var e *store.Error
	if !errors.As(err, &e) {
		t.Fatalf("Attach = %v, want a *store.Error", err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("Attach took %v", took)
	}
	if e.Service != "memcached" || e.Addr == "" || e.Op != "attach" {
		t.Errorf("error %#v leaves out service, address or operation", e)
	}
	for _, want := range says {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
	return e
}

func TestInvalidAddresses(t *testing.T) {
	for _, c := range []struct {
		addrs []string
		says  []string
	}{
		{nil, []string{"no servers"}},
		{[]string{""}, []string{`""`, "empty", "host:port"}},
		{[]string{"localhost"}, []string{`"localhost"`, "missing port", "localhost:11211"}},
		{[]string{"127.0.0.1:11211", "10.0.0.1"}, []string{`"10.0.0.1"`, "missing port"}},
		{[]string{"localhost:"}, []string{`"localhost:"`, "port"}},
		{[]string{"localhost:0"}, []string{"port"}},
		{[]string{"localhost:65536"}, []string{"port"}},
		{[]string{"localhost:memcached"}, []string{"port"}},
		{[]string{"memcached://localhost:11211"}, []string{"URL", "host:port"}},
		{[]string{"unix:"}, []string{"socket"}},
		{[]string{"a:1", "b:1", "a:1"}, []string{`"a:1"`, "twice"}},
		{[]string{"a:1", "A:1"}, []string{`"A:1"`, "twice"}},
		{[]string{"/run/m.sock", "unix:/run/m.sock"}, []string{"twice"}},
	} {
		for _, allowDown := range []bool{false, true} { // waiting does not help
			if e := attachFails(t, open(t, c.addrs...), allowDown, c.says...); e.Unavailable {
				t.Errorf("%q: unavailable, although nothing was asked", c.addrs)
			}
		}
	}
}

// Hosts are the same in capitals, files are not.
func TestIdentity(t *testing.T) {
	of := func(text string) string {
		a, err := parseAddress(text)
		ok(t, err)
		return a.identity()
	}
	for _, same := range [][2]string{{"Host:1", "host:1"}, {"/s", "unix:/s"}, {"unix:///s", " /s "}} {
		if of(same[0]) != of(same[1]) {
			t.Errorf("%q are not the same", same)
		}
	}
	for _, different := range [][2]string{{"/s", "/S"}, {"a:1", "a:2"}, {"unix:a:1", "a:1"}} {
		if of(different[0]) == of(different[1]) {
			t.Errorf("%q are the same", different)
		}
	}
}

func TestNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	addr := l.Addr().String()
	l.Close()
	if e := attachFails(t, open(t, addr), false, addr, "refused"); !e.Unavailable || e.Addr != addr {
		t.Errorf("error %#v, want an unavailable one that names %s", e, addr)
	}
	st := open(t, addr)
	s, err := st.Attach(background(t), store.Config{Name: "users", AllowDown: true})
	if err != nil {
		t.Fatalf("Attach with AllowDown: %v", err)
	}
	if _, err := s.Get(background(t), "k"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Get = %v, want an unavailable error", err)
	}
}

// answering listens and gives every connection to serve.
func answering(t *testing.T, serve func(nc net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { nc.Close() })
			go serve(nc)
		}
	}()
	return l.Addr().String()
}

// saying answers the first line with text, then closes or stays.
func saying(t *testing.T, text string) string {
	return answering(t, func(nc net.Conn) {
		bufio.NewReader(nc).ReadString('\n')
		fmt.Fprint(nc, text)
	})
}

func TestOtherProtocols(t *testing.T) {
	t.Parallel()
	redis := servertest.Redis(t, servers.RedisOptions{})
	postgres := servertest.Postgres(t, servers.PostgresOptions{})
	silent := answering(t, func(net.Conn) {})
	for name, c := range map[string]struct {
		addr string
		says string
		// waits: it may yet become a memcached, so AllowDown lets it pass.
		waits bool
	}{
		"redis":         {redis.Addr(), "no memcached", false},
		"postgres":      {postgres.Addr(), "is it a memcached?", true},
		"silent":        {silent, "is it a memcached?", true},
		"http":          {saying(t, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"), "HTTP/1.1 400 Bad Request", false},
		"endless line":  {saying(t, strings.Repeat("x", 100_000)), "no memcached", false},
		"half a line":   {saying(t, "VERS"), "no memcached", false},
		"a newer form":  {saying(t, "VERSION seven\r\n"), `"seven"`, false},
		"old":           {saying(t, "VERSION 1.6.12\r\n"), "memcached 1.6.12; 1.6.13 or newer is needed", false},
		"very old":      {saying(t, "VERSION 1.5.22\r\n"), "memcached 1.5.22; 1.6.13 or newer is needed", false},
		"wants a login": {saying(t, "CLIENT_ERROR unauthenticated\r\n"), "a password", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := openWith(t, Options{Addrs: []string{c.addr}, DialTimeout: 500 * time.Millisecond})
			attachFails(t, st, false, c.addr, c.says)
			if c.waits {
				_, err := st.Attach(background(t), store.Config{Name: "users", AllowDown: true})
				if err != nil {
					t.Errorf("Attach with AllowDown: %v", err)
				}
				return
			}
			attachFails(t, st, true, c.addr, c.says)
		})
	}
}

// A server without compare-and-swap cannot keep a lease.
func TestServerWithoutCAS(t *testing.T) {
	t.Parallel()
	server := servertest.Memcached(t, servers.MemcachedOptions{Args: []string{"-C"}})
	attachFails(t, open(t, server.Addr()), true, "compare-and-swap")
}

func TestVersions(t *testing.T) {
	for text, want := range map[string][3]int{
		"1.6.18": {1, 6, 18}, "1.6.13-beta": {1, 6, 13}, "1.6.17_fork": {1, 6, 17}, "1.10.2": {1, 10, 2}, "2.0.0": {2, 0, 0}, "1.6.22.1": {1, 6, 22},
	} {
		if got, ok := parseVersion(text); !ok || got != want {
			t.Errorf("%q is %v, %v, want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "1", "1.6", "UNKNOWN", "a.b.c", "1.6.", "1.-6.1"} {
		if got, ok := parseVersion(text); ok {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
	if !before([3]int{1, 6, 12}, oldestVersion) || before([3]int{1, 6, 13}, oldestVersion) || before([3]int{1, 10, 0}, oldestVersion) || before([3]int{2, 0, 0}, oldestVersion) {
		t.Error("versions are not compared as numbers")
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.sock")
	l, err := net.Listen("unix", path)
	ok(t, err)
	serveProxy(t, l, shared.Get(t).Addr())
	name := "t" + store.NewToken().String()[:16]
	attachAs(t, open(t, path), name).set("k", "v")
	attachAs(t, open(t, "unix:"+path), name).holds("k", "v")
	attachAs(t, open(t, shared.Get(t).Addr()), name).holds("k", "v")
}

func TestTLS(t *testing.T) {
	cert, pool := certificate(t)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}})
	ok(t, err)
	p := serveProxy(t, l, shared.Get(t).Addr())

	r := attach(t, openWith(t, Options{Addrs: []string{p.addr()}, TLS: &tls.Config{RootCAs: pool}}))
	r.set("k", "v")
	r.holds("k", "v")

	attachFails(t, openWith(t, Options{Addrs: []string{p.addr()}, TLS: &tls.Config{}}), true, p.addr(), "TLS", "certificate")
	attachFails(t, openWith(t, Options{Addrs: []string{shared.Get(t).Addr()}, DialTimeout: time.Second, TLS: &tls.Config{RootCAs: pool}}), false, "TLS")
	attachFails(t, openWith(t, Options{Addrs: []string{p.addr()}, DialTimeout: time.Second}), false, "memcached")
}

// certificate makes one for 127.0.0.1, and the pool that trusts it.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	ok(t, err)
	parsed, err := x509.ParseCertificate(der)
	ok(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func TestClosedStore(t *testing.T) {
	st := open(t, shared.Get(t).Addr())
	r := attach(t, st)
	lease := r.wins("k", nil)
	ok(t, st.Close())
	ok(t, st.Close())
	_, err := r.Get(r.ctx, "k")
	for what, err := range map[string]error{"Get": err, "Ping": r.Ping(r.ctx), "Attach": second(st.Attach(r.ctx, store.Config{Name: "users", AllowDown: true})),
		"Fill": second(lease.Fill(r.ctx, nil, long))} {
		if !errors.Is(err, errStoreClosed) || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s after Close: %v, want that the store is closed", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// The server comes after the cache: nothing but a use is needed for it to be found.
func TestComesUpLater(t *testing.T) {
	t.Parallel()
	server := servertest.Memcached(t, servers.MemcachedOptions{})
	p := startProxy(t, server.Addr())
	p.refuse(true)
	st := open(t, p.addr())
	attachFails(t, st, false, p.addr())
	s, err := st.Attach(background(t), store.Config{Name: "users", AllowDown: true})
	ok(t, err)
	p.refuse(false)
	eventually(t, "the server is found", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return s.Ping(ctx) == nil
	})
}
