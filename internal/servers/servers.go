// Package servers starts private Redis, memcached and Postgres servers for tests
// and for the lab: on a free port of 127.0.0.1, in a directory of their own,
// stopped by their process id. On Linux they die with the process that started
// them, so a killed test run leaves nothing behind.
package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// ErrNotInstalled is wrapped by a [*NotInstalledError].
var ErrNotInstalled = errors.New("server program not installed")

// NotInstalledError says which program is missing and what brings it.
type NotInstalledError struct {
	Program string // "redis-server"
	Package string // the Debian package
}

func (e *NotInstalledError) Error() string {
	return fmt.Sprintf("%s is not installed: put it on PATH (Debian: apt-get install %s)", e.Program, e.Package)
}

// Unwrap makes errors.Is(err, ErrNotInstalled) work.
func (e *NotInstalledError) Unwrap() error { return ErrNotInstalled }

const (
	startTimeout = 30 * time.Second
	stopTimeout  = 5 * time.Second
	portAttempts = 5
)

// Server is a running, paused, killed or stopped server. Its address never
// changes. It is safe for concurrent use.
type Server struct {
	kind kind
	dir  string
	// ownDir: the directory was made here and is removed by Stop.
	ownDir bool
	port   int

	// mu guards what follows. It is held while the server starts and stops, so
	// that Stop during Restart waits for it and then stops the new process.
	mu      sync.Mutex
	proc    *process
	version string
	stopped bool
}

// kind is what one server program needs; redis.go, memcached.go and postgres.go
// have one each.
type kind interface {
	name() string
	url(port int) string
	// prepare makes the directory ready for the first start.
	prepare(ctx context.Context, dir string) error
	// command returns the program and its arguments.
	command(dir string, port int) spec
	// probe asks the server that process pid should be. An error means "not yet".
	probe(ctx context.Context, dir string, port, pid int) (version string, err error)
	// save makes the running server's data survive a stop, where it can.
	save(ctx context.Context, port int) error
	// clear removes what a stopped server left in its directory.
	clear(dir string) error
}

// launch starts a server on a port that is free now; whoever takes it in the
// meantime costs one attempt.
func launch(ctx context.Context, dir string, k kind) (*Server, error) {
	s := &Server{kind: k, dir: dir}
	if dir == "" {
		made, err := os.MkdirTemp("", "onefill-"+k.name()+"-")
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", k.name(), err)
		}
		s.dir, s.ownDir = made, true
	}
	if err := k.prepare(ctx, s.dir); err != nil {
		s.removeDir()
		return nil, fmt.Errorf("start %s: %w", k.name(), err)
	}
	var err error
	for range portAttempts {
		if s.port, err = freePort(); err != nil {
			break
		}
		if err = s.start(ctx); err == nil || ctx.Err() != nil || !errors.Is(err, errExited) {
			break
		}
	}
	if err != nil {
		s.removeDir()
		return nil, err
	}
	return s, nil
}

// start runs the program on s.port and waits until it answers.
func (s *Server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	proc, err := startProcess(s.kind.command(s.dir, s.port), filepath.Join(s.dir, "log"))
	if err != nil {
		return fmt.Errorf("start %s: %w", s.kind.name(), err)
	}
	version, err := s.await(ctx, proc)
	if err != nil {
		proc.stop(stopTimeout)
		return fmt.Errorf("start %s on port %d: %w%s", s.kind.name(), s.port, err, logTail(s.dir))
	}
	s.proc, s.version = proc, version
	return nil
}

// await polls until the server answers and is known to be proc, not somebody
// else on the same port.
func (s *Server) await(ctx context.Context, proc *process) (string, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		probeCtx, cancel := context.WithTimeout(ctx, time.Second)
		version, err := s.kind.probe(probeCtx, s.dir, s.port, proc.pid())
		cancel()
		if err == nil {
			return version, nil
		}
		last = err
		select {
		case <-proc.done:
			return "", fmt.Errorf("%w: %v", errExited, proc.waitErr)
		case <-ctx.Done():
			return "", fmt.Errorf("no answer: %w (last: %v)", ctx.Err(), last)
		case <-tick.C:
		}
	}
}

// Name is "redis", "memcached" or "postgres".
func (s *Server) Name() string { return s.kind.name() }

// Addr is host:port.
func (s *Server) Addr() string { return addr(s.port) }

// Port is the TCP port.
func (s *Server) Port() int { return s.port }

// URL is the address as clients take it: redis://…, postgres://…; for memcached
// it is Addr.
func (s *Server) URL() string { return s.kind.url(s.port) }

// Dir is the server's directory, which holds its file "log".
func (s *Server) Dir() string { return s.dir }

// Version is what the server says about itself, such as "7.0.15".
func (s *Server) Version() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// Pid is the process id of the running server, 0 if none runs.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.pid()
}

// Stop ends the server for good, waits for its end and removes the directory if
// it was made here. Further calls do nothing.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	s.halt()
	s.kind.clear(s.dir)
	return s.removeDir()
}

// halt ends the process, politely first.
func (s *Server) halt() {
	if s.proc != nil {
		s.proc.stop(stopTimeout)
		s.proc = nil
	}
}

// Kill ends the server with SIGKILL and waits for its end. Restart brings it
// back. It is no error if it does not run.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return nil
	}
	err := s.proc.kill()
	s.proc = nil
	return err
}

// Pause freezes the server (SIGSTOP): its connections stay open and nothing
// answers.
func (s *Server) Pause() error { return s.withProcess("pause", (*process).pause) }

// Continue ends a Pause.
func (s *Server) Continue() error { return s.withProcess("continue", (*process).resume) }

func (s *Server) withProcess(what string, do func(*process) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return fmt.Errorf("%s %s: it does not run", what, s.kind.name())
	}
	return do(s.proc)
}

// Restart stops the server if it runs and starts it on the same port with its
// data: Redis saves a snapshot first, Postgres has its data directory, memcached
// forgets everything. After Kill it starts with what had been saved by then.
func (s *Server) Restart(ctx context.Context) error { return s.restart(ctx, true) }

// RestartEmpty is Restart without the data. For Postgres it means initdb.
func (s *Server) RestartEmpty(ctx context.Context) error { return s.restart(ctx, false) }

func (s *Server) restart(ctx context.Context, keep bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return fmt.Errorf("restart %s: it has been stopped for good", s.kind.name())
	}
	if s.proc != nil && keep {
		if err := s.kind.save(ctx, s.port); err != nil {
			return fmt.Errorf("restart %s: save: %w", s.kind.name(), err)
		}
	}
	s.halt()
	if !keep {
		if err := s.kind.clear(s.dir); err != nil {
			return fmt.Errorf("restart %s: clear: %w", s.kind.name(), err)
		}
		if err := s.kind.prepare(ctx, s.dir); err != nil {
			return fmt.Errorf("restart %s: %w", s.kind.name(), err)
		}
	}
	return s.startAgain(ctx)
}

// startAgain starts the server where it was. What is left of a killed one may be in
// the way for a moment: its port, or the shared memory of Postgres, whose children
// notice the death of their parent late.
func (s *Server) startAgain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	for {
		err := s.start(ctx)
		if err == nil || ctx.Err() != nil || !errors.Is(err, errExited) {
			return err
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return err
		}
	}
}

func (s *Server) removeDir() error {
	if !s.ownDir {
		return nil
	}
	return os.RemoveAll(s.dir)
}

func addr(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// logTail returns the end of the server's log for an error message.
func logTail(dir string) string {
	data, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil || len(data) == 0 {
		return ""
	}
	if len(data) > 1000 {
		data = data[len(data)-1000:]
	}
	return "; its log ends:\n" + string(data)
}
