package cli

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

func startMemcached(t *testing.T, args ...string) string {
	t.Helper()
	return servertest.Memcached(t, servers.MemcachedOptions{Args: args}).Addr()
}

// Each fault that can be provoked, on a server of its own.
func TestDoctorMemcached(t *testing.T) {
	t.Parallel()
	a, b := startMemcached(t), startMemcached(t)
	healthy := examine(t, "--strict", "--memcached", a+","+b)
	healthy.allFine(t)
	if len(healthy.all) != 2*len(memcachedChecks)+1 {
		t.Errorf("%d findings", len(healthy.all))
	}
	healthy.finds(t, "item-size", levelOK, "1048576 bytes")
	for _, tt := range []struct {
		args  string
		check string
		want  level
		says  string
	}{
		{"-C", "cas", levelFail, "without -C"},
		{"-I 512k", "item-size", levelWarn, "524288 bytes"},
		{"-I 2m", "item-size", levelOK, "2097152 bytes"},
		{"-M", "memory", levelWarn, "evictions are off"},
		{"-o idle_timeout=60", "idle-timeout", levelWarn, "after 60 s"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			t.Parallel()
			e := examine(t, "--memcached", startMemcached(t, strings.Fields(tt.args)...))
			e.finds(t, tt.check, tt.want, tt.says)
		})
	}
	t.Run("differ", func(t *testing.T) {
		t.Parallel()
		e := examine(t, "--memcached", startMemcached(t)+","+startMemcached(t, "-I", "512k"))
		e.finds(t, "alike", levelWarn, "item_size_max differs: 1048576 at 127.0.0.1:")
	})
	t.Run("evicts", func(t *testing.T) {
		t.Parallel()
		addr := startMemcached(t, "-m", "2")
		fillMemcached(t, addr)
		e := examine(t, "--memcached", addr)
		e.finds(t, "memory", levelWarn, "evicted since the start")
	})
	t.Run("no memcached", func(t *testing.T) {
		t.Parallel()
		e := examine(t, "--memcached", servertest.Redis(t, servers.RedisOptions{}).Addr())
		e.finds(t, "connect", levelFail, "this is no memcached")
	})
	t.Run("one of two is down", func(t *testing.T) {
		t.Parallel()
		e := examine(t, "--memcached", startMemcached(t)+",127.0.0.1:1")
		e.finds(t, "connect", levelFail, "connection refused")
		e.finds(t, "cas", levelOK, "on")
	})
}

// fillMemcached stores more than the server has room for.
func fillMemcached(t *testing.T, addr string) {
	t.Helper()
	n, err := meetMemcached(context.WithoutCancel(t.Context()), &doctorFlags{}, addr)
	must(t, err)
	defer n.Close()
	for i := range 200 {
		const size = 100_000
		if answer, err := n.Ask(t.Context(), fmt.Sprintf("ms k%d %d\r\n%s", i, size, strings.Repeat("x", size))); err != nil || answer != "HD" {
			t.Fatal(answer, err)
		}
	}
}

// The doctor leaves nothing behind: no item, and not the name of the server's life that a
// store puts there.
func TestDoctorMemcachedReadsOnly(t *testing.T) {
	t.Parallel()
	addr := startMemcached(t)
	examine(t, "--memcached", addr)
	n, err := meetMemcached(t.Context(), &doctorFlags{}, addr)
	must(t, err)
	defer n.Close()
	for _, name := range []string{"curr_items", "total_items", "cmd_set", "cmd_get", "cmd_touch", "cmd_meta", "cmd_flush"} {
		if n.number(name) != 0 {
			t.Errorf("%s is %d", name, n.number(name))
		}
	}
}

// A server that says nothing is given up.
func TestDoctorMemcachedIsSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	e := examine(t, "--memcached", l.Addr().String(), "--timeout", "50ms")
	e.finds(t, "connect", levelFail, "timeout")
}
