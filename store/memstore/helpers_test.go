package memstore_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

const name = "users"

// news records what a session is told.
type news struct {
	mu  sync.Mutex
	got []string
}

func (n *news) add(s string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.got = append(n.got, s)
}

// take returns what was told since the last take.
func (n *news) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	got := n.got
	n.got = nil
	return got
}

func attach(t *testing.T, st *memstore.Store) (store.Session, *news) {
	t.Helper()
	n := &news{}
	s, err := st.Attach(t.Context(), store.Config{Name: name, Events: store.Events{
		Changed:  func(key string) { n.add(key) },
		Lost:     func() { n.add("LOST") },
		Replaced: func() { n.add("REPLACED") },
	}})
	if err != nil {
		t.Fatalf("Attach: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s, n
}

func told(t *testing.T, n *news, want ...string) {
	t.Helper()
	if got := n.take(); !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

func get(t *testing.T, s store.Session, key string) store.Item {
	t.Helper()
	item, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatalf("Get(%q): %v", key, err)
	}
	return item
}

func set(t *testing.T, s store.Session, key, data string, ttl time.Duration) {
	t.Helper()
	if ok, err := s.Set(t.Context(), key, []byte(data), ttl); err != nil || !ok {
		t.Fatalf("Set(%q) = %v, %v", key, ok, err)
	}
}

func ask(t *testing.T, s store.Session, key string, ttl time.Duration) store.Answer {
	t.Helper()
	answer, err := s.Acquire(t.Context(), key, store.Request{Token: store.NewToken(), TTL: ttl})
	if err != nil {
		t.Fatalf("Acquire(%q): %v", key, err)
	}
	return answer
}

// wantErr checks the error's type, cause and kind.
func wantErr(t *testing.T, err, cause error, isUnavailable bool) {
	t.Helper()
	var e *store.Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v is a %T, want a *store.Error", err, err)
	}
	if !errors.Is(err, cause) || errors.Is(err, store.ErrUnavailable) != isUnavailable {
		t.Errorf("error %v (unavailable: %v), want one that wraps %v (unavailable: %v)", err, e.Unavailable, cause, isUnavailable)
	}
}

func woken(w store.Watch) bool {
	select {
	case <-w.C():
		return true
	default:
		return false
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
