package lab

import (
	"bufio"
	"context"
	"maps"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/memcached"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

// TestPlainMemcached: what the recipes ask of a store, on a real one, and that each
// command is counted once.
func TestPlainMemcached(t *testing.T) {
	ctx := t.Context()
	s, err := attachMemcached(ctx, servertest.Memcached(t, servers.MemcachedOptions{}).Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	p, err := openPlain(ctx, s.spec)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	before := counted(t, s)

	stored := func(want string, wantFound bool) {
		t.Helper()
		if value, found, err := p.Get(ctx, "k"); err != nil || found != wantFound || value != want {
			t.Fatalf("Get = %q, %v, %v; want %q, %v", value, found, err, want, wantFound)
		}
	}
	done := func(want bool) func(got bool, err error) {
		return func(got bool, err error) {
			t.Helper()
			if err != nil || got != want {
				t.Fatalf("%v, %v; want %v", got, err, want)
			}
		}
	}
	stored("", false)
	done(true)(p.Add(ctx, "k", "", time.Minute))
	stored("", true)
	done(false)(p.Add(ctx, "k", "second", time.Minute))
	if err := p.Set(ctx, "k", "a\r\nEND\r\nb", time.Minute); err != nil {
		t.Fatal(err)
	}
	stored("a\r\nEND\r\nb", true)
	done(true)(p.Delete(ctx, "k"))
	done(false)(p.Delete(ctx, "k"))
	stored("", false)

	total, by := difference(before, counted(t, s))
	if want := map[string]int64{"get": 4, "set": 3, "delete": 2}; total != 9 || !maps.Equal(by, want) {
		t.Errorf("counted %d: %v, want %v", total, by, want)
	}
	if s.version == "" || s.push {
		t.Errorf("version %q, push %v", s.version, s.push)
	}
}

func counted(t *testing.T, s *storeServer) map[string]int64 {
	t.Helper()
	calls, err := s.commands(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

// TestPlainMemcachedAfterAnError forces: a command's context ends before the server
// answers | the late answer arrives | the next command. It must not be given the
// other's answer.
func TestPlainMemcachedAfterAnError(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	late := make(chan struct{}) // closed when the first command is given up
	go answerLate(listener, late)
	p := newPlainMemcached(listener.Addr().String())
	defer p.Close()

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := p.Get(ctx, "first"); err == nil {
		t.Fatal("the server has not answered, and there is no error")
	}
	close(late)
	if value, found, err := p.Get(t.Context(), "second"); err != nil || !found || value != "second" {
		t.Errorf("the answer to the second command is %q, %v, %v", value, found, err)
	}
	if _, _, err := p.Get(ctx, "third"); err == nil {
		t.Error("a command whose context had ended was sent")
	}
}

// answerLate is a server whose values are their keys; the first connection is
// answered when late is closed.
func answerLate(listener net.Listener, late <-chan struct{}) {
	for first := true; ; first = false {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				if first {
					<-late
				}
				key := strings.TrimPrefix(lines.Text(), "get ")
				reply := []string{"VALUE " + key + " 0 " + strconv.Itoa(len(key)), key, "END", ""}
				if _, err := conn.Write([]byte(strings.Join(reply, "\r\n"))); err != nil {
					return
				}
			}
		}()
	}
}

func TestMemcachedCalls(t *testing.T) {
	stats := map[string]string{"cmd_get": "5", "cmd_set": "3", "cmd_touch": "0", "delete_hits": "2", "delete_misses": "1"}
	calls, err := memcached.Calls(stats)
	if want := map[string]int64{"get": 5, "set": 3, "touch": 0, "delete": 3}; err != nil || !maps.Equal(calls, want) {
		t.Errorf("%v, %v; want %v", calls, err, want)
	}
	delete(stats, "cmd_set")
	if _, err := memcached.Calls(stats); err == nil {
		t.Error("stats without cmd_set were accepted")
	}
}

func TestWholeSeconds(t *testing.T) {
	for d, want := range map[time.Duration]int64{1: 1, time.Second: 1, time.Second + 1: 2, 2 * time.Second: 2} {
		if got := wholeSeconds(d); got != want {
			t.Errorf("%v is %d, want %d", d, got, want)
		}
	}
}
