package integration

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/faultproxy"
	"github.com/onefill/onefill/store"
)

// What TestFleetHistory is disturbed by. Whatever may keep a cache from hearing pushes is
// noted, as the bound is another one then.

const (
	sagaDisturbEvery = 120 * time.Millisecond
	everybodys       = "everybody's "         // begins the name of what all caches miss pushes by
	reconnecting     = 300 * time.Millisecond // until a cache that was cut off is armed again
)

// disturb begins something again and again, for d, and returns when all has ended.
func (s *saga) disturb(d time.Duration) {
	kinds := s.disturbances()
	names := slices.Sorted(maps.Keys(kinds))
	var going sync.WaitGroup
	defer going.Wait()
	tick := time.NewTicker(sagaDisturbEvery)
	defer tick.Stop()
	deaf := s.random.IntN(2) == 0 // once at most, and in every other round
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		name := names[s.random.IntN(len(names))]
		if strings.HasPrefix(name, everybodys) {
			if deaf {
				continue // else the long bound were the rule
			}
			deaf = true
		}
		s.count("disturbed: " + name)
		key, node := s.keys[s.random.IntN(len(s.keys))], s.random.IntN(len(s.nodes))
		length := time.Duration(50+s.random.IntN(250)) * time.Millisecond
		going.Go(func() { kinds[name](key, node, length) })
	}
}

// disturbances are what can happen to a row, or to a cache, for a while.
func (s *saga) disturbances() map[string]func(key string, node int, length time.Duration) {
	session := s.session()
	kinds := map[string]func(string, int, time.Duration){
		// A load in the air, which others wait for and join, while the row changes.
		"paused loader": func(key string, node int, length time.Duration) {
			release := s.origin.hold(key)
			first := s.aside(func() { s.write(node, "Invalidate", key) })
			lasting(s.t, length/2)
			second := s.aside(func() { s.write((node+1)%len(s.nodes), "Invalidate", key) })
			lasting(s.t, 2*length) // often longer than a push's bound
			release()
			first()
			second()
		},
		"slow loader": func(key string, _ int, length time.Duration) {
			var before time.Duration
			s.origin.change(key, func(r *memRow) { before, r.wait = r.wait, 40*time.Millisecond })
			lasting(s.t, length)
			s.origin.change(key, func(r *memRow) { r.wait = min(before, 12*time.Millisecond) })
		},
		"lease taken away": func(key string, node int, length time.Duration) {
			release := s.origin.hold(key)
			written := s.aside(func() { s.write(node, "Invalidate", key) }) // so that somebody loads the row
			defer written()
			lasting(s.t, length/2)
			if broken, err := session.(store.Inspector).BreakLease(context.Background(), key, ""); err != nil && tolerate(err) != nil {
				s.t.Errorf("BreakLease: %v", err)
			} else if broken {
				s.count("leases taken away")
			}
			lasting(s.t, length/2)
			release()
		},
	}
	switch s.on {
	case onMemory:
		kinds[everybodys+"pushes held back"] = func(_ string, _ int, length time.Duration) {
			defer s.deaf(s.all()...)()
			s.memory.HoldPushes()
			lasting(s.t, length)
			s.memory.ReleasePushes()
		}
		kinds[everybodys+"pushes lost"] = func(string, int, time.Duration) {
			defer s.deaf(s.all()...)()
			s.memory.LosePushes()
		}
		return kinds
	case onRedis:
		admin := adminOf(s.t, s.w.server)
		kinds["scripts flushed"] = func(string, int, time.Duration) { admin.do("SCRIPT", "FLUSH") }
		kinds[everybodys+"CLIENT KILL"] = func(string, int, time.Duration) {
			defer s.deaf(s.all()...)()
			admin.cutAll()
		}
	}
	kinds["connection cut"] = func(_ string, node int, _ time.Duration) {
		defer s.deaf(node)()
		s.w.members[node].proxy.Cut(faultproxy.RST)
	}
	kinds["replies stalled"] = func(_ string, node int, length time.Duration) {
		defer s.deaf(node)()
		proxy := s.w.members[node].proxy
		proxy.Set(faultproxy.Replies, faultproxy.Faults{Stall: true})
		lasting(s.t, length)
		proxy.Set(faultproxy.Replies, faultproxy.Faults{})
	}
	return kinds
}

func (s *saga) all() (nodes []int) {
	for i := range s.nodes {
		nodes = append(nodes, i)
	}
	return nodes
}

// aside does something meanwhile; the returned function waits for its end.
func (s *saga) aside(do func()) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	return func() { <-done }
}

// deaf notes that caches may miss pushes from now on, until they have had the time to
// connect after the returned function was called.
func (s *saga) deaf(nodes ...int) func() {
	begin := s.now()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, node := range nodes {
			s.unheard[node] = append(s.unheard[node], span64{begin, s.now() + int64(reconnecting)})
		}
	}
}

// session is the test's own way into the store.
func (s *saga) session() store.Session {
	if s.w != nil {
		return s.w.view.session
	}
	session, err := s.memory.Attach(context.Background(), store.Config{Name: "saga"})
	if err != nil {
		s.t.Fatal(err)
	}
	return session
}

// stall is how long the machine kept those waiting who asked the server.
type stall struct{ most atomic.Int64 }

func (s *stall) longest() time.Duration { return time.Duration(s.most.Load()) }

// measureStalls asks the server again and again until the test ends, from a goroutine
// and over a connection of its own, and keeps the longest time from when the question
// was due to its answer.
func (s *saga) measureStalls() *stall {
	session, worst := s.session(), &stall{}
	ask := func() error { return session.Ping(context.Background()) }
	return worst.measure(s.t, ask)
}

func (s *stall) measure(t *testing.T, ask func() error) *stall {
	ended, over := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(over); <-ended })
	go func() {
		defer close(ended)
		const every = 5 * time.Millisecond
		timer := time.NewTimer(every)
		defer timer.Stop()
		for due := time.Now().Add(every); ; due = time.Now().Add(every) {
			timer.Reset(time.Until(due))
			select {
			case <-over:
				return
			case <-timer.C:
			}
			if ask() == nil { // else its connection was cut
				s.most.Store(max(s.most.Load(), int64(time.Since(due))))
			}
		}
	}()
	return s
}
