package metrics

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/onefill/onefill/queue"
)

// Queue is what is asked for the numbers of a queue: a queue.Queue of any sort.
type Queue interface {
	Stats(ctx context.Context) (queue.Stats, error)
}

// Backend is what a queue has answered.
type Backend struct {
	Stats queue.Stats
	Err   error // why it has not
}

// The defaults of a [Poll].
const (
	DefaultEvery   = 15 * time.Second
	DefaultTimeout = 2 * time.Second
)

// Poll asks a queue for its numbers on behalf of whoever looks at them, however many do and
// however often. The queue hears at most one question in Every, has never two at once, and
// nobody waits for longer than Timeout, even if the queue does not heed its context.
type Poll struct {
	queue          Queue
	every, timeout time.Duration

	mu     sync.Mutex    // guards what follows; nothing blocks under it
	asking chan struct{} // closed when the question under way is answered; nil if there is none
	began  time.Time     // of the last question
	last   Backend
}

// NewPoll makes a Poll. 0 is DefaultEvery, and DefaultTimeout.
func NewPoll(q Queue, every, timeout time.Duration) *Poll {
	if every <= 0 {
		every = DefaultEvery
	}
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	return &Poll{queue: q, every: every, timeout: timeout}
}

var errSlow = errors.New("the queue has not told its numbers in time")

// Get returns the numbers, which are at most Every old, or an error in their place. It waits
// for an answer, but not after ctx has ended, and not for a question that is older than Timeout.
func (p *Poll) Get(ctx context.Context) Backend {
	asking, began := p.ask()
	if asking != nil {
		ctx, cancel := context.WithDeadline(ctx, began.Add(p.timeout))
		defer cancel()
		select {
		case <-asking:
		case <-ctx.Done():
			return Backend{Err: errSlow}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// ask sees to it that there are numbers soon. It returns what to wait for, nil if those of
// the last question will do, and when that question began.
func (p *Poll) ask() (asking <-chan struct{}, began time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asking == nil {
		if !p.began.IsZero() && time.Since(p.began) < p.every {
			return nil, p.began
		}
		p.began, p.asking = time.Now(), make(chan struct{})
		go p.question(p.asking)
	}
	return p.asking, p.began
}

// question asks, on a context of its own: its answer is for others, too.
func (p *Poll) question(asked chan struct{}) {
	b := Backend{Err: errors.New("the queue's Stats panicked or exited")}
	defer func() {
		_ = recover() // b says so
		p.mu.Lock()
		defer p.mu.Unlock()
		p.last, p.asking = b, nil
		close(asked)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), p.timeout)
	defer cancel()
	s, err := p.queue.Stats(ctx)
	b = Backend{Stats: s, Err: err}
}
