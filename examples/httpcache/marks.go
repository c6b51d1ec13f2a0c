package httpcache

import (
	"sync"
	"time"
)

// marks bounds how many keys are marked as past the cache: most of them in each period, so twice as many
// there may be at any moment, as each ends within a period of its own.
type marks struct {
	most int
	each time.Duration

	mu    sync.Mutex // guards what follows
	since time.Time  // the beginning of the period
	given int        // in it
}

// ttl is for how long a key is marked: 0, not at all, when there are enough.
func (m *marks) ttl(now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.since) >= m.each {
		m.since, m.given = now, 0
	}
	if m.given >= m.most {
		return 0
	}
	m.given++
	return m.each
}
