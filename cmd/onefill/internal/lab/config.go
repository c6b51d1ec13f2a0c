package lab

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/memcached"
)

// Config is what a run of the lab is told. Start from [Defaults].
type Config struct {
	Processes int           // reader processes
	Callers   int           // callers in all of them together
	Load      time.Duration // what one operation of the origin takes
	Lease     time.Duration // the lease, and the lock recipe's expiry
	Timeout   time.Duration // for one scenario in one mode
	Scenarios []string      // ids, in the order of [Scenarios]
	Modes     []string      // names, in the order of [Modes]
	Store     string        // kind of the store: "redis" or "memcached"
	Redis     string        // URL of an existing server, or empty
	Memcached string        // host:port or unix:/path of an existing server, or empty
	Postgres  string        // URL of an existing server, or empty
	Embedded  bool          // use miniredis and SQLite whatever is installed
	Out       string        // directory for report and logs; empty: a new temporary one
}

// Defaults is the run that the README shows.
func Defaults() Config {
	return Config{
		Processes: 3,
		Callers:   12,
		Load:      250 * time.Millisecond,
		Lease:     DefaultLease(StoreRedis),
		Timeout:   30 * time.Second,
		Scenarios: ScenarioIDs(),
		Modes:     slices.Clone(Modes),
		Store:     StoreRedis,
	}
}

// DefaultLease is the lease for a kind of store. memcached's shortest takes two
// seconds, as its clock ticks once a second.
func DefaultLease(store string) time.Duration {
	if store == StoreMemcached {
		return minMemcachedLease
	}
	return time.Second
}

// InputError says which flag is wrong and what is allowed. The command ends with
// exit code 2.
type InputError struct {
	Flag string // without dashes
	Msg  string
}

func (e *InputError) Error() string { return "--" + e.Flag + ": " + e.Msg }

// Limits of what one machine can be asked to do. maxCallers is a bound on
// connections: plain cache-aside opens one to the database for each caller.
const (
	maxProcesses = 64
	maxCallers   = 10_000
	minLease     = 20 * time.Millisecond

	minMemcachedLease = 2 * time.Second
	maxDuration       = time.Hour
)

// Validate returns an [*InputError] for the first field that cannot be used.
func (c Config) Validate() error {
	switch {
	case c.Processes < 1 || c.Processes > maxProcesses:
		return badInput("processes", "%d; allowed is 1 to %d", c.Processes, maxProcesses)
	case c.Callers < c.Processes:
		return badInput("callers", "%d is less than --processes %d; every process needs a caller", c.Callers, c.Processes)
	case c.Callers > maxCallers:
		return badInput("callers", "%d; at most %d are allowed", c.Callers, maxCallers)
	case c.Load < time.Millisecond || c.Load > maxDuration:
		return badInput("load", "%v; allowed is 1ms to %v", c.Load, maxDuration)
	case c.Lease < minLease || c.Lease > maxDuration:
		return badInput("lease", "%v; allowed is %v to %v", c.Lease, minLease, maxDuration)
	case c.Timeout <= c.slowest():
		return badInput("timeout", "%v; the slowest scenario needs more than %v with --load %v and --lease %v",
			c.Timeout, c.slowest(), c.Load, c.Lease)
	case c.Timeout > maxDuration:
		return badInput("timeout", "%v; at most %v is allowed", c.Timeout, maxDuration)
	}
	if err := c.checkServers(); err != nil {
		return err
	}
	if err := checkNames("scenario", c.Scenarios, ScenarioIDs()); err != nil {
		return err
	}
	return checkNames("mode", c.Modes, Modes)
}

// checkServers checks the fields that say which servers are used.
func (c Config) checkServers() error {
	switch {
	case !slices.Contains(StoreKinds, c.Store):
		return badInput("store", "unknown store %q; known: %s", c.Store, strings.Join(StoreKinds, ", "))
	case c.Redis != "" && c.Memcached != "":
		return badInput("memcached", "excludes --redis")
	case c.Redis != "" && c.Store != StoreRedis:
		return badInput("redis", "excludes --store %s", c.Store)
	case c.Memcached != "" && c.Store != StoreMemcached:
		return badInput("memcached", "excludes --store %s", c.Store)
	case c.Memcached != "" && c.oneMemcached() != nil:
		return badInput("memcached", "%v", c.oneMemcached())
	case c.Embedded && c.Redis != "":
		return badInput("embedded", "excludes --redis")
	case c.Embedded && c.Postgres != "":
		return badInput("embedded", "excludes --postgres")
	case c.Embedded && c.Store == StoreMemcached:
		return badInput("embedded", "there is no built-in memcached; install it, or name one with --memcached")
	case c.Store == StoreMemcached && (c.Lease < minMemcachedLease || c.Lease%time.Second != 0):
		return badInput("lease", "%v; memcached takes whole seconds, %v at least", c.Lease, minMemcachedLease)
	}
	return nil
}

// oneMemcached says what is wrong with Memcached: all its calls are counted, so it is one server.
func (c Config) oneMemcached() error {
	addrs, err := memcached.ParseList(c.Memcached)
	if err == nil && len(addrs) > 1 {
		err = fmt.Errorf("%d servers are given; the lab takes one", len(addrs))
	}
	return err
}

func checkNames(flag string, given, known []string) error {
	if len(given) == 0 {
		return badInput(flag, "nothing selected; known: %s", strings.Join(known, ", "))
	}
	for _, name := range given {
		if !slices.Contains(known, name) {
			return badInput(flag, "unknown %s %q; known: %s", flag, name, strings.Join(known, ", "))
		}
	}
	return nil
}

// Select turns the values of a flag such as "s1,S5" into known names, in the
// lab's order and without repetition; upper case and lower case are the same.
// What is not known is kept, for Validate to name.
func Select(given, known []string) []string {
	var chosen []string
	for _, name := range known {
		if slices.ContainsFunc(given, func(g string) bool { return strings.EqualFold(strings.TrimSpace(g), name) }) {
			chosen = append(chosen, name)
		}
	}
	for _, g := range given {
		g = strings.TrimSpace(g)
		if !slices.ContainsFunc(known, func(name string) bool { return strings.EqualFold(g, name) }) {
			chosen = append(chosen, g)
		}
	}
	return chosen
}

// slowLoad is the load of S4, which outlasts the lease.
func (c Config) slowLoad() time.Duration { return c.Lease * 8 / 5 }

// gap is the time that S5 leaves between the invalidation and the readers after
// it: more than a push takes, and more than localTTLNoPush.
func (c Config) gap() time.Duration { return max(c.Load/2, 2*localTTLNoPush) }

// oldLoad is the paused load of S5, long enough for readers to load and store the
// new row before it returns.
func (c Config) oldLoad() time.Duration { return c.gap() + 2*c.Load + 250*time.Millisecond }

// slowest is what the slowest cell takes when nothing goes wrong: the lock
// recipe's losers wait for the lock's expiry, then load themselves.
func (c Config) slowest() time.Duration {
	return max(c.Lease+c.slowLoad(), c.Lease+c.oldLoad())
}

// callersOf returns the numbers of the callers that process p runs: as many in
// each process as can be, the first processes have the rest.
func (c Config) callersOf(p int) []int {
	var ids []int
	for id := p; id < c.Callers; id += c.Processes {
		ids = append(ids, id)
	}
	return ids
}

func badInput(flag, format string, args ...any) error {
	return &InputError{Flag: flag, Msg: fmt.Sprintf(format, args...)}
}
