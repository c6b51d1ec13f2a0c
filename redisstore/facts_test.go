package redisstore

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
)

// The facts of the server that the design rests on, each tried on the server that
// is installed. They are told over plain sockets, so that the order of replies and
// pushes is what the server wrote. A push to another client is in its socket before
// the writer's reply, so "read up to the PONG" sees all there is.

// peer is a connection that speaks RESP3.
type peer struct {
	t    testing.TB
	conn net.Conn
	r    *bufio.Reader
}

func dialPeer(t *testing.T, addr string, tracking ...string) *peer {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	ok(t, err)
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(time.Minute))
	p := &peer{t: t, conn: conn, r: bufio.NewReader(conn)}
	p.do("HELLO", "3")
	if tracking != nil {
		p.do(append([]string{"CLIENT", "TRACKING", "ON"}, tracking[1:]...)...)
	}
	return p
}

var plain, noloop = []string{"", ""}[:1], []string{"", "NOLOOP"}

func (p *peer) send(args ...string) {
	p.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	_, err := io.WriteString(p.conn, b.String())
	ok(p.t, err)
}

// frame reads one reply or push; a push reads as ">[key key]".
func (p *peer) frame() string {
	p.t.Helper()
	line, err := p.r.ReadString('\n')
	ok(p.t, err)
	line = strings.TrimSuffix(line, "\r\n")
	n, _ := strconv.Atoi(line[1:])
	switch line[0] {
	case '$':
		if n < 0 {
			return "nil"
		}
		body := make([]byte, n+2)
		_, err := io.ReadFull(p.r, body)
		ok(p.t, err)
		return string(body[:n])
	case '_':
		return "nil"
	case '%':
		n *= 2
	case '*', '>':
	default:
		return line[1:]
	}
	var items []string
	for range n {
		items = append(items, p.frame())
	}
	if line[0] == '>' {
		return ">" + items[1]
	}
	return "[" + strings.Join(items, " ") + "]"
}

// do sends a command and returns its reply; pushes before it fail the test.
func (p *peer) do(args ...string) string {
	p.t.Helper()
	p.send(args...)
	reply := p.frame()
	if strings.HasPrefix(reply, ">") {
		p.t.Fatalf("%v: push %s before the reply", args, reply)
	}
	return reply
}

// pushes returns what has been pushed by now.
func (p *peer) pushes() []string {
	p.t.Helper()
	p.send("PING")
	var got []string
	for {
		f := p.frame()
		if f == "PONG" {
			return got
		}
		got = append(got, f)
	}
}

func (p *peer) wantPushes(what string, want ...string) {
	p.t.Helper()
	if got := p.pushes(); !slices.Equal(got, want) {
		p.t.Fatalf("%s: pushes %q, want %q", what, got, want)
	}
}

func (p *peer) eval(script string, keys ...string) string {
	p.t.Helper()
	return p.do(append([]string{"EVAL", script, strconv.Itoa(len(keys))}, keys...)...)
}

// factRig is one tracked connection and one that is not, and two keys of this test.
func factRig(t *testing.T, tracking []string) (tracked, other *peer, value, lease string) {
	addr := shared.Get(t).Addr()
	key := unique(t)
	return dialPeer(t, addr, tracking...), dialPeer(t, addr), key, key + "L"
}

// Redis 7.0 and 7.1 arm all keys that are declared, later ones and Valkey only those that
// are read.
func TestFactReadInScriptArmsWhatItReads(t *testing.T) {
	for _, read := range []string{"GET", "EXISTS"} {
		p, other, v, l := factRig(t, plain)
		p.eval("redis.call('"+read+"', KEYS[2])", v, l)
		other.do("SET", v, "1")
		if got := p.pushes(); len(got) > 0 && !slices.Equal(got, []string{">[" + v + "]"}) {
			t.Fatalf("%s: pushes %q", read, got)
		}
		other.do("SET", l, "1")
		p.wantPushes(read, ">["+l+"]")
		other.do("SET", l, "2")
		p.wantPushes("one-shot")
	}
}

func TestFactReadArmsAnAbsentAndAForeignKey(t *testing.T) {
	p, other, v, _ := factRig(t, plain)
	p.do("GET", v)
	other.do("LPUSH", v, "x")
	p.wantPushes("absent", ">["+v+"]")
	if got := p.do("GET", v); !strings.HasPrefix(got, "WRONGTYPE") {
		t.Fatal(got)
	}
	other.do("DEL", v)
	p.wantPushes("foreign", ">["+v+"]")
}

func TestFactDeletingAnAbsentKeyPushesNothing(t *testing.T) {
	p, other, v, _ := factRig(t, plain)
	p.do("GET", v)
	other.do("DEL", v)
	p.wantPushes("DEL")
	other.eval("redis.call('SET', KEYS[1], '') redis.call('DEL', KEYS[1])", v)
	p.wantPushes("SET and DEL in a script", ">["+v+"]")
}

func TestFactWinnerIsNotArmedOnItsLease(t *testing.T) {
	const acquire = "redis.call('GET', KEYS[1]) redis.call('SET', KEYS[2], 'x', 'NX', 'PX', 60000)"
	p, other, v, l := factRig(t, plain)
	p.eval(acquire, v, l)
	if got := p.pushes(); len(got) > 0 && !slices.Equal(got, []string{">[" + l + "]"}) { // Redis 7.0: see above
		t.Fatalf("the own SET: pushes %q", got)
	}
	other.do("DEL", l)
	p.wantPushes("the lease's end")
	other.do("SET", v, "")
	p.wantPushes("the value", ">["+v+"]")
}

func TestFactRenewalPushesToWaiters(t *testing.T) {
	p, other, _, l := factRig(t, plain)
	other.do("SET", l, "x", "PX", "60000")
	p.do("GET", l)
	other.do("PEXPIRE", l, "60000")
	p.wantPushes("PEXPIRE", ">["+l+"]")
}

// The own push comes after the own reply and before the next one of the pipeline: a
// marker behind a write ends the time in which a push may be the own one.
func TestFactOrderOfOwnPush(t *testing.T) {
	p, _, v, _ := factRig(t, plain)
	p.do("GET", v)
	p.send("SET", v, "1")
	p.send("PING")
	got := []string{p.frame(), p.frame(), p.frame()}
	if want := []string{"OK", ">[" + v + "]", "PONG"}; !slices.Equal(got, want) {
		t.Fatalf("%q, want %q", got, want)
	}
}

// A script that reads, writes and reads again gives one own push, whether the key was
// armed before or not, and leaves it armed.
func TestFactOneOwnPushPerScript(t *testing.T) {
	p, other, v, _ := factRig(t, plain)
	const script = "redis.call('EXISTS', KEYS[1]) redis.call('SET', KEYS[1], '') redis.call('DEL', KEYS[1]) redis.call('EXISTS', KEYS[1])"
	for _, armed := range []bool{false, true} {
		if armed {
			p.do("GET", v)
		}
		p.eval(script, v)
		p.wantPushes("the script", ">["+v+"]")
		other.do("SET", v, "1")
		p.wantPushes("armed afterwards", ">["+v+"]")
	}
}

// What the server removes while it works on a command of the connection must be
// pushed to it. With NOLOOP Redis 7.0 does not do so, which is why we do without.
func TestFactRemovalsDuringOwnCommandsArePushed(t *testing.T) {
	for _, tracking := range [][]string{plain, noloop} {
		for removal, pushes := range map[string]int{
			"overflow of the tracking table": overflowPushes(t, tracking),
			"eviction":                       evictionPushes(t, tracking),
			"expiry":                         expiryPushes(t, tracking),
		} {
			t.Logf("tracking %q, %s: %d pushes", tracking[1:], removal, pushes)
			if pushes == 0 && len(tracking) == 1 {
				t.Errorf("%s: no push", removal)
			}
		}
	}
}

func overflowPushes(t *testing.T, tracking []string) int {
	s := servertest.Redis(t, servers.RedisOptions{Args: []string{"--tracking-table-max-keys", "10"}})
	p := dialPeer(t, s.Addr(), tracking...)
	for i := range 50 {
		p.send("GET", fmt.Sprint(i))
	}
	return countPushes(p)
}

func evictionPushes(t *testing.T, tracking []string) int {
	s := servertest.Redis(t, servers.RedisOptions{Args: []string{"--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru"}})
	p := dialPeer(t, s.Addr(), tracking...)
	for i := range 500 {
		p.send("SET", fmt.Sprint(i), strings.Repeat("x", 10_000))
		p.send("GET", fmt.Sprint(i))
	}
	return countPushes(p)
}

func expiryPushes(t *testing.T, tracking []string) int {
	s := servertest.Redis(t, servers.RedisOptions{Args: []string{"--enable-debug-command", "yes"}})
	p, other := dialPeer(t, s.Addr(), tracking...), dialPeer(t, s.Addr())
	other.do("DEBUG", "SET-ACTIVE-EXPIRE", "0")
	deadline := time.Now().Add(patience)
	for other.do("SET", "k", "v", "PX", "5"); p.do("GET", "k") != "v"; {
		if time.Now().After(deadline) {
			t.Fatal("the key was gone whenever it was read")
		}
		other.do("SET", "k", "v", "PX", "50")
		p.pushes()
	}
	for start := serverTime(other); serverTime(other) < start+60_000; {
		if time.Now().After(deadline) {
			t.Fatal("the server's clock stands still")
		}
	}
	p.send("GET", "k")
	return countPushes(p)
}

// serverTime is the server's clock in microseconds.
func serverTime(p *peer) int64 {
	p.t.Helper()
	var s, us int64
	if _, err := fmt.Sscanf(p.do("TIME"), "[%d %d]", &s, &us); err != nil {
		p.t.Fatal(err)
	}
	return s*1_000_000 + us
}

func countPushes(p *peer) int {
	n := 0
	for _, f := range p.pushes() {
		if strings.HasPrefix(f, ">") {
			n++
		}
	}
	return n
}

func TestFactRefusedFillArmsAndPushesNothing(t *testing.T) {
	p, other, v, l := factRig(t, plain)
	p.eval("if redis.call('GET', KEYS[2]) ~= 'token' then return 0 end redis.call('SET', KEYS[1], 'x')", v, l)
	p.wantPushes("refused")
	other.do("SET", v, "1")
	other.do("SET", l, "1")
	if got := p.pushes(); len(got) == 0 || got[len(got)-1] != ">["+l+"]" { // Redis 7.0: on the value, too
		t.Fatalf("armed on the lease: pushes %q", got)
	}
}

func TestFactFlushAndExpiryPush(t *testing.T) {
	s := servertest.Redis(t, servers.RedisOptions{})
	p, other := dialPeer(t, s.Addr(), plain...), dialPeer(t, s.Addr())
	other.do("SET", "k", "1", "PX", "20")
	if got := p.do("GET", "k"); got != "1" {
		t.Skipf("expired before it was read: %s", got)
	}
	if got := p.frame(); got != ">[k]" { // the deadline of the socket bounds the wait
		t.Fatalf("expiry: %s", got)
	}
	p.do("GET", "k")
	other.do("FLUSHALL")
	p.wantPushes("FLUSHALL", ">nil")
}

// Under maxmemory the first write of a script decides: after one that needs no
// memory, though it finds nothing, the others are let through. Invalidate lives on it.
func TestFactScriptThatHasWrittenMayGoOnWhenFull(t *testing.T) {
	s := servertest.Redis(t, servers.RedisOptions{Args: []string{"--maxmemory", "1", "--maxmemory-policy", "noeviction"}})
	p := dialPeer(t, s.Addr(), plain...)
	if got := p.eval("return redis.call('SET', KEYS[1], '')", "k"); !strings.Contains(got, "OOM") {
		t.Fatalf("SET alone: %s, want OOM", got)
	}
	if got := p.eval("redis.call('DEL', KEYS[2]) redis.call('SET', KEYS[1], '') return redis.call('DEL', KEYS[1])", "k", "absent"); got != "1" {
		t.Fatalf("DEL, SET, DEL: %s", got)
	}
}

// sayTo is one command over a connection of its own.
func sayTo(t testing.TB, addr string, command ...string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	ok(t, err)
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	p := &peer{t: t, conn: conn, r: bufio.NewReader(conn)}
	return p.do(command...)
}

// The scripts that write a value cause exactly one push for it to their own
// connection, whether it was armed or not, and leave it armed. Here they run without
// the marker, which reads the value too and would hide what they leave out.
func TestScriptsPushOnceAndArm(t *testing.T) {
	now := store.ExpiryField(time.Now())
	old := string(envelope(store.KindValue, 5, time.Now().Add(time.Hour), "old"))
	older, newer := rowVersion(envelope(store.KindValue, 4, time.Now(), "")), rowVersion(envelope(store.KindValue, 6, time.Now(), ""))
	cases := map[string]struct {
		script *script
		args   []string
		there  bool
		disarm bool // the session reads nothing more: it need not be armed
	}{
		"fill":           {fillScript, []string{"token", "new", "60000", newer, rowVersionOffset, envelopeBegin, headerBytes}, true, false},
		"fill of none":   {fillScript, []string{"token", "new", "60000", "", rowVersionOffset, envelopeBegin, headerBytes}, false, false},
		"fill, gone":     {fillScript, []string{"token", "new", "0", "", rowVersionOffset, envelopeBegin, headerBytes}, true, false},
		"set":            {setScript, []string{"new", "60000", newer, rowVersionOffset, envelopeBegin, headerBytes}, true, false},
		"set of none":    {setScript, []string{"new", "60000", "", rowVersionOffset, envelopeBegin, headerBytes}, false, false},
		"set, gone":      {setScript, []string{"new", "0", "", rowVersionOffset, envelopeBegin, headerBytes}, false, false},
		"set, refused":   {setScript, []string{"new", "60000", older, rowVersionOffset, envelopeBegin, headerBytes}, true, false},
		"expire":         {expireScript, []string{string(now[:]), softExpiryOffset, envelopeBegin + "v", headerBytes}, true, false},
		"expire of none": {expireScript, []string{string(now[:]), softExpiryOffset, envelopeBegin + "v", headerBytes}, false, false},
		"invalidate":     {invalidateScript, nil, true, true},
		"invalidate 0":   {invalidateScript, nil, false, true},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			for _, armed := range []bool{false, true} {
				p, other, v, l := factRig(t, plain)
				if tt.there {
					other.do("SET", v, old)
				}
				other.do("SET", l, "token", "PX", "60000")
				if armed {
					p.do("GET", v)
				}
				p.send(append([]string{"EVAL", tt.script.text, "2", v, l}, tt.args...)...)
				p.frame()
				var own []string
				for _, push := range p.pushes() {
					if push == ">["+v+"]" {
						own = append(own, push)
					}
				}
				if len(own) != 1 {
					t.Fatalf("armed before %v: own pushes %q, want one", armed, own)
				}
				other.do("SET", v, "by another")
				if !tt.disarm {
					p.wantPushes("the next change", ">["+v+"]")
				}
			}
		})
	}
}
