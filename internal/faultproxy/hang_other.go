//go:build !linux

package faultproxy

import (
	"errors"
	"net"
)

func backlog(*net.TCPListener, int) error {
	return errors.New("faultproxy: connects can be made to hang on Linux only")
}
