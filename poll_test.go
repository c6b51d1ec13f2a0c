package onefill

import (
	"testing"
	"time"
)

// The pauses of a waiter that has to poll: never shorter than the floor, never longer
// than the ceiling, about geometric in between; so a wait of any length asks a number
// of times that can be written down.
func TestPollAfter(t *testing.T) {
	for range 1000 {
		for _, c := range []struct{ waited, cost, least, most time.Duration }{
			{0, 0, pollFloor, 2 * pollFloor},
			{0, 4 * time.Millisecond, pollFloor, 2 * pollFloor},
			{0, 200 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond},
			{0, time.Hour, pollCeiling / 2, pollCeiling},
			{time.Millisecond, time.Hour, pollFloor, 2 * pollFloor},
			{800 * time.Millisecond, 0, 100 * time.Millisecond, 200 * time.Millisecond},
			{time.Hour, 0, pollCeiling / 2, pollCeiling},
		} {
			if p := pollAfter(c.waited, c.cost); p < c.least || p > c.most {
				t.Fatalf("after %v, with a cost of %v: %v, want %v to %v", c.waited, c.cost, p, c.least, c.most)
			}
		}
	}
	for load, most := range map[time.Duration]int{250 * time.Millisecond: 22, time.Second: 34, 30 * time.Second: 170} {
		asked, waited := 0, time.Duration(0)
		for ; waited < load; asked++ {
			waited += pollAfter(max(waited, 1), 0)
		}
		if asked > most {
			t.Errorf("a wait of %v asked %d times, want %d at most", load, asked, most)
		}
		if late := waited - load; late > load/4+2*pollFloor {
			t.Errorf("a wait of %v was %v late", load, late)
		}
	}
}
