package lab

import (
	"context"
	"maps"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// miniredisTick is how often the embedded server's clock is advanced; nothing
// expires there by itself.
const miniredisTick = 5 * time.Millisecond

// embeddedRedis is the embedded store, in this process. The readers reach it by TCP
// like a real one. It is also its own faults.
type embeddedRedis struct {
	addr string

	mu     sync.Mutex // guards what follows; nothing waits under it
	m      *miniredis.Miniredis
	counts map[string]int64
	thawed chan struct{} // closed unless the server is frozen

	stop  chan struct{}
	clock sync.WaitGroup
}

func startMiniredis() (*storeServer, error) {
	e := &embeddedRedis{addr: "127.0.0.1:0", counts: make(map[string]int64), stop: make(chan struct{}), thawed: make(chan struct{})}
	close(e.thawed)
	if err := e.start(); err != nil {
		return nil, err
	}
	e.clock.Go(e.advance)
	return &storeServer{
		name: "miniredis", version: moduleVersion("github.com/alicebob/miniredis/v2"), private: true,
		spec:     storeSpec{Kind: StoreRedis, URL: "redis://" + e.addr},
		commands: e.commands,
		damage:   &damaged{faults: e},
		close: func() {
			close(e.stop)
			e.clock.Wait()
			e.kill()
		},
	}, nil
}

// start makes a new, empty server at the address of the last one.
func (e *embeddedRedis) start() error {
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr(e.addr); err != nil {
		return err
	}
	m.Server().SetPreHook(e.before)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.m, e.addr = m, m.Addr()
	return nil
}

// before runs before each command: it counts it, and holds it while the server is
// frozen.
func (e *embeddedRedis) before(_ *server.Peer, command string, _ ...string) bool {
	e.mu.Lock()
	thawed := e.thawed
	e.mu.Unlock()
	<-thawed
	e.mu.Lock()
	defer e.mu.Unlock()
	e.counts[strings.ToLower(command)]++
	return false
}

func (e *embeddedRedis) commands(context.Context) (map[string]int64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.counts), nil
}

func (e *embeddedRedis) kill() error {
	e.thaw() // closing waits for commands that are held
	if m := e.server(); m != nil {
		m.Close()
	}
	return nil
}

func (e *embeddedRedis) restart(context.Context) error {
	if err := e.kill(); err != nil {
		return err
	}
	return e.start()
}

func (e *embeddedRedis) freeze() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.thawed = make(chan struct{})
	return nil
}

func (e *embeddedRedis) thaw() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-e.thawed:
	default:
		close(e.thawed)
	}
	return nil
}

func (e *embeddedRedis) server() *miniredis.Miniredis {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.m
}

// advance makes the server's keys expire in real time.
func (e *embeddedRedis) advance() {
	ticker := time.NewTicker(miniredisTick)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-e.stop:
			return
		case <-ticker.C:
			now := time.Now()
			e.server().FastForward(now.Sub(last))
			last = now
		}
	}
}

// moduleVersion is the version that this program was built with.
func moduleVersion(path string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == path {
				return strings.TrimPrefix(dep.Version, "v")
			}
		}
	}
	return "unknown"
}
