package redisstore

import (
	"strings"
	"testing"
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
	for _, url := range []string{"", "127.0.0.1:6379", "http://127.0.0.1", "redis://user:secret@127.0.0.1:6379/x"} {
		st, err := Open(url)
		if err == nil {
			st.Close()
			t.Errorf("Open(%q) succeeded", url)
		} else if !strings.Contains(err.Error(), "redisstore: open") || strings.Contains(err.Error(), "secret") {
			t.Errorf("Open(%q): %v", url, err)
		}
	}
}
