package memcachestore

import (
	"context"
	"sync"
	"sync/atomic"
)

// request is one command, or many reads, and their place in the row of a connection.
type request struct {
	text   []byte
	opaque uint32 // of the first reply; 0: it has none
	state  atomic.Uint32
	done   chan struct{} // gets one signal
	reply  reply
	err    error
	// many, if set, is for reads of several items: it takes their replies.
	many *manyReads
	// late, if set, gets the reply that came after its caller had left. It must not
	// block: it runs in the goroutine that reads.
	late func(reply)
}

// The states of a request. A request goes from queued to sent to finished, or from
// one of the first two to abandoned.
const (
	queued uint32 = iota
	sent
	finished
	abandoned
)

// requestPool has requests that can be used again: one and its channel would be a third of what a hit
// allocates. One that was abandoned is not, as the connection has it still.
var requestPool = sync.Pool{New: func() any { return &request{done: make(chan struct{}, 1)} }}

func newRequest() *request { return requestPool.Get().(*request) }

// maxKeptText bounds what a request that lies about keeps.
const maxKeptText = 16 << 10

// free lets the request be used again. It is finished, and its signal was received.
func (r *request) free() {
	text := r.text[:0]
	if cap(text) > maxKeptText {
		text = nil
	}
	r.text, r.opaque, r.reply, r.err, r.many, r.late = text, 0, reply{}, nil, nil, nil
	r.state.Store(queued)
	requestPool.Put(r)
}

// wait waits until the request is finished, or abandons it.
func (r *request) wait(ctx context.Context) error {
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
	}
	if r.state.CompareAndSwap(queued, abandoned) {
		r.text = nil // nobody will write it, and a connection that is stuck may keep r for long
		return ended(ctx)
	}
	if r.state.CompareAndSwap(sent, abandoned) {
		return ended(ctx)
	}
	<-r.done // it has just been answered
	return nil
}

// finish gives the request its outcome: what was put, or err.
func (r *request) finish(err error) {
	r.err = err
	if r.state.CompareAndSwap(sent, finished) || r.state.CompareAndSwap(queued, finished) {
		r.done <- struct{}{} // who gets the signal may use r again
		return
	}
	if r.late != nil && err == nil { // it was abandoned, and is nobody else's
		r.late(r.reply)
	}
}

// row is a queue of requests.
type row struct {
	all  []*request
	head int
}

func (q *row) len() int { return len(q.all) - q.head }

func (q *row) first() *request { return q.all[q.head] }

func (q *row) push(r *request) {
	if q.head > 0 && len(q.all) == cap(q.all) && q.head >= len(q.all)/2 {
		n := copy(q.all, q.all[q.head:])
		clear(q.all[n:])
		q.all, q.head = q.all[:n], 0
	}
	q.all = append(q.all, r)
}

func (q *row) pop() *request {
	r := q.all[q.head]
	q.all[q.head] = nil
	if q.head++; q.head == len(q.all) {
		q.all, q.head = q.all[:0], 0
	}
	return r
}

// empty takes all requests out.
func (q *row) empty() []*request {
	rest := q.all[q.head:]
	*q = row{}
	return rest
}
