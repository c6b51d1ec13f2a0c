package faultproxy

import (
	"errors"
	"fmt"
	"net"
	"time"
)

// HangConnects makes connects hang: no answer comes to a client's SYN, as if packets
// were lost on the way. Open connections are not disturbed. When it ends, a client
// that still waits gets through at its next SYN, which Linux sends one, three, seven
// seconds after the first.
//
// The queue in which the kernel keeps connections that nobody has accepted is made
// as short as can be and filled, and nobody accepts.
func (p *Proxy) HangConnects(on bool) error {
	p.hanging.Lock()
	defer p.hanging.Unlock()
	if !on {
		return p.unhang()
	}
	p.mu.Lock()
	done := p.fillers != nil || p.stopped
	if !done {
		p.fillers = []net.Conn{}
	}
	p.mu.Unlock()
	if done {
		return nil
	}
	p.listener.SetDeadline(time.Unix(1, 0))
	<-p.asleep // it would take out again what is put into the queue
	if err := backlog(p.listener, 0); err != nil {
		return errors.Join(err, p.unhang())
	}
	const most, patience = 16, 50 * time.Millisecond
	for range most {
		c, err := net.DialTimeout("tcp", p.Addr(), patience)
		if isTimeout(err) {
			return nil // full
		}
		if err != nil {
			return errors.Join(fmt.Errorf("faultproxy: %w", err), p.unhang())
		}
		p.mu.Lock()
		p.fillers = append(p.fillers, c)
		p.mu.Unlock()
	}
	return errors.Join(fmt.Errorf("faultproxy: %d connections do not fill the queue of one", most), p.unhang())
}

func (p *Proxy) unhang() error {
	p.mu.Lock()
	fillers := p.fillers
	if fillers == nil || p.stopped {
		p.mu.Unlock()
		return nil
	}
	p.mu.Unlock()
	closeAll(fillers)
	err := backlog(p.listener, normalBacklog)
	p.listener.SetDeadline(time.Time{})
	p.mu.Lock()
	p.fillers = nil
	p.notify()
	p.mu.Unlock()
	return err
}

const normalBacklog = 128

// isTimeout: dialling has two errors for the end of its time.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
