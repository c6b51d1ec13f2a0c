package memcachestore_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/memcachestore"
)

// Two servers over TLS, and a cache that trusts what it has read for at most a second,
// as memcached tells nobody of changes.
func ExampleNewWith() {
	st := memcachestore.NewWith(memcachestore.Options{
		Addrs: []string{"cache-1.internal:11211", "cache-2.internal:11211"},
		TLS:   &tls.Config{MinVersion: tls.VersionTLS13},
	})
	defer st.Close()
	cache, err := onefill.New(onefill.Options[int64, string]{
		Name:  "users",
		Load:  func(ctx context.Context, id int64) (string, error) { return fmt.Sprint("user ", id), nil },
		TTL:   time.Minute,
		Local: onefill.LocalOptions{TTL: time.Second},
		Store: st,
	})
	if err != nil {
		fmt.Println(err) // memcached at cache-1.internal:11211: attach: ...
		return
	}
	defer cache.Close()
}
