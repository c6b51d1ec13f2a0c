package redisstore

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/faultproxy"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
	"github.com/redis/rueidis"
)

var shared = servertest.SharedRedis(servers.RedisOptions{})

func TestMain(m *testing.M) {
	code := m.Run()
	shared.Stop()
	os.Exit(code)
}

// patience bounds every wait of a test for something that should come at once.
const patience = 10 * time.Second

// variant is a way to make a store.
type variant struct {
	name string
	push bool
	make func(t testing.TB, url string) *Store
}

var variants = []variant{
	{"open", true, func(t testing.TB, url string) *Store { return opened(t, url) }},
	{"new", true, func(t testing.TB, url string) *Store { return New(client(t, url)) }},
	{"notracking", false, func(t testing.TB, url string) *Store { return opened(t, url, NoTracking()) }},
	{"new notracking", false, func(t testing.TB, url string) *Store { return New(client(t, url), NoTracking()) }},
}

func opened(t testing.TB, url string, opts ...Option) *Store {
	t.Helper()
	s, err := Open(url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func client(t testing.TB, url string) rueidis.Client {
	t.Helper()
	c, err := rueidis.NewClient(rueidis.MustParseURL(url))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// forEach runs a test on a private Redis that all variants share.
func forEach(t *testing.T, do func(t *testing.T, v variant)) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) { do(t, v) })
	}
}

// store makes a store of the variant on the shared server, closed with the test.
func (v variant) store(t testing.TB) *Store { return v.on(t, shared.Get(t).URL()) }

func (v variant) on(t testing.TB, url string) *Store {
	t.Helper()
	s := v.make(t, url)
	t.Cleanup(func() { s.Close() })
	return s
}

// behind is an address behind which one server after the other may be, as behind a name
// or a load balancer.
func behind(t testing.TB, server string) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.Start(server)
	ok(t, err)
	t.Cleanup(p.Stop)
	return p
}

// turn sends everybody to another server.
func turn(front *faultproxy.Proxy, server string) {
	front.SetTarget(server)
	front.Cut(faultproxy.RST)
}

// rig is a session with what it has heard.
type rig struct {
	t testing.TB
	store.Session
	ctx  context.Context
	name string

	mu       sync.Mutex
	heard    map[string]int
	voided   map[string]int
	losses   int
	replaced int
	changed  chan struct{} // closed and replaced at every event
}

func attach(t testing.TB, s *Store, name string) *rig {
	t.Helper()
	r := &rig{t: t, name: name, heard: map[string]int{}, voided: map[string]int{}, changed: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	r.ctx = ctx
	sess, err := s.Attach(ctx, store.Config{Name: name, Events: store.Events{
		Changed:  func(key string) { r.event(func() { r.heard[key]++ }) },
		Lost:     func() { r.event(func() { r.losses++ }) },
		Replaced: func() { r.event(func() { r.replaced++ }) },
		Voided:   func(tag string) { r.event(func() { r.voided[tag]++ }) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	r.Session = sess
	t.Cleanup(func() { sess.Close() })
	return r
}

func (r *rig) event(record func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	record()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *rig) await(what string, cond func() bool) {
	r.t.Helper()
	timeout := time.After(patience)
	for {
		r.mu.Lock()
		ok, next := cond(), r.changed
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-next:
		case <-timeout:
			r.t.Fatalf("%s: not heard within %s", what, patience)
		}
	}
}

func (r *rig) awaitChanged(key string, times int) {
	r.t.Helper()
	r.await(fmt.Sprintf("change %d of %q", times, key), func() bool { return r.heard[key] >= times })
}

func (r *rig) awaitLost(times int) {
	r.t.Helper()
	r.await(fmt.Sprintf("loss %d", times), func() bool { return r.losses >= times })
}

func (r *rig) changes(key string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.heard[key]
}

// voids is how often the session was told that a tag was voided.
func (r *rig) voids(tag string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.voided[tag]
}

func (r *rig) awaitVoided(tag string, times int) {
	r.t.Helper()
	r.await(fmt.Sprintf("void %d of tag %q", times, tag), func() bool { return r.voided[tag] >= times })
}

func (r *rig) generation(tag string) uint64 {
	r.t.Helper()
	return must(tagger(r).Generations(r.ctx, time.Hour, tag))(r.t)[0]
}

func (r *rig) epoch() uint64 {
	r.t.Helper()
	return must(tagger(r).Epoch(r.ctx))(r.t)
}

func (r *rig) void(tags ...string) {
	r.t.Helper()
	ok(r.t, tagger(r).VoidTags(r.ctx, time.Hour, tags...))
}

func (r *rig) replacements() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.replaced
}

// must fails the test on an error.
func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) get(key string) store.Item {
	r.t.Helper()
	return must(r.Get(r.ctx, key))(r.t)
}

func (r *rig) wantValue(key, want string) {
	r.t.Helper()
	if it := r.get(key); !it.Found || string(it.Data) != want {
		r.t.Fatalf("Get(%q) = found %v, %q; want %q", key, it.Found, it.Data, want)
	}
}

func (r *rig) wantMiss(key string) {
	r.t.Helper()
	if it := r.get(key); it.Found {
		r.t.Fatalf("Get(%q) = %q, want a miss", key, it.Data)
	}
}

func (r *rig) acquire(key string, req store.Request) store.Answer {
	r.t.Helper()
	if req.TTL == 0 {
		req.TTL = time.Minute
	}
	return must(r.Acquire(r.ctx, key, req))(r.t)
}

func (r *rig) win(key string) store.Lease {
	r.t.Helper()
	a := r.acquire(key, store.Request{Token: store.NewToken()})
	if a.State != store.Won {
		r.t.Fatalf("Acquire(%q) = %s, want won", key, a.State)
	}
	// The winner hears its own write of the lease behind its reply, and before the
	// next one. Whoever asks from here on is not woken by it.
	ok(r.t, r.Ping(r.ctx))
	return a.Lease
}

func (r *rig) set(key, data string) {
	r.t.Helper()
	if !must(r.Set(r.ctx, key, []byte(data), time.Minute))(r.t) {
		r.t.Fatalf("Set(%q) refused", key)
	}
}

func woken(t testing.TB, w store.Watch) {
	t.Helper()
	select {
	case <-w.C():
	case <-time.After(patience):
		t.Fatalf("watch not woken within %s", patience)
	}
}

func asleep(t testing.TB, w store.Watch) {
	t.Helper()
	select {
	case <-w.C():
		t.Fatal("watch woken too early")
	default:
	}
}

// unique is a cache name that no other test uses on the shared server.
func unique(t testing.TB) string {
	token := store.NewToken()
	return "t" + token.String()[:16]
}

// raw sends a command over a connection of its own, as somebody else would.
func raw(t testing.TB, s *Store, command ...string) rueidis.RedisResult {
	t.Helper()
	c := must(rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.link.addr()}, DisableCache: true, ForceSingleClient: true}))(t)
	defer c.Close()
	return c.Do(context.Background(), c.B().Arbitrary(command...).Build())
}

// ask is raw on the value of a session's key.
func ask(t testing.TB, s *Store, r *rig, command, key string, args ...string) rueidis.RedisResult {
	t.Helper()
	return raw(t, s, append([]string{command, valueKey(sessionPrefix(r.name), key)}, args...)...)
}
