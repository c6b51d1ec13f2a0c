package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// PostgresOptions change how Postgres is started.
type PostgresOptions struct {
	// Settings are added to the command line: "log_statement=all", ...
	Settings []string
}

// Postgres starts a private Postgres with one database and one superuser, both
// "postgres", who needs no password. It is made for tests: fsync is off, so a
// crash of the machine may damage its data, a crash of the server does not. If
// dir is empty, a temporary directory is made; as root, a given dir must be
// reachable for the account "postgres" (or "nobody"), since Postgres refuses to
// run as root.
func Postgres(ctx context.Context, dir string, opts PostgresOptions) (*Server, error) {
	const pkg, debian = "postgresql", "/usr/lib/postgresql/*/bin"
	path, err := find("postgres", pkg, debian)
	if err != nil {
		return nil, err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return nil, err
	}
	// The initdb of the same version lies beside it.
	initdb := filepath.Join(filepath.Dir(path), "initdb")
	if _, err := os.Stat(initdb); err != nil {
		if initdb, err = find("initdb", pkg, debian); err != nil {
			return nil, err
		}
	}
	p := &postgres{path: path, initdb: initdb, opts: opts}
	if os.Geteuid() == 0 {
		if p.user, err = unprivileged(); err != nil {
			return nil, fmt.Errorf("start postgres: %w", err)
		}
	}
	return launch(ctx, dir, p)
}

type postgres struct {
	path, initdb string
	opts         PostgresOptions
	user         *account
}

// unprivileged finds an account that root can run Postgres as.
func unprivileged() (*account, error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if uidErr == nil && gidErr == nil && uid != 0 {
			return &account{uint32(uid), uint32(gid)}, nil
		}
	}
	return nil, errors.New("postgres refuses to run as root, and there is no account postgres or nobody to run it as")
}

func (p *postgres) name() string { return "postgres" }

func (p *postgres) url(port int) string {
	return "postgres://postgres@" + addr(port) + "/postgres?sslmode=disable"
}

func dataDir(dir string) string { return filepath.Join(dir, "data") }

func (p *postgres) prepare(ctx context.Context, dir string) error {
	data := dataDir(dir)
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	if p.user != nil {
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
		if err := os.Chown(data, int(p.user.uid), int(p.user.gid)); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, p.initdb, "-D", data, "-U", "postgres", "-A", "trust",
		"-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions")
	cmd.Dir = dir
	setAttributes(cmd, p.user)
	clearParentDeathSignal(cmd) // this goroutine has no thread of its own
	return runProgram(cmd)
}

func (p *postgres) command(dir string, port int) spec {
	settings := append([]string{
		"listen_addresses=127.0.0.1", "port=" + strconv.Itoa(port), "unix_socket_directories=",
		"fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200",
	}, p.opts.Settings...)
	args := []string{"-D", dataDir(dir)}
	for _, setting := range settings {
		args = append(args, "-c", setting)
	}
	return spec{program: p.path, args: args, dir: dataDir(dir), user: p.user, quit: syscall.SIGINT}
}

func (p *postgres) probe(ctx context.Context, dir string, port, pid int) (string, error) {
	version, err := postgresHandshake(ctx, port)
	if err != nil {
		return "", err
	}
	lines, err := pidFile(dir)
	if err != nil {
		return "", err
	}
	if lines[0] != strconv.Itoa(pid) {
		return "", fmt.Errorf("process %s owns the data directory", lines[0])
	}
	// "15.13 (Debian 15.13-0+deb12u1)": the first word is the version.
	version, _, _ = strings.Cut(version, " ")
	return version, nil
}

// pidFile reads postmaster.pid: pid, directory, start, port, socket, address,
// shared memory key and id, state.
func pidFile(dir string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(dataDir(dir), "postmaster.pid"))
	if err != nil {
		return nil, err
	}
	lines := strings.Split(string(data), "\n")
	if len(lines) < 8 {
		return nil, fmt.Errorf("postmaster.pid has %d lines", len(lines))
	}
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return lines, nil
}

func (p *postgres) save(context.Context, int) error { return nil }

func (p *postgres) clear(dir string) error {
	// The file is still there after a SIGKILL only; then nobody has removed the
	// shared memory either.
	if lines, err := pidFile(dir); err == nil {
		if _, id, ok := strings.Cut(lines[6], " "); ok {
			if n, err := strconv.Atoi(strings.TrimSpace(id)); err == nil {
				removeSharedMemory(n)
			}
		}
	}
	return os.RemoveAll(dataDir(dir))
}
