package integration

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/store"
)

// admin is the test's own client of a Redis. It is made anew where it is needed, as
// it does not outlive a restart of the server.
type admin struct {
	t      testing.TB
	client rueidis.Client
}

func adminOf(t testing.TB, server *servers.Server) *admin {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true, ForceSingleClient: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &admin{t: t, client: client}
}

func (a *admin) do(args ...string) rueidis.RedisResult {
	a.t.Helper()
	r := a.client.Do(context.Background(), a.client.B().Arbitrary(args...).Build())
	if err := r.Error(); err != nil && !rueidis.IsRedisNil(err) {
		a.t.Fatalf("%v: %v", args, err)
	}
	return r
}

// cutAll cuts the connections of everybody else.
func (a *admin) cutAll() {
	a.t.Helper()
	n, err := a.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").AsInt64()
	if err != nil || n == 0 {
		a.t.Fatalf("CLIENT KILL has cut %d connections: %v", n, err)
	}
}

// The two keys of a cache's key, as docs/protocols.md has them.
func valueKey(name, key string) string { return "of:{" + name + ":" + key + "}" }
func leaseKey(name, key string) string { return valueKey(name, key) + ":l" }

// stored is the row that the store holds, false if it holds none.
func (a *admin) stored(name, key string) (version string, found bool) {
	a.t.Helper()
	data, err := a.do("GET", valueKey(name, key)).AsBytes()
	if rueidis.IsRedisNil(err) {
		return "", false
	}
	if err != nil {
		a.t.Fatal(err)
	}
	env, err := store.Decode(data)
	if err != nil {
		a.t.Fatal(err)
	}
	return string(env.Payload), true
}

func (a *admin) wantStored(name, key string, version int64) {
	a.t.Helper()
	got, found := a.stored(name, key)
	if want := fmt.Sprintf(`"Version":%d}`, version); !found || !strings.Contains(got, want) {
		a.t.Errorf("the store holds %q (found: %v), want version %d", got, found, version)
	}
}

// tape records the commands that clients send to a Redis, by MONITOR.
type tape struct {
	t     testing.TB
	admin *admin
	conn  net.Conn
	lines *bufio.Reader
}

func record(t testing.TB, server *servers.Server) *tape {
	t.Helper()
	r := &tape{t: t, admin: adminOf(t, server)}
	r.admin.do("PING") // whatever a new client says at first
	conn, err := net.DialTimeout("tcp", server.Addr(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	r.conn, r.lines = conn, bufio.NewReader(conn)
	fmt.Fprint(conn, "MONITOR\r\n")
	if line := r.line(); line != "+OK" {
		t.Fatalf("MONITOR: %s", line)
	}
	return r
}

func (r *tape) line() string {
	r.t.Helper()
	line, err := r.lines.ReadString('\n')
	if err != nil {
		r.t.Fatalf("MONITOR: %v", err)
	}
	return strings.TrimRight(line, "\r\n")
}

// stop returns what was sent since record, by the client's address: a command's name
// for each. What scripts call is left out, and so are the pings by which the client
// library looks after idle connections.
func (r *tape) stop() map[string][]string {
	r.t.Helper()
	mark := fmt.Sprintf("mark-%d", serial.Add(1))
	r.admin.do("ECHO", mark)
	sent := map[string][]string{}
	for {
		// +1700000000.123456 [0 127.0.0.1:50000] "GET" "key"; [0 lua] from a script.
		line := r.line()
		if strings.Contains(line, mark) {
			r.conn.Close()
			return sent
		}
		_, rest, _ := strings.Cut(line, "[")
		from, command, ok := strings.Cut(rest, "] ")
		_, from, _ = strings.Cut(from, " ")
		fields := strings.Fields(command)
		if !ok || from == "lua" || len(fields) == 0 {
			continue
		}
		if name := strings.ToUpper(strings.Trim(fields[0], `"`)); name != "PING" {
			sent[from] = append(sent[from], name)
		}
	}
}

// count is how many commands all clients have sent.
func count(sent map[string][]string) (n int) {
	for _, commands := range sent {
		n += len(commands)
	}
	return n
}

func showCommands(sent map[string][]string) string {
	var b strings.Builder
	for _, from := range slices.Sorted(maps.Keys(sent)) {
		fmt.Fprintf(&b, " %s", strings.Join(sent[from], ","))
	}
	return b.String()
}

// calls are the numbers of INFO commandstats, which count what scripts call too.
func (a *admin) calls() map[string]int {
	a.t.Helper()
	text, err := a.do("INFO", "commandstats").ToString()
	if err != nil {
		a.t.Fatal(err)
	}
	n := map[string]int{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		digits, _, _ := strings.Cut(rest, ",")
		n[name], _ = strconv.Atoi(digits)
	}
	return n
}

func (a *admin) count(command string) int {
	a.t.Helper()
	return a.calls()[command]
}
