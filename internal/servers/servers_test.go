//go:build unix

package servers_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

func each(t *testing.T, do func(t *testing.T, s *servers.Server)) {
	t.Run("redis", func(t *testing.T) { t.Parallel(); do(t, servertest.Redis(t, servers.RedisOptions{})) })
	t.Run("memcached", func(t *testing.T) { t.Parallel(); do(t, servertest.Memcached(t, servers.MemcachedOptions{})) })
	t.Run("postgres", func(t *testing.T) { t.Parallel(); do(t, servertest.Postgres(t, servers.PostgresOptions{})) })
}

// question makes a server say something, whatever it is.
func question(s *servers.Server) []byte {
	switch s.Name() {
	case "redis":
		return []byte("PING\r\n")
	case "memcached":
		return []byte("version\r\n")
	}
	return []byte{0, 0, 0, 8, 4, 210, 22, 47} // Postgres: "do you speak TLS?"
}

// answers says whether the server answers within the given time.
func answers(s *servers.Server, within time.Duration) error {
	conn, err := net.DialTimeout("tcp", s.Addr(), within)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(within))
	if _, err := conn.Write(question(s)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 64))
	return err
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestLifecycle(t *testing.T) {
	each(t, func(t *testing.T, s *servers.Server) {
		if s.Version() == "" || s.Version()[0] < '0' || s.Version()[0] > '9' {
			t.Errorf("version %q", s.Version())
		}
		address, first := s.Addr(), s.Pid()
		if err := answers(s, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := answers(s, time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("after Kill: %v, want a refusal", err)
		}
		if err := s.Pause(); err == nil {
			t.Error("Pause of a killed server: no error")
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		second := s.Pid()
		if s.Addr() != address || second == first {
			t.Errorf("restarted at %s as %d, was at %s as %d", s.Addr(), second, address, first)
		}
		if err := answers(s, 5*time.Second); err != nil {
			t.Error("after Restart:", err)
		}
		for range 2 {
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
		}
		if alive(first) || alive(second) {
			t.Errorf("a process is left: %d %v, %d %v", first, alive(first), second, alive(second))
		}
		if _, err := os.Stat(s.Dir()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the directory is left: %v", err)
		}
		if err := s.Restart(t.Context()); err == nil {
			t.Error("Restart after Stop: no error")
		}
	})
}

// A paused server keeps its port and says nothing; Stop works on it too.
func TestPause(t *testing.T) {
	each(t, func(t *testing.T, s *servers.Server) {
		if err := s.Pause(); err != nil {
			t.Fatal(err)
		}
		if err := answers(s, 200*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("paused: %v, want a timeout", err)
		}
		if err := s.Continue(); err != nil {
			t.Fatal(err)
		}
		if err := answers(s, 5*time.Second); err != nil {
			t.Error("continued:", err)
		}
		if err := s.Pause(); err != nil {
			t.Fatal(err)
		}
		pid := s.Pid()
		if err := s.Stop(); err != nil || alive(pid) {
			t.Errorf("stop while paused: %v, alive: %v", err, alive(pid))
		}
	})
}

func redisSay(t *testing.T, s *servers.Server, command string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", s.Addr(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	io.WriteString(conn, command+"\r\n")
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func TestRedisRestartKeepsOrLosesData(t *testing.T) {
	t.Parallel()
	s := servertest.Redis(t, servers.RedisOptions{})
	redisSay(t, s, "SET k v")
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := redisSay(t, s, "EXISTS k"); got != ":1" {
		t.Errorf("after Restart: EXISTS %s, want :1", got)
	}
	if err := s.RestartEmpty(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := redisSay(t, s, "EXISTS k"); got != ":0" {
		t.Errorf("after RestartEmpty: EXISTS %s, want :0", got)
	}
}

func TestPostgresRestartEmpty(t *testing.T) {
	t.Parallel()
	s := servertest.Postgres(t, servers.PostgresOptions{})
	marker := s.Dir() + "/data/marker"
	if err := os.WriteFile(marker, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.RestartEmpty(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(marker); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old data directory is still there: %v", err)
	}
}

func TestRedisPassword(t *testing.T) {
	t.Parallel()
	s := servertest.Redis(t, servers.RedisOptions{Password: "secret"})
	if got := redisSay(t, s, "PING"); !strings.HasPrefix(got, "-NOAUTH") {
		t.Errorf("without the password: %s", got)
	}
	if want := "redis://:secret@" + s.Addr(); s.URL() != want {
		t.Errorf("URL %s, want %s", s.URL(), want)
	}
}

func TestBadArgumentIsReported(t *testing.T) {
	t.Parallel()
	_, err := servers.Redis(t.Context(), t.TempDir(), servers.RedisOptions{Args: []string{"--no-such-directive", "1"}})
	if err == nil || !strings.Contains(err.Error(), "no-such-directive") {
		t.Errorf("want the server's own message, got: %v", err)
	}
}

func TestNotInstalled(t *testing.T) {
	_, err := servers.Redis(t.Context(), "", servers.RedisOptions{Program: "no-such-redis"})
	var missing *servers.NotInstalledError
	if !errors.Is(err, servers.ErrNotInstalled) || !errors.As(err, &missing) {
		t.Fatalf("got %v", err)
	}
	if missing.Program != "no-such-redis" || missing.Package != "redis-server" {
		t.Errorf("got %+v", *missing)
	}
}

// Where there is no redis-server, valkey-server does as well; who has neither is told of the first.
func TestRedisProgram(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	var missing *servers.NotInstalledError
	if path, err := servers.RedisProgram(); !errors.As(err, &missing) || missing.Program != "redis-server" {
		t.Errorf("neither: %q, %v", path, err)
	}
	for _, program := range []string{"valkey-server", "redis-server"} {
		want := filepath.Join(dir, program)
		if err := os.WriteFile(want, nil, 0o755); err != nil {
			t.Fatal(err)
		}
		if path, err := servers.RedisProgram(); path != want || err != nil {
			t.Errorf("with %s: %q, %v", program, path, err)
		}
	}
}

const childEnv = "ONEFILL_TEST_SERVERS_CHILD"

// TestDiesWithParent kills a process that has started servers with SIGKILL, so
// that it cannot clean up, and waits for the servers' end.
func TestDiesWithParent(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		startAndHang()
		return
	}
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no /proc: the parent's death is noticed on Linux only")
	}
	servertest.Redis(t, servers.RedisOptions{}).Stop()         // fails or skips here
	servertest.Memcached(t, servers.MemcachedOptions{}).Stop() // if not installed
	cmd := exec.Command(os.Args[0], "-test.run=^TestDiesWithParent$")
	cmd.Env = append(os.Environ(), childEnv+"=1", "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var redis, memcached int
	_, err = fmt.Fscanf(out, "%d %d\n", &redis, &memcached)
	cmd.Process.Kill()
	cmd.Wait()
	if err != nil {
		t.Fatal("the child did not say its servers' pids:", err)
	}
	for _, pid := range []int{redis, memcached} {
		deadline := time.After(10 * time.Second)
		for running(pid) {
			select {
			case <-deadline:
				syscall.Kill(pid, syscall.SIGKILL)
				t.Fatalf("server %d outlived its parent", pid)
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

// running: a dead child whose new parent has not yet waited for it is a zombie,
// which Kill(pid, 0) still finds.
func running(pid int) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	state := data[strings.LastIndexByte(string(data), ')')+2]
	return state != 'Z' && state != 'X'
}

func startAndHang() {
	r, err := servers.Redis(context.Background(), "", servers.RedisOptions{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	m, err := servers.Memcached(context.Background(), "", servers.MemcachedOptions{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(r.Pid(), m.Pid())
	select {}
}
