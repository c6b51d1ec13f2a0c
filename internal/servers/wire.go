package servers

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
)

// dial opens a connection whose deadline is the context's.
func dial(ctx context.Context, port int) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp4", addr(port))
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		conn.SetDeadline(deadline)
	}
	return conn, nil
}

// fieldLines reads lines of prefix, name, separator, value until the line end,
// and passes over all others.
func fieldLines(r *bufio.Reader, prefix, separator, end string) (map[string]string, error) {
	fields := map[string]string{}
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("after %d fields: %w", len(fields), err)
		}
		line = strings.TrimRight(line, "\r\n")
		if line == end {
			return fields, nil
		}
		line, ok := strings.CutPrefix(line, prefix)
		if name, value, found := strings.Cut(line, separator); ok && found {
			fields[name] = value
		}
	}
}
