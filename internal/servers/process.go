package servers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// errExited means that the program ended instead of serving.
var errExited = errors.New("the program ended")

// spec is a program to run.
type spec struct {
	program string
	args    []string
	dir     string
	// user is whom to run it as, nil for the own user. Only root sets it.
	user *account
	// quit is the signal of a quick and clean end.
	quit os.Signal
}

type account struct{ uid, gid uint32 }

// process is a child that is waited for.
type process struct {
	cmd  *exec.Cmd
	quit os.Signal
	// done is closed after the child has ended; waitErr is set before.
	done    chan struct{}
	waitErr error
}

// startProcess runs a program with its output in the file log.
func startProcess(sp spec, log string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(sp.program, sp.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = sp.dir, out, out
	setAttributes(cmd, sp.user)
	p := &process{cmd: cmd, quit: sp.quit, done: make(chan struct{})}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the child and waits for it on one thread that nothing else uses:
// Linux sends the signal "your parent died" when the thread that forked ends,
// not when the process does.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.waitErr = p.cmd.Wait()
	close(p.done)
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stop asks for an end, and forces it if it does not come in time.
func (p *process) stop(patience time.Duration) {
	p.resume()
	p.cmd.Process.Signal(p.quit)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.kill()
	}
}

func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	<-p.done
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// find looks for a program on PATH and in further directories, the last one that
// matches first: with versions in their names, that is the newest.
func find(program, pkg string, patterns ...string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	for _, pattern := range patterns {
		matches, _ := filepath.Glob(filepath.Join(pattern, program))
		slices.Reverse(matches)
		for _, path := range matches {
			if _, err := exec.LookPath(path); err == nil {
				return path, nil
			}
		}
	}
	return "", &NotInstalledError{Program: program, Package: pkg}
}

// runProgram runs a program to its end.
func runProgram(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), err, out)
	}
	return nil
}
