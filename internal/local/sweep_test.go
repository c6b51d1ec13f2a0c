package local

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill/internal/bubble"
)

// What has ended and is never asked for again leaves a cache that is larger than what is in
// use: after as many puts as there were entries. What lives stays.
func TestSweep(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, grace := range []time.Duration{0, time.Minute} {
			c := newCache(t, Options{MaxEntries: 100_000, Grace: grace, Shared: true})
			put := func(name string, n int, ttl time.Duration) {
				for i := range n {
					k := fmt.Sprint(name, i)
					c.Put(k, entry(c, "v", ttl, c.Stamp(k)))
				}
			}
			put("short", 5000, time.Second)
			put("long", 1000, time.Hour)
			synctest.Wait() // the sweeps that were due
			if n := c.Len(); n != 6000 {
				t.Errorf("%d entries of 6000 that are alive", n)
			}
			time.Sleep(time.Second + grace)
			c.Pushed("long0")
			put("new", 6000, time.Hour)
			synctest.Wait()
			if n := c.Len(); n >= 7000+sweepAfter {
				t.Errorf("grace %v: %d entries, 7000 are alive", grace, n)
			}
			for _, k := range []string{"long1", "long999", "new0", "new5999"} {
				want(t, c, k, "v")
			}
		}
	})
}

// A sweep also drops what cannot be served for what was heard since it was read; and a cache that
// it has emptied is swept again.
func TestSweepAfterAnEmptyOne(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCache(t, Options{MaxEntries: 100_000, Grace: time.Hour, Shared: true})
		for range 3 {
			for i := range sweepAfter - 1 {
				k := fmt.Sprint("k", i)
				c.Put(k, entry(c, "v", time.Hour, c.Stamp(k)))
			}
			c.Mended()
			c.Put("last", entry(c, "v", -2*time.Hour, c.Stamp("last")))
			synctest.Wait()
			if n := c.Len(); n != 0 {
				t.Fatalf("%d entries are left, none can be served", n)
			}
		}
	})
}

// An entry that takes an ended one's place while a sweep is about to drop that one stays.
func TestSweepDropsWhatItHasSeen(t *testing.T) {
	c := newCache(t, Options{})
	old, young := entry(c, "old", time.Hour, c.Stamp("k")), entry(c, "young", time.Hour, c.Stamp("k"))
	c.Put("k", old)
	c.Put("k", young)
	c.dropIf("k", old)
	want(t, c, "k", "young")
	c.dropIf("k", young)
	want(t, c, "k", "")
	c.dropIf("k", young)
}

// After Close no sweep touches the cache: Close waits for one that runs, and one that comes
// later does nothing.
func TestSweepEndsWithTheCache(t *testing.T) {
	c := New[string, string](Options{MaxEntries: 10})
	c.sweeper.mu.Lock() // a sweep runs
	closed := make(chan struct{})
	go func() {
		c.Close()
		close(closed)
	}()
	for deadline := time.Now().Add(10 * time.Second); !c.sweeper.stopped.Load(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("Close has not begun")
		}
	}
	select {
	case <-closed:
		t.Error("Close has returned while a sweep was running")
	default:
	}
	c.sweeper.mu.Unlock()
	<-closed
	c.Put("k", entry(c, "v", -time.Hour, c.Stamp("k")))
	c.sweep()
	if c.Len() != 1 {
		t.Error("a sweep after Close has dropped something")
	}
}
