package pgqueue

import (
	"testing"
	"time"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/queue"
)

// Sweeps take a tenth of the time, whatever they cost, and there is one at a time. Time
// is fake: a look takes as long as it sleeps.
func TestSweepsTakeATenth(t *testing.T) {
	for _, cost := range []time.Duration{time.Millisecond, 100 * time.Millisecond, 3 * time.Second} {
		bubble.Test(t, func(t *testing.T) {
			var f floor
			var sweeping time.Duration
			start := time.Now()
			for time.Since(start) < 1000*cost {
				l := f.next(false)
				if l.sweep {
					if other := f.next(false); other.sweep && l.after > 0 { // the first looks know nothing
						t.Fatal("two sweeps at once")
					}
					time.Sleep(cost)
					sweeping += cost
				} else {
					time.Sleep(cost / 100)
				}
				f.done(l, false, false, 0)
			}
			if share := float64(sweeping) / float64(time.Since(start)); share < 0.09 || share > 0.11 {
				t.Errorf("sweeps of %v take %.3f of the time", cost, share)
			}
		})
	}
}

// Where the next look begins, by what the looks before it have come to.
func TestFrontier(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var f floor
		back := func() time.Duration {
			f.mu.Lock()
			f.rested = time.Now().Add(time.Hour) // no sweep
			f.mu.Unlock()
			return f.next(false).back - floorMargin
		}
		expect := func(what string, want time.Duration) {
			t.Helper()
			if got := back(); got != want {
				t.Errorf("%s: a look goes back by %v, want %v", what, got, want)
			}
		}
		if l := f.next(false); !l.sweep {
			t.Error("the first look is no sweep")
		} else {
			f.done(l, true, false, 0)
		}
		first := f.next(false)
		if !first.sweep {
			t.Error("a sweep that has failed has shown nothing")
		}
		f.done(first, false, true, time.Minute)
		expect("a full sweep whose last job had been due for a minute", time.Minute)
		time.Sleep(time.Second)
		expect("a second later", time.Minute+time.Second)

		f.done(f.next(false), true, false, 0)
		expect("a look that has failed", time.Minute+time.Second)
		f.done(f.next(false), false, true, 20*time.Second)
		expect("a full look whose last job had been due for 20 s", 20*time.Second)
		f.done(f.next(false), false, true, 30*time.Second)
		expect("a look that has got less far", 20*time.Second)
		f.done(f.next(false), false, false, 0)
		expect("a look that has found all", 0)

		// A look begins; a sweep finds a transaction's jobs of long ago, more than it wanted;
		// the look ends, having found nothing, and must not lose them.
		late := f.next(false)
		f.done(f.next(true), false, true, time.Hour)
		f.done(late, false, false, 0)
		expect("a sweep has found more of an hour ago", time.Hour)
	})
}

// Receive without a wait sees everything that is due, whatever that costs; one that takes
// what is at hand costs a look. Forced: the job was committed behind the floor, and no sweep
// is due for an hour.
func TestAtHandForcesNoSweep(t *testing.T) {
	q := opened(t)
	q.enqueued(t, queue.Job{Kind: "k"})
	q.run(t, "UPDATE {schema}.jobs SET run_at = run_at - interval '1 hour'")
	q.floor.frontier, q.floor.rested = time.Now(), time.Now().Add(time.Hour)
	r := queue.Request{Max: 1, Lease: time.Minute, AtHand: true}
	if ds, err := q.Receive(t.Context(), r); err != nil || len(ds) != 0 || q.floor.sweeps != 0 {
		t.Errorf("at hand were %d jobs, %v, after %d sweeps", len(ds), err, q.floor.sweeps)
	}
	r.AtHand = false
	if ds, err := q.Receive(t.Context(), r); err != nil || len(ds) != 1 || q.floor.sweeps != 1 {
		t.Errorf("%d jobs, %v, after %d sweeps", len(ds), err, q.floor.sweeps)
	}
}
