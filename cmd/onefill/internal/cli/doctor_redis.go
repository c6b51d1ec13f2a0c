package cli

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
	"github.com/redis/rueidis"
)

//go:embed lua/rights.lua
var rightsLua string

func redisOption(text string) (rueidis.ClientOption, error) {
	option, err := recipe.RedisOption(text)
	if err != nil {
		return option, badInput("--redis: %w", err)
	}
	option.DisableCache, option.DisableRetry = true, true
	return option, nil
}

// redisNode is one server, and what it has said about itself.
type redisNode struct {
	d      *doctorFlags
	client rueidis.Client
	addr   string
	info   map[string]string
	config map[string]string // nil if CONFIG GET is not allowed
}

// redisChecks are all checks of a node, in their order.
var redisChecks = []struct {
	name string
	run  func(*redisNode, context.Context) result
}{
	{"version", (*redisNode).version},
	{"role", (*redisNode).role},
	{"scripts", (*redisNode).scripts},
	{"rights", (*redisNode).rights},
	{"tracking", (*redisNode).tracking},
	{"tracking-table", (*redisNode).trackingTable},
	{"memory", (*redisNode).memory},
	{"persistence", (*redisNode).persistence},
	{"replication", (*redisNode).replication},
	{"cluster", (*redisNode).cluster},
	{"idle-timeout", (*redisNode).idleTimeout},
	{"output-buffers", (*redisNode).outputBuffers},
	{"clock", (*redisNode).clock},
	{"round-trips", (*redisNode).roundTrips},
}

func examineRedis(ctx context.Context, d *doctorFlags, option rueidis.ClientOption) {
	at := "redis at " + strings.Join(option.InitAddress, ",")
	client, err := bounded(ctx, d.timeout, func(ctx context.Context) (rueidis.Client, error) { return dialRedis(ctx, option) })
	if err != nil {
		d.note(at, "connect", failed("The server cannot be used as it is. While that lasts caches load from the origin, MaxLoadsDegraded at a time.", "%v", err))
		return
	}
	defer client.Close()
	nodes := client.Nodes()
	if len(nodes) == 0 {
		nodes = map[string]rueidis.Client{strings.Join(option.InitAddress, ","): client}
	}
	var addrs []string
	for addr := range nodes {
		addrs = append(addrs, addr)
	}
	slices.Sort(addrs)
	for _, addr := range addrs {
		n := &redisNode{d: d, client: nodes[addr], addr: addr}
		n.examine(ctx)
	}
}

// dialRedis connects. A cluster without slots is no cluster to the client; then the node
// that was named is looked at.
func dialRedis(ctx context.Context, option rueidis.ClientOption) (rueidis.Client, error) {
	type outcome struct {
		client rueidis.Client
		err    error
	}
	out := make(chan outcome, 1)
	go func() { // it knows no context
		client, err := rueidis.NewClient(option)
		if err != nil && option.Sentinel.MasterSet == "" {
			if client != nil {
				client.Close()
			}
			option.ForceSingleClient = true
			client, err = rueidis.NewClient(option)
		}
		out <- outcome{client, err}
	}()
	select {
	case o := <-out:
		return o.client, o.err
	case <-ctx.Done():
		go func() {
			if o := <-out; o.client != nil {
				o.client.Close()
			}
		}()
		return nil, fmt.Errorf("connect: %w", ctx.Err())
	}
}

func (n *redisNode) examine(ctx context.Context) {
	info, err := n.text(ctx, "INFO")
	if err != nil && !refused(err) {
		n.d.note("redis at "+n.addr, "connect", failed("The server does not answer.", "%v", err))
		return
	}
	n.info = fields(info)
	n.readConfig(ctx)
	at := n.product() + " at " + n.addr
	for _, c := range redisChecks {
		n.d.note(at, c.name, c.run(n, ctx))
	}
}

func (n *redisNode) product() string {
	if n.info["valkey_version"] != "" || n.info["server_name"] == "valkey" {
		return "valkey"
	}
	return "redis"
}

// do runs one command, as an arbitrary one: rueidis does not repeat those.
func (n *redisNode) do(ctx context.Context, command ...string) rueidis.RedisResult {
	result, err := bounded(ctx, n.d.timeout, func(ctx context.Context) (rueidis.RedisResult, error) {
		return n.client.Do(ctx, n.client.B().Arbitrary(command[0]).Args(command[1:]...).Build()), nil
	})
	if err != nil {
		return rueidis.NewErrorResult(err)
	}
	return result
}

func (n *redisNode) text(ctx context.Context, command ...string) (string, error) {
	text, err := n.do(ctx, command...).ToString()
	return strings.TrimPrefix(text, "txt:"), err // what RESP3 puts before verbatim text
}

// refused says that the server has answered, with an error.
func refused(err error) bool {
	_, ok := rueidis.IsRedisErr(err)
	return ok
}

// notAsked is for what could not be found out.
func notAsked(err error) result {
	if refused(err) {
		return unknown("the server refused the question: %v", err)
	}
	return failed("The server does not answer.", "%v", err)
}

// fields reads INFO.
func fields(info string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			all[name] = value
		}
	}
	return all
}

func (n *redisNode) number(field string) int64 {
	v, _ := strconv.ParseInt(n.info[field], 10, 64)
	return v
}

func (n *redisNode) readConfig(ctx context.Context) {
	// By name: the rest holds passwords.
	config, err := n.do(ctx, "CONFIG", "GET", "timeout", "tracking-table-max-keys", "save", "stop-writes-on-bgsave-error",
		"min-replicas-to-write", "client-output-buffer-limit").AsStrMap()
	if err == nil {
		n.config = config
	}
}

// setting reads a number of the configuration.
func (n *redisNode) setting(name string) (int64, bool) {
	v, err := strconv.ParseInt(n.config[name], 10, 64)
	return v, err == nil
}

var errNoInfo = errors.New("INFO is not allowed")

func (n *redisNode) version(context.Context) result {
	version, oldest := n.info["redis_version"], "7.0"
	if n.product() == "valkey" {
		version = n.info["valkey_version"]
	}
	if version == "" {
		return unknown("%v", errNoInfo)
	}
	if n.product() == "redis" && olderThan(version, 7) {
		return failed("Redis "+oldest+" or newer is needed, or Valkey: update the server.", "%s", version)
	}
	return fine("%s", version)
}

// olderThan compares the first number of a version.
func olderThan(version string, major int) bool {
	first, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(first)
	return err != nil || n < major
}

func (n *redisNode) role(context.Context) result {
	switch role := n.info["role"]; {
	case role == "":
		return unknown("%v", errNoInfo)
	case n.info["loading"] == "1":
		return failed("The server loads its data and answers nothing until it is done.", "%s, loading", role)
	case role == "slave":
		return failed("A replica lags and takes no writes: give the address of its primary, "+n.info["master_host"]+":"+n.info["master_port"]+".", "replica")
	}
	return fine("primary")
}

// doctorKey is a key as the store makes them.
const doctorKey = "of:{doctor:probe}"

func (n *redisNode) scripts(ctx context.Context) result {
	err := n.do(ctx, "EVAL", "return 1", "0").Error()
	if err != nil && refused(err) {
		return failed("onefill works through scripts. Allow them: ACL SETUSER <user> +eval +evalsha. A service without EVAL will not do.", "refused: %v", err)
	}
	if err != nil {
		return notAsked(err)
	}
	return fine("allowed")
}

// Rights that are missed by something other than everything.
var rightsFor = map[string]string{
	"getex":           "tags (Options.Tags)",
	"time":            "tags (Options.Tags)",
	"info":            "telling a lost connection from a failover: each lost connection makes the caches send their last invalidations again",
	"client|tracking": "pushes: without them the changes of others are heard when Local.TTL ends, and waiters poll",
	"wait":            "redisstore.Confirm",
}

func (n *redisNode) rights(ctx context.Context) result {
	missing, err := n.do(ctx, "EVAL", rightsLua, "0", doctorKey).AsStrSlice()
	switch {
	case err != nil:
		return notAsked(err)
	case len(missing) == 0:
		return fine("all that a store needs, on keys of its own")
	}
	add := "ACL SETUSER <user> ~of:* +" + strings.Join(missing, " +")
	var parts []string
	for _, command := range missing {
		use, some := rightsFor[command]
		if !some {
			return failed("A store cannot work without these. Allow them: "+add, "missing: %s", strings.Join(missing, ", "))
		}
		if use = command + " is for " + use; !slices.Contains(parts, use) {
			parts = append(parts, use)
		}
	}
	if slices.Equal(missing, []string{"wait"}) {
		return fine("all but wait, which only redisstore.Confirm needs")
	}
	return warn(strings.Join(parts, "; ")+". Allow them: "+add, "missing: %s", strings.Join(missing, ", "))
}

func (n *redisNode) tracking(ctx context.Context) result {
	const without = "The store works without pushes: caches hear of the changes of others when Local.TTL ends, and waiters poll."
	wire, cancel := n.client.Dedicate()
	defer cancel()
	ctx, end := context.WithTimeout(ctx, n.d.timeout)
	defer end()
	hello, err := wire.Do(ctx, wire.B().Arbitrary("HELLO").Build()).AsMap()
	proto := hello["proto"]
	if three, _ := proto.AsInt64(); err != nil || three < 3 {
		return warn(without+" A server with RESP3 is needed for them.", "RESP3 is not available")
	}
	for _, args := range [][]string{{"ON", "NOLOOP"}, {"OFF"}} {
		if err := wire.Do(ctx, wire.B().Arbitrary("CLIENT", "TRACKING").Args(args...).Build()).Error(); err != nil {
			if refused(err) {
				return warn(without+" Allow it: ACL SETUSER <user> +client|tracking.", "refused: %v", err)
			}
			return notAsked(err)
		}
	}
	return fine("RESP3, CLIENT TRACKING works")
}

func (n *redisNode) trackingTable(context.Context) result {
	keys := n.number("tracking_total_keys")
	most, ok := n.setting("tracking-table-max-keys")
	switch {
	case n.info["tracking_total_keys"] == "":
		return unknown("%v", errNoInfo)
	case !ok:
		return unknown("%d keys; CONFIG GET is not allowed, so the limit is not known", keys)
	case most == 0:
		return warn("The table of keys that clients have read may grow without a bound, about 115 bytes a key. Set tracking-table-max-keys.", "%d keys, no limit", keys)
	case keys*10 >= most*8:
		return warn("When the table is full the server forgets keys and tells their readers that they have changed: more reads, nothing wrong. Raise tracking-table-max-keys (about 115 bytes a key), or lower Local.MaxEntries.", "%d keys of %d", keys, most)
	}
	return fine("%d keys of %d", keys, most)
}

func (n *redisNode) memory(context.Context) result {
	policy, most, used := n.info["maxmemory_policy"], n.number("maxmemory"), n.number("used_memory")
	if policy == "" {
		return unknown("%v", errNoInfo)
	}
	text := fmt.Sprintf("%s of %s, %s, %d evicted since the start", mebibytes(used), mebibytes(most), policy, n.number("evicted_keys"))
	if most == 0 {
		return warn("There is no bound: the server grows until the machine kills it. Set maxmemory, and maxmemory-policy allkeys-lru.", "%s, no maxmemory, %s", mebibytes(used), policy)
	}
	switch policy {
	case "noeviction":
		advice := "When it is full it refuses what is loaded (OOM): leases cannot be taken, so that every process loads for itself; hits and invalidations go on. For a cache allkeys-lru is the better policy: it may evict a lease, but those are the newest keys and the last to go, and a late value is refused all the same."
		if used*10 >= most*9 {
			return failed("It is nearly full. "+advice, "%s", text)
		}
		return warn(advice, "%s", text)
	case "volatile-ttl":
		return warn("It evicts first what ends first: the leases. Keys will be loaded more often than once. Use allkeys-lru.", "%s", text)
	case "allkeys-random", "volatile-random":
		return warn("It evicts a lease as readily as anything else: then a key is loaded twice (a late value is refused all the same). Use allkeys-lru.", "%s", text)
	}
	return fine("%s", text)
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

func (n *redisNode) persistence(context.Context) result {
	if n.info["rdb_last_bgsave_status"] == "" {
		return unknown("%v", errNoInfo)
	}
	kinds := []string{}
	if n.info["aof_enabled"] == "1" {
		kinds = append(kinds, "append-only file")
	}
	if save := n.config["save"]; save != "" {
		kinds = append(kinds, "snapshots ("+save+")")
	}
	text := "nothing is kept over a restart, which a cache does not need"
	if len(kinds) > 0 {
		text = strings.Join(kinds, ", ")
	} else if n.config == nil {
		text = "snapshots unknown, as CONFIG GET is not allowed"
	}
	switch {
	case n.info["rdb_last_bgsave_status"] != "ok" && n.config["stop-writes-on-bgsave-error"] != "no":
		return failed("The last snapshot failed, and the server refuses writes because of that (MISCONF): nothing can be loaded under a lease. Make room on its disk, or CONFIG SET stop-writes-on-bgsave-error no.", "the last snapshot failed; %s", text)
	case n.info["aof_enabled"] == "1" && n.info["aof_last_write_status"] != "ok":
		return failed("The append-only file cannot be written, and the server refuses writes because of that (MISCONF). Make room on its disk.", "the last write to the append-only file failed")
	case len(kinds) > 0:
		return result{levelOK, text, "A server that comes back with what it had saved brings old values along; the caches see it and send their last invalidations again."}
	}
	return fine("%s", text)
}

func (n *redisNode) replication(context.Context) result {
	switch {
	case n.info["role"] == "":
		return unknown("%v", errNoInfo)
	case n.info["role"] == "slave" && n.info["master_link_status"] != "up":
		return failed("The replica has lost its primary: promoted now, it would bring back what was invalidated since.", "the link to the primary is %s", n.info["master_link_status"])
	case n.info["role"] == "slave":
		return fine("the link to the primary is up")
	}
	if least, _ := n.setting("min-replicas-to-write"); least > 0 {
		if good := n.number("min_slaves_good_slaves"); good < least {
			return failed("The server refuses writes (NOREPLICAS) until enough replicas follow. Bring them back, or lower min-replicas-to-write.", "%d replicas in step, min-replicas-to-write is %d", good, least)
		}
	}
	return n.replicas()
}

// replicas judges those that follow this primary.
func (n *redisNode) replicas() result {
	count, offset := n.number("connected_slaves"), n.number("master_repl_offset")
	if count == 0 {
		return fine("no replicas")
	}
	var late []string
	var most int64
	for i := range count {
		slave := n.info["slave"+strconv.FormatInt(i, 10)] // ip=…,port=…,state=online,offset=…,lag=…
		parts := map[string]string{}
		for part := range strings.SplitSeq(slave, ",") {
			name, value, _ := strings.Cut(part, "=")
			parts[name] = value
		}
		at, _ := strconv.ParseInt(parts["offset"], 10, 64)
		lag, _ := strconv.ParseInt(parts["lag"], 10, 64)
		most = max(most, offset-at)
		if parts["state"] != "online" || lag > 2 || offset-at > 16<<20 {
			late = append(late, fmt.Sprintf("%s:%s (%s, %d s, %d bytes behind)", parts["ip"], parts["port"], parts["state"], lag, offset-at))
		}
	}
	if len(late) > 0 {
		return warn("Promoted now, it would bring back what was invalidated since then, until the caches have sent it again. Look at its machine and the network.", "%s", strings.Join(late, ", "))
	}
	return fine("%s in step, %d bytes behind at most", plural(int(count), "replica"), most)
}

func (n *redisNode) cluster(ctx context.Context) result {
	switch n.info["cluster_enabled"] {
	case "":
		return unknown("%v", errNoInfo)
	case "0":
		return fine("no cluster")
	}
	text, err := n.text(ctx, "CLUSTER", "INFO")
	if err != nil {
		return notAsked(err)
	}
	info := fields(text)
	found := fmt.Sprintf("state %s, %s of 16384 slots served, %s nodes", info["cluster_state"], info["cluster_slots_ok"], info["cluster_known_nodes"])
	if info["cluster_state"] != "ok" {
		return failed("Keys of the slots that nobody serves cannot be asked (CLUSTERDOWN): redis-cli --cluster check names them, and --cluster fix assigns them.", "%s", found)
	}
	return fine("%s", found)
}

func (n *redisNode) idleTimeout(context.Context) result {
	idle, ok := n.setting("timeout")
	switch {
	case !ok:
		return unknown("CONFIG GET is not allowed")
	case idle > 0:
		return warn("A cache that is quiet for so long loses its connection, and with it what it has in local. Set timeout 0; tcp-keepalive finds dead clients.", "connections are cut after %d s", idle)
	}
	return fine("none")
}

func (n *redisNode) outputBuffers(context.Context) result {
	limits, ok := n.config["client-output-buffer-limit"]
	if !ok {
		return unknown("CONFIG GET is not allowed")
	}
	words := strings.Fields(limits) // class hard soft seconds, and so on
	for i := 0; i+3 < len(words); i += 4 {
		hard, _ := strconv.ParseInt(words[i+1], 10, 64)
		soft, _ := strconv.ParseInt(words[i+2], 10, 64)
		if hard > 0 && (soft == 0 || hard < soft) {
			soft = hard
		}
		switch {
		case words[i] == "normal" && soft > 0 && soft < 64<<20:
			return warn("A connection whose unread replies and pushes exceed that is cut, and the cache loses what it has in local. A herd of large values gets there: CONFIG SET client-output-buffer-limit \"normal 0 0 0\".", "%s", limits)
		case words[i] == "pubsub" && soft > 0 && soft < 1<<20:
			return warn("A redisstore.Bus that is slow for a moment is cut, and its caches drop what they have in local: CONFIG SET client-output-buffer-limit \"pubsub 32mb 8mb 60\".", "%s", limits)
		}
	}
	return fine("%s", limits)
}

func (n *redisNode) clock(ctx context.Context) result {
	start := time.Now()
	reply, err := n.do(ctx, "TIME").AsIntSlice()
	if err == nil && len(reply) != 2 {
		err = fmt.Errorf("TIME answered %v", reply)
	}
	if err != nil {
		return notAsked(err)
	}
	half := time.Since(start) / 2
	return clockResult(time.Unix(reply[0], reply[1]*1000), start.Add(half), half)
}

func (n *redisNode) roundTrips(ctx context.Context) result {
	took, err := n.d.measure(ctx, func(ctx context.Context) error {
		return n.client.Do(ctx, n.client.B().Arbitrary("PING").Build()).Error()
	})
	if err != nil {
		return notAsked(err)
	}
	return n.d.roundTripResult(took, n.d.storeTimeout, "StoreTimeout")
}
