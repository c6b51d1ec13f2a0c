// Package bustest is the suite that every bus passes: what [bus.Bus] says, as far as it
// can be seen while nothing is broken.
package bustest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/bus"
)

// patience bounds every wait for something that should come at once.
const patience = 10 * time.Second

// Run tests a bus. open returns two of them that carry the same messages, as two
// processes have them, and that are closed when the test ends.
func Run(t *testing.T, open func(t *testing.T) (a, b bus.Bus)) {
	for name, test := range map[string]func(t *testing.T, a, b bus.Bus){
		"EverybodyHears": everybodyHears, "TopicsAreApart": topicsAreApart, "AnyBytes": anyBytes, "Order": order,
		"Stop": stop, "EndedContext": endedContext, "ManyAtOnce": manyAtOnce,
	} {
		t.Run(name, func(t *testing.T) {
			a, b := open(t)
			test(t, a, b)
		})
	}
}

// ear is a subscription with what it has heard.
type ear struct {
	t     *testing.T
	stop  func()
	calls sync.Mutex // held by the one call that is under way
	mu    sync.Mutex
	heard [][]byte
	more  chan struct{}
}

func listen(t *testing.T, b bus.Bus, topic string) *ear {
	t.Helper()
	e := &ear{t: t, more: make(chan struct{}, 1)}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stop, err := b.Subscribe(ctx, topic, func(m []byte) {
		if !e.calls.TryLock() {
			t.Error("called while another call is under way")
			return
		}
		defer e.calls.Unlock()
		runtime.Gosched() // others may come in between
		e.mu.Lock()
		e.heard = append(e.heard, bytes.Clone(m))
		e.mu.Unlock()
		select {
		case e.more <- struct{}{}:
		default:
		}
	}, func() {})
	if err != nil {
		t.Fatalf("Subscribe: %v", err)
	}
	e.stop = stop
	t.Cleanup(stop)
	return e
}

func (e *ear) all() [][]byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.heard
}

// wait waits for n messages and returns all that were heard.
func (e *ear) wait(n int) [][]byte {
	e.t.Helper()
	deadline := time.After(patience)
	for len(e.all()) < n {
		select {
		case <-e.more:
		case <-deadline:
			e.t.Fatalf("heard %d messages within %v, want %d", len(e.all()), patience, n)
		}
	}
	return e.all()
}

func (e *ear) want(messages ...string) {
	e.t.Helper()
	if got, want := fmt.Sprintf("%q", e.wait(len(messages))), fmt.Sprintf("%q", messages); got != want {
		e.t.Errorf("heard %.200s, want %.200s", got, want)
	}
}

func say(t *testing.T, b bus.Bus, topic string, messages ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, m := range messages {
		if err := b.Publish(ctx, topic, []byte(m)); err != nil {
			t.Fatalf("Publish: %v", err)
		}
	}
}

func everybodyHears(t *testing.T, a, b bus.Bus) {
	one, two, own := listen(t, b, "everybody"), listen(t, b, "everybody"), listen(t, a, "everybody")
	say(t, a, "everybody", "hello")
	one.want("hello")
	two.want("hello")
	own.want("hello")
}

func topicsAreApart(t *testing.T, a, b bus.Bus) {
	one, two := listen(t, b, "topics"), listen(t, b, "topics2")
	say(t, a, "topics", "1")
	say(t, a, "topics2", "2")
	say(t, a, "topics", "3")
	one.want("1", "3")
	two.want("2")
}

func anyBytes(t *testing.T, a, b bus.Bus) {
	var each []byte
	for i := range 256 {
		each = append(each, byte(i))
	}
	longest := bytes.Repeat([]byte("\x00\r\n\xff"), bus.MaxMessageBytes/4)
	e := listen(t, b, "bytes")
	say(t, a, "bytes", "", string(each), string(longest), "last")
	e.want("", string(each), string(longest), "last")
}

func order(t *testing.T, a, b bus.Bus) {
	const n = 200
	e := listen(t, b, "order")
	var want []string
	for i := range n {
		want = append(want, fmt.Sprint(i))
	}
	say(t, a, "order", want...)
	e.want(want...)
}

func stop(t *testing.T, a, b bus.Bus) {
	stopped, other := listen(t, b, "stop"), listen(t, b, "stop")
	say(t, a, "stop", "1")
	stopped.want("1")
	stopped.stop()
	stopped.stop()
	say(t, a, "stop", "2")
	other.want("1", "2")
	stopped.want("1")
}

func endedContext(t *testing.T, a, _ bus.Bus) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := a.Publish(ctx, "ended", []byte("m")); !errors.Is(err, context.Canceled) {
		t.Errorf("Publish: %v, want the context's error", err)
	}
	if _, err := a.Subscribe(ctx, "ended", func([]byte) {}, func() {}); !errors.Is(err, context.Canceled) {
		t.Errorf("Subscribe: %v, want the context's error", err)
	}
}

// Publishers and subscribers of one bus at once: every message is heard once by each
// who was there, one call at a time.
func manyAtOnce(t *testing.T, a, b bus.Bus) {
	const publishers, each = 8, 50
	ears := []*ear{listen(t, a, "many"), listen(t, b, "many"), listen(t, b, "many")}
	var all sync.WaitGroup
	for p := range publishers {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			for i := range each {
				if err := []bus.Bus{a, b}[p%2].Publish(ctx, "many", fmt.Appendf(nil, "%d-%d", p, i)); err != nil {
					t.Errorf("Publish: %v", err)
				}
			}
		})
	}
	all.Wait()
	for _, e := range ears {
		seen := map[string]int{}
		for _, m := range e.wait(publishers * each) {
			seen[string(m)]++
		}
		if len(seen) != publishers*each {
			t.Errorf("heard %d different messages, want %d", len(seen), publishers*each)
		}
	}
}
