package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store"
)

// A process of a herd gets orders, and answers each, as JSON lines over its standard input and
// output: first hello, then a key for each herd. It ends when its input does.

type hello struct {
	Config  Config
	Name    string
	Callers int // of this process
}

type order struct{ Key string }

type answer struct {
	Waits []time.Duration
	Loads int64
	Err   string
	Errs  int
}

// RunChild is a process of a herd.
func RunChild(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	in, out := json.NewDecoder(bufio.NewReader(stdin)), json.NewEncoder(stdout)
	var h hello
	if err := in.Decode(&h); err != nil {
		return fmt.Errorf("no orders: %w", err)
	}
	st, closeStore, err := h.Config.OpenStore()
	if err != nil {
		return out.Encode(answer{Err: err.Error()})
	}
	defer closeStore()
	var loads atomic.Int64
	c, err := newCache(st, h.Name, func(ctx context.Context, _ string) (string, error) {
		loads.Add(1)
		select {
		case <-time.After(h.Config.Load):
			return value, nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}, onefill.LocalOptions{})
	if err != nil {
		return out.Encode(answer{Err: err.Error()})
	}
	defer c.Close()
	if _, _, err := c.Peek(ctx, "absent"); err != nil { // connects
		return out.Encode(answer{Err: err.Error()})
	}
	if err := out.Encode(answer{}); err != nil {
		return err
	}
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			return nil // the parent has ended, or has no more orders
		}
		before := loads.Load()
		a := herd(ctx, c, o.Key, h.Callers)
		a.Loads = loads.Load() - before
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}

func herd(ctx context.Context, c *cache, key string, callers int) (a answer) {
	a.Waits = make([]time.Duration, callers)
	var all sync.WaitGroup
	var errs atomic.Int64
	gate := make(chan struct{})
	for i := range callers {
		all.Go(func() {
			<-gate
			start := time.Now()
			if _, err := c.Get(ctx, key); err != nil {
				errs.Add(1)
			}
			a.Waits[i] = time.Since(start)
		})
	}
	close(gate)
	all.Wait()
	a.Errs = int(errs.Load())
	return a
}

// child is the parent's side of a process.
type child struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	in     *json.Encoder
	out    *json.Decoder
	stderr bytes.Buffer
}

// startChild starts a process; it is ready when its first answer has come. ctx ends it.
func startChild(ctx context.Context, argv []string, h hello) (*child, error) {
	c := &child{cmd: exec.CommandContext(ctx, argv[0], argv[1:]...)}
	c.cmd.Stderr = &c.stderr
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a process of the herd: %w", err)
	}
	c.stdin, c.in, c.out = stdin, json.NewEncoder(stdin), json.NewDecoder(stdout)
	return c, c.in.Encode(h)
}

// answer waits for one.
func (c *child) answer() (a answer, err error) {
	if err := c.out.Decode(&a); err != nil {
		return a, fmt.Errorf("a process of the herd has ended: %w\n%s", err, c.stderr.Bytes())
	}
	if a.Err != "" {
		return a, errors.New(a.Err)
	}
	return a, nil
}

// end closes the process's input, which ends it.
func (c *child) end() {
	c.stdin.Close()
	c.cmd.Wait()
}

// herds has callers miss a key at once, a new key each round.
func (b *bench) herds(ctx context.Context, server *server) error {
	cfg := b.cfg
	ctx, cancel := context.WithCancel(ctx) // kills who does not end
	defer cancel()
	var children []*child
	defer func() {
		for _, c := range children {
			c.end()
		}
	}()
	for i := range cfg.Processes {
		callers := cfg.Callers / cfg.Processes
		if i < cfg.Callers%cfg.Processes {
			callers++
		}
		c, err := startChild(ctx, b.argv, hello{cfg, b.name, callers})
		if c != nil {
			children = append(children, c)
		}
		if err != nil {
			return err
		}
	}
	for _, c := range children {
		if _, err := c.answer(); err != nil {
			return err
		}
	}
	h := Herd{Callers: cfg.Callers, Processes: cfg.Processes, Rounds: cfg.Rounds, LoadMS: float64(cfg.Load.Microseconds()) / 1000}
	before, counted := server.commands(ctx)
	var beyond []time.Duration
	for round := range cfg.Rounds {
		key := b.wrote(fmt.Sprintf("herd-%d", round))
		for _, c := range children {
			if err := c.in.Encode(order{key}); err != nil {
				return err
			}
		}
		for _, c := range children {
			a, err := c.answer()
			if err != nil {
				return err
			}
			h.Loads, h.Errors = h.Loads+int(a.Loads), h.Errors+a.Errs
			for _, wait := range a.Waits {
				beyond = append(beyond, max(wait-cfg.Load, 0)) // who came late waited for less than the load
			}
		}
	}
	if after, ok := server.commands(ctx); ok && counted {
		each := float64(after-before) / float64(cfg.Rounds)
		h.Commands = &each
	}
	h.P50MS, h.P99MS = microseconds(quantile(beyond, 0.5))/1000, microseconds(quantile(beyond, 0.99))/1000
	b.report.Herd = h
	return nil
}

// pushes says whether the store tells of changes.
func pushes(ctx context.Context, st store.Store, name string) (bool, error) {
	session, err := st.Attach(ctx, store.Config{Name: name})
	if err != nil {
		return false, err
	}
	defer session.Close()
	return session.Features().Push, nil
}
