package integration

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// What one thing costs. docs/scale.md computes with these figures; TestScaleRedis,
// TestScaleMemcached and TestScalePostgres measure them, and fail if one has moved away from
// what is written here by more than its factor. A figure in bytes or in events hardly depends
// on the machine; one in CPU time does, and on what else runs there, hence its wide factor.
type unit struct {
	id     string
	is     float64
	in     string
	factor float64
	what   string
}

const (
	exactly = 1.02 // counts
	closely = 1.15 // bytes: allocators and versions
	roughly = 6    // CPU time, and bytes that depend on what was there before
)

var units = []unit{
	{"value100", 326, "bytes", closely, "Redis: memory of a value of 100 bytes: key, envelope and expiry included"},
	{"value1k", 1414, "bytes", closely, "Redis: memory of a value of 1,000 bytes"},
	{"lease", 166, "bytes", closely, "Redis: memory of a lease, while its key is loaded"},
	{"generation", 134, "bytes", closely, "Redis: memory of a tag's generation"},
	{"trackedKey", 115, "bytes", 1.5, "Redis: memory of the tracking table for a key that somebody has read"},
	{"trackedPair", 52, "bytes", 1.5, "Redis: memory of the tracking table for a connection more that has read a key"},
	{"trackedPairHot", 58, "bytes", 1.5, "Redis: the same where hundreds have read the key"},
	{"keysPerFill", 2, "", exactly, "Redis: tracking table, keys for each key that was loaded: value and lease"},
	{"pairsPerFill", 2, "", exactly, "Redis: tracking table, pairs of key and connection for the process that has loaded a key"},
	{"pairsPerHit", 1, "", exactly, "Redis: tracking table, pairs for a process that has read a value"},
	{"redisConnection", 38300, "bytes", 2, "Redis: memory of a tracked connection that was used just now"},
	{"redisConnections", 1, "", exactly, "Redis: connections of a process, by `redisstore.Open`"},
	{"getCPU", 9, "µs", roughly, "Redis: CPU of a `GET` that hits, its share of the socket calls included"},
	{"getPipelinedCPU", 1, "µs", roughly, "Redis: CPU of a `GET` in a pipeline of a hundred"},
	{"acquireCPU", 13, "µs", roughly, "Redis: CPU of `acquire`"},
	{"fillCPU", 19, "µs", roughly, "Redis: CPU of `fill` and its marker"},
	{"invalidateCPU", 12, "µs", roughly, "Redis: CPU of `invalidate` and its marker"},
	{"pushCPU", 4.3, "µs", roughly, "Redis: CPU of a push to one more connection"},
	{"epochCPU", 9, "µs", roughly, "Redis: CPU of `epoch`, which a load sends before it where the cache has tags"},
	{"voidCPU", 17, "µs", roughly, "Redis: CPU of an `InvalidateTag`, for each process that has a value under the tag: it is told, and asks for the new generation"},
	{"pushesPerVoid", 2, "", exactly, "Redis: pushes of an `InvalidateTag` to each of these: the tag and the epoch"},
	{"getIn", 39.4, "bytes", closely, "Redis: received for a `GET`"},
	{"getOut", 1069, "bytes", closely, "Redis: sent for a `GET` that hits 1,000 bytes"},
	{"loadIn", 1547, "bytes", closely, "Redis: received for a load: `GET`, `acquire`, `fill`, marker, 1,000 bytes"},
	{"loadOut", 179, "bytes", closely, "Redis: sent for a load, its own pushes included"},
	{"invalidateIn", 189, "bytes", closely, "Redis: received for an `Invalidate` of one key"},
	{"pushOut", 51.5, "bytes", closely, "Redis: sent for a push"},
	{"pushesPerLoad", 3, "", exactly, "Redis: pushes to the process that loads, about its own commands"},
	{"pushesPerInvalidate", 1, "", exactly, "Redis: pushes to the process that invalidates, about its own"},
	{"busCPU", 5, "µs", roughly, "Redis as a bus: CPU of a message to one subscriber"},
	{"busOut", 80, "bytes", closely, "Redis as a bus: sent to one subscriber for a message about one key"},
	{"busConnections", 2, "", 2, "Redis as a bus: connections of a process"},

	{"item100", 304, "bytes", closely, "memcached: memory of an item of 100 bytes, its share of the slab included"},
	{"item1k", 1184, "bytes", closely, "memcached: memory of an item of 1,000 bytes"},
	{"memcachedConnections", 2, "", exactly, "memcached: connections of a process to each server"},
	{"memcachedConnection", 700, "bytes", 3, "memcached: memory of a connection"},
	{"mgCPU", 11, "µs", roughly, "memcached: CPU of an `mg` that hits"},
	{"mgOut", 1110, "bytes", closely, "memcached: sent for an `mg` that hits 1,000 bytes"},
	{"msCPU", 12, "µs", roughly, "memcached: CPU of a fill"},

	{"jobBytes", 252, "bytes", 1.3, "PostgreSQL: a job, with its part of the two indexes"},
	{"jobWAL", 960, "bytes", 1.3, "PostgreSQL: WAL of a job, from the enqueuing to its end, without full pages"},
	{"jobDead", 2, "", exactly, "PostgreSQL: row versions of a job that VACUUM removes"},
	{"enqueueCPU", 190, "µs", roughly, "PostgreSQL: CPU of an enqueuing transaction of one job"},
	{"jobCPU", 15, "µs", roughly, "PostgreSQL: CPU of a job's claim and end, in batches of 100"},
	{"pollCPU", 140, "µs", roughly, "PostgreSQL: CPU of a look at an empty queue"},
	{"polls", 6.7, "/s", 1.3, "PostgreSQL: looks of a worker that waits"},
	{"notifyCPU", 6, "µs", roughly, "PostgreSQL: CPU of a notification to one more connection that listens"},
	{"selectCPU", 25, "µs", roughly, "PostgreSQL: CPU of a load, one row by its primary key"},
}

func cost(id string) float64 { return unitOf(id).is }

func unitOf(id string) unit {
	for _, u := range units {
		if u.id == id {
			return u
		}
	}
	panic("no unit " + id)
}

// wantCost compares what was measured with what the page computes with.
func wantCost(t *testing.T, id string, measured float64) {
	t.Helper()
	u := unitOf(id)
	t.Logf("%-20s %10.4g %s (the page: %.4g)  %s", id, measured, u.in, u.is, u.what)
	if !(measured <= u.is*u.factor && measured >= u.is/u.factor) {
		t.Errorf("%s is %.4g %s, docs/scale.md computes with %.4g (within a factor of %g): %s", id, measured, u.in, u.is, u.factor, u.what)
	}
}

// unitTable is the page's table of the units of one server.
func unitTable(server string) string {
	var b strings.Builder
	b.WriteString("| | | |\n|---|---|---:|\n")
	for _, u := range units {
		if what, ok := strings.CutPrefix(u.what, server); ok {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", u.id, strings.TrimSpace(what), strings.TrimSpace(number(u.is)+" "+u.in))
		}
	}
	return b.String()
}

// number writes a figure with three digits that count, and commas.
func number(x float64) string {
	if x == 0 {
		return "0"
	}
	digits := max(0, 2-int(math.Floor(math.Log10(math.Abs(x)))))
	if x == math.Trunc(x) && digits > 0 {
		digits = 0
	}
	scale := math.Pow(10, math.Floor(math.Log10(math.Abs(x)))-2)
	text := fmt.Sprintf("%.*f", digits, math.Round(x/scale)*scale)
	whole, rest, _ := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if rest = strings.TrimRight(rest, "0"); rest != "" {
		whole += "." + rest
	}
	return whole
}
