package memcachestore

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// address is one server's, checked.
type address struct {
	text            string // as it was given, trimmed
	network, target string // for net.Dial
	host            string // for TLS
}

// parseAddress reads host:port, or unix:path or /path for a socket.
func parseAddress(text string) (address, error) {
	text = strings.TrimSpace(text)
	a := address{text: text, network: "tcp", target: text}
	path, isUnix := strings.CutPrefix(text, "unix:")
	switch {
	case text == "":
		return a, errors.New("the address is empty; write host:port, such as localhost:11211")
	case isUnix || strings.HasPrefix(text, "/"):
		if path = strings.TrimPrefix(path, "//"); path == "" {
			return a, errors.New("the address names no socket; write unix:/path/to/socket")
		}
		a.network, a.target, a.host = "unix", path, "localhost"
		return a, nil
	case strings.Contains(text, "://"):
		return a, errors.New("the address is a URL; write host:port")
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return a, fmt.Errorf("%w; write host:port, such as localhost:11211, or unix:/path for a socket", err)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return a, fmt.Errorf("the port %q is none from 1 to 65535", port)
	}
	a.host = host
	return a, nil
}

// identity is what makes two addresses the same server, as far as text can tell. Hosts are the
// same in capitals, files are not.
func (a address) identity() string {
	if a.network == "unix" {
		return "unix " + a.target
	}
	return a.network + " " + strings.ToLower(a.target)
}
