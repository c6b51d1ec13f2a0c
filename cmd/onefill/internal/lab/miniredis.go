package lab

import (
	"maps"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"context"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// miniredisTick is how often the embedded server's clock is advanced; nothing
// expires there by itself.
const miniredisTick = 5 * time.Millisecond

// startMiniredis runs the embedded store in this process. The readers reach it
// by TCP like a real one.
func startMiniredis() (*storeServer, error) {
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		return nil, err
	}
	var mu sync.Mutex // guards counts
	counts := make(map[string]int64)
	m.Server().SetPreHook(func(_ *server.Peer, command string, _ ...string) bool {
		mu.Lock()
		defer mu.Unlock()
		counts[strings.ToLower(command)]++
		return false
	})
	stop := make(chan struct{})
	var clock sync.WaitGroup
	clock.Go(func() { advance(m, stop) })
	return &storeServer{
		name: "miniredis", version: moduleVersion("github.com/alicebob/miniredis/v2"), private: true,
		spec: storeSpec{Kind: StoreRedis, URL: "redis://" + m.Addr()},
		commands: func(context.Context) (map[string]int64, error) {
			mu.Lock()
			defer mu.Unlock()
			return maps.Clone(counts), nil
		},
		close: func() { close(stop); clock.Wait(); m.Close() },
	}, nil
}

// advance makes the server's keys expire in real time.
func advance(m *miniredis.Miniredis, stop <-chan struct{}) {
	ticker := time.NewTicker(miniredisTick)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			now := time.Now()
			m.FastForward(now.Sub(last))
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
