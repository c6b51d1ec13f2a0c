// Package integration tests onefill, redisstore and memcachestore, a real Redis or
// memcached and a real PostgreSQL together: with processes that are killed and
// paused, connections that are cut, and servers that freeze, restart or forget. It
// has tests only.
//
// A process of a test is this test binary, run again (child_test.go); the test
// itself only tells it what to do and looks at what came out (fleet_test.go, proc_test.go).
// PostgreSQL counts the loads in the row that is loaded (origin_test.go), so a
// load that no cache admits to is counted too.
//
// The environment variable ONEFILL_HISTORY sets how long TestHistory runs
// (default 5s), ONEFILL_SOAK how long TestSoak does (default 20s). Their seeds are
// logged; ONEFILL_SEED repeats one.
package integration
