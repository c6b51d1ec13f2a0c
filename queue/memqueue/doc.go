// Package memqueue is the queue that lives in the process: the reference of the
// contract in package queue, and what examples and tests run on. Its jobs die with the
// process.
//
// # Time
//
// The queue has no goroutine of its own: what is due is judged by time.Now whenever
// somebody asks, and a Receive that waits has a timer. So everything works in the fake
// time of a testing/synctest bubble, as long as the queue was made inside the bubble.
//
// # Faults
//
// Tests of code that uses a queue can make it misbehave: [Queue.SetFault] delays,
// blocks and fails single operations, before or after they were applied, or single
// entries of them; [Queue.Down] takes the server away; [Queue.Counts] and
// [Queue.Jobs] look inside. [Options] lets it act as a queue that can do less.
package memqueue
