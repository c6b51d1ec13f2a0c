package faultproxy

import (
	"errors"
	"net"
	"syscall"
)

// backlog changes how many connections the kernel keeps for a listener that does not
// accept them: one more than n.
func backlog(l *net.TCPListener, n int) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	var listenErr error
	err = raw.Control(func(fd uintptr) { listenErr = syscall.Listen(int(fd), n) })
	return errors.Join(err, listenErr)
}
