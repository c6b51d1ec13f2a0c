package onefill

import (
	"math"
	"math/rand/v2"
	"time"
)

// Arithmetic of times to live. It saturates: "never" plus a minute is never, and
// no jitter makes a long TTL negative. Moments are nanoseconds of the local
// cache's clock, which is monotonic.

// after adds d to t, which may both be the largest duration.
func after(t, d time.Duration) time.Duration {
	if d > 0 && t > math.MaxInt64-d {
		return math.MaxInt64
	}
	return t + d
}

// times is d, n times.
func times(d time.Duration, n uint64) time.Duration {
	if d > 0 && n > uint64(math.MaxInt64/d) {
		return math.MaxInt64
	}
	return d * time.Duration(n)
}

// until is the moment d after now.
func until(now int64, d time.Duration) int64 { return int64(after(time.Duration(now), d)) }

// wallAfter is time.Time.Add that stops at the last microsecond an envelope can
// hold instead of wrapping round.
func wallAfter(t time.Time, d time.Duration) time.Time {
	return t.Add(min(d, 200*365*24*time.Hour))
}

// longestJittered is the most that jittered can return.
func longestJittered(d time.Duration, fraction float64) time.Duration {
	return after(d, time.Duration(min(fraction*float64(max(d, 0)), math.MaxInt64/2)))
}

// jittered adds up to fraction of d at random, so that what was stored together
// does not expire together. It is never less than d.
func jittered(d time.Duration, fraction float64) time.Duration {
	span := fraction * float64(d)
	if d <= 0 || span < 1 {
		return d
	}
	return after(d, time.Duration(min(span, math.MaxInt64/2)*rand.Float64()))
}

// earlyBy draws, once per reader, how much before its expiry a value is to be
// refreshed: cost * beta * -ln(rand). "Optimal Probabilistic Cache Stampede
// Prevention", Vattani, Chierichetti, Lowenstein, VLDB 2015 (XFetch).
func earlyBy(cost time.Duration, beta float64) time.Duration {
	d := float64(cost) * beta * rand.ExpFloat64() // -ln of a uniform number is exponential
	return time.Duration(min(d, math.MaxInt64/2))
}
