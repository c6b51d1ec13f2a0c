package watch

import (
	"sync"
	"time"
)

// window is the last minute, in spans of ten seconds: what is hot now, not what has been
// since the process began.
type window struct {
	mu    sync.Mutex // guards all of it; nothing blocks under it
	spans [spans]span
}

const (
	spans   = 6
	spanFor = 10 * time.Second
)

// span has a sketch for each question.
type span struct {
	number int64 // the span's time by the clock, in tens of seconds
	kinds  [kinds]*sketch
}

type kind int

const (
	byCalls  kind = iota // hits and waits
	byGroups             // miss groups that ended
	byLoad               // time spent in loads, in microseconds
	byExtra              // loads of miss groups beyond the one
	kinds
)

func newWindow(room int) *window {
	w := &window{}
	for i := range w.spans {
		for k := range w.spans[i].kinds {
			w.spans[i].kinds[k] = newSketch(room)
		}
	}
	return w
}

// add adds to a key's weight, and lets more be noted of it under the lock.
func (w *window) add(now time.Time, k kind, n name, weight uint64, note func(*cell)) {
	n.key = short(n.key)
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.span(now).kinds[k].add(n, weight)
	if note != nil {
		note(c)
	}
}

// span is that of now. The lock is held.
func (w *window) span(now time.Time) *span {
	number := now.UnixNano() / int64(spanFor)
	s := &w.spans[number%spans]
	if s.number != number {
		s.number = number
		for _, k := range s.kinds {
			k.reset()
		}
	}
	return s
}

// merged adds up the spans of the last minute.
func (w *window) merged(now time.Time, k kind) map[name]*cell {
	w.mu.Lock()
	defer w.mu.Unlock()
	latest := now.UnixNano() / int64(spanFor)
	var recent []*sketch
	for i := range w.spans {
		if s := &w.spans[i]; s.number > latest-spans && s.number <= latest {
			recent = append(recent, s.kinds[k])
		}
	}
	return merge(recent)
}

// covered is how much of the last minute the window shows, for a recorder that began at start.
func covered(now, start time.Time) time.Duration {
	into := time.Duration(now.UnixNano() % int64(spanFor))
	return max(min(now.Sub(start), (spans-1)*spanFor+into), time.Millisecond)
}
