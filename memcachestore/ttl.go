package memcachestore

import (
	"math"
	"strconv"
	"time"
)

// Times are whole seconds, as the server counts them. What remains of an item comes
// from the server with every read, so no clock of a client takes part.
const (
	forever = math.MaxInt64
	// longestRelative is 30 days: memcached reads a larger number as a date.
	longestRelative = 30 * 24 * 60 * 60
	// shortestClaim, of a lease or a failure record: the server's clock ticks once a
	// second, so one second may be over at once, before those who wait have seen it.
	shortestClaim = 2
)

// seconds rounds a duration up; 0 or less is 0, the longest one is forever.
func seconds(d time.Duration) int64 {
	switch {
	case d <= 0:
		return 0
	case d == math.MaxInt64:
		return forever
	}
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// claimSeconds is seconds for leases and failure records: at least least, and at
// most 30 days.
func claimSeconds(d time.Duration, least int64) int64 {
	return min(max(seconds(d), least), longestRelative)
}

// ttlArg is a time to live as the argument of T. Above 30 days it is the date at
// which the item ends, by the server's own clock; a date after 2038-01-19, which the
// protocol cannot say, is never.
func ttlArg(s int64, serverNow int64) string {
	if s > longestRelative {
		if s > math.MaxInt32-serverNow {
			return "0"
		}
		s += serverNow
	}
	return strconv.FormatInt(s, 10)
}

// duration is the time that so many seconds take.
func duration(s int64) time.Duration {
	if s > math.MaxInt64/int64(time.Second) {
		return 0 // it cannot be told: store.Answer.Remaining
	}
	return time.Duration(s) * time.Second
}
