// Package storetest is the conformance suite that every store must pass: it
// states the contract of package store as named tests.
//
//	func TestConformance(t *testing.T) {
//		server := startServer(t)
//		storetest.Run(t, storetest.Harness{
//			New:  func(t testing.TB) store.Store { return mystore.New(server.Addr) },
//			Tick: 60 * time.Millisecond,
//		})
//	}
//
// What a store declares in store.Features is expected of it exactly; a test that
// needs a feature which is not declared, or a hook which the harness does not
// give, is skipped with the reason.
//
// No test needs an empty server: each works under a name of its own. Tests that
// disturb the server run first, one after the other, the rest in parallel: where
// the Tick is long, a larger -parallel than the number of CPUs saves time.
package storetest

import (
	"testing"
	"time"

	"github.com/onefill/onefill/store"
)

// Harness is what the suite must know about the store under test and its server.
// New and Tick are needed; each hook that is left out skips its tests.
type Harness struct {
	// New makes a client of the server, each time another one, with connections
	// of its own where the store has connections. It registers its own clean-up
	// with t. All clients of one Run must talk to the same server.
	New func(t testing.TB) store.Store
	// Tick is the shortest TTL that works reliably for values and leases:
	// 60 ms for Redis, 2 s for memcached. Tests wait for a few of them.
	Tick time.Duration
	// Patience is how long the suite waits for what must happen before it says
	// that it did not. Default: the longer of 10 s and 10 Ticks.
	Patience time.Duration

	// RestartEmpty restarts the server without its data and returns when it
	// answers again.
	RestartEmpty func(t testing.TB)
	// RestartKeeping restarts the server with its data.
	RestartKeeping func(t testing.TB)
	// Break cuts the connections of all clients; the server goes on.
	Break func(t testing.TB)
	// Block makes the server answer nobody until unblock is called: SIGSTOP.
	Block func(t testing.TB) (unblock func())
	// Commands counts the commands that the server has been asked so far.
	Commands func(t testing.TB) int64

	// PutForeign stores bytes that no onefill client has written where the value
	// of a key lies.
	PutForeign func(t testing.TB, name, key string, data []byte)
	// PutForeignType stores something there that has no bytes to be read: in
	// Redis, a list.
	PutForeignType func(t testing.TB, name, key string)
	// EvictKey removes what the server holds where the value of a key lies,
	// behind the back of all clients.
	EvictKey func(t testing.TB, name, key string)
	// EvictLease removes the lease of a key likewise, and the value with it where
	// the lease is part of the value.
	EvictLease func(t testing.TB, name, key string)
	// LoseTag and LoseEpoch remove the generation of a tag, and the epoch of a name,
	// likewise. LoseEpoch may take generations along.
	LoseTag   func(t testing.TB, name, tag string)
	LoseEpoch func(t testing.TB, name string)
}

type test struct {
	name string
	run  func(c *check)
}

// Run runs the suite as subtests of t.
func Run(t *testing.T, h Harness) {
	if h.New == nil || h.Tick <= 0 {
		t.Fatal("storetest.Run: Harness.New and Harness.Tick must be set")
	}
	if h.Patience == 0 {
		h.Patience = max(10*time.Second, 10*h.Tick)
	}
	for _, tt := range disturbing {
		t.Run(tt.name, func(t *testing.T) { tt.run(newCheck(t, &h)) })
	}
	for _, ts := range [][]test{reading, leasing, trying, fencing, failing, remembering, watching, telling, expiring, versioning, contents, strangers, contexts, crowds, tags, inspecting, owning, readingMany} {
		for _, tt := range ts {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				tt.run(newCheck(t, &h))
			})
		}
	}
}
