package measure

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// monitor counts the commands that clients send to Redis, as MONITOR shows them: those that
// run inside scripts are told apart, which INFO commandstats does not do. A server that
// is watched is slower, so nothing is timed meanwhile.
type monitor struct {
	addr string
	conn net.Conn
	in   *bufio.Reader
}

func watchCommands(ctx context.Context, addr string) (*monitor, error) {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	m := &monitor{addr: addr, conn: conn, in: bufio.NewReaderSize(conn, 1<<16)}
	if _, err = io.WriteString(conn, "MONITOR\r\n"); err == nil {
		_, err = m.in.ReadString('\n')
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("MONITOR: %w", err)
	}
	return m, nil
}

// stop returns how many commands clients have sent since the start, without those that
// set connections up or keep them alive.
func (m *monitor) stop(ctx context.Context) (int, error) {
	defer m.conn.Close()
	marker := "end-of-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	if err := echo(ctx, m.addr, marker); err != nil {
		return 0, err
	}
	if err := m.conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return 0, err
	}
	total := 0
	for {
		line, err := m.in.ReadString('\n')
		if err != nil {
			return 0, fmt.Errorf("MONITOR: %w", err)
		}
		if strings.Contains(line, marker) {
			return total, nil
		}
		if _, ok := clientCommand(line); ok {
			total++
		}
	}
}

// clientCommand reads a line such as
//
//	+1700000000.123456 [0 127.0.0.1:1234] "GET" "key"
//	+1700000000.123456 [0 lua] "GET" "key"
func clientCommand(line string) (name string, ok bool) {
	_, rest, ok := strings.Cut(line, " [")
	if !ok {
		return "", false
	}
	from, rest, ok := strings.Cut(rest, "] \"")
	if !ok || strings.HasSuffix(from, " lua") {
		return "", false
	}
	name, _, _ = strings.Cut(rest, "\"")
	name = strings.ToLower(name)
	switch name {
	case "hello", "client", "ping", "info", "auth", "select", "command", "cluster", "role", "echo", "quit":
		return "", false
	}
	return name, true
}

// echo sends ECHO and waits for the answer, so that MONITOR has shown everything before it.
func echo(ctx context.Context, addr, marker string) error {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n", len(marker), marker); err != nil {
		return err
	}
	in := bufio.NewReader(conn)
	for range 2 { // the length, and the text
		if _, err := in.ReadString('\n'); err != nil {
			return fmt.Errorf("ECHO: %w", err)
		}
	}
	return nil
}

// memcachedCommands is how many commands a memcached has got that read or write.
func memcachedCommands(ctx context.Context, addr string) (int, error) {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return 0, err
	}
	if _, err := io.WriteString(conn, "stats\r\n"); err != nil {
		return 0, err
	}
	total := 0
	for in := bufio.NewReader(conn); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0, fmt.Errorf("stats: %w", err)
		}
		fields := strings.Fields(line)
		if len(fields) == 1 && fields[0] == "END" {
			return total, nil
		}
		if len(fields) != 3 {
			continue
		}
		switch fields[1] { // meta commands count as what they do
		case "cmd_get", "cmd_set", "cmd_touch", "delete_hits", "delete_misses", "incr_hits", "incr_misses":
			n, err := strconv.Atoi(fields[2])
			if err != nil {
				return 0, fmt.Errorf("stats: %w", err)
			}
			total += n
		}
	}
}
