package integration

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/memcachestore"
	"github.com/onefill/onefill/store"
)

// memcachedLease is the shortest lease that memcached can give.
const memcachedLease = 2 * time.Second

// granularity is what the end of a lease on memcached may add to its time: leases last
// whole seconds, and waiters, whom nobody wakes, look again after half a second.
const granularity = 2 * time.Second

// onMemcached is a fleet on the shared memcached.
func onMemcached(t *testing.T, n int, cfg config) fleet {
	t.Helper()
	cfg.Memcached = []string{sharedMemcached.Get(t).Addr()}
	return startFleet(t, n, cfg)
}

// ownMemcached is a fleet on a memcached that nothing else uses.
func ownMemcached(t *testing.T, cfg config) (*servers.Server, fleet) {
	t.Helper()
	server := servertest.Memcached(t, servers.MemcachedOptions{})
	cfg.Memcached = []string{server.Addr()}
	return server, startFleet(t, processes, cfg)
}

// storeView is the test's own look into a fleet's memcached, past every cache.
type storeView struct {
	t       testing.TB
	session store.Session
}

func viewOf(t testing.TB, cfg config) *storeView {
	t.Helper()
	st := memcachestore.New(cfg.Memcached...)
	t.Cleanup(func() { st.Close() })
	session, err := st.Attach(t.Context(), store.Config{Name: cfg.Name})
	if err != nil {
		t.Fatal(err)
	}
	return &storeView{t, session}
}

func (v *storeView) wantStored(key string, version int64) {
	v.t.Helper()
	item, err := v.session.Get(v.t.Context(), key)
	if err != nil {
		v.t.Fatal(err)
	}
	env, err := store.Decode(item.Data)
	if want := fmt.Sprintf(`"Version":%d}`, version); err != nil || !strings.Contains(string(env.Payload), want) {
		v.t.Errorf("the store holds %q (found: %v, %v), want version %d", env.Payload, item.Found, err, version)
	}
}

// server is the address of the server that has the key.
func (v *storeView) server(key string) string {
	v.t.Helper()
	s, ok := v.session.(interface{ Server(string) string })
	if !ok {
		v.t.Fatal("memcachestore's session does not say which server has a key, so one that is down is the whole store to the core")
	}
	return s.Server(key)
}

// rawMemcached speaks the text protocol, for what a test says itself.
type rawMemcached struct {
	t    testing.TB
	conn net.Conn
	in   *bufio.Reader
}

func dialMemcached(t testing.TB, server *servers.Server) *rawMemcached {
	t.Helper()
	conn, err := net.DialTimeout("tcp", server.Addr(), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &rawMemcached{t, conn, bufio.NewReader(conn)}
}

// say returns the one line that is the answer.
func (m *rawMemcached) say(format string, args ...any) string {
	m.t.Helper()
	m.conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(m.conn, format+"\r\n", args...)
	line, err := m.in.ReadString('\n')
	if err != nil {
		m.t.Fatalf(format+": %v", append(args, err)...)
	}
	return strings.TrimRight(line, "\r\n")
}

// flushAll makes the server forget everything. It returns when what is stored from
// now on stays: memcached notes the moment in seconds.
func flushAll(t testing.TB, server *servers.Server) {
	t.Helper()
	m := dialMemcached(t, server)
	if got := m.say("flush_all"); got != "OK" {
		t.Fatalf("flush_all: %s", got)
	}
	poll(t, "the server keeps what is stored after the flush", func() bool {
		return m.next() > 0 && m.say("touch probe 0") == "TOUCHED"
	})
}

// next makes the server number an item, and returns the number.
func (m *rawMemcached) next() (cas int) {
	m.t.Helper()
	if got := m.say("ms probe 0 c\r\n"); !strings.HasPrefix(got, "HD c") {
		m.t.Fatalf("ms: %s", got)
	} else if _, err := fmt.Sscanf(got, "HD c%d", &cas); err != nil {
		m.t.Fatal(err)
	}
	return cas
}

// count makes the server number items until the next one gets number.
func (m *rawMemcached) count(number int) {
	m.t.Helper()
	for cas := 0; cas != number-1; {
		if cas = m.next(); cas >= number {
			m.t.Fatalf("the server is at %d already, %d was wanted next", cas, number)
		}
	}
}

// number is that of an item.
func (m *rawMemcached) number(item string) (cas uint64) {
	m.t.Helper()
	got := m.say("mg %s c", item)
	if _, err := fmt.Sscanf(got, "HD c%d", &cas); err != nil {
		m.t.Fatalf("mg %s: %s", item, got)
	}
	return cas
}

// memcachedKey is a cache's key in memcached, as docs/protocols.md has it.
func memcachedKey(name, key string) string { return "of:" + name + ":" + key }
