package metrics_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/metrics"
	"github.com/onefill/onefill/queue"
)

// asked is a queue that counts how often it is asked.
type asked struct {
	n     atomic.Int64
	stats func(ctx context.Context) (queue.Stats, error)
}

func (a *asked) Stats(ctx context.Context) (queue.Stats, error) {
	a.n.Add(1)
	return a.stats(ctx)
}

func ready(n int64) func(context.Context) (queue.Stats, error) {
	return func(context.Context) (queue.Stats, error) { return queue.Stats{Ready: n}, nil }
}

// However many look, and however often, the queue is asked once in Every.
func TestPollAsksRarely(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := &asked{stats: func(context.Context) (queue.Stats, error) {
			time.Sleep(time.Second) // so that all of one moment find the question under way
			return queue.Stats{Ready: 7}, nil
		}}
		p := metrics.NewPoll(q, 10*time.Second, 2*time.Second)
		start := time.Now()
		for range 100 { // scrapes, one in each second
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() {
					if b := p.Get(t.Context()); b.Err != nil || b.Stats.Ready != 7 {
						t.Errorf("got %+v", b)
					}
				})
			}
			all.Wait()
			time.Sleep(time.Second)
		}
		took := time.Since(start)
		if n, most := q.n.Load(), int64(took/(10*time.Second))+1; n > most || n < most-1 {
			t.Errorf("asked %d times in %v, want once in 10s", n, took)
		}
	})
}

// A queue that does not answer, and does not heed its context either, costs a scrape Timeout
// once, and no more after: the question is not put again while it is open. When it is answered
// at last, the next question is.
func TestPollOfAQueueThatHangs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		q := &asked{stats: func(context.Context) (queue.Stats, error) {
			<-answer
			return queue.Stats{Ready: 1}, nil
		}}
		p := metrics.NewPoll(q, 10*time.Second, 2*time.Second)
		start := time.Now()
		if b := p.Get(t.Context()); b.Err == nil || time.Since(start) != 2*time.Second {
			t.Errorf("got %+v after %v, want an error after 2s", b, time.Since(start))
		}
		time.Sleep(time.Minute)
		start = time.Now()
		if b := p.Get(t.Context()); b.Err == nil || time.Since(start) != 0 {
			t.Errorf("got %+v after %v, want an error at once", b, time.Since(start))
		}
		if n := q.n.Load(); n != 1 {
			t.Errorf("asked %d times, want once", n)
		}
		close(answer)
		synctest.Wait()
		if b := p.Get(t.Context()); b.Err != nil || b.Stats.Ready != 1 || q.n.Load() != 2 {
			t.Errorf("got %+v after %d questions", b, q.n.Load())
		}
	})
}

// The question has its own deadline, not that of whoever asked first: others wait for it, too.
func TestPollOutlivesItsFirstCaller(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := &asked{stats: func(ctx context.Context) (queue.Stats, error) {
			select {
			case <-time.After(time.Second):
				return queue.Stats{Ready: 3}, nil
			case <-ctx.Done():
				return queue.Stats{}, ctx.Err()
			}
		}}
		p := metrics.NewPoll(q, 0, 0)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if b := p.Get(gone); b.Err == nil {
			t.Errorf("got %+v with an ended context", b)
		}
		if b := p.Get(t.Context()); b.Err != nil || b.Stats.Ready != 3 {
			t.Errorf("got %+v", b)
		}
	})
}

func TestPollOfAQueueThatFails(t *testing.T) {
	refused := errors.New("connection refused")
	for name, stats := range map[string]func(context.Context) (queue.Stats, error){
		"error": func(context.Context) (queue.Stats, error) { return queue.Stats{Ready: 5}, refused },
		"panic": func(context.Context) (queue.Stats, error) { panic("no such table") },
	} {
		t.Run(name, func(t *testing.T) {
			q := &asked{stats: stats}
			p := metrics.NewPoll(q, time.Nanosecond, time.Minute)
			if b := p.Get(t.Context()); b.Err == nil || name == "error" && !errors.Is(b.Err, refused) {
				t.Errorf("got %+v", b)
			}
			q.stats = ready(9)
			if b := p.Get(t.Context()); b.Err != nil || b.Stats.Ready != 9 {
				t.Errorf("then got %+v", b)
			}
		})
	}
}
