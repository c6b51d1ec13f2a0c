package storetest

import (
	"crypto/rand"
	"time"

	"github.com/onefill/onefill/store"
)

// telling has a test for each change that other sessions must be told of, after
// each way to have read the key.
var telling = append(changes(), []test{
	{"ToldOfValueExpiry", func(c *check) {
		c.needsPush()
		c.longer(c.h.Tick, func(key string, ttl time.Duration) bool {
			c.b.set(key, c.value("v"), ttl)
			if !c.a.get(key).Found {
				return false
			}
			c.a.hears(key)
			return true
		})
	}},
	{"ToldAfterOwnFill", func(c *check) {
		c.needsPush()
		c.accepts(c.a.wins("k", long, nil), c.value("own"))
		c.quiet(c.a, "k")
		c.b.set("k", c.value("theirs"), long)
		c.a.hears("k")
	}},
	{"ToldAfterOwnSet", func(c *check) {
		c.needsPush()
		c.a.set("k", c.value("own"), long)
		c.quiet(c.a, "k")
		c.b.invalidate("k")
		c.a.hears("k")
	}},
	{"ToldAgainAfterReadingAgain", func(c *check) {
		c.needsPush()
		c.a.absent("k")
		for range 3 {
			c.b.set("k", c.value("v"), long)
			c.a.hears("k")
			c.a.heard.forget()
			c.a.get("k")
		}
	}},
	{"ToldOncePerSession", func(c *check) {
		// Each session that has read is told, also the siblings of the writer.
		c.needsPush()
		readers := []*peer{c.b, c.peer(c.b.store), c.peer(c.a.store), c.peer(c.h.New(c))}
		for _, p := range readers {
			p.absent("k")
		}
		c.a.set("k", c.value("v"), long)
		for _, p := range readers {
			p.hears("k")
		}
	}},
	{"NotToldOfOwnWrites", func(c *check) {
		c.needsPush()
		c.a.get("set")
		c.a.set("set", c.value("v"), long)
		c.a.get("invalidate")
		c.a.invalidate("invalidate")
		c.a.get("expire")
		c.a.expire("expire")
		c.a.get("fill")
		c.accepts(c.a.wins("fill", long, nil), c.value("v"))
		for _, key := range []string{"set", "invalidate", "expire", "fill"} {
			c.quiet(c.a, key)
		}
	}},
	{"NotToldOfOtherNames", func(c *check) {
		c.needsPush()
		other := c.peerNamed(c.b.store, c.name+"x")
		c.a.get("k")
		other.get("k")
		other.set("k", c.value("v"), long)
		c.quiet(c.a, "k")
		c.b.set("k", c.value("v"), long)
		c.a.hears("k")
	}},
}...)

// quiet checks that the peer has not been told of a change of the key. Pushes
// come in order: the one that is waited for comes after any that the calls so far
// have caused.
func (c *check) quiet(p *peer, key string) {
	c.Helper()
	c.allHeard(p)
	if n := p.heard.count(key); n > 0 {
		c.Fatalf("told %d times that %s has changed, want no push", n, short(key))
	}
}

// allHeard waits until the peer has been told of all that the calls so far have
// caused.
func (c *check) allHeard(p *peer) {
	c.Helper()
	marker := "marker-" + rand.Text()
	p.get(marker)
	writer := c.b
	if writer == p {
		writer = c.a
	}
	writer.set(marker, c.value("v"), long)
	p.hears(marker)
	if n := p.heard.losses(); n > 0 {
		c.Skipf("the connection was lost %d times meanwhile", n)
	}
}

func changes() []test {
	var tests []test
	reads := map[string]func(c *check, key string){
		"Get": func(c *check, key string) { c.a.get(key) },
		"Acquire": func(c *check, key string) { // a hit, or won: both have read
			c.a.ask(key, long, nil)
		},
	}
	for _, w := range []struct {
		name  string
		write func(c *check, p *peer, key string)
	}{
		{"Set", func(c *check, p *peer, key string) { p.set(key, c.value("new"), long) }},
		{"Invalidate", func(_ *check, p *peer, key string) { p.invalidate(key) }},
		{"Expire", func(_ *check, p *peer, key string) { p.expire(key) }},
		{"Fill", func(c *check, p *peer, key string) {
			mark := seen(p.get(key))
			answer := p.ask(key, long, mark)
			if answer.State == store.Held { // the reader's own lease: let it go first
				p.invalidate(key)
				answer = p.ask(key, long, nil)
			}
			if answer.State != store.Won {
				c.Fatalf("Acquire(%s) = %v, want won", short(key), answer.State)
			}
			c.accepts(answer.Lease, c.value("new"))
		}},
	} {
		tests = append(tests, test{"ToldOf" + w.name, func(c *check) {
			c.needsPush()
			for _, state := range []string{"absent", "value"} {
				for how, read := range reads {
					for who, writer := range map[string]*peer{"client": c.b, "sibling": c.peer(c.a.store)} {
						key := state + " read by " + how + ", written by the other " + who
						if state == "value" {
							c.b.set(key, c.value("old"), long)
						}
						read(c, key)
						w.write(c, writer, key)
						c.a.hears(key)
					}
				}
			}
		}})
	}
	return tests
}
