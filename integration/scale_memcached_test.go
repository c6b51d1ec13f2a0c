package integration

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/memcachestore"
	"github.com/onefill/onefill/store"
)

// TestScaleMemcached measures what docs/scale.md computes with: memory by the size of the
// slabs' chunks, CPU by what the server says that it has used.
func TestScaleMemcached(t *testing.T) {
	const procs, each, name = 16, 400, "users"
	server := servertest.Memcached(t, servers.MemcachedOptions{})
	raw := dialMemcached(t, server)
	before := raw.stat("stats", "total_connections") // of those that are open now, one may be about to be closed
	sessions := memcachedSessions(t, server, procs, name)

	for _, c := range []struct {
		id    string
		bytes int
	}{{"item100", 100}, {"item1k", 1000}} {
		must(t, set(sessions[0], "k0000000", c.bytes))
		class := raw.class(t, memcachedKey(name, "k0000000"))
		wantCost(t, c.id, raw.chunk(t, class))
	}

	data, leases := envelope(1000), make([][]store.Lease, procs)
	all := func(do func(p int, s store.Session, key string) error) (cpu float64) {
		before := raw.cpu()
		var wg sync.WaitGroup
		for p, s := range sessions {
			wg.Go(func() {
				for i := range each {
					if err := do(p, s, fmt.Sprintf("%d%07d", p, i)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		return (raw.cpu() - before) / (procs * each)
	}
	ctx := context.Background()
	all(func(p int, s store.Session, key string) error {
		a, err := s.Acquire(ctx, key, store.Request{Token: store.NewToken(), Try: 1, TTL: time.Hour})
		if err == nil && a.State != store.Won {
			err = fmt.Errorf("the lease of %s is %v", key, a.State)
		}
		leases[p] = append(leases[p], a.Lease)
		return err
	})
	wantCost(t, "msCPU", all(func(p int, _ store.Session, key string) error {
		stored, err := leases[p][0].Fill(ctx, data, time.Hour)
		if leases[p] = leases[p][1:]; err == nil && !stored {
			err = fmt.Errorf("the fill of %s was refused", key)
		}
		return err
	}))
	sent := raw.stat("stats", "bytes_written")
	wantCost(t, "mgCPU", all(func(_ int, s store.Session, key string) error {
		item, err := s.Get(ctx, key)
		if err == nil && !item.Found {
			err = fmt.Errorf("%s is not there", key)
		}
		return err
	}))
	wantCost(t, "mgOut", (raw.stat("stats", "bytes_written")-sent)/(procs*each))
	wantCost(t, "memcachedConnections", (raw.stat("stats", "total_connections")-before)/procs)
	scaleMemcachedConnections(t)
}

func memcachedSessions(t *testing.T, server *servers.Server, n int, name string) []store.Session {
	t.Helper()
	sessions := make([]store.Session, n)
	for i := range sessions {
		st := memcachestore.New(server.Addr())
		t.Cleanup(func() { st.Close() })
		session, err := st.Attach(t.Context(), store.Config{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		sessions[i] = session
	}
	return sessions
}

// scaleMemcachedConnections: what the process grows by, which is all that can be seen of it.
func scaleMemcachedConnections(t *testing.T) {
	const conns = 900 // the server's limit is 1,024
	server := servertest.Memcached(t, servers.MemcachedOptions{})
	before, ok := resident(server.Pid())
	if !ok {
		t.Log("there is no /proc here: the memory of a connection is not measured")
		return
	}
	for range conns {
		if got := dialMemcached(t, server).say("mn"); got != "MN" {
			t.Fatalf("mn: %s", got)
		}
	}
	after, _ := resident(server.Pid())
	wantCost(t, "memcachedConnection", float64(after-before)/conns)
}

// resident is the memory of a process, in bytes, where the system tells.
func resident(pid int) (bytes int, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, false
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0, false
	}
	kib, err := strconv.Atoi(fields[0])
	return kib << 10, err == nil
}

// stats asks for one kind of statistics.
func (m *rawMemcached) stats(kind string) map[string]string {
	m.t.Helper()
	m.conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(m.conn, "%s\r\n", kind)
	found := map[string]string{}
	for {
		line, err := m.in.ReadString('\n')
		if err != nil {
			m.t.Fatalf("%s: %v", kind, err)
		}
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return found // END
		}
		found[fields[1]] = fields[2]
	}
}

func (m *rawMemcached) stat(kind, name string) float64 {
	m.t.Helper()
	n, err := strconv.ParseFloat(m.stats(kind)[name], 64)
	if err != nil {
		m.t.Fatalf("%s: %s: %v", kind, name, err)
	}
	return n
}

// cpu is what the server has used, in µs.
func (m *rawMemcached) cpu() float64 {
	m.t.Helper()
	return 1e6 * (m.stat("stats", "rusage_user") + m.stat("stats", "rusage_system"))
}

// class is the slab class that an item is in.
func (m *rawMemcached) class(t *testing.T, key string) (class int) {
	t.Helper()
	got := m.say("me %s", key)
	_, rest, _ := strings.Cut(got, "cls=")
	if _, err := fmt.Sscanf(rest, "%d", &class); err != nil {
		t.Fatalf("me %s: %s", key, got)
	}
	return class
}

// chunk is how much memory an item of a class takes, used or not.
func (m *rawMemcached) chunk(t *testing.T, class int) float64 {
	t.Helper()
	return m.stat("stats slabs", fmt.Sprintf("%d:chunk_size", class))
}
