package integration

import (
	"flag"
	"os"
	"testing"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

// The servers of the whole run. Tests use names and keys of their own; a test
// that kills, freezes or flushes a server starts one for itself.
var (
	sharedRedis     = servertest.SharedRedis(servers.RedisOptions{})
	sharedMemcached = servertest.SharedMemcached(servers.MemcachedOptions{})
	sharedPostgres  = servertest.SharedPostgres(servers.PostgresOptions{})
)

func TestMain(m *testing.M) {
	if config := os.Getenv(childEnv); config != "" {
		os.Exit(childMain(config))
	}
	flag.Parse()
	if !parallelGiven() {
		// More tests at a time than there are cores: those that may run beside others
		// mostly wait for a lease's end, memcached's for its clock, which counts seconds.
		flag.Set("test.parallel", "6")
	}
	code := m.Run()
	sharedRedis.Stop()
	sharedMemcached.Stop()
	sharedPostgres.Stop()
	os.Exit(code)
}

func parallelGiven() (given bool) {
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	return given
}
