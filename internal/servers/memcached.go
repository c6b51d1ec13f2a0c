package servers

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
)

// MemcachedOptions change how memcached is started.
type MemcachedOptions struct {
	// Args are added to the command line: "-m", "64", ...
	Args []string
}

// Memcached starts a private memcached. If dir is empty, a temporary directory
// is made.
func Memcached(ctx context.Context, dir string, opts MemcachedOptions) (*Server, error) {
	path, err := find("memcached", "memcached")
	if err != nil {
		return nil, err
	}
	return launch(ctx, dir, &memcached{path: path, opts: opts})
}

type memcached struct {
	path string
	opts MemcachedOptions
}

func (m *memcached) name() string { return "memcached" }

func (m *memcached) url(port int) string { return addr(port) }

func (m *memcached) prepare(context.Context, string) error { return nil }

func (m *memcached) command(dir string, port int) spec {
	args := []string{"-l", "127.0.0.1", "-p", strconv.Itoa(port), "-U", "0"}
	if os.Geteuid() == 0 {
		args = append(args, "-u", "root") // it refuses to run as root unless told so
	}
	return spec{program: m.path, args: append(args, m.opts.Args...), dir: dir, quit: syscall.SIGTERM}
}

func (m *memcached) probe(ctx context.Context, _ string, port, pid int) (string, error) {
	conn, err := dial(ctx, port)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "stats\r\n"); err != nil {
		return "", err
	}
	fields, err := fieldLines(bufio.NewReader(conn), "STAT ", " ", "END")
	if err != nil {
		return "", err
	}
	if fields["pid"] != strconv.Itoa(pid) {
		return "", fmt.Errorf("process %s answers on port %d", fields["pid"], port)
	}
	return fields["version"], nil
}

func (m *memcached) save(context.Context, int) error { return nil }

func (m *memcached) clear(string) error { return nil }
