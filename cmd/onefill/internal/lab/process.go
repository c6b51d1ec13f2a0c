package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// process is the parent's side of one reader process.
type process struct {
	number int
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr tail
	ended  chan struct{} // closed when the process has ended and waitErr is set

	mu      sync.Mutex // guards what follows, and writing to stdin
	next    int
	pending map[int]chan reply // buffered, so that the reader never blocks
	waitErr error
}

// startProcess runs argv, which is this program with its hidden command.
func startProcess(number int, argv []string) (*process, error) {
	p := &process{number: number, pending: make(map[int]chan reply), ended: make(chan struct{})}
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Env = append(os.Environ(), "GOTRACEBACK=single")
	p.cmd.Stderr = &p.stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start reader process %d: %w", number, err)
	}
	go p.read(stdout)
	return p, nil
}

// read hands replies to those who wait for them, until the process ends.
func (p *process) read(stdout io.Reader) {
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var r reply
		if json.Unmarshal(line, &r) != nil {
			continue // a library that prints; the command then runs into its timeout
		}
		p.mu.Lock()
		if ch := p.pending[r.ID]; ch != nil {
			delete(p.pending, r.ID)
			ch <- r
		}
		p.mu.Unlock()
	}
	err := p.cmd.Wait()
	p.mu.Lock()
	p.waitErr = err
	p.mu.Unlock()
	close(p.ended)
}

// send writes a command and returns where its reply will be.
func (p *process) send(c command) (<-chan reply, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	c.ID = p.next
	line, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	ch := make(chan reply, 1)
	p.pending[c.ID] = ch
	if _, err := p.stdin.Write(append(line, '\n')); err != nil {
		delete(p.pending, c.ID)
		return nil, fmt.Errorf("reader process %d: %s: %w%s", p.number, c.Op, err, p.stderr.suffix())
	}
	return ch, nil
}

func (p *process) await(ctx context.Context, op string, ch <-chan reply) (reply, error) {
	select {
	case r := <-ch:
		return p.check(op, r)
	case <-ctx.Done():
		return reply{}, fmt.Errorf("reader process %d: %s: %w", p.number, op, ctx.Err())
	case <-p.ended:
	}
	select { // its last words
	case r := <-ch:
		return p.check(op, r)
	default:
		return reply{}, fmt.Errorf("reader process %d ended during %s: %v%s", p.number, op, p.waitErr, p.stderr.suffix())
	}
}

func (p *process) check(op string, r reply) (reply, error) {
	if r.Err != "" {
		return r, fmt.Errorf("reader process %d: %s: %s", p.number, op, r.Err)
	}
	return r, nil
}

// do is send and await.
func (p *process) do(ctx context.Context, c command) (reply, error) {
	ch, err := p.send(c)
	if err != nil {
		return reply{}, err
	}
	return p.await(ctx, c.Op, ch)
}

// stopGrace is how long a reader may take to close its connections.
const stopGrace = 3 * time.Second

// stop closes the process' input, which ends it, and kills it if it does not
// end. It may be called more than once.
func (p *process) stop() {
	p.stdin.Close()
	timer := time.NewTimer(stopGrace)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
		p.cmd.Process.Kill()
		<-p.ended
	}
}

// kill ends the process with SIGKILL, whatever it is doing, and waits for its end.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %d: %w", p.number, err)
	}
	<-p.ended
	return nil
}

// fleet is all reader processes.
type fleet []*process

func startFleet(n int, argv []string) (fleet, error) {
	var f fleet
	for i := range n {
		p, err := startProcess(i, argv)
		if err != nil {
			f.stop()
			return nil, err
		}
		f = append(f, p)
	}
	return f, nil
}

// each sends every process its command before it awaits a reply.
// A command without Op is not sent.
func (f fleet) each(ctx context.Context, order func(p int) command) ([]reply, error) {
	replies, errs := make([]reply, len(f)), make([]error, len(f))
	waits, ops := make([]<-chan reply, len(f)), make([]string, len(f))
	for i, p := range f {
		if c := order(i); c.Op != "" {
			ops[i] = c.Op
			waits[i], errs[i] = p.send(c)
		}
	}
	for i, p := range f {
		if waits[i] != nil {
			replies[i], errs[i] = p.await(ctx, ops[i], waits[i])
		}
	}
	return replies, errors.Join(errs...)
}

func (f fleet) stop() {
	var wg sync.WaitGroup
	for _, p := range f {
		wg.Go(p.stop)
	}
	wg.Wait()
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex // guards data
	data []byte
}

const tailBytes = 2000

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, b...)
	if extra := len(t.data) - tailBytes; extra > 0 {
		t.data = t.data[extra:]
	}
	return len(b), nil
}

func (t *tail) suffix() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.data) == 0 {
		return ""
	}
	return "; it said:\n" + string(t.data)
}
