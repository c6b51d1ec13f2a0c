package redisstore

import (
	"io"
	"net"
	"sync"
	"testing"
)

// tcpSwitch is an address behind which one server after the other may be, as behind a
// name or a load balancer.
type tcpSwitch struct {
	l net.Listener

	mu     sync.Mutex
	to     string
	conns  map[net.Conn]struct{}
	closed bool
}

func newSwitch(t testing.TB, to string) *tcpSwitch {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	s := &tcpSwitch{l: l, to: to, conns: map[net.Conn]struct{}{}}
	go s.accept()
	t.Cleanup(func() {
		l.Close()
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		s.cut()
	})
	return s
}

func (s *tcpSwitch) addr() string { return s.l.Addr().String() }

func (s *tcpSwitch) url() string { return "redis://" + s.addr() }

func (s *tcpSwitch) accept() {
	for {
		down, err := s.l.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		to := s.to
		s.mu.Unlock()
		up, err := net.Dial("tcp", to)
		if err != nil {
			down.Close()
			continue
		}
		s.mu.Lock()
		current := to == s.to && !s.closed
		if current {
			s.conns[up], s.conns[down] = struct{}{}, struct{}{}
		}
		s.mu.Unlock()
		if !current {
			up.Close()
			down.Close()
			continue
		}
		go s.copy(up, down)
		go s.copy(down, up)
	}
}

func (s *tcpSwitch) copy(to, from net.Conn) {
	io.Copy(to, from)
	to.Close()
	from.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, to)
	delete(s.conns, from)
}

// cut cuts all connections; new ones go to the same server.
func (s *tcpSwitch) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
}

// point sends new connections to another server; the old ones stay.
func (s *tcpSwitch) point(to string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to = to
}

// turn is point, and cuts the old ones.
func (s *tcpSwitch) turn(to string) {
	s.point(to)
	s.cut()
}
