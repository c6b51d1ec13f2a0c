package watch

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// TestSketchBounds: whatever the order of events, the true weight of a key lies between what the
// sketch is sure of and what it says, in one sketch and in several that are added up.
func TestSketchBounds(t *testing.T) {
	const room, keys, events = 32, 1000, 20_000
	rnd := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rnd, 1.1, 1, keys-1)
	parts := []*sketch{newSketch(room), newSketch(room), newSketch(room)}
	truth, total := make(map[name]uint64), uint64(0)
	for i := range events {
		n := name{"c", fmt.Sprint(zipf.Uint64())}
		w := rnd.Uint64N(10)
		parts[i*len(parts)/events].add(n, w)
		truth[n] += w
		total += w
	}
	for _, s := range parts {
		checkHeap(t, s)
	}
	sum := merge(parts)
	if len(sum) > room*len(parts) {
		t.Errorf("%d keys out of three sketches of %d", len(sum), room)
	}
	for n, c := range sum {
		if is := truth[n]; is > c.weight || is < c.weight-c.error {
			t.Errorf("%s weighs %d; the sketch says %d to %d", n.key, is, c.weight-c.error, c.weight)
		}
	}
	for n, is := range truth { // what is heavy is there, with an error within the bound
		if c := sum[n]; is > total/room && (c == nil || c.error > total/room) {
			t.Errorf("%s has %d of %d and is %+v", n.key, is, total, c)
		}
	}
}

func checkHeap(t *testing.T, s *sketch) {
	t.Helper()
	if len(s.heap) > s.room || len(s.cells) != len(s.heap) {
		t.Errorf("%d in the heap, %d in the map, room for %d", len(s.heap), len(s.cells), s.room)
	}
	for i, c := range s.heap {
		if c.at != i || s.cells[c.name] != c || i > 0 && s.heap[(i-1)/2].weight > c.weight {
			t.Fatalf("cell %d of the heap is out of place: %+v", i, c)
		}
	}
}

// TestWindowForgets: what is older than a minute does not count.
func TestWindowForgets(t *testing.T) {
	w, start := newWindow(4), time.Unix(1_000_000, 0)
	n := name{"c", "k"}
	w.add(start, byCalls, n, 5, nil)
	w.add(start.Add(30*time.Second), byCalls, n, 7, nil)
	for after, want := range map[time.Duration]uint64{0: 5, 59 * time.Second: 12, 60 * time.Second: 7, 89 * time.Second: 7} {
		got := uint64(0)
		if c := w.merged(start.Add(after), byCalls)[n]; c != nil {
			got = c.weight
		}
		if got != want {
			t.Errorf("after %v: %d calls, expected %d", after, got, want)
		}
	}
	if c := w.merged(start.Add(91*time.Second), byCalls); len(c) != 0 {
		t.Errorf("after 91 s: %v", c)
	}
}

// TestLongKeysAreCut: two long keys of the same beginning stay two.
func TestLongKeysAreCut(t *testing.T) {
	long := string(make([]byte, 5000))
	a, b := short(long+"a"), short(long+"b")
	if len(a) > longestKey || a == b || a != short(long+"a") {
		t.Errorf("%q, %q", a, b)
	}
}
