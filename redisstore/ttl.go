package redisstore

import (
	"strconv"
	"time"
)

// longest is what is sent for anything longer. Redis takes far more, but servers and
// test doubles that count in nanoseconds do not.
const longest = 100 * 365 * 24 * time.Hour

// millis is a duration as the argument of PX or PEXPIRE: rounded up to a millisecond
// and at least one, since Redis refuses 0.
func millis(d time.Duration) string { return strconv.FormatInt(wholeMillis(d), 10) }

func wholeMillis(d time.Duration) int64 {
	d = min(d, longest)
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		ms++
	}
	return max(ms, 1)
}

// millisTwice is twice what millis says.
func millisTwice(d time.Duration) string { return strconv.FormatInt(2*wholeMillis(d), 10) }

// millisOrGone is millis for values and records, which may be gone at once: "0".
func millisOrGone(d time.Duration) string {
	if d <= 0 {
		return "0"
	}
	return millis(d)
}
