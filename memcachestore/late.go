package memcachestore

import (
	"context"
	"sync"
	"time"
)

// lateGrants gives back the leases that were granted to callers who had left before
// they heard of it: nobody else would. After a server has hung there may be as many of
// them as requests wait for it, so a few goroutines share the work.
type lateGrants struct {
	mu      sync.Mutex // nothing blocks under it
	leases  []*lease
	workers int
}

const (
	lateWorkers = 16
	// lateTimeout bounds the giving back of one lease.
	lateTimeout = 5 * time.Second
)

// add hands a lease over. It does not block. A lease too many ends by itself.
func (g *lateGrants) add(l *lease) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.leases) >= maxRow {
		return
	}
	g.leases = append(g.leases, l)
	if g.workers < lateWorkers {
		g.workers++
		go g.work()
	}
}

func (g *lateGrants) work() {
	for l := g.next(); l != nil; l = g.next() {
		ctx, cancel := context.WithTimeout(context.Background(), lateTimeout)
		l.giveBack(ctx)
		cancel()
	}
}

func (g *lateGrants) next() *lease {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.leases) == 0 {
		g.workers--
		return nil
	}
	l := g.leases[0]
	g.leases[0] = nil
	g.leases = g.leases[1:]
	return l
}
