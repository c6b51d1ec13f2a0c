package integration

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/faultproxy"
)

// The rows of the table of faults: what goes wrong.

// fault is one row. A fault of the network strikes the members that it is given; one of
// the server strikes everybody.
type fault struct {
	name string
	what string // for docs/faults.md
	// server: it is the server's, not the network's.
	server bool
	// answers: operations are answered within StoreTimeout all the same, if need be at
	// the second attempt, so the store does its work.
	answers bool
	// silent: no operation is answered, so the store comes to be taken for down.
	silent bool
	// forgets: the store does not keep its data.
	forgets bool
	// sudden: it is over at once, and has to strike while something is going on.
	sudden bool
	// severs: connections end, so that on memcached before 1.6.27 a lease cannot be
	// filled any more that was granted over one of them, or whose grant was not heard.
	severs bool
	// flaps: connections are lost again and again.
	flaps bool
	// reply: it is the loss of the reply to this operation, after it was applied.
	reply string

	timeout time.Duration // StoreTimeout
	begin   func(s *strike)
	end     func(s *strike)
	// skips says for which guarantees, by number, there is nothing to test, and why.
	skips map[int]string
}

// loadsAtMost is G1 under the fault: for a herd on two caches.
func (f *fault) loadsAtMost(on string) int {
	switch {
	case f.flaps: // each loss of the connection lets later callers begin anew
		return 4
	case !f.answers, f.forgets, f.severs && on == onMemc:
		return 2
	}
	return 1
}

// loadsAtOnce is G6 under the fault.
func (f *fault) loadsAtOnce(o worldOptions) int {
	if f.silent {
		return o.MaxLoadsDegraded
	}
	return o.MaxLoads
}

// strike is one fault that has begun.
type strike struct {
	t       *testing.T
	w       *world
	fault   *fault
	members []*member
	loss    *faultproxy.Loss
	stop    chan struct{} // ends what goes on in the background,
	stopped chan struct{} // and is over
	healed  bool
}

const (
	enough = 2 * time.Second        // StoreTimeout for faults under which the store answers
	brief  = 150 * time.Millisecond // for those under which it does not
)

func (w *world) strike(t *testing.T, f *fault, members ...*member) *strike {
	s := &strike{t: t, w: w, fault: f, members: members}
	f.begin(s)
	t.Cleanup(s.mend) // whatever a failed test leaves behind, the next cell begins in order
	return s
}

// heal ends the fault, and waits until everybody's store answers.
func (s *strike) heal() {
	s.t.Helper()
	s.mend()
	s.w.recovered(s.t)
}

// mend ends the fault.
func (s *strike) mend() {
	if s.healed {
		return
	}
	s.healed = true
	if s.stop != nil {
		close(s.stop)
		<-s.stopped
	}
	if s.fault.end != nil {
		s.fault.end(s)
	}
	s.each((*faultproxy.Proxy).Heal)
}

func (s *strike) each(do func(*faultproxy.Proxy)) {
	for _, m := range s.members {
		do(m.proxy)
	}
}

func both(f faultproxy.Faults) func(*strike) {
	return func(s *strike) { s.each(func(p *faultproxy.Proxy) { p.SetBoth(f) }) }
}

func cut(way faultproxy.Way) func(*strike) {
	return func(s *strike) { s.each(func(p *faultproxy.Proxy) { p.Cut(way) }) }
}

// faults are the rows.
func faults() []*fault {
	return []*fault{
		{name: "latency below StoreTimeout", what: "20 to 40 ms each way, StoreTimeout 2 s", answers: true, timeout: enough,
			begin: both(faultproxy.Faults{Latency: 20 * time.Millisecond, Jitter: 20 * time.Millisecond})},
		{name: "latency above StoreTimeout", what: "150 to 200 ms each way, StoreTimeout 150 ms: all is applied, late, and no answer is in time", silent: true, timeout: brief,
			begin: both(faultproxy.Faults{Latency: 150 * time.Millisecond, Jitter: 50 * time.Millisecond})},
		{name: "bandwidth", what: "50 kB/s each way, StoreTimeout 2 s", answers: true, timeout: enough,
			begin: both(faultproxy.Faults{BytesPerSecond: 50_000})},
		{name: "bandwidth too small", what: "1 kB/s each way, StoreTimeout 150 ms: short questions are answered, long ones are not", timeout: brief,
			begin: both(faultproxy.Faults{BytesPerSecond: 1_000})},
		{name: "cut, RST", what: "all connections are reset", answers: true, sudden: true, severs: true, timeout: enough, begin: cut(faultproxy.RST)},
		{name: "cut, FIN", what: "all connections are closed in order", answers: true, sudden: true, severs: true, timeout: enough, begin: cut(faultproxy.FIN)},
		{name: "flapping", what: "all connections are reset every 15 ms", flaps: true, timeout: brief, begin: flap},
		{name: "black hole", what: "bytes are swallowed in both directions; connects are accepted", silent: true, timeout: brief,
			begin: both(faultproxy.Faults{BlackHole: true})},
		{name: "black hole for replies", what: "everything is applied, and every reply is swallowed", silent: true, timeout: brief,
			begin: func(s *strike) {
				s.each(func(p *faultproxy.Proxy) { p.Set(faultproxy.Replies, faultproxy.Faults{BlackHole: true}) })
			}},
		{name: "stall", what: "bytes wait in the network and arrive when it mends, in both directions", silent: true, timeout: brief,
			begin: both(faultproxy.Faults{Stall: true})},
		{name: "connects hang", what: "all connections are reset, and no SYN is answered", silent: true, timeout: brief,
			begin: func(s *strike) {
				s.each(func(p *faultproxy.Proxy) {
					if err := p.HangConnects(true); err != nil {
						s.t.Fatal(err)
					}
					p.Cut(faultproxy.RST)
				})
			}},
		{name: "half-open", what: "the connections are gone on the server's side, and the clients are not told until the fault ends", silent: true, timeout: brief,
			begin: func(s *strike) { s.each((*faultproxy.Proxy).HalfOpen) }, end: cut(faultproxy.RST)},
		{name: "server frozen", what: "SIGSTOP; SIGCONT at the end", server: true, silent: true, timeout: brief,
			begin: func(s *strike) { pause(s.t, s.w.server) }, end: func(s *strike) { resume(s.t, s.w.server) }},
		{name: "server killed", what: "SIGKILL; started again, empty, at the end", server: true, silent: true, forgets: true, timeout: brief,
			begin: func(s *strike) { must(s.t, s.w.server.Kill()) }, end: func(s *strike) { must(s.t, s.w.server.RestartEmpty(context.Background())) }},
		{name: "server restarted empty", what: "it is there again at once, without its data", server: true, answers: true, forgets: true, sudden: true, timeout: enough,
			begin: func(s *strike) { must(s.t, s.w.server.RestartEmpty(context.Background())) }},
		{name: "reply lost: acquire", what: "the lease is granted; the reply is lost and the connection reset", sudden: true, answers: true, severs: true, reply: "acquire", timeout: enough,
			begin: lose, skips: map[int]string{7: "a write acquires nothing"}},
		{name: "reply lost: fill", what: "the value is stored; the reply is lost and the connection reset", sudden: true, answers: true, reply: "fill", timeout: enough,
			begin: lose, skips: map[int]string{7: "a write fills nothing"}},
		{name: "reply lost: invalidate", what: "the key is invalidated; the reply is lost and the connection reset", sudden: true, answers: true, reply: "invalidate", timeout: enough,
			begin: lose, skips: map[int]string{
				1: onlyWriter, 2: onlyWriter, 4: onlyWriter, 5: onlyWriter, 6: onlyWriter}},
	}
}

const onlyWriter = "only the writer misses the reply; to everybody else it is a cut"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// invalidated lets a cache that nothing disturbs invalidate a key. On a busy machine even its
// answers may take longer than the short StoreTimeouts of these tests: it is told until it
// says that it knows, as docs/guarantees.md asks.
func (m *member) invalidated(t testing.TB, key string) {
	t.Helper()
	var err error
	if !pollFor(patience, func() bool { err = m.cache.Invalidate(t.Context(), key); return err == nil }) {
		t.Fatalf("Invalidate fails for %v: %v", patience, err)
	}
}

func flap(s *strike) {
	s.stop, s.stopped = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(s.stopped)
		tick := time.NewTicker(15 * time.Millisecond)
		defer tick.Stop()
		for {
			s.each(func(p *faultproxy.Proxy) { p.Cut(faultproxy.RST) })
			select {
			case <-tick.C:
			case <-s.stop:
				return
			}
		}
	}()
}

// lose makes the first member lose the reply to its next operation of the fault's kind.
func lose(s *strike) {
	s.loss = s.members[0].proxy.LoseReply(s.w.isRequest(s.t, s.fault.reply))
}

// wantLost wants the reply to have been lost by now.
func (s *strike) wantLost() {
	s.t.Helper()
	if s.loss == nil {
		return
	}
	select {
	case <-s.loss.Done():
	case <-time.After(patience):
		s.t.Errorf("no reply to %s was lost: the test has not forced what it is for", s.fault.reply)
	}
}

// isRequest tells the requests of one kind on the wire.
func (w *world) isRequest(t *testing.T, op string) func([]byte) bool {
	t.Helper()
	text := map[string]string{"acquire": "mg ", "fill": "ms ", "invalidate": "md "}[op]
	if w.on == onRedis {
		text = scriptHash(t, op)
	}
	return func(request []byte) bool { return bytes.Contains(request, []byte(text)) }
}

// scriptHash is how Redis names one of redisstore's scripts.
func scriptHash(t *testing.T, name string) string {
	t.Helper()
	read := func(name string) string {
		text, err := os.ReadFile("../redisstore/scripts/" + name + ".lua")
		must(t, err)
		return string(text)
	}
	text := regexp.MustCompile(`--include (\w+)\n`).ReplaceAllStringFunc(read(name), func(line string) string {
		return read(strings.Fields(line)[1])
	})
	sum := sha1.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}
