// Package memcached is what the commands need of memcached beside the store: its servers as a user
// names them, and a plain connection, as a store leaves an item of its own where it has been.
package memcached

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

const howTo = "write host:port, such as localhost:11211, or unix:/path"

// ParseList reads the servers of a flag: addresses with commas between them, and spaces around them if
// one likes. The error names the one that is none, is empty, or is there twice. What is returned is what
// memcachestore.New takes, which decides by the very words who has a key.
func ParseList(list string) (addrs []string, err error) {
	seen := make(map[string]bool)
	for i, addr := range strings.Split(list, ",") {
		addr = strings.TrimSpace(addr)
		if addr == "" {
			return nil, fmt.Errorf("server %d of %q is empty; %s", i+1, list, howTo)
		}
		network, target, err := Target(addr)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", addr, err)
		}
		same := network + " " + target
		if network == "tcp" { // a file of another spelling is another one
			same = strings.ToLower(same)
		}
		if seen[same] {
			return nil, fmt.Errorf("%q is given twice; name each server once", addr)
		}
		seen[same] = true
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// Target reads an address as memcachestore does: what net.Dial takes.
func Target(addr string) (network, target string, err error) {
	path, isUnix := strings.CutPrefix(addr, "unix:")
	switch {
	case isUnix || strings.HasPrefix(addr, "/"):
		if path = strings.TrimPrefix(path, "//"); path == "" {
			return "", "", errors.New("it names no socket; " + howTo)
		}
		return "unix", path, nil
	case strings.Contains(addr, "://"):
		return "", "", errors.New("it is a URL; " + howTo)
	}
	_, port, err := net.SplitHostPort(addr)
	var wrong *net.AddrError
	if errors.As(err, &wrong) {
		err = errors.New(wrong.Err) // "missing port in address", without the address once more
	}
	if err != nil {
		return "", "", fmt.Errorf("%w; %s", err, howTo)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", "", fmt.Errorf("the port %q is none from 1 to 65535", port)
	}
	return "tcp", addr, nil
}
