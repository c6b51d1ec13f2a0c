package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// proc is a child as the test sees it.
type proc struct {
	t     testing.TB
	index int
	cfg   config
	cmd   *exec.Cmd
	in    io.WriteCloser
	ids   atomic.Int64

	mu     sync.Mutex
	news   *sync.Cond // a message came, or the output ended
	heard  []message
	ended  bool
	killed bool // by the test: then its end is judged by nobody
	stderr strings.Builder
	waited chan struct{}
	exit   error // after waited
}

func startProc(t testing.TB, index int, cfg config) *proc {
	t.Helper()
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := &proc{t: t, index: index, cfg: cfg, waited: make(chan struct{})}
	p.news = sync.NewCond(&p.mu)
	p.cmd = exec.Command(os.Args[0])
	// The race detector would have every child wait a second before it ends.
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(text), "GORACE=atexit_sleep_ms=20 "+os.Getenv("GORACE"))
	p.cmd.SysProcAttr = childAttributes()
	p.cmd.Stderr = lockedWriter{p}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan error)
	go p.run(started, out)
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.finish)
	return p
}

// run starts the process, listens to it and waits for it, on a thread of its own:
// Linux tells a child that its parent died when the thread that forked it ends.
func (p *proc) run(started chan<- error, out io.Reader) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.listen(out)
	p.exit = p.cmd.Wait()
	close(p.waited)
}

func (p *proc) listen(out io.Reader) {
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		var m message
		if err == nil {
			err = json.Unmarshal(line, &m)
		}
		p.mu.Lock()
		if err != nil {
			p.ended = true
			if err != io.EOF {
				fmt.Fprintf(&p.stderr, "unreadable output: %v\n", err)
			}
		} else {
			p.heard = append(p.heard, m)
		}
		p.news.Broadcast()
		p.mu.Unlock()
		if err != nil {
			io.Copy(io.Discard, lines)
			return
		}
	}
}

// lockedWriter collects a child's standard error.
type lockedWriter struct{ p *proc }

func (w lockedWriter) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.p.stderr.Write(b)
}

// await waits for a message, also one that has come before.
func (p *proc) await(want func(message) bool) message {
	p.t.Helper()
	m, ok := p.within(patience, want)
	if !ok {
		p.t.Fatalf("process %d did not say what was waited for; it said on standard error:\n%s", p.index, p.errors())
	}
	return m
}

// within is await with a bound of its own.
func (p *proc) within(limit time.Duration, want func(message) bool) (message, bool) {
	late := false // guarded by p.mu: an alarm that rang between a look at the clock and Wait would wake nobody
	alarm := time.AfterFunc(limit, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		late = true
		p.news.Broadcast()
	})
	defer alarm.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for next := 0; ; {
		for ; next < len(p.heard); next++ {
			if want(p.heard[next]) {
				return p.heard[next], true
			}
		}
		if p.ended || late {
			return message{}, false
		}
		p.news.Wait()
	}
}

func (p *proc) errors() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.String()
}

// kill ends the process as kill -9 does.
func (p *proc) kill() {
	p.mu.Lock()
	p.killed = true
	p.mu.Unlock()
	p.cmd.Process.Kill()
	<-p.waited
}

// pause and resume send SIGSTOP and SIGCONT.
func (p *proc) pause()  { p.signal(syscall.SIGSTOP) }
func (p *proc) resume() { p.signal(syscall.SIGCONT) }

func (p *proc) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("%v to process %d: %v", s, p.index, err)
	}
}

// finish ends the process at the end of the test: it must close its cache and its
// store without an error, and have seen no data race.
func (p *proc) finish() {
	p.mu.Lock()
	killed := p.killed
	p.mu.Unlock()
	if !killed {
		p.close()
	}
	if said := p.errors(); strings.Contains(said, "DATA RACE") || strings.Contains(said, "panic") || p.t.Failed() && said != "" {
		p.t.Errorf("process %d said on standard error:\n%s", p.index, said)
	}
}

func (p *proc) close() {
	text, _ := json.Marshal(request{ID: int(p.ids.Add(1)), Op: opClose})
	id := int(p.ids.Load())
	p.in.Write(append(text, '\n'))
	m, ok := p.within(patience, func(m message) bool { return m.Event == evReply && m.ID == id })
	if !ok {
		p.t.Errorf("process %d did not end", p.index)
		p.cmd.Process.Kill()
	} else if m.Err != "" {
		p.t.Errorf("process %d: close: %s", p.index, m.Err)
	}
	<-p.waited
	if ok && p.exit != nil {
		p.t.Errorf("process %d ended with: %v", p.index, p.exit)
	}
}
