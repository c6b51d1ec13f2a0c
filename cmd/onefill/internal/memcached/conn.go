package memcached

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// Conn is a connection to one server, for one question at a time. Each question is bounded by the deadline
// of its context.
type Conn struct {
	net.Conn
	in *bufio.Reader
}

// Dial connects to a server, and returns its version.
func Dial(ctx context.Context, addr string) (c *Conn, version string, err error) {
	network, target, err := Target(addr)
	if err != nil {
		return nil, "", err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, target)
	if err != nil {
		return nil, "", err
	}
	c = &Conn{conn, bufio.NewReader(conn)}
	line, err := c.Ask(ctx, "version")
	version, ok := strings.CutPrefix(line, "VERSION ")
	if err == nil && !ok {
		err = fmt.Errorf("this is no memcached, or it wants TLS or a password: asked for its version it says %.80q", line)
	}
	if err != nil {
		conn.Close()
		return nil, "", err
	}
	return c, version, nil
}

// Ask sends a command and reads one line.
func (c *Conn) Ask(ctx context.Context, command string) (string, error) {
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, command+"\r\n"); err != nil {
		return "", err
	}
	return c.line()
}

func (c *Conn) line() (string, error) {
	line, err := c.in.ReadString('\n')
	if errors.Is(err, io.EOF) {
		err = errors.New("the server has closed the connection")
	}
	return strings.TrimRight(line, "\r\n"), err
}

// Stats asks for what a stats command tells.
func (c *Conn) Stats(ctx context.Context, command string) (map[string]string, error) {
	asked := false
	return ReadStats(func() (string, error) {
		if asked {
			return c.line()
		}
		asked = true
		return c.Ask(ctx, command)
	})
}

// ReadStats reads the answer to a stats command, whose lines line returns one after the other.
func ReadStats(line func() (string, error)) (map[string]string, error) {
	stats := make(map[string]string)
	for {
		text, err := line()
		if err != nil {
			return nil, err
		}
		if text == "END" {
			return stats, nil
		}
		rest, ok := strings.CutPrefix(text, "STAT ")
		if !ok {
			return nil, fmt.Errorf("asked for its stats the server says %.80q", text)
		}
		name, value, _ := strings.Cut(rest, " ")
		stats[name] = value
	}
}

// Calls reads the calls out of stats. Meta commands are counted as what they do: mg as get, ms as set, md
// as delete.
func Calls(stats map[string]string) (map[string]int64, error) {
	calls := make(map[string]int64)
	for _, counter := range []struct{ stat, command string }{
		{"cmd_get", "get"}, {"cmd_set", "set"}, {"cmd_touch", "touch"},
		{"delete_hits", "delete"}, {"delete_misses", "delete"},
	} {
		n, err := strconv.ParseInt(stats[counter.stat], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("stats: %s is %q", counter.stat, stats[counter.stat])
		}
		calls[counter.command] += n
	}
	return calls, nil
}
