package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/onefill/onefill/store"
)

func TestError(t *testing.T) {
	cause := fmt.Errorf("dial: %w", context.DeadlineExceeded)
	e := &store.Error{Service: "redis", Addr: "127.0.0.1:6379", Op: "get", Err: cause, Unavailable: true}
	if got, want := e.Error(), "redis at 127.0.0.1:6379: get: dial: context deadline exceeded"; got != want {
		t.Errorf("Error = %q, want %q", got, want)
	}
	wrapped := fmt.Errorf("loading: %w", e)
	if !errors.Is(wrapped, store.ErrUnavailable) || !errors.Is(wrapped, context.DeadlineExceeded) {
		t.Error("neither the cause nor ErrUnavailable may get lost")
	}
	var as *store.Error
	if !errors.As(wrapped, &as) || as != e {
		t.Error("errors.As does not find the error")
	}

	refused := &store.Error{Service: "redis", Addr: "a", Op: "set", Err: fmt.Errorf("%w: 2 MB", store.ErrTooLarge)}
	if errors.Is(refused, store.ErrUnavailable) || !errors.Is(refused, store.ErrTooLarge) {
		t.Error("an answer that is an error is not an unavailable store")
	}
}

func TestValidName(t *testing.T) {
	for _, name := range []string{"u", "users", "users.v2", "Users-42_x/y", "~!@#$%^&*()", strings.Repeat("n", 128)} {
		if err := store.ValidName(name); err != nil {
			t.Errorf("ValidName(%q): %v", name, err)
		}
	}
	for name, says := range map[string]string{
		"": "empty", strings.Repeat("n", 129): "129 bytes", "a b": "byte 1", "a:b": "':'", ":": "byte 0", "{": "'{'", "a}": "'}'",
		"a\x00": "byte 1", "a\n": "byte 1", "a\r": "byte 1", "\t": "byte 0", "a\x7f": "byte 1", "ä": "byte 0", "us\xffers": "byte 2", "ab鍵": "byte 2",
	} {
		if err := store.ValidName(name); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("ValidName(%q) = %v, want an error that says %q", name, err, says)
		}
	}
}

func TestValidOwner(t *testing.T) {
	for _, owner := range []string{"", "web-3:4711", "a", `~!@#$%^&*(){}"'\<>`, strings.Repeat("o", store.MaxOwnerBytes)} {
		if err := store.ValidOwner(owner); err != nil {
			t.Errorf("ValidOwner(%q): %v", owner, err)
		}
	}
	for owner, says := range map[string]string{
		strings.Repeat("o", store.MaxOwnerBytes+1): "65 bytes", "a b": "byte 1", "\x1b[2J": "byte 0", "a\x00": "byte 1", "a\n": "byte 1",
		"\t": "byte 0", "a\x7f": "byte 1", "ä": "byte 0", "us\xffers": "byte 2",
	} {
		if err := store.ValidOwner(owner); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("ValidOwner(%q) = %v, want an error that says %q", owner, err, says)
		}
	}
}

func TestStateString(t *testing.T) {
	for state, want := range map[store.State]string{store.Hit: "hit", store.Won: "won", store.Held: "held", store.Failed: "failed", 0: "invalid state", 9: "invalid state"} {
		if got := state.String(); got != want {
			t.Errorf("State(%d) = %q, want %q", state, got, want)
		}
	}
}
