package metrics

import (
	"maps"
	"slices"
	"sync"

	"github.com/onefill/onefill/queue"
)

// OtherKind is what kinds of jobs are called in labels that nobody has named beforehand: what
// lies in a queue is not to make series without end.
const OtherKind = "other"

// Kinds is a queue.Observer that has a Recorder for each kind of job. It is to be made by
// [NewKinds].
type Kinds[R Recorder] struct {
	record func(kind string) R

	mu     sync.RWMutex // guards byKind; recorders are called without it
	byKind map[string]R
}

// NewKinds makes one that knows OtherKind only. record makes the Recorder of a kind.
func NewKinds[R Recorder](record func(kind string) R) *Kinds[R] {
	k := &Kinds[R]{record: record, byKind: map[string]R{}}
	k.Know(OtherKind)
	return k
}

// Know makes recorders for kinds that have none.
func (k *Kinds[R]) Know(kinds ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, kind := range kinds {
		if _, ok := k.byKind[kind]; !ok {
			k.byKind[kind] = k.record(kind)
		}
	}
}

// Observe records an event of a worker, under the job's kind or under OtherKind.
func (k *Kinds[R]) Observe(e queue.Event) {
	k.mu.RLock()
	r, ok := k.byKind[e.JobKind]
	if !ok {
		r = k.byKind[OtherKind]
	}
	k.mu.RUnlock()
	RecordQueue(e, r)
}

// Each calls fn for each kind, in their order.
func (k *Kinds[R]) Each(fn func(kind string, r R)) {
	k.mu.RLock()
	byKind := maps.Clone(k.byKind)
	k.mu.RUnlock()
	for _, kind := range slices.Sorted(maps.Keys(byKind)) {
		fn(kind, byKind[kind])
	}
}
