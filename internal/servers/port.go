package servers

import (
	"errors"
	"math/rand/v2"
	"net"
)

// freePort returns a port of 127.0.0.1 that nobody listens on. It lies below the
// range that systems hand out for outgoing connections: a server that is
// restarted must find its port free again.
func freePort() (int, error) {
	for range 100 {
		port := 10000 + rand.IntN(20000)
		l, err := net.Listen("tcp4", addr(port))
		if err != nil {
			continue
		}
		l.Close()
		return port, nil
	}
	return 0, errors.New("no free port of 127.0.0.1 found in 100 attempts")
}
