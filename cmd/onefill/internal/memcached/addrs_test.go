package memcached

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/onefill/onefill/memcachestore"
	"github.com/onefill/onefill/store"
)

// TestParseList: what a flag takes, and what it says of the rest. memcachestore agrees: what is taken here is not
// refused there as an address, and what is refused here is refused there.
func TestParseList(t *testing.T) {
	for list, want := range map[string][]string{
		"h:1":                         {"h:1"},
		" a:1 ,\tb:2 ":                {"a:1", "b:2"},
		"unix:/s,/t,unix:///u":        {"unix:/s", "/t", "unix:///u"},
		"/run/A,unix:/run/a":          {"/run/A", "unix:/run/a"},
		"[::1]:11211,127.0.0.1:11211": {"[::1]:11211", "127.0.0.1:11211"},
	} {
		got, err := ParseList(list)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", list, got, err)
		}
		if wrong(got) {
			t.Errorf("%q: memcachestore refuses it", list)
		}
	}
	for list, says := range map[string]string{
		"":             "server 1 of \"\" is empty; write host:port",
		"a:1,":         "server 2 of \"a:1,\" is empty",
		"a:1, ,b:2":    "server 2 of \"a:1, ,b:2\" is empty",
		"localhost":    `"localhost": missing port in address; write host:port`,
		"a:1,b":        `"b": missing port`,
		"a:0":          `the port "0"`,
		"a:http":       `the port "http"`,
		"redis://a:1":  "it is a URL",
		"unix:":        "it names no socket",
		"::1:11211":    "too many colons",
		"a:1,b:2,a:1":  `"a:1" is given twice`,
		"a:1, A:1":     `"A:1" is given twice`,
		"/s,unix:///s": `"unix:///s" is given twice`,
	} {
		got, err := ParseList(list)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %q, %v; expected %q", list, got, err, says)
		}
		if !wrong(strings.Split(list, ",")) {
			t.Errorf("%q: memcachestore takes it", list)
		}
	}
}

// wrong says whether memcachestore takes addresses for none: it says so before it asks a server, which it
// cannot with a context that has ended.
func wrong(addrs []string) bool {
	s := memcachestore.New(addrs...)
	defer s.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.Attach(ctx, store.Config{Name: "x"})
	return !errors.Is(err, context.Canceled)
}
