package integration

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onefill/onefill"
)

// TestSetThenGet sets a row and gets it, 100,000 times (with the race detector 25,000), in two caches on one Redis. The
// property: the Get brings what its own cache has Set before it, or something newer,
// never an older row. What could make it old is under way all the time: the pushes of
// the other cache's writes and of one's own, and reads in the other cache whose entries
// and flights each Set voids. Half of the rows are Set in one cache only; the other half in
// both by turns, as rows that are Set must be in the order of their commits.
func TestSetThenGet(t *testing.T) {
	const writers = 4 // in each cache; the even ones on rows of their own
	total := 100_000
	if raceEnabled {
		total /= 4 // each takes six times as long
	}
	o, caches := loopback(t, sharedRedis.Get(t), 2, nil)
	shared := o.addMany(writers/2, 0)
	turns := make([]sync.Mutex, writers/2)
	var old, sets atomic.Int64
	over := make(chan struct{})
	var writing, reading sync.WaitGroup
	begin := time.Now()
	for i, cache := range caches {
		for w := range writers {
			key, turn := shared[w/2], &turns[w/2]
			if w%2 == 0 {
				key, turn = o.add(0), &sync.Mutex{}
			}
			writing.Go(func() {
				for range total / writers / len(caches) {
					sets.Add(1)
					if got, want, err := setThenGet(o, cache, key, turn); err != nil || got < want {
						if old.Add(1) <= 10 {
							t.Errorf("cache %d had Set version %d of %q and got version %d, %v", i, want, key, got, err)
						}
					}
				}
			})
			other := caches[1-i]
			reading.Go(func() { readUntil(t, other, key, over) })
		}
	}
	writing.Wait()
	took := time.Since(begin)
	close(over)
	reading.Wait()
	t.Logf("%d times in %v (%v each of %d at once), %d old", sets.Load(), took.Round(time.Millisecond), (took * 2 * writers / time.Duration(total)).Round(time.Microsecond), 2*writers, old.Load())
}

func setThenGet(o *rows, cache *onefill.Cache[string, row], key string, turn *sync.Mutex) (got, want int64, err error) {
	turn.Lock()
	want = o.write(key)
	err = cache.Set(context.Background(), key, row{fmt.Sprintf("v%d", want), want})
	turn.Unlock()
	if err != nil {
		return 0, want, err
	}
	r, err := cache.Get(context.Background(), key)
	return r.Version, want, err
}

// readUntil reads some hundred times a second.
func readUntil(t *testing.T, cache *onefill.Cache[string, row], key string, over <-chan struct{}) {
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return
		case <-tick.C:
		}
		if _, err := cache.Get(context.Background(), key); err != nil {
			t.Errorf("a reader of %q: %v", key, err)
			return
		}
	}
}
