package servers

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// RedisOptions change how Redis is started. The zero value is a server without
// password and without persistence.
type RedisOptions struct {
	// Program replaces what RedisProgram finds.
	Program string
	// Args are added to the command line: "--maxmemory", "10mb", ...
	Args []string
	// Config is a configuration file, which the server may rewrite. A sentinel
	// needs one, and "--sentinel" in Args.
	Config string
	// Password is the default user's.
	Password string
	// TLSCert, TLSKey and TLSCA are files. If TLSCert is set, the port speaks TLS
	// only, and clients need no certificate.
	TLSCert, TLSKey, TLSCA string
}

// Redis starts a private Redis. If dir is empty, a temporary directory is made.
func Redis(ctx context.Context, dir string, opts RedisOptions) (*Server, error) {
	path, err := RedisProgram()
	if opts.Program != "" {
		path, err = find(opts.Program, "redis-server")
	}
	if err != nil {
		return nil, err
	}
	return launch(ctx, dir, &redis{path: path, opts: opts})
}

// RedisProgram is the path of redis-server, or of valkey-server where there is no other.
func RedisProgram() (string, error) {
	path, err := find("redis-server", "redis-server")
	if err != nil {
		if valkey, e := find("valkey-server", "valkey-server"); e == nil {
			return valkey, nil
		}
	}
	return path, err
}

type redis struct {
	path string
	opts RedisOptions
}

const snapshot = "dump.rdb"

func (r *redis) name() string { return "redis" }

func (r *redis) url(port int) string {
	scheme, user := "redis", ""
	if r.opts.TLSCert != "" {
		scheme = "rediss"
	}
	if r.opts.Password != "" {
		user = ":" + r.opts.Password + "@"
	}
	return scheme + "://" + user + addr(port)
}

func (r *redis) prepare(context.Context, string) error { return nil }

func (r *redis) command(dir string, port int) spec {
	var args []string
	if r.opts.Config != "" {
		args = append(args, r.opts.Config)
	}
	args = append(args,
		"--bind", "127.0.0.1", "--dir", dir, "--dbfilename", snapshot,
		"--save", "", "--appendonly", "no", "--daemonize", "no")
	if r.opts.TLSCert == "" {
		args = append(args, "--port", strconv.Itoa(port))
	} else {
		args = append(args, "--port", "0", "--tls-port", strconv.Itoa(port),
			"--tls-cert-file", r.opts.TLSCert, "--tls-key-file", r.opts.TLSKey,
			"--tls-ca-cert-file", r.opts.TLSCA, "--tls-auth-clients", "no")
	}
	if r.opts.Password != "" {
		args = append(args, "--requirepass", r.opts.Password)
	}
	return spec{program: r.path, args: append(args, r.opts.Args...), dir: dir, quit: syscall.SIGTERM}
}

func (r *redis) probe(ctx context.Context, _ string, port, pid int) (string, error) {
	info, err := r.call(ctx, port, "INFO server")
	if err != nil {
		return "", err
	}
	fields, err := fieldLines(bufio.NewReader(strings.NewReader(info+"END\n")), "", ":", "END")
	if err != nil {
		return "", err
	}
	if fields["process_id"] != strconv.Itoa(pid) {
		return "", fmt.Errorf("process %s answers on port %d", fields["process_id"], port)
	}
	if v := fields["valkey_version"]; v != "" {
		return v, nil
	}
	return fields["redis_version"], nil
}

func (r *redis) save(ctx context.Context, port int) error {
	_, err := r.call(ctx, port, "SAVE")
	return err
}

func (r *redis) clear(dir string) error {
	if err := os.RemoveAll(filepath.Join(dir, "appendonlydir")); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, snapshot)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// call sends one inline command and returns its simple or bulk reply.
func (r *redis) call(ctx context.Context, port int, command string) (string, error) {
	conn, err := dial(ctx, port)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if r.opts.TLSCert != "" {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // the pid in the answer identifies it
	}
	reader := bufio.NewReader(conn)
	if r.opts.Password != "" {
		if _, err := ask(conn, reader, "AUTH "+r.opts.Password); err != nil {
			return "", err
		}
	}
	return ask(conn, reader, command)
}

func ask(conn net.Conn, reader *bufio.Reader, command string) (string, error) {
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		return "", err
	}
	line, err := reader.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	switch {
	case strings.HasPrefix(line, "+"):
		return line[1:], nil
	case strings.HasPrefix(line, "$"):
		size, err := strconv.Atoi(line[1:])
		if err != nil || size < 0 {
			return "", fmt.Errorf("reply %q", line)
		}
		body := make([]byte, size+2)
		_, err = io.ReadFull(reader, body)
		return string(body[:size]), err
	}
	return "", fmt.Errorf("reply %q", line)
}
