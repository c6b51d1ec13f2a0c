package live

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/redisstore"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// backend is the store of one session, for all its modes.
type backend interface {
	// about is what the page says about it.
	about() string
	// name is the namespace of onefill's caches, and prefix that of the recipes' keys.
	name() string
	prefix() string
	shared() (s store.Store, close func(), err error)
	plain(ctx context.Context) (recipe.Store, error)
	// ours says that the store may be stopped. If so, kill ends it with all that it holds, and
	// restart brings it back, empty; else both are errNotOurs.
	ours() bool
	kill() error
	restart(ctx context.Context) error
	close() error
}

var errNotOurs = errors.New("the store was given by its URL, and others may use it: the page does not stop it")

// memory is a memstore.
type memory struct{ store *memstore.Store }

func newMemory() *memory { return &memory{memstore.New()} }

func (m *memory) about() string  { return "memory of this program (memstore)" }
func (m *memory) name() string   { return "live" }
func (m *memory) prefix() string { return "" }

func (m *memory) shared() (store.Store, func(), error) { return m.store, func() {}, nil }

func (m *memory) plain(ctx context.Context) (recipe.Store, error) {
	session, err := m.store.Attach(ctx, store.Config{Name: "recipes", AllowDown: true})
	if err != nil {
		return nil, err
	}
	return plainMemory{session}, nil
}

func (m *memory) ours() bool { return true }

func (m *memory) kill() error {
	m.store.Down()
	m.store.Flush()
	return nil
}

func (m *memory) restart(context.Context) error {
	m.store.Up()
	return nil
}

func (m *memory) close() error { return nil }

// plainMemory is a memstore as a plain cache: what the recipes know of a server.
type plainMemory struct{ session store.Session }

func (p plainMemory) Get(ctx context.Context, key string) (string, bool, error) {
	item, err := p.session.Get(ctx, key)
	return string(item.Data), item.Found, err
}

func (p plainMemory) Set(ctx context.Context, key, value string, ttl time.Duration) error {
	_, err := p.session.Set(ctx, key, []byte(value), ttl)
	return err
}

// Add takes a lease that nobody fills: of all that a store can do, this is what only the
// first of many gets.
func (p plainMemory) Add(ctx context.Context, key, _ string, ttl time.Duration) (bool, error) {
	got, err := p.session.Acquire(ctx, key, store.Request{Token: store.NewToken(), Try: 1, TTL: ttl})
	if got.Watch != nil {
		got.Watch.Stop()
	}
	return got.State == store.Won, err
}

func (p plainMemory) Delete(ctx context.Context, key string) (bool, error) {
	err := p.session.Invalidate(ctx, key)
	return err == nil, err
}

func (p plainMemory) Close() { p.session.Close() }

// redis is a Redis: one that was given, or a private one of the session.
type redis struct {
	url    string
	id     string
	label  string
	server *servers.Server // nil: given
}

// startRedis starts a server of the session's own.
func startRedis(ctx context.Context, id string) (*redis, error) {
	server, err := servers.Redis(ctx, "", servers.RedisOptions{})
	if err != nil {
		return nil, fmt.Errorf("start a Redis for this page: %w", err)
	}
	return &redis{url: server.URL(), id: id, server: server, label: "Redis " + server.Version() + ", a private server of this page"}, nil
}

func (r *redis) about() string  { return r.label }
func (r *redis) name() string   { return "live-" + r.id }
func (r *redis) prefix() string { return "onefill-live-" + r.id + ":" }

func (r *redis) shared() (store.Store, func(), error) {
	s, err := redisstore.Open(r.url)
	if err != nil {
		return nil, nil, err
	}
	return s, func() { s.Close() }, nil
}

func (r *redis) plain(ctx context.Context) (recipe.Store, error) {
	p, err := recipe.OpenRedis(ctx, r.url)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (r *redis) ours() bool { return r.server != nil }

func (r *redis) kill() error {
	if !r.ours() {
		return errNotOurs
	}
	return r.server.Kill()
}

func (r *redis) restart(ctx context.Context) error {
	if !r.ours() {
		return errNotOurs
	}
	return r.server.RestartEmpty(ctx)
}

func (r *redis) close() error {
	if r.server == nil {
		return nil
	}
	return r.server.Stop()
}

// probe asks a given Redis what it is.
func probe(ctx context.Context, url string) (label string, err error) {
	p, err := recipe.OpenRedis(ctx, url)
	if err != nil {
		return "", err
	}
	defer p.Close()
	info, err := p.Client.Do(ctx, p.Client.B().Info().Section("server").Build()).ToString()
	if err != nil {
		return "", err
	}
	for _, name := range []string{"valkey", "redis"} {
		if _, rest, ok := strings.Cut(info, name+"_version:"); ok {
			version, _, _ := strings.Cut(rest, "\r\n")
			return strings.ToUpper(name[:1]) + name[1:] + " " + version + ", a server that was given", nil
		}
	}
	return "Redis, a server that was given", nil
}
