// Package membus is the bus that lives in the process, for tests: it can lose, repeat,
// delay and hold up messages, and lose the connection.
//
// It has no goroutine of its own. A message is heard by all subscribers before Publish
// returns, unless it is delayed, so that a test need not wait; a delay is kept by a timer and
// works in the fake time of a testing/synctest bubble.
package membus

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/onefill/onefill/bus"
)

// Bus is a bus in memory. Its methods are safe for concurrent use.
type Bus struct {
	mu     sync.Mutex // guards what follows: no subscriber is called under it
	topics map[string][]*subscription
	counts map[string]int
	fault  func(Message) Fault
	closed bool
}

var _ bus.Bus = (*Bus)(nil)

// Message is what is published.
type Message struct {
	Topic string
	Data  []byte
	N     int // it is the Nth of its topic, from 1
}

// Fault is what happens to a message. The zero value is that it arrives.
type Fault struct {
	// Hold makes Publish wait until it is closed, or its context ends.
	Hold <-chan struct{}
	// Err is what Publish returns; the message is not sent, unless ErrLate.
	Err     error
	ErrLate bool // it is sent all the same
	Lose    bool // nobody hears it, and Publish returns nil
	Twice   bool
	Delay   time.Duration // others overtake it
}

// New makes an empty bus.
func New() *Bus {
	return &Bus{topics: map[string][]*subscription{}, counts: map[string]int{}}
}

// SetFault makes fault decide about each message. Nil: all is well.
func (b *Bus) SetFault(fault func(Message) Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault = fault
}

// Published is how many messages of a topic Publish was called for.
func (b *Bus) Published(topic string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.counts[topic]
}

// Subscribers is how many subscriptions a topic has.
func (b *Bus) Subscribers(topic string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.topics[topic])
}

// Reconnect tells all subscribers that messages may have been lost.
func (b *Bus) Reconnect() {
	b.mu.Lock()
	var all []*subscription
	for _, subs := range b.topics {
		all = append(all, subs...)
	}
	b.mu.Unlock()
	for _, s := range all {
		s.call(s.lost)
	}
}

// Close makes the bus fail from now on. Nobody hears anything any more.
func (b *Bus) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	clear(b.topics)
	return nil
}

// Publish implements bus.Bus.
func (b *Bus) Publish(ctx context.Context, topic string, message []byte) error {
	fault, err := b.take(topic, message)
	if err != nil {
		return err
	}
	if fault.Hold != nil {
		select {
		case <-fault.Hold:
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("membus: publish: %w", err)
	}
	if !fault.Lose && (fault.Err == nil || fault.ErrLate) {
		b.send(topic, slices.Clone(message), fault)
	}
	return fault.Err
}

// take counts a message and decides about it.
func (b *Bus) take(topic string, message []byte) (Fault, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return Fault{}, fmt.Errorf("membus: publish: %w", bus.ErrClosed)
	}
	b.counts[topic]++
	n, fault := b.counts[topic], b.fault
	b.mu.Unlock()
	if len(message) > bus.MaxMessageBytes {
		return Fault{}, fmt.Errorf("membus: publish: the message has %d bytes, at most %d are allowed", len(message), bus.MaxMessageBytes)
	}
	if fault == nil {
		return Fault{}, nil
	}
	return fault(Message{Topic: topic, Data: slices.Clone(message), N: n}), nil
}

func (b *Bus) send(topic string, data []byte, fault Fault) {
	deliver := func() {
		b.mu.Lock()
		subs := slices.Clone(b.topics[topic])
		b.mu.Unlock()
		for _, s := range subs {
			s.call(func() { s.heard(slices.Clone(data)) })
		}
	}
	if fault.Twice {
		deliver()
	}
	if fault.Delay > 0 {
		time.AfterFunc(fault.Delay, deliver)
		return
	}
	deliver()
}

// subscription calls its functions one at a time.
type subscription struct {
	heard func([]byte)
	lost  func()

	mu      sync.Mutex // held during a call
	stopped bool
}

func (s *subscription) call(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		fn()
	}
}

// Subscribe implements bus.Bus.
func (b *Bus) Subscribe(ctx context.Context, topic string, heard func([]byte), lost func()) (stop func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("membus: subscribe: %w", err)
	}
	s := &subscription{heard: heard, lost: lost}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, fmt.Errorf("membus: subscribe: %w", bus.ErrClosed)
	}
	b.topics[topic] = append(b.topics[topic], s)
	return func() { b.remove(topic, s) }, nil
}

func (b *Bus) remove(topic string, gone *subscription) {
	b.mu.Lock()
	b.topics[topic] = slices.DeleteFunc(slices.Clone(b.topics[topic]), func(s *subscription) bool { return s == gone })
	b.mu.Unlock()
	gone.mu.Lock() // a call under way ends first
	defer gone.mu.Unlock()
	gone.stopped = true
}
