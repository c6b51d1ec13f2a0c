package integration

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/redisstore"
	"github.com/onefill/onefill/store"
)

// TestScaleRedis measures what docs/scale.md computes with: memory by what the server says
// that it uses before and after, CPU by its own clock of CPU time, traffic by its counters.
// None of that is wall time. Nobody else uses the server.
func TestScaleRedis(t *testing.T) {
	t.Run("memory", scaleMemory)
	t.Run("commands", scaleCommands)
	t.Run("tracking", scaleTracking)
	t.Run("pushes", scalePushes)
	t.Run("tags", scaleTags)
	t.Run("bus", scaleBus)
}

// pageRedis is a server of the kind that docs/scale.md computes with. From Redis 7.2 on, and
// in Valkey, scripts arm fewer keys and values take less.
func pageRedis(t *testing.T) *servers.Server {
	server := servertest.Redis(t, servers.RedisOptions{})
	var major, minor int
	if _, err := fmt.Sscanf(server.Version(), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	if major > 7 || major == 7 && minor >= 2 {
		t.Skipf("SKIPPED: docs/scale.md computes with Redis 7.0, this is %s", server.Version())
	}
	return server
}

// info is one number of INFO.
func (a *admin) info(section, field string) float64 {
	a.t.Helper()
	text, err := a.do("INFO", section).ToString()
	if err != nil {
		a.t.Fatal(err)
	}
	_, rest, found := strings.Cut("\r\n"+text, "\r\n"+field+":")
	digits, _, _ := strings.Cut(rest, "\r")
	n, err := strconv.ParseFloat(digits, 64)
	if !found || err != nil {
		a.t.Fatalf("INFO %s has no number %s: %v", section, field, err)
	}
	return n
}

// meter reads a server's counters before and after something.
type meter struct {
	cpu, in, out float64 // µs, bytes
}

func (a *admin) meter() meter {
	return meter{
		cpu: 1e6 * (a.info("cpu", "used_cpu_sys") + a.info("cpu", "used_cpu_user")),
		in:  a.info("stats", "total_net_input_bytes"), out: a.info("stats", "total_net_output_bytes"),
	}
}

// during is what do has cost, for each of n. Reading the meter costs less than a
// hundredth of what is measured with it.
func (a *admin) during(n int, do func()) meter {
	a.t.Helper()
	before := a.meter()
	do()
	after := a.meter()
	each := float64(n)
	return meter{(after.cpu - before.cpu) / each, (after.in - before.in) / each, (after.out - before.out) / each}
}

func envelope(bytes int) []byte {
	e := store.Envelope{
		Kind: store.KindValue, Version: store.NewVersion(time.Now()), Created: time.Now(), SoftExpiry: time.Now().Add(time.Hour), Cost: time.Millisecond,
		Payload: []byte(strings.Repeat("x", bytes)),
	}
	return e.Encode()
}

// scaleMemory: a thing that the store itself has made is copied 50,000 times.
func scaleMemory(t *testing.T) {
	const n, name = 50_000, "users"
	for _, c := range []struct {
		id, from, to string
		make         func(store.Session) error
	}{
		{"value100", valueKey(name, "10000000"), valueKey(name, "2%07d"), func(s store.Session) error { return set(s, "10000000", 100) }},
		{"value1k", valueKey(name, "10000000"), valueKey(name, "2%07d"), func(s store.Session) error { return set(s, "10000000", 1000) }},
		{"lease", leaseKey(name, "10000000"), leaseKey(name, "2%07d"), func(s store.Session) error {
			_, err := s.Acquire(context.Background(), "10000000", store.Request{Token: store.NewToken(), Try: 1, TTL: time.Hour})
			return err
		}},
		{"generation", "of:{" + name + "}:t:10000000", "of:{" + name + "}:t:2%07d", func(s store.Session) error {
			_, err := s.(store.Tagger).Generations(context.Background(), time.Hour, "10000000")
			return err
		}},
	} {
		server := pageRedis(t)
		admin := adminOf(t, server)
		sessions, _ := trackedSessions(t, server, 1, name)
		must(t, c.make(sessions[0]))
		before := admin.memory()
		admin.do("EVAL", `for i = 1, tonumber(ARGV[2]) do redis.call('COPY', KEYS[1], string.format(ARGV[1], i)) end`,
			"1", c.from, c.to, strconv.Itoa(n))
		if got, err := admin.do("DBSIZE").AsInt64(); err != nil || got < n {
			t.Fatalf("%s: the server has %d keys, %v", c.id, got, err)
		}
		wantCost(t, c.id, float64(admin.memory()-before)/n)
	}
}

func set(s store.Session, key string, bytes int) error {
	_, err := s.Set(context.Background(), key, envelope(bytes), time.Hour)
	return err
}

// trackedSessions are n sessions, each on a store with a connection of its own, as n
// processes have them, and the number of keys that all of them have been told of.
func trackedSessions(t *testing.T, server *servers.Server, n int, name string) ([]store.Session, *atomic.Int64) {
	t.Helper()
	var heard atomic.Int64
	sessions := make([]store.Session, n)
	for i := range sessions {
		st := tracked(t, server, &heard)
		session, err := st.Attach(t.Context(), store.Config{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		sessions[i] = session
	}
	return sessions, &heard
}

// tracked is a store that counts what is pushed to it. Its buffers are small, as there are
// many of them in one process.
func tracked(t *testing.T, server *servers.Server, heard *atomic.Int64) *redisstore.Store {
	t.Helper()
	st, err := redisstore.OpenOption(rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, ReadBufferEachConn: 8 << 10, WriteBufferEachConn: 8 << 10, RingScaleEachConn: 6,
		OnInvalidations: func(keys []rueidis.RedisMessage) { heard.Add(int64(len(keys))) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// scaleCommands: sixteen processes, each of which waits for an answer before it sends
// the next command, as processes do that are not busy: nothing is pipelined, so each command
// pays for its own socket calls.
func scaleCommands(t *testing.T) {
	const procs, each, name = 16, 400, "users"
	server := pageRedis(t)
	admin := adminOf(t, server)
	before := admin.info("clients", "connected_clients")
	sessions, heard := trackedSessions(t, server, procs, name)
	wantCost(t, "redisConnections", (admin.info("clients", "connected_clients")-before)/procs)

	data, leases := envelope(1000), make([][]store.Lease, procs)
	all := func(do func(p int, s store.Session, key string) error) meter {
		return admin.during(procs*each, func() {
			var wg sync.WaitGroup
			for p, s := range sessions {
				wg.Go(func() {
					for i := range each {
						if err := do(p, s, fmt.Sprintf("%d%07d", p, i)); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
	get := func(_ int, s store.Session, key string) error { _, err := s.Get(context.Background(), key); return err }
	acquire := func(p int, s store.Session, key string) error {
		a, err := s.Acquire(context.Background(), key, store.Request{Token: store.NewToken(), Try: 1, TTL: time.Hour})
		if err == nil && a.State != store.Won {
			err = fmt.Errorf("the lease of %s is %v", key, a.State)
		}
		leases[p] = append(leases[p], a.Lease)
		return err
	}
	fill := func(p int, _ store.Session, key string) error {
		stored, err := leases[p][0].Fill(context.Background(), data, time.Hour)
		if leases[p] = leases[p][1:]; err == nil && !stored {
			err = fmt.Errorf("the fill of %s was refused", key)
		}
		return err
	}
	missed, won, filled := all(get), all(acquire), all(fill)
	wantCost(t, "acquireCPU", won.cpu)
	wantCost(t, "fillCPU", filled.cpu)
	wantCost(t, "loadIn", missed.in+won.in+filled.in)
	wantCost(t, "loadOut", missed.out+won.out+filled.out)
	wantCost(t, "pushesPerLoad", float64(heard.Swap(0))/(procs*each))
	wantCost(t, "keysPerFill", admin.info("stats", "tracking_total_keys")/(procs*each))
	pairs := admin.info("stats", "tracking_total_items")
	wantCost(t, "pairsPerFill", pairs/(procs*each))

	// Somebody else's values: p reads what p-1 has filled.
	hit := all(func(p int, _ store.Session, key string) error { return get(p, sessions[(p+1)%procs], key) })
	wantCost(t, "getCPU", hit.cpu)
	wantCost(t, "getIn", hit.in)
	wantCost(t, "getOut", hit.out)
	wantCost(t, "pairsPerHit", (admin.info("stats", "tracking_total_items")-pairs)/(procs*each))

	const pipelines, long = 100, 100
	client := reader(t, server, nil)
	wantCost(t, "getPipelinedCPU", admin.during(pipelines*long, func() {
		for range pipelines {
			cmds := make([]rueidis.Completed, long)
			for i := range cmds {
				cmds[i] = client.B().Get().Key(valueKey(name, fmt.Sprintf("0%07d", i))).Build()
			}
			for _, r := range client.DoMulti(context.Background(), cmds...) {
				must(t, r.Error())
			}
		}
	}).cpu)

	// Nobody but the writer itself has read these. Each is two commands.
	absent := all(func(_ int, s store.Session, key string) error {
		return s.Invalidate(context.Background(), "absent"+key)
	})
	wantCost(t, "invalidateCPU", absent.cpu)
	wantCost(t, "invalidateIn", absent.in)
	wantCost(t, "pushesPerInvalidate", float64(heard.Load())/(procs*each))
}

// scaleTracking: the table holds, for each key, the connections that have read it.
func scaleTracking(t *testing.T) {
	const keys, name = 20_000, "users"
	server := pageRedis(t)
	admin := adminOf(t, server)
	admin.do("CONFIG", "SET", "tracking-table-max-keys", "0") // no limit

	// The server takes buffers away from connections that are idle for seconds, which is as
	// long as a busy machine takes for all: each is measured when it is new.
	const conns = 400
	readers, costs := make([]rueidis.Client, conns), make([]float64, conns)
	for i := range readers {
		before := admin.memory()
		readers[i] = reader(t, server, nil)
		arm(t, readers[i], "warm", 1)
		costs[i] = float64(admin.memory() - before)
	}
	slices.Sort(costs)
	wantCost(t, "redisConnection", costs[conns/2])

	for _, r := range readers {
		arm(t, r, "warm", 100)
	}
	table := func() float64 { return admin.memoryWithoutClients() }
	empty := table()
	arm(t, readers[0], name, keys)
	one := table()
	wantCost(t, "trackedKey", (one-empty)/keys)

	// Many keys that a few connections have read, and few keys that many have: what
	// a pair more costs hardly depends on it.
	const few = 8
	for _, r := range readers[1 : few+1] {
		arm(t, r, name, keys)
	}
	some := table()
	wantCost(t, "trackedPair", (some-one)/(keys*few))

	const hot = 500
	var wg sync.WaitGroup
	for _, r := range readers[few+1:] {
		wg.Go(func() { arm(t, r, name, hot) })
	}
	wg.Wait()
	const pairs = conns*100 + keys*(few+1) + hot*(conns-few-1)
	if got := admin.info("stats", "tracking_total_items"); got < pairs || got > pairs+conns {
		t.Errorf("the table has %.0f pairs, want %d", got, pairs)
	}
	wantCost(t, "trackedPairHot", (table()-some)/(hot*(conns-few-1)))

	// Who has gone stays in the table, until the key is told of.
	gone := readers[:conns/2]
	for _, r := range gone {
		r.Close()
	}
	poll(t, "the server has seen them go", func() bool { return admin.info("clients", "connected_clients") <= conns-float64(len(gone))+2 })
	if got := admin.info("stats", "tracking_total_items"); got < pairs {
		t.Errorf("half of the connections are closed, and the table has %.0f pairs of %d: docs/scale.md says that they stay", got, pairs)
	}
}

// memoryWithoutClients is the memory that the server uses, but for its connections and
// their buffers, which come and go.
func (a *admin) memoryWithoutClients() float64 {
	a.t.Helper()
	b := a.client.B()
	got := a.client.DoMulti(context.Background(), b.Arbitrary("MULTI").Build(), b.Arbitrary("INFO", "memory").Build(),
		b.Arbitrary("CLIENT", "LIST").Build(), b.Arbitrary("EXEC").Build())
	all, err := got[3].AsStrSlice()
	if err != nil || len(all) != 2 {
		a.t.Fatalf("INFO and CLIENT LIST at once: %d answers, %v", len(all), err)
	}
	used := numberAfter(a.t, all[0], "used_memory:")
	for client := range strings.Lines(all[1]) {
		used -= numberAfter(a.t, client, " tot-mem=")
	}
	return used
}

// numberAfter is the one that follows a field's name.
func numberAfter(t testing.TB, text, field string) float64 {
	t.Helper()
	_, rest, _ := strings.Cut(text, field)
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	n, err := strconv.ParseFloat(rest[:max(end, 0)], 64)
	if err != nil {
		t.Fatalf("no number %s in %q: %v", field, text, err)
	}
	return n
}

// reader is a tracked connection.
func reader(t *testing.T, server *servers.Server, heard func(keys []rueidis.RedisMessage)) rueidis.Client {
	t.Helper()
	if heard == nil {
		heard = func([]rueidis.RedisMessage) {}
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, ForceSingleClient: true, PipelineMultiplex: -1, AlwaysPipelining: true,
		ReadBufferEachConn: 4 << 10, WriteBufferEachConn: 4 << 10, RingScaleEachConn: 4,
		ClientTrackingOptions: []string{}, OnInvalidations: heard,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// arm arms a connection on n keys, of which nobody needs to exist.
func arm(t *testing.T, client rueidis.Client, name string, n int) {
	const step = 100 // the command fits into a buffer that the connection has anyway
	for begin := 0; begin < n; begin += step {
		var keys []string
		for i := begin; i < min(n, begin+step); i++ {
			keys = append(keys, valueKey(name, fmt.Sprintf("2%07d", i)))
		}
		if err := client.Do(context.Background(), client.B().Exists().Key(keys...).Build()).Error(); err != nil {
			t.Error(err)
		}
	}
}

// scalePushes: what an invalidation costs more for each process that has read the key.
func scalePushes(t *testing.T) {
	const procs, keys, name = 200, 100, "users"
	server := pageRedis(t)
	admin := adminOf(t, server)
	var heard atomic.Int64
	for range procs {
		arm(t, reader(t, server, func(keys []rueidis.RedisMessage) { heard.Add(int64(len(keys))) }), name, keys)
	}
	sessions, _ := trackedSessions(t, server, 1, name)
	spent := admin.during(procs*keys, func() {
		for i := range keys {
			must(t, sessions[0].Invalidate(context.Background(), fmt.Sprintf("2%07d", i)))
		}
		poll(t, "all have heard", func() bool { return heard.Load() >= procs*keys })
	})
	if got := heard.Load(); got != procs*keys {
		t.Errorf("%d pushes, want one for each process and key: %d", got, procs*keys)
	}
	wantCost(t, "pushCPU", spent.cpu-cost("invalidateCPU")/procs)
	wantCost(t, "pushOut", spent.out)
}

// scaleTags: what a load costs more where the cache has tags, and what a tag that is voided
// costs: all processes that know it hear of it, and ask again.
func scaleTags(t *testing.T) {
	const procs, rounds, name, keep = 50, 40, "users", time.Hour
	ctx := context.Background()
	server := pageRedis(t)
	admin := adminOf(t, server)
	sessions, heard := trackedSessions(t, server, procs, name)
	every := func(do func(store.Tagger) error) {
		var wg sync.WaitGroup
		for _, s := range sessions {
			wg.Go(func() {
				if err := do(s.(store.Tagger)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	epoch := func(s store.Tagger) error { _, err := s.Epoch(ctx); return err }
	generation := func(s store.Tagger) error { _, err := s.Generations(ctx, keep, "team"); return err }
	every(epoch)
	every(generation)
	wantCost(t, "epochCPU", admin.during(procs*rounds, func() {
		for range rounds {
			every(epoch)
		}
	}).cpu)
	begin := heard.Load()
	voided := admin.during(procs*rounds, func() {
		for i := range rounds {
			must(t, sessions[0].(store.Tagger).VoidTags(ctx, keep, "team"))
			// The epoch's key is armed with the tag's.
			poll(t, "all have heard", func() bool { return heard.Load() >= begin+int64(2*procs*(i+1)) })
			every(generation)
		}
	})
	wantCost(t, "voidCPU", voided.cpu)
	wantCost(t, "pushesPerVoid", float64(heard.Load()-begin)/(procs*rounds))
}

// scaleBus: a message to each subscriber, whatever the subscriber has read.
func scaleBus(t *testing.T) {
	const procs, messages, name = 100, 100, "users"
	server := pageRedis(t)
	admin := adminOf(t, server)
	before := admin.info("clients", "connected_clients")
	messenger, err := redisstore.OpenBus(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer messenger.Close()
	st, err := redisstore.Open(server.URL(), redisstore.NoTracking())
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	cache, err := onefill.New(onefill.Options[string, row]{Name: name, Store: st, Bus: messenger, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	must(t, cache.Invalidate(context.Background(), "20000000"))
	wantCost(t, "busConnections", admin.info("clients", "connected_clients")-before-cost("redisConnections"))

	var heard atomic.Int64
	for range procs {
		stop, err := messenger.Subscribe(t.Context(), name, func([]byte) { heard.Add(1) }, func() {})
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
	}
	// One after the other: what comes within 5 ms gathers for one message.
	spent := admin.during(procs*messages, func() {
		for i := range messages {
			must(t, cache.Invalidate(context.Background(), fmt.Sprintf("2%07d", i)))
			poll(t, "all have heard", func() bool { return heard.Load() >= int64(procs*(i+1)) })
		}
	})
	wantCost(t, "busCPU", spent.cpu-cost("invalidateCPU")/procs)
	wantCost(t, "busOut", spent.out)
}
