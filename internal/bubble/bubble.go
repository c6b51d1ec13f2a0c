// Package bubble runs tests in testing/synctest bubbles.
package bubble

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Test is synctest.Test that works under the race detector. There, when timers
// that are due at the same moment wake goroutines on several processors, the
// detector's own run-time crashes now and then ("ThreadSanitizer: CHECK failed",
// golang/go issue 78156, seen with Go 1.26): the bubble's timers share one race
// context. On one processor they cannot meet. The detector finds the same races,
// since it compares orders of events and not their times.
func Test(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if raceEnabled {
		defer one.enter()()
	}
	synctest.Test(t, test)
}

// After lets time pass, and everybody come to where only the test, or time, can move them
// on. It panics outside of a bubble, where a sleep would be a race with the machine.
func After(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// one keeps the process on one processor while any bubble is there.
var one processor

type processor struct {
	mu      sync.Mutex
	bubbles int // guarded by mu
	before  int // guarded by mu: GOMAXPROCS without bubbles
}

func (p *processor) enter() (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bubbles++; p.bubbles == 1 {
		p.before = runtime.GOMAXPROCS(1)
	}
	return p.leave
}

func (p *processor) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bubbles--; p.bubbles == 0 {
		runtime.GOMAXPROCS(p.before)
	}
}
