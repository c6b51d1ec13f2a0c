package integration

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/onefill/onefill"
)

const scalePage = "../docs/scale.md"

// The tables of docs/scale.md are what the formulas and the measured costs come to.
// ONEFILL_SCALE=write writes them into the page.
func TestScalePage(t *testing.T) {
	text, err := os.ReadFile(scalePage)
	if err != nil {
		t.Fatal(err)
	}
	page, tables := string(text), scaleTables()
	for name, table := range tables {
		block := regexp.MustCompile(`(?s)<!-- table: ` + regexp.QuoteMeta(name) + ` -->\n(.*?)<!-- end -->`)
		m := block.FindStringSubmatchIndex(page)
		if m == nil {
			t.Errorf("the page has no table %q", name)
			continue
		}
		if page[m[2]:m[3]] == table {
			continue
		}
		if os.Getenv("ONEFILL_SCALE") != "write" {
			t.Errorf("the page's table %q is not what the formulas come to; go test -run TestScalePage with ONEFILL_SCALE=write writes it:\n%s", name, table)
		}
		page = page[:m[2]] + table + page[m[3]:]
	}
	if os.Getenv("ONEFILL_SCALE") == "write" && page != string(text) {
		if err := os.WriteFile(scalePage, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, phrase := range scalePhrases() {
		if !strings.Contains(page, phrase) {
			t.Errorf("the page does not say %q, which is what the formulas come to", phrase)
		}
	}
	if n := strings.Count(page, "<!-- table:"); n != len(tables) {
		t.Errorf("the page has %d tables, %d are known here", n, len(tables))
	}
}

// What the page's tables are about.
const (
	redisCore   = 0.8    // of a core: what Redis' one thread may be used to
	maxClients  = 10_000 // Redis' default
	memcachedIn = 1_024  // connections, memcached's default
	naptime     = 60     // s, autovacuum's default
)

// example is the page's fleet.
func example(processes int) plan {
	return plan{
		processes: processes, rate: 1000, keys: 1_000_000, skew: 1, writes: float64(processes) * 1000 / 10_000,
		ttl: 600 * meanJitter, localTTL: 60, load: 0.02, pushes: true,
	}
}

func without(p plan, localTTL float64) plan {
	p.pushes, p.localTTL = false, localTTL
	return p
}

// cores is the CPU that Redis needs, in cores. The costs of commands have the pushes to
// those who send them in them.
func (d demand) cores() float64 {
	return (d.gets*cost("getCPU") + d.acquires*cost("acquireCPU") + d.loads*cost("fillCPU") +
		d.invalidates*cost("invalidateCPU") + (d.pushes-d.ownPushes)*cost("pushCPU")) / 1e6
}

// sent is what Redis sends, in bytes per second. An acquire that finds the value brings it.
func (d demand) sent() float64 {
	return (d.gets-d.loads+(d.acquires-d.loads)/2)*cost("getOut") + d.loads*cost("loadOut") + (d.pushes-d.ownPushes)*cost("pushOut")
}

func (d demand) received() float64 {
	return (d.gets+d.acquires-2*d.loads)*cost("getIn") + d.loads*cost("loadIn") + d.invalidates*cost("invalidateIn")
}

// table is the memory of the tracking table; its limit is on keys, not on pairs.
func (d demand) table() float64 {
	return d.trackedKeys*cost("trackedKey") + (d.trackedPairs-d.trackedKeys)*cost("trackedPairHot")
}

func scaleTables() map[string]string {
	return map[string]string{
		"redis": unitTable("Redis:"), "bus costs": unitTable("Redis as a bus:"), "memcached": unitTable("memcached:"), "postgres": unitTable("PostgreSQL:"),
		"fleet": fleetTable(), "polled": polledTable(), "changes": changesTable(), "queue": queueTable(), "bus": busTable(), "limits": limitsTable(), "away": awayTable(), "tags": tagsTable(),
	}
}

// grid is a table whose columns are things and whose rows are figures of them.
func grid[T any](corner string, heads []string, columns []T, rows []gridRow[T]) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | %s |\n|---|%s\n", corner, strings.Join(heads, " | "), strings.Repeat("---:|", len(heads)))
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s |", r.what)
		for _, c := range columns {
			fmt.Fprintf(&b, " %s |", r.figure(c))
		}
		b.WriteString("\n")
	}
	return b.String()
}

type gridRow[T any] struct {
	what   string
	figure func(T) string
}

var fleetSizes = []int{10, 100, 1000, 10_000}

func sizeHeads() (heads []string) {
	for _, n := range fleetSizes {
		heads = append(heads, number(float64(n)))
	}
	return heads
}

// sized is a demand of so many processes.
type sized struct {
	demand
	hottest   demand
	processes float64
}

func sizedOf(p plan) sized {
	s, ok := knownDemands[p]
	if !ok {
		s = sized{p.demand(), p.hottest(), float64(p.processes)}
		knownDemands[p] = s
	}
	return s
}

// knownDemands are those that were computed: the search for limits asks for many again.
var knownDemands = map[plan]sized{}

func sizedPlans(of func(int) plan) (all []sized) {
	for _, n := range fleetSizes {
		all = append(all, sizedOf(of(n)))
	}
	return all
}

// rounded writes a computed figure: two digits, as the third one says nothing.
func rounded(x float64) string {
	if x == 0 {
		return "0"
	}
	scale := math.Pow(10, math.Floor(math.Log10(math.Abs(x)))-1)
	return number(math.Round(x/scale) * scale)
}

func perCent(x float64) string { return fmt.Sprintf("%.0f %%", 100*x) }

// bytesOf writes an amount of memory or traffic.
func bytesOf(x float64) string {
	for _, unit := range []string{"B", "kB", "MB", "GB"} {
		if x < 1000 {
			return rounded(x) + " " + unit
		}
		x /= 1000
	}
	return rounded(x) + " TB"
}

func fleetTable() string {
	return grid("processes", sizeHeads(), sizedPlans(example), []gridRow[sized]{
		{"Gets/s", func(s sized) string { return rounded(s.requests) }},
		{"hits in local", func(s sized) string { return perCent(s.localHits) }},
		{"local entries that a process needs", func(s sized) string { return rounded(s.copies / s.processes) }},
		{"loads/s at the origin", func(s sized) string { return rounded(s.loads) }},
		{"of these at once", func(s sized) string { return rounded(s.leases) }},
		{"`GET`/s", func(s sized) string { return rounded(s.gets) }},
		{"`acquire`/s", func(s sized) string { return rounded(s.acquires) }},
		{"Invalidates/s", func(s sized) string { return rounded(s.invalidates) }},
		{"pushes/s", func(s sized) string { return rounded(s.pushes) }},
		{"Redis: cores, of one that it can use", func(s sized) string { return rounded(s.cores()) }},
		{"of these for the hottest key", func(s sized) string { return rounded(s.hottest.cores()) }},
		{"Redis: sent/s", func(s sized) string { return bytesOf(s.sent()) }},
		{"Redis: received/s", func(s sized) string { return bytesOf(s.received()) }},
		{"Redis: memory of values", func(s sized) string { return bytesOf(s.values * cost("value1k")) }},
		{"Redis: keys in the tracking table", func(s sized) string { return rounded(s.trackedKeys) }},
		{"Redis: pairs there, of key and process", func(s sized) string { return rounded(s.trackedPairs) }},
		{"Redis: memory of that", func(s sized) string { return bytesOf(s.table()) }},
		{"Redis: memory of connections", func(s sized) string { return bytesOf(s.processes * cost("redisConnection")) }},
	})
}

func polledTable() string {
	return grid("processes", sizeHeads(), sizedPlans(func(n int) plan { return without(example(n), 5) }), []gridRow[sized]{
		{"hits in local", func(s sized) string { return perCent(s.localHits) }},
		{"loads/s at the origin", func(s sized) string { return rounded(s.loads) }},
		{"reads/s of the store, polls of waiters included", func(s sized) string { return rounded(s.asks()) }},
		{"memcached: cores, of all that there are", func(s sized) string { return rounded(s.memcachedCores()) }},
		{"memcached: sent/s", func(s sized) string { return bytesOf(s.asks() * cost("mgOut")) }},
		{"memcached: memory of items", func(s sized) string { return bytesOf(s.values * cost("item1k")) }},
		{"memcached: connections to each server", func(s sized) string { return rounded(s.processes * cost("memcachedConnections")) }},
		{"Redis with `NoTracking()`: cores", func(s sized) string { return rounded(s.cores()) }},
	})
}

// asks: on memcached one read is both GET and acquire, so a miss asks once.
func (d demand) asks() float64 { return d.gets + d.acquires - d.loads }

func (d demand) memcachedCores() float64 {
	return (d.asks()*cost("mgCPU") + (d.loads+d.invalidates)*cost("msCPU")) / 1e6
}

func changesTable() string {
	base := example(1000)
	change := func(edit func(*plan)) plan {
		p := base
		edit(&p)
		return p
	}
	variants := []struct {
		what string
		plan plan
	}{
		{"as above", base},
		{"ten times the writes", change(func(p *plan) { p.writes *= 10 })},
		{"a hundredth of the writes", change(func(p *plan) { p.writes /= 100 })},
		{"Local.TTL 10 minutes", change(func(p *plan) { p.localTTL = p.ttl })},
		{"Local.TTL 10 s", change(func(p *plan) { p.localTTL = 10 })},
		{"TTL 1 hour", change(func(p *plan) { p.ttl = 3600 * meanJitter })},
		{"TTL 1 minute, and Local.TTL", change(func(p *plan) { p.ttl = 60 * meanJitter })},
		{"100 processes of 10,000 Gets/s", change(func(p *plan) { p.processes, p.rate = 100, 10_000 })},
		{"no tracking, Local.TTL 5 s", without(base, 5)},
		{"no tracking, Local.TTL 60 s", without(base, 60)},
	}
	heads := []string{"hits in local", "`GET`/s", "loads/s", "pushes/s", "tracking table", "Redis: cores"}
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s |\n|---|%s\n", strings.Join(heads, " | "), strings.Repeat("---:|", len(heads)))
	for _, v := range variants {
		d := v.plan.demand()
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", v.what,
			perCent(d.localHits), rounded(d.gets), rounded(d.loads), rounded(d.pushes), bytesOf(max(0, d.table())), rounded(d.cores()))
	}
	return b.String()
}

// awayTable: without the store each process loads for itself, and keeps what it has loaded
// for two seconds.
func awayTable() string {
	const alone = 2
	return grid("processes", sizeHeads(), sizedPlans(func(n int) plan { return without(example(n), alone) }), []gridRow[sized]{
		{"loads/s that are wanted: every miss of local", func(s sized) string { return rounded(s.gets) }},
		{"loads at once, MaxLoadsDegraded 32 (default)", func(s sized) string { return rounded(s.processes * onefill.DefaultMaxLoads / 8) }},
		{"loads at once, MaxLoadsDegraded 1", func(s sized) string { return rounded(s.processes) }},
		{"loads/s that 1 lets through", func(s sized) string { return rounded(min(s.gets, s.processes/example(1).load)) }},
		{"PostgreSQL: cores for these", func(s sized) string {
			return rounded(min(s.gets, s.processes/example(1).load) * cost("selectCPU") / 1e6)
		}},
		{"Redis is back: `GET`/s at first, all Gets", func(s sized) string { return rounded(s.requests) }},
		{"Redis: cores for these", func(s sized) string { return rounded(s.requests * cost("getCPU") / 1e6) }},
	})
}

func tagsTable() string {
	return grid("processes", sizeHeads(), sizedPlans(example), []gridRow[sized]{
		{"cores of the tags' server for `epoch`", func(s sized) string { return rounded(s.loads * cost("epochCPU") / 1e6) }},
		{"pushes of one InvalidateTag", func(s sized) string { return rounded(s.processes * cost("pushesPerVoid")) }},
		{"time of that server that it takes", func(s sized) string { return rounded(s.processes*cost("voidCPU")/1000) + " ms" }},
		{"InvalidateTags/s at which that server is full", func(s sized) string { return rounded(redisCore * 1e6 / (s.processes * cost("voidCPU"))) }},
	})
}

func queueTable() string {
	rates := []float64{10, 100, 1000, 10_000}
	var heads []string
	for _, r := range rates {
		heads = append(heads, number(r))
	}
	once := func(x float64) func(float64) string { return func(float64) string { return rounded(x) } }
	return grid("jobs/s", heads, rates, []gridRow[float64]{
		{"WAL/s, without full pages", func(r float64) string { return bytesOf(r * cost("jobWAL")) }},
		{"dead rows/s", func(r float64) string { return rounded(r * cost("jobDead")) }},
		{"of these when VACUUM comes, once a minute or after 1,000", func(r float64) string { return rounded(max(1000, r*cost("jobDead")*naptime)) }},
		{"table and indexes by then", func(r float64) string { return bytesOf(max(1000, r*cost("jobDead")*naptime) * cost("jobBytes")) }},
		{"table after an hour with an old snapshot", func(r float64) string { return bytesOf(r * cost("jobDead") * 3600 * cost("jobBytes")) }},
		{"cores for enqueuing, one job to a transaction", func(r float64) string { return rounded(r * cost("enqueueCPU") / 1e6) }},
		{"cores for claims and ends, 100 at a time", func(r float64) string { return rounded(r * cost("jobCPU") / 1e6) }},
		{"cores for the looks of 4 workers", once(4 * cost("polls") * cost("pollCPU") / 1e6)},
		{"cores for the looks of 1,000 workers", once(1000 * cost("polls") * cost("pollCPU") / 1e6)},
		{"cores for wake-ups (`Notify`) of 4 workers, at most", func(r float64) string { return rounded(wakeCores(r, 4)) }},
		{"cores for wake-ups (`Notify`) of 1,000 workers, at most", func(r float64) string { return rounded(wakeCores(r, 1000)) }},
	})
}

// wakeCores: each commit wakes the listening connection of each worker, and each probe of a
// listener, one in 15 s, those of all. A worker that is woken looks; as many commits as come
// while it does so wake it once, hence at most as often as it can look.
func wakeCores(commits, workers float64) float64 {
	const probe = 15
	looks := min(commits, 1e6/cost("pollCPU"))
	return workers * (commits*cost("notifyCPU") + workers/probe*cost("notifyCPU") + looks*cost("pollCPU")) / 1e6
}

// deliveries are the bus's. All writes are alone in their messages, since each process writes
// seldom; the heartbeats come if it is silent for 1, 3 and 7 s.
func (s sized) deliveries() float64 {
	each := s.invalidates / s.processes // writes of one process
	beats := math.Exp(-each) + math.Exp(-3*each) + math.Exp(-7*each)
	return s.invalidates * (1 + beats) * s.processes
}

func busTable() string {
	return grid("processes", sizeHeads(), sizedPlans(example), []gridRow[sized]{
		{"writes/s", func(s sized) string { return rounded(s.invalidates) }},
		{"messages delivered/s", func(s sized) string { return rounded(s.deliveries()) }},
		{"Redis: cores", func(s sized) string { return rounded(s.deliveries() * cost("busCPU") / 1e6) }},
		{"Redis: sent/s", func(s sized) string { return bytesOf(s.deliveries() * cost("busOut")) }},
	})
}

// limitsTable says from how many processes of the example on something is used up.
func limitsTable() string {
	rows := [][3]string{
		{"`max_connections` of PostgreSQL, 100", "a pool of four each, pgx's default or less", rounded(100. / 4)},
		{"Redis' thread, 80 % of the time", "with pushes", fullFrom(0, redisFull)},
		{"", "without, Local.TTL 5 s", fullFrom(5, redisFull)},
		{"", "without, Local.TTL 60 s", fullFrom(60, redisFull)},
		{"", "for the hottest key alone: a cluster does not help", fullFrom(0, func(s sized) bool { return s.hottest.cores() > redisCore })},
		{"the tracking table is larger than the values", "with pushes", fullFrom(0, tableAboveValues)},
		{"`-c` of memcached, 1,024 connections", "two each", rounded(memcachedIn / cost("memcachedConnections"))},
		{"the bus: Redis' thread, 80 % of the time", "without pushes", fullFrom(5, func(s sized) bool { return s.deliveries()*cost("busCPU")/1e6 > redisCore })},
		{"10 Gbit/s out of one Redis", "with pushes", fullFrom(0, func(s sized) bool { return s.sent() > 10e9/8 })},
		{"`maxclients` of Redis, 10,000", "one each", rounded(maxClients / cost("redisConnections"))},
	}
	var b strings.Builder
	b.WriteString("| what is used up | where | from so many processes on |\n|---|---|---:|\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", r[0], r[1], r[2])
	}
	return b.String()
}

func redisFull(s sized) bool        { return s.cores() > redisCore }
func tableAboveValues(s sized) bool { return s.table() > s.values*cost("value1k") }

// fullFrom is the least number of processes of the example, to a hundredth, for which
// something is over: with pushes, or without and with a localTTL.
func fullFrom(localTTL float64, over func(sized) bool) string {
	low, high := 1, 1<<17
	for float64(high) > 1.01*float64(low)+1 {
		n := int(math.Sqrt(float64(low) * float64(high)))
		p := example(n)
		if localTTL > 0 {
			p = without(p, localTTL)
		}
		if over(sizedOf(p)) {
			high = n
		} else {
			low = n
		}
	}
	return rounded(float64(high))
}

// scalePhrases are the figures that the page's text repeats.
func scalePhrases() []string {
	d := example(1000).demand()
	return []string{
		"up to about " + fullFrom(0, redisFull) + " processes",
		"from about " + fullFrom(0, tableAboveValues) + " processes on",
		"loads " + rounded(d.loads) + " rows/s for a million Gets/s, " + rounded(d.leases) + " at once",
		rounded(d.leases) + " at once are " + rounded(d.leases*cost("lease")/1000) + " kB",
		number(math.Ceil(d.cores()/redisCore)) + " primaries for 1,000 processes",
		"asks " + number(polls(0.02)) + " times for a load of 20 ms, " + number(polls(0.25)) + " times for one of 250 ms",
		rounded(d.loads) + " primary-key reads a second are " + rounded(d.loads*cost("selectCPU")/1e6) + " cores",
		"costs " + rounded(1000*cost("polls")*cost("pollCPU")/1e6) + " cores for looking at an empty queue",
		"grows by " + rounded(cost("jobDead")*cost("jobBytes")) + " bytes a job",
	}
}
