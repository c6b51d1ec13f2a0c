package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/store"
)

// long is a TTL that outlasts every test.
const long = 10 * time.Minute

// check is one test: a name of its own on the server, two sessions of different
// clients, and the helpers that state what must hold.
type check struct {
	*testing.T
	h    *Harness
	name string
	a, b *peer
	f    store.Features
}

func newCheck(t *testing.T, h *Harness) *check {
	c := &check{T: t, h: h, name: "storetest-" + rand.Text()}
	// These two have an owner, and all others have none: whatever a test is about, that must
	// make no difference.
	c.a = c.owned(h.New(t), "web-1:4711")
	c.b = c.owned(h.New(t), "5:down") // as if it were a number and a record
	c.f = c.a.Features()
	return c
}

// peer is a session and what it has heard.
type peer struct {
	store.Session
	c     *check
	store store.Store
	owner string // Config.Owner
	heard heard
}

// peer attaches a session under the test's name.
func (c *check) peer(st store.Store) *peer {
	c.Helper()
	return c.attach(st, c.name, "")
}

// owned attaches a session of that owner.
func (c *check) owned(st store.Store, owner string) *peer {
	c.Helper()
	return c.attach(st, c.name, owner)
}

func (c *check) peerNamed(st store.Store, name string) *peer {
	c.Helper()
	return c.attach(st, name, "")
}

func (c *check) attach(st store.Store, name, owner string) *peer {
	c.Helper()
	p := &peer{c: c, store: st, owner: owner}
	p.heard.news = make(chan struct{}, 1)
	s, err := st.Attach(c.ctx(), store.Config{Name: name, Owner: owner, Grace: time.Minute,
		Events: store.Events{Changed: p.heard.changed, Lost: p.heard.isLost, Voided: p.heard.tagVoided, Raised: p.heard.epochRaised}})
	if err != nil {
		c.Fatalf("Attach(%q): %v", name, err)
	}
	p.Session = s
	c.Cleanup(func() { s.Close() })
	return p
}

// ctx is a context that ends when the test has no more patience.
func (c *check) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), c.h.Patience)
	c.Cleanup(cancel)
	return ctx
}

// needs skips the test unless what it needs is there.
func (c *check) needs(there bool, what string) {
	c.Helper()
	if !there {
		c.Skipf("left out: %s", what)
	}
}

func (c *check) needsPush() {
	c.Helper()
	c.needs(c.f.Push, "the store declares no Push")
}

// shortLease is the TTL of a lease that is to end by itself.
func (c *check) shortLease() time.Duration { return max(c.h.Tick, c.f.MinLease) }

// eventually polls until cond holds.
func (c *check) eventually(what string, cond func() bool) {
	c.Helper()
	pause := min(max(c.h.Tick/20, time.Millisecond), 50*time.Millisecond)
	for deadline := time.Now().Add(c.h.Patience); !cond(); {
		if time.Now().After(deadline) {
			c.Fatalf("not within %v: %s", c.h.Patience, what)
		}
		<-time.After(pause)
	}
}

// longer tries what must happen before a ttl is over, with a key of its own each
// time, and with a longer ttl when the machine was too slow (false).
func (c *check) longer(ttl time.Duration, try func(key string, ttl time.Duration) bool) {
	c.Helper()
	for range 6 {
		if try("k"+ttl.String(), ttl) {
			return
		}
		ttl *= 2
	}
	c.Fatalf("over before %v, however long it was meant to last", ttl)
}

// letPass waits until ttl has passed on the server's clock: a value with that
// ttl, stored now, is gone. One step of the granularity is added twice, for the
// value that began early in its step and for the one that ends late.
func (c *check) letPass(ttl time.Duration) {
	c.Helper()
	canary := "canary-" + rand.Text()
	spare := max(2*c.f.Granularity, 2*time.Millisecond)
	c.a.set(canary, c.value("canary"), ttl+spare)
	c.eventually("the canary value has expired", func() bool { return !c.a.get(canary).Found })
}

// fails checks that an error is there and has the type that the contract gives
// it, and returns it.
func (c *check) fails(what string, err error) *store.Error {
	c.Helper()
	var e *store.Error
	switch {
	case err == nil:
		c.Fatalf("%s: no error, want one", what)
	case !errors.As(err, &e):
		c.Fatalf("%s: error %v is a %T, want a *store.Error", what, err, err)
	case e.Service == "" || e.Addr == "" || e.Op == "" || e.Err == nil:
		c.Fatalf("%s: error %#v leaves out service, address, operation or cause", what, e)
	}
	return e
}

func (c *check) ok(what string, err error) {
	c.Helper()
	if err != nil {
		c.Fatalf("%s: %v", what, err)
	}
}

// value is an envelope like those that caches store.
func (c *check) value(payload string) []byte { return c.valueOf(payload, 0) }

func (c *check) valueOf(payload string, rowVersion uint64) []byte {
	now := time.Now()
	e := store.Envelope{Kind: store.KindValue, Version: store.NewVersion(now), Created: now,
		SoftExpiry: now.Add(time.Hour), RowVersion: rowVersion, Payload: []byte(payload)}
	return e.Encode()
}

func (p *peer) get(key string) store.Item {
	p.c.Helper()
	item, err := p.Get(p.c.ctx(), key)
	p.c.ok("Get", err)
	if !item.Found && len(item.Data) > 0 {
		p.c.Fatalf("Get(%q): not found, but %d bytes", key, len(item.Data))
	}
	return item
}

// holds checks that a Get finds exactly data.
func (p *peer) holds(key string, data []byte) {
	p.c.Helper()
	item := p.get(key)
	if !item.Found || string(item.Data) != string(data) {
		p.c.Fatalf("Get(%s) = %s, want %s", short(key), show(item), show(store.Item{Data: data, Found: true}))
	}
}

// absent checks that a Get misses.
func (p *peer) absent(key string) {
	p.c.Helper()
	if item := p.get(key); item.Found {
		p.c.Fatalf("Get(%s) = %s, want a miss", short(key), show(item))
	}
}

func (p *peer) set(key string, data []byte, ttl time.Duration) {
	p.c.Helper()
	stored, err := p.Set(p.c.ctx(), key, data, ttl)
	p.c.ok("Set", err)
	if !stored {
		p.c.Fatalf("Set(%s): refused, want it stored", short(key))
	}
}

func (p *peer) invalidate(keys ...string) {
	p.c.Helper()
	p.c.ok("Invalidate", p.Invalidate(p.c.ctx(), keys...))
}

func (p *peer) expire(keys ...string) {
	p.c.Helper()
	p.c.ok("Expire", p.Expire(p.c.ctx(), time.Now(), keys...))
}

// ask is Acquire with a fresh token.
func (p *peer) ask(key string, ttl time.Duration, seen []byte) store.Answer {
	p.c.Helper()
	return p.askAs(store.NewToken(), key, ttl, seen)
}

func (p *peer) askAs(token store.Token, key string, ttl time.Duration, seen []byte) store.Answer {
	p.c.Helper()
	return p.request(key, store.Request{Token: token, TTL: ttl, Seen: seen})
}

// tries is Acquire as an attempt of a flight that may have made others.
func (p *peer) tries(token store.Token, try uint32, key string, ttl time.Duration) store.Answer {
	p.c.Helper()
	return p.request(key, store.Request{Token: token, Try: try, TTL: ttl})
}

func (p *peer) request(key string, req store.Request) store.Answer {
	p.c.Helper()
	answer, err := p.Acquire(p.c.ctx(), key, req)
	p.c.ok("Acquire", err)
	p.c.wellFormed(answer)
	if answer.Watch != nil {
		p.c.Cleanup(answer.Watch.Stop)
	}
	return answer
}

// wellFormed checks what must hold for every answer.
func (c *check) wellFormed(a store.Answer) {
	c.Helper()
	switch {
	case a.State < store.Hit || a.State > store.Failed:
		c.Fatalf("Acquire: state %d is none", a.State)
	case a.State == store.Hit && !a.Item.Found:
		c.Fatal("Acquire: a hit without an item")
	case (a.State == store.Won) != (a.Lease != nil):
		c.Fatalf("Acquire: %v, and the lease is %v", a.State, a.Lease)
	case a.Watch != nil && !c.f.Push:
		c.Fatal("Acquire: a watch from a store that declares no Push")
	case a.State == store.Held && a.Watch == nil && c.f.Push:
		c.Fatal("Acquire: held without a watch, from a store that declares Push")
	case a.Remaining < 0:
		c.Fatalf("Acquire: %v remain", a.Remaining)
	case len(a.Failure) > 0 && a.State != store.Failed && a.State != store.Won:
		c.Fatalf("Acquire: %v, with the record of a failure: %q", a.State, a.Failure)
	}
}

// finds is ask for an answer that must be of one state.
func (p *peer) finds(state store.State, key string, seen []byte) store.Answer {
	p.c.Helper()
	answer := p.ask(key, long, seen)
	if answer.State != state {
		p.c.Fatalf("Acquire(%s) = %v, want %v", short(key), answer.State, state)
	}
	return answer
}

// wins takes a lease for ttl, which must be free.
func (p *peer) wins(key string, ttl time.Duration, seen []byte) store.Lease {
	p.c.Helper()
	answer := p.ask(key, ttl, seen)
	if answer.State != store.Won {
		p.c.Fatalf("Acquire(%s) = %v, want won", short(key), answer.State)
	}
	return answer.Lease
}

// takesOver polls until the lease of somebody who says nothing more has ended.
func (p *peer) takesOver(key string, seen []byte) store.Lease {
	p.c.Helper()
	var lease store.Lease
	p.c.eventually("the lease is taken over", func() bool {
		p.c.Helper()
		answer := p.ask(key, long, seen)
		if answer.State != store.Won && answer.State != store.Held {
			p.c.Fatalf("Acquire(%s) = %v, want held, then won", short(key), answer.State)
		}
		lease = answer.Lease
		return answer.State == store.Won
	})
	return lease
}

func (c *check) accepts(l store.Lease, data []byte) {
	c.Helper()
	if ok, err := l.Fill(c.ctx(), data, long); err != nil || !ok {
		c.Fatalf("Fill = %v, %v, want it accepted", ok, err)
	}
}

func (c *check) refuses(l store.Lease, data []byte) {
	c.Helper()
	if ok, err := l.Fill(c.ctx(), data, long); err != nil || ok {
		c.Fatalf("Fill = %v, %v, want it refused without an error", ok, err)
	}
}

func (c *check) fail(l store.Lease, record []byte, ttl time.Duration) {
	c.Helper()
	if ok, err := l.Fail(c.ctx(), record, ttl); err != nil || !ok {
		c.Fatalf("Fail = %v, %v, want it accepted", ok, err)
	}
}

func (c *check) release(l store.Lease) {
	c.Helper()
	if ok, err := l.Release(c.ctx()); err != nil || !ok {
		c.Fatalf("Release = %v, %v, want it done", ok, err)
	}
}

// lost checks that nothing can be done with a lease any more.
func (c *check) lost(l store.Lease) {
	c.Helper()
	if ok, err := l.Renew(c.ctx(), long); err != nil || ok {
		c.Fatalf("Renew of a lost lease = %v, %v, want false, nil", ok, err)
	}
	if ok, err := l.Fail(c.ctx(), []byte("late"), long); err != nil || ok {
		c.Fatalf("Fail of a lost lease = %v, %v, want false, nil", ok, err)
	}
	c.refuses(l, c.value("late"))
	if ok, err := l.Release(c.ctx()); err != nil || ok {
		c.Fatalf("Release of a lost lease = %v, %v, want false, nil", ok, err)
	}
}

// heard records events.
type heard struct {
	mu   sync.Mutex
	keys []string
	tags []string
	lost int
	up   int // the epoch was raised
	news chan struct{}
}

func (h *heard) changed(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keys = append(h.keys, key)
	h.ring()
}

func (h *heard) tagVoided(tag string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tags = append(h.tags, tag)
	h.ring()
}

func (h *heard) epochRaised() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.up++
	h.ring()
}

func (h *heard) raised() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.up
}

func (h *heard) isLost() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lost++
	h.ring()
}

func (h *heard) ring() {
	select {
	case h.news <- struct{}{}:
	default:
	}
}

func (h *heard) count(key string) int { return h.countIn(&h.keys, key) }

func (h *heard) countTag(tag string) int { return h.countIn(&h.tags, tag) }

func (h *heard) countIn(list *[]string, name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, each := range *list {
		if each == name {
			n++
		}
	}
	return n
}

func (h *heard) losses() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost
}

func (h *heard) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keys, h.tags, h.lost, h.up = nil, nil, 0, 0
}

// hears waits until the peer has been told that the key has changed, or that it
// cannot be told.
func (p *peer) hears(key string) {
	p.c.Helper()
	p.hearsOf(short(key)+" has changed", func() bool { return p.heard.count(key) > 0 })
}

func (p *peer) hearsOf(what string, told func() bool) {
	p.c.Helper()
	deadline := time.After(p.c.h.Patience)
	for !told() && p.heard.losses() == 0 {
		select {
		case <-p.heard.news:
		case <-deadline:
			p.c.Fatalf("not told within %v that %s", p.c.h.Patience, what)
		}
	}
}

// wakes waits until the watch wakes.
func (c *check) wakes(w store.Watch) {
	c.Helper()
	select {
	case <-w.C():
	case <-time.After(c.h.Patience):
		c.Fatalf("the watch did not wake within %v", c.h.Patience)
	}
}
