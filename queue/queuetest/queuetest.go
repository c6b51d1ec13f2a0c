// Package queuetest is the conformance suite that every queue must pass: it states the
// contract of package queue as named tests.
//
//	func TestConformance(t *testing.T) {
//		server := startServer(t)
//		queuetest.Run(t, queuetest.Harness{
//			New: func(t testing.TB) (a, b queue.Queue) {
//				name := server.CreateQueue(t)
//				return myqueue.New(server.Addr, name), myqueue.New(server.Addr, name)
//			},
//			Lease: 300 * time.Millisecond,
//		})
//	}
//
// What a queue declares in queue.Caps is expected of it exactly; a test that needs a
// capability which is not declared, or a hook which the harness does not give, is
// skipped with the reason.
//
// Tests that disturb the server run first, one after the other, the rest in parallel:
// they wait for leases to end, so a larger -parallel than the number of CPUs saves time.
package queuetest

import (
	"testing"
	"time"

	"github.com/onefill/onefill/queue"
)

// Harness is what the suite must know about the queue under test and its server. New
// and Lease are needed; each hook that is left out skips its tests.
type Harness struct {
	// New makes a new, empty queue on the server and two clients of it, with connections
	// of their own where the queue has connections. It registers its own clean-up with t.
	// All queues of one Run must be on the same server.
	New func(t testing.TB) (a, b queue.Queue)
	// Lease is the shortest lease and delay that works reliably: 300 ms for Postgres, 2 s
	// for SQS. Tests wait for a few of them.
	Lease time.Duration
	// Patience is how long the suite waits for what must happen before it says that it
	// did not. Default: the longest of 30 s, 30 Leases and 2 s more than Wait: some jobs need several.
	Patience time.Duration
	// Wait is how long a Receive waits in the tests. Default: the longer of Lease and 1 s,
	// at most Caps.MaxWait. Where a request that is under way cannot be called back, Stop
	// takes as long.
	Wait time.Duration

	// Begin begins a transaction that can enqueue. Needed where Caps.TxEnqueue.
	Begin func(t testing.TB, q queue.Queue) Tx
	// Restart restarts the server with its data and returns when it answers again.
	Restart func(t testing.TB)
	// Break cuts the connections of all clients; the server goes on.
	Break func(t testing.TB)
	// Block makes the server answer nobody until unblock is called: SIGSTOP.
	Block func(t testing.TB) (unblock func())
}

// Tx is a transaction of the queue's database.
type Tx interface {
	Enqueue(j queue.Job) error
	Commit() error
	Rollback() error
}

type test struct {
	name string
	run  func(c *check)
}

// Run runs the suite as subtests of t.
func Run(t *testing.T, h Harness) {
	if h.New == nil || h.Lease <= 0 {
		t.Fatal("queuetest.Run: Harness.New and Harness.Lease must be set")
	}
	if h.Wait == 0 {
		h.Wait = max(h.Lease, time.Second)
	}
	if h.Patience == 0 {
		h.Patience = max(30*time.Second, 30*h.Lease, h.Wait+2*time.Second)
	}
	for _, tt := range disturbing {
		t.Run(tt.name, func(t *testing.T) { tt.run(newCheck(t, &h)) })
	}
	for _, ts := range [][]test{enqueueing, receiving, leasing, fencing, returning, burying, merging, ordering, transacting, contexts, working, crowds} {
		for _, tt := range ts {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				tt.run(newCheck(t, &h))
			})
		}
	}
}
