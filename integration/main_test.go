package integration

import (
	"os"
	"testing"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

// The servers of the whole run. Tests use names and keys of their own; a test
// that kills, freezes or flushes a server starts one for itself.
var (
	sharedRedis    = servertest.SharedRedis(servers.RedisOptions{})
	sharedPostgres = servertest.SharedPostgres(servers.PostgresOptions{})
)

func TestMain(m *testing.M) {
	if config := os.Getenv(childEnv); config != "" {
		os.Exit(childMain(config))
	}
	code := m.Run()
	sharedRedis.Stop()
	sharedPostgres.Stop()
	os.Exit(code)
}
