package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/memcached"
)

// plainMemcached is the client of the recipes: the classic text commands over a few
// connections a process. To open one takes far less time than anything that the lab
// measures.
type plainMemcached struct {
	addr string
	room chan struct{} // holds a token for each connection in use

	mu     sync.Mutex // guards what follows; nothing waits under it
	idle   []*memcachedConn
	closed bool
}

type memcachedConn struct {
	net.Conn
	in *bufio.Reader
}

// plainMemcachedConns is the most connections of a process: one that hangs holds up
// nobody but its caller.
const plainMemcachedConns = 32

func newPlainMemcached(addr string) *plainMemcached {
	return &plainMemcached{addr: addr, room: make(chan struct{}, plainMemcachedConns)}
}

func openPlainMemcached(ctx context.Context, addr string) (*plainMemcached, error) {
	p := newPlainMemcached(addr)
	if _, err := p.version(ctx); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func dialMemcached(ctx context.Context, addr string) (net.Conn, error) {
	network, target, err := memcached.Target(addr)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: connectTimeout}
	return d.DialContext(ctx, network, target)
}

// talk sends a command and lets read have the reply. Whatever goes wrong costs the
// connection, as nobody knows what is still to come on it, and the idle ones, which are
// no better if the server has ended meanwhile.
func (p *plainMemcached) talk(ctx context.Context, command string, read func(c *memcachedConn) error) error {
	select {
	case p.room <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-p.room }()
	c, err := p.take(ctx)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(connectTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	c.SetDeadline(deadline)
	if _, err = io.WriteString(c, command); err == nil {
		err = read(c)
	}
	if err != nil {
		c.Close()
		p.dropIdle()
		return err
	}
	p.put(c)
	return nil
}

// take returns an idle connection or makes one.
func (p *plainMemcached) take(ctx context.Context) (*memcachedConn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return c, nil
	}
	p.mu.Unlock()
	conn, err := dialMemcached(ctx, p.addr)
	if err != nil {
		return nil, err
	}
	return &memcachedConn{conn, bufio.NewReader(conn)}, nil
}

func (p *plainMemcached) put(c *memcachedConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.Close()
		return
	}
	p.idle = append(p.idle, c)
}

// line reads one line. None of a memcached is longer than what the reader holds.
func (c *memcachedConn) line() (string, error) {
	line, err := c.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return "", fmt.Errorf("this is no memcached: it says %.60q", line)
	}
	return strings.TrimRight(string(line), "\r\n"), err
}

// answer is for commands whose reply is one line: what was done, or what was not.
func (p *plainMemcached) answer(ctx context.Context, yes, no, format string, args ...any) (done bool, err error) {
	err = p.talk(ctx, fmt.Sprintf(format, args...)+"\r\n", func(c *memcachedConn) error {
		line, err := c.line()
		if err != nil {
			return err
		}
		if done = line == yes; !done && line != no {
			return fmt.Errorf("the server answered %q", line)
		}
		return nil
	})
	return done, err
}

func (p *plainMemcached) Get(ctx context.Context, key string) (value string, found bool, err error) {
	err = p.talk(ctx, "get "+key+"\r\n", func(c *memcachedConn) error {
		line, err := c.line()
		if err != nil || line == "END" {
			return err
		}
		fields := strings.Fields(line) // VALUE key flags bytes
		if len(fields) != 4 || fields[0] != "VALUE" {
			return fmt.Errorf("the server answered %q", line)
		}
		size, err := strconv.ParseUint(fields[3], 10, 30)
		if err != nil {
			return fmt.Errorf("the server answered %q", line)
		}
		const tail = "\r\nEND\r\n"
		data := make([]byte, int(size)+len(tail))
		if _, err := io.ReadFull(c.in, data); err != nil {
			return err
		}
		value, found = string(data[:size]), true
		return nil
	})
	return value, found, err
}

func (p *plainMemcached) Set(ctx context.Context, key, value string, ttl time.Duration) error {
	_, err := p.answer(ctx, "STORED", "STORED", "set %s 0 %d %d\r\n%s", key, wholeSeconds(ttl), len(value), value)
	return err
}

func (p *plainMemcached) Add(ctx context.Context, key, value string, ttl time.Duration) (bool, error) {
	return p.answer(ctx, "STORED", "NOT_STORED", "add %s 0 %d %d\r\n%s", key, wholeSeconds(ttl), len(value), value)
}

func (p *plainMemcached) Delete(ctx context.Context, key string) (bool, error) {
	return p.answer(ctx, "DELETED", "NOT_FOUND", "delete %s", key)
}

func (p *plainMemcached) version(ctx context.Context) (version string, err error) {
	err = p.talk(ctx, "version\r\n", func(c *memcachedConn) error {
		line, err := c.line()
		if err != nil {
			return err
		}
		var ok bool
		if version, ok = strings.CutPrefix(line, "VERSION "); !ok {
			return fmt.Errorf("this is no memcached: asked for its version it says %.60q", line)
		}
		return nil
	})
	return version, err
}

func (p *plainMemcached) stats(ctx context.Context) (stats map[string]string, err error) {
	err = p.talk(ctx, "stats\r\n", func(c *memcachedConn) (err error) {
		stats, err = memcached.ReadStats(c.line)
		return err
	})
	return stats, err
}

func (p *plainMemcached) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.dropIdle()
}

func (p *plainMemcached) dropIdle() {
	p.mu.Lock()
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, c := range idle {
		c.Close()
	}
}

// wholeSeconds rounds up: memcached knows no less, and 0 is for ever.
func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
