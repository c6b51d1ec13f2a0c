// Package memstore is the store that lives in the process: the reference of the
// contract in package store, and the store that examples and tests run on.
//
//	st := memstore.New()
//	cache, err := onefill.New(onefill.Options[int64, User]{
//		Name: "users", Load: loadUser, TTL: time.Minute, Store: st,
//	})
//
// Caches that are given the same [Store] under the same name behave like two
// processes on one server: at most one of them loads a key, and each hears of
// the other's writes. What they store dies with the process.
//
// # Time
//
// The store has no goroutine of its own. What has expired is judged by time.Now
// whenever a key is used, and a timer per key removes it and tells those who
// have read it. So everything works in the fake time of a testing/synctest
// bubble, as long as the store was made inside the bubble.
//
// # Pushes
//
// A session is told of the next change of every key that it has read, once,
// until it reads the key again, and never of its own writes. The functions of
// store.Events run on the goroutine that made the change (or on the timer's),
// after the change was applied and before the call that made it returns, in
// order for each session, with no lock held: a test need not wait for them. Only
// if another goroutine is busy telling the same session, that one goes on and
// the call returns without waiting. [Store.HoldPushes] delays them.
//
// # Faults
//
// Tests of code that uses a cache can make the store misbehave: [Store.SetFault]
// delays, blocks and fails single operations, before or after they were applied;
// [Store.Down], [Store.Flush], [Store.Evict], [Store.DropLease],
// [Store.HoldPushes], [Store.DropPushes], [Store.LosePushes] and [Store.Failover] do
// what happens to servers and networks; [Store.Counts], [Store.Raw] and [Store.Usage] look
// inside. [Options] lets it act as a server that can do less.
package memstore
