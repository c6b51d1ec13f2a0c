package redisstore

import (
	"errors"
	"strings"
	"testing"

	"github.com/onefill/onefill/store"
)

func TestOpenURLs(t *testing.T) {
	for _, url := range []string{
		"redis://127.0.0.1:6379", "redis://127.0.0.1:6379/", "redis://127.0.0.1:6379/3",
		"rediss://user:secret@example.com:6379/", "redis://127.0.0.1:6379/?client_name=x",
		"valkey://127.0.0.1:6379", "unix:///run/redis.sock?db=1",
	} {
		st, err := Open(url)
		if err != nil {
			t.Errorf("Open(%q): %v", url, err)
			continue
		}
		st.Close()
	}
	for _, url := range []string{"", "127.0.0.1:6379", "http://127.0.0.1", "redis://user:secret@127.0.0.1:6379/x", "redis://user:se/cret@host"} {
		st, err := Open(url)
		if err == nil {
			st.Close()
			t.Errorf("Open(%q) succeeded", url)
		} else if len(err.Error()) > 250 {
			t.Errorf("Open(%q): %v", url, err)
		} else if !strings.Contains(err.Error(), "redisstore: open") || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "cret@") {
			t.Errorf("Open(%q): %v", url, err)
		}
	}
}

// New has no error to return, so a nil client is an error of Attach.
func TestNewWithoutClient(t *testing.T) {
	_, err := New(nil).Attach(t.Context(), store.Config{Name: "n", AllowDown: true})
	var e *store.Error
	if !errors.As(err, &e) || !strings.Contains(err.Error(), "nil client") {
		t.Errorf("Attach: %v", err)
	}
}
