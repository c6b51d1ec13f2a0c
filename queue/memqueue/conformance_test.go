package memqueue_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/memqueue"
	"github.com/onefill/onefill/queue/queuetest"
)

// TestConformance runs the suite on the whole queue and on queues that act as servers
// that can do less, or order.
func TestConformance(t *testing.T) {
	for _, config := range []struct {
		name    string
		options memqueue.Options
		lease   time.Duration
	}{
		{"full", memqueue.Options{}, 150 * time.Millisecond},
		{"ordered", memqueue.Options{OrderedKeys: true}, 150 * time.Millisecond},
		{"like SQS", memqueue.Options{
			Unfenced: true, CountsAll: true, ForgetsErrors: true, NoMerge: true, NoReplay: true,
			MaxBatch: 10, MaxDelay: 15 * time.Minute, MaxLease: 12 * time.Hour, MaxPayload: 256 << 10, Granularity: 100 * time.Millisecond,
		}, 200 * time.Millisecond},
	} {
		t.Run(config.name, func(t *testing.T) {
			t.Parallel()
			queuetest.Run(t, harness(config.options, config.lease))
		})
	}
}

// harness gives every hook that memory can have: there are no connections to break and
// no transactions.
func harness(o memqueue.Options, lease time.Duration) queuetest.Harness {
	var last atomic.Pointer[memqueue.Queue] // of the test that disturbs it: those run one after the other
	return queuetest.Harness{
		New: func(testing.TB) (a, b queue.Queue) {
			q := memqueue.New(o)
			last.Store(q)
			return q, q
		},
		Lease:   lease,
		Restart: func(testing.TB) { last.Load().Down(); last.Load().Up() },
		Block: func(testing.TB) func() {
			q, hold := last.Load(), make(chan struct{})
			q.SetFault(func(memqueue.Op) memqueue.Fault { return memqueue.Fault{Hold: hold} })
			return func() { close(hold); q.SetFault(nil) }
		},
	}
}
