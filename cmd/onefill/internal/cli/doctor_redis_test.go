package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/redis/rueidis"
)

func startRedis(t *testing.T, args ...string) *servers.Server {
	t.Helper()
	return servertest.Redis(t, servers.RedisOptions{Args: args})
}

// sayTo is an operator's connection.
func sayTo(t *testing.T, server *servers.Server) func(command ...string) string {
	t.Helper()
	option := rueidis.MustParseURL(server.URL())
	option.ForceSingleClient, option.DisableCache = true, true
	client, err := rueidis.NewClient(option)
	must(t, err)
	t.Cleanup(client.Close)
	return func(command ...string) string {
		t.Helper()
		text, err := client.Do(context.WithoutCancel(t.Context()), client.B().Arbitrary(command[0]).Args(command[1:]...).Build()).ToMessage()
		if err != nil {
			return err.Error()
		}
		if s, err := text.ToString(); err == nil {
			return s
		}
		n, _ := text.AsInt64()
		return fmt.Sprint(n)
	}
}

// A server that is set up as it should be, and then each fault that can be provoked while
// it runs.
func TestDoctorRedis(t *testing.T) {
	server := startRedis(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	say := sayTo(t, server)
	t.Setenv("ONEFILL_REDIS", server.URL())
	healthy := examine(t, "--strict")
	healthy.allFine(t)
	if len(healthy.all) != len(redisChecks) {
		t.Errorf("%d findings of %d checks", len(healthy.all), len(redisChecks))
	}
	healthy.finds(t, "memory", levelOK, "of 100.0 MiB, allkeys-lru")
	for _, tt := range []struct {
		setting, value string
		check          string
		want           level
		says           string
	}{
		{"maxmemory", "0", "memory", levelWarn, "no maxmemory"},
		{"maxmemory-policy", "noeviction", "memory", levelWarn, "it refuses what is loaded (OOM)"},
		{"maxmemory-policy", "volatile-ttl", "memory", levelWarn, "the leases"},
		{"maxmemory-policy", "allkeys-random", "memory", levelWarn, "a key is loaded twice"},
		{"maxmemory-policy", "volatile-lru", "memory", levelOK, "volatile-lru"},
		{"timeout", "300", "idle-timeout", levelWarn, "after 300 s"},
		{"client-output-buffer-limit", "normal 1mb 0 0", "output-buffers", levelWarn, "loses what it has in local"},
		{"client-output-buffer-limit", "pubsub 64kb 0 0", "output-buffers", levelWarn, "redisstore.Bus"},
		{"tracking-table-max-keys", "0", "tracking-table", levelWarn, "no limit"},
		{"min-replicas-to-write", "1", "replication", levelFail, "NOREPLICAS"},
		{"save", "900 1", "persistence", levelOK, "snapshots (900 1)"},
		{"appendonly", "yes", "persistence", levelOK, "append-only file"},
	} {
		reply, err := configGet(say, tt.setting)
		must(t, err)
		if got := say("CONFIG", "SET", tt.setting, tt.value); got != "OK" {
			t.Fatalf("%s %s: %s", tt.setting, tt.value, got)
		}
		e := examine(t)
		e.finds(t, tt.check, tt.want, tt.says)
		if got := say("CONFIG", "SET", tt.setting, reply); got != "OK" {
			t.Fatalf("%s %s: %s", tt.setting, reply, got)
		}
	}
	restored := examine(t)
	restored.allFine(t, "memory")
}

func configGet(say func(...string) string, setting string) (string, error) {
	value, ok := map[string]string{"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru", "timeout": "0", "tracking-table-max-keys": "1000000", "min-replicas-to-write": "0",
		"save": "", "appendonly": "no", "client-output-buffer-limit": "normal 0 0 0 pubsub 33554432 8388608 60"}[setting]
	if !ok {
		return "", fmt.Errorf("what is the default of %s?", setting)
	}
	return value, nil
}

// A server that is nearly full, with what it holds against what it may.
func TestDoctorRedisFull(t *testing.T) {
	server := startRedis(t, "--maxmemory", "8mb")
	say := sayTo(t, server)
	t.Setenv("ONEFILL_REDIS", server.URL())
	say("SET", "ballast", strings.Repeat("x", 7<<20))
	full := examine(t)
	full.finds(t, "memory", levelFail, "nearly full")

	// The table of keys that somebody has read, at a fifth of the limit and beyond it.
	option := rueidis.MustParseURL(server.URL())
	option.ClientTrackingOptions = []string{}
	reader, err := rueidis.NewClient(option)
	must(t, err)
	defer reader.Close()
	for i := range 8 {
		reader.Do(t.Context(), reader.B().Get().Key(fmt.Sprint("k", i)).Build())
	}
	for limit, want := range map[string]level{"40": levelOK, "10": levelWarn} {
		say("CONFIG", "SET", "tracking-table-max-keys", limit)
		e := examine(t)
		e.finds(t, "tracking-table", want, "8 keys of "+limit)
	}
}

// What a user may not do, and what it costs.
func TestDoctorRedisRights(t *testing.T) {
	server := startRedis(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	say := sayTo(t, server)
	t.Setenv("ONEFILL_REDIS", "redis://cache:secret@"+server.Addr())
	const documented = "reset on >secret resetchannels -@all ~of:* +get +set +del +exists +pttl +pexpire +getrange +setrange +eval +evalsha +hello +ping +info +getex +time +client|tracking"
	for _, tt := range []struct {
		rules string
		check string
		want  level
		says  string
	}{
		{"", "rights", levelOK, "all but wait"},
		{"", "scripts", levelOK, "allowed"},
		{"", "idle-timeout", levelUnknown, "CONFIG GET is not allowed"},
		{"", "tracking-table", levelUnknown, "0 keys; CONFIG GET"},
		{"+wait +config|get", "rights", levelOK, "all that a store needs"},
		{"+wait +config|get", "idle-timeout", levelOK, "none"},
		{"-eval", "scripts", levelFail, "+eval +evalsha"},
		{"-evalsha", "rights", levelFail, "missing: evalsha"},
		{"-set", "rights", levelFail, "missing: set"},
		{"resetkeys ~other:*", "rights", levelFail, "missing: get, set, del"},
		{"-getex -time", "rights", levelWarn, "tags (Options.Tags)"},
		{"-time", "clock", levelUnknown, "refused"},
		{"-info", "rights", levelWarn, "telling a lost connection from a failover"},
		{"-info", "version", levelUnknown, "INFO is not allowed"},
		{"-info", "memory", levelUnknown, "INFO is not allowed"},
		{"-client|tracking", "tracking", levelWarn, "+client|tracking"},
		{"-client|tracking", "rights", levelWarn, "pushes"},
		{"-ping", "round-trips", levelUnknown, "refused"},
	} {
		args := append([]string{"ACL", "SETUSER", "cache"}, strings.Fields(documented+" "+tt.rules)...)
		if got := say(args...); got != "OK" {
			t.Fatalf("%v: %s", args, got)
		}
		e := examine(t)
		e.finds(t, tt.check, tt.want, tt.says)
	}
	say("ACL", "SETUSER", "cache", "reset", "on", ">other")
	wrong := examine(t)
	wrong.finds(t, "connect", levelFail, "WRONGPASS")
}

// The doctor leaves nothing behind, and asks nothing that changes anything.
func TestDoctorRedisReadsOnly(t *testing.T) {
	server := startRedis(t)
	say := sayTo(t, server)
	t.Setenv("ONEFILL_REDIS", server.URL())
	say("SET", "k", "v")
	before := say("DBSIZE")
	say("CONFIG", "RESETSTAT")
	examine(t)
	if after := say("DBSIZE"); after != before {
		t.Errorf("%s keys before, %s after", before, after)
	}
	if got := say("INFO", "stats"); !strings.Contains(got, "tracking_total_keys:0") {
		t.Error("a connection is still tracked")
	}
	allowed := " hello client|setinfo client|setname client|tracking client|no-evict ping info config|get config|resetstat eval get time dbsize cluster|slots cluster|info cluster|shards acl|setuser command select auth quit "
	for line := range strings.Lines(say("INFO", "commandstats")) {
		name, _, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		if strings.HasPrefix(line, "cmdstat_") && !strings.Contains(allowed, " "+name+" ") {
			t.Errorf("the doctor has called %s", strings.TrimSpace(line))
		}
	}
}

// A snapshot that cannot be written: a directory is in its place.
func TestDoctorRedisSnapshotFails(t *testing.T) {
	server := startRedis(t)
	say := sayTo(t, server)
	t.Setenv("ONEFILL_REDIS", server.URL())
	must(t, os.MkdirAll(filepath.Join(server.Dir(), "dump.rdb", "x"), 0o755))
	say("BGSAVE")
	poll(t, "the snapshot fails", func() bool { return strings.Contains(say("INFO", "persistence"), "rdb_last_bgsave_status:err") })
	e := examine(t)
	e.finds(t, "persistence", levelFail, "MISCONF")
	say("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
	e = examine(t)
	e.finds(t, "persistence", levelOK, "")
	must(t, os.RemoveAll(filepath.Join(server.Dir(), "dump.rdb")))
}

func poll(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("not within 30 s: " + what)
		}
	}
}

// A replica is no address for a store; one that hangs is seen from its primary, and one
// that has lost its primary says so.
func TestDoctorRedisReplicas(t *testing.T) {
	t.Parallel()
	primary, replica := startRedis(t, "--repl-diskless-sync-delay", "0"), startRedis(t)
	toPrimary, toReplica := sayTo(t, primary), sayTo(t, replica)
	if got := toReplica("REPLICAOF", "127.0.0.1", fmt.Sprint(primary.Port())); got != "OK" {
		t.Fatal(got)
	}
	poll(t, "the replica follows", func() bool { return strings.Contains(toPrimary("INFO", "replication"), "state=online") })
	e := examine(t, "--redis", primary.URL())
	e.finds(t, "replication", levelOK, "1 replica in step")
	poll(t, "the link is up", func() bool { return strings.Contains(toReplica("INFO", "replication"), "master_link_status:up") })
	e = examine(t, "--redis", replica.URL())
	e.finds(t, "role", levelFail, fmt.Sprint("its primary, 127.0.0.1:", primary.Port()))
	e.finds(t, "replication", levelOK, "is up")

	must(t, replica.Pause())
	poll(t, "the replica is late", func() bool {
		info := toPrimary("INFO", "replication")
		return strings.Contains(info, "lag=3") || strings.Contains(info, "lag=4")
	})
	e = examine(t, "--redis", primary.URL())
	e.finds(t, "replication", levelWarn, "bytes behind)")
	must(t, replica.Continue())
	must(t, primary.Kill())
	poll(t, "the link is down", func() bool { return strings.Contains(toReplica("INFO", "replication"), "master_link_status:down") })
	e = examine(t, "--redis", replica.URL())
	e.finds(t, "replication", levelFail, "has lost its primary")
}

// Each primary of a cluster is asked; a node that serves no slots is a cluster that is down.
func TestDoctorRedisCluster(t *testing.T) {
	t.Parallel()
	shards := servertest.RedisCluster(t, 2, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	e := examine(t, "--redis", shards[0].Primary.URL())
	e.allFine(t)
	nodes := map[string]int{}
	for _, f := range e.all {
		nodes[f.Server]++
	}
	for _, s := range shards {
		if n := nodes["redis at "+s.Primary.Addr()] + nodes["valkey at "+s.Primary.Addr()]; n != len(redisChecks) {
			t.Errorf("%d findings about the primary %s", n, s.Primary.Addr())
		}
	}
	e.finds(t, "cluster", levelOK, "state ok, 16384 of 16384 slots")

	alone := startRedis(t, "--cluster-enabled", "yes")
	e = examine(t, "--redis", alone.URL())
	e.finds(t, "cluster", levelFail, "CLUSTERDOWN")
}
