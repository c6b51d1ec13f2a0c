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
)

// plainMemcached is the client of the recipes: the classic text commands over one
// connection a process, so that the warm-up opens all of them. A command takes far
// less time than anything that the lab measures.
type plainMemcached struct {
	addr string

	mu   sync.Mutex // guards what follows; held for a command's round trip
	conn net.Conn   // nil after an error: nobody knows what is still to come on it
	in   *bufio.Reader
}

func openPlainMemcached(ctx context.Context, addr string) (*plainMemcached, error) {
	p := &plainMemcached{addr: addr}
	if _, err := p.version(ctx); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// dialMemcached takes what memcachestore takes: host:port, or unix:/path or /path.
func dialMemcached(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: connectTimeout}
	if path, isUnix := strings.CutPrefix(addr, "unix:"); isUnix || strings.HasPrefix(addr, "/") {
		return d.DialContext(ctx, "unix", strings.TrimPrefix(path, "//"))
	}
	return d.DialContext(ctx, "tcp", addr)
}

// talk sends a command and lets read have the reply. Whatever goes wrong costs the
// connection, not the client.
func (p *plainMemcached) talk(ctx context.Context, command string, read func() error) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.conn == nil {
		if p.conn, err = dialMemcached(ctx, p.addr); err != nil {
			p.conn = nil
			return err
		}
		p.in = bufio.NewReader(p.conn)
	}
	deadline := time.Now().Add(connectTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	p.conn.SetDeadline(deadline)
	if _, err = io.WriteString(p.conn, command); err == nil {
		err = read()
	}
	if err != nil {
		p.conn.Close()
		p.conn = nil
	}
	return err
}

// line reads one line. None of a memcached is longer than what the reader holds.
func (p *plainMemcached) line() (string, error) {
	line, err := p.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return "", fmt.Errorf("this is no memcached: it says %.60q", line)
	}
	return strings.TrimRight(string(line), "\r\n"), err
}

// answer is for commands whose reply is one line: what was done, or what was not.
func (p *plainMemcached) answer(ctx context.Context, yes, no, format string, args ...any) (done bool, err error) {
	err = p.talk(ctx, fmt.Sprintf(format, args...)+"\r\n", func() error {
		line, err := p.line()
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
	err = p.talk(ctx, "get "+key+"\r\n", func() error {
		line, err := p.line()
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
		if _, err := io.ReadFull(p.in, data); err != nil {
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
	err = p.talk(ctx, "version\r\n", func() error {
		line, err := p.line()
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

func (p *plainMemcached) stats(ctx context.Context) (map[string]string, error) {
	stats := make(map[string]string)
	err := p.talk(ctx, "stats\r\n", func() error {
		for {
			line, err := p.line()
			if err != nil || line == "END" {
				return err
			}
			fields := strings.SplitN(line, " ", 3) // STAT name value
			if len(fields) != 3 || fields[0] != "STAT" {
				return fmt.Errorf("the server answered %q", line)
			}
			stats[fields[1]] = fields[2]
		}
	})
	return stats, err
}

func (p *plainMemcached) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		p.conn.Close()
		p.conn = nil
	}
}

// wholeSeconds rounds up: memcached knows no less, and 0 is for ever.
func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
