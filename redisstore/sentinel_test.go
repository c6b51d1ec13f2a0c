package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
	"github.com/redis/rueidis"
)

// trio is a primary, its replica and a sentinel that watches them.
func trio(t *testing.T) (primary, replica, sentinel *servers.Server) {
	primary = servertest.Redis(t, servers.RedisOptions{Args: []string{"--repl-diskless-sync-delay", "0"}})
	replica = servertest.Redis(t, servers.RedisOptions{Args: []string{"--replicaof", fmt.Sprint("127.0.0.1 ", primary.Port())}})
	config := filepath.Join(t.TempDir(), "sentinel.conf")
	ok(t, os.WriteFile(config, fmt.Appendf(nil, "sentinel monitor main 127.0.0.1 %d 1\n"+
		"sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n", primary.Port()), 0o600))
	sentinel = servertest.Redis(t, servers.RedisOptions{Config: config, Args: []string{"--sentinel"}})
	eventually(t, "the replica is in step", func() error {
		if info := sayTo(t, replica.Addr(), "INFO", "replication"); !strings.Contains(info, "master_link_status:up") {
			return errors.New(info)
		}
		return nil
	})
	eventually(t, "the sentinel knows the replica", func() error {
		if info := sayTo(t, sentinel.Addr(), "INFO", "sentinel"); !strings.Contains(info, "slaves=1") {
			return errors.New(info)
		}
		return nil
	})
	return primary, replica, sentinel
}

// trySay is one command to a server that is being reconfigured: a sentinel cuts the
// connections of a server that it makes a primary.
func trySay(addr string, command ...string) (string, error) {
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true})
	if err != nil {
		return "", err
	}
	defer c.Close()
	return c.Do(context.Background(), c.B().Arbitrary(command...).Build()).ToString()
}

// After a failover the store finds the new primary by itself, is told that it may have
// missed something, and hears pushes from there. The old primary stays up as a replica:
// a connection to it breaks only if somebody breaks it.
func TestSentinelFailover(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			_, replica, sentinel := trio(t)
			s := v.on(t, sentinel.URL()+"?master_set=main")
			a := attach(t, s, "n")
			if a.Features().Push != v.push {
				t.Fatalf("push %v", a.Features().Push)
			}
			a.set("k", "v")
			eventually(t, "failover", func() error {
				if got := sayTo(t, sentinel.Addr(), "SENTINEL", "FAILOVER", "main"); got != "OK" {
					return errors.New(got)
				}
				return nil
			})
			eventually(t, "the replica is the primary", func() error {
				if info, err := trySay(replica.Addr(), "INFO", "replication"); !strings.Contains(info, "role:master") {
					return fmt.Errorf("not yet: %w", err)
				}
				return nil
			})
			token := store.NewToken()
			eventually(t, "a lease from the new primary", func() error {
				_, err := a.Acquire(a.ctx, "leased", store.Request{Token: token, TTL: time.Minute})
				if err != nil && !errors.Is(err, store.ErrUnavailable) {
					t.Fatal("during the failover:", err)
				}
				if err != nil {
					return err
				}
				there, err := trySay(replica.Addr(), "GET", leaseKey(valueKey("of:{n:", "leased")))
				if there == "" {
					return fmt.Errorf("it was given by the old primary: %w", err)
				}
				return nil
			})
			if a.replacements() == 0 {
				t.Error("answered by the new primary before the session was told of it")
			}
			if !v.push {
				return
			}
			a.awaitLost(1)
			a.get("k")
			before := a.changes("k")
			if _, err := trySay(replica.Addr(), "SET", valueKey("of:{n:", "k"), "x"); err != nil {
				t.Fatal(err)
			}
			a.awaitChanged("k", before+1)
		})
	}
}

// The primary's password is for the primary: a sentinel, which has none or another one,
// is asked nothing before rueidis talks to it.
func TestSentinelIsNotToldThePassword(t *testing.T) {
	heard := make(chan string, 100)
	sentinel := fakeServer(t, func(c net.Conn) {
		buf := make([]byte, 1<<12)
		n, _ := c.Read(buf)
		heard <- string(buf[:n])
		c.Close()
	})
	s := must(OpenOption(rueidis.ClientOption{InitAddress: []string{sentinel}, Password: "secret",
		Sentinel: rueidis.SentinelOption{MasterSet: "main"}}))(t)
	t.Cleanup(func() { s.Close() })
	if _, err := s.Attach(t.Context(), store.Config{Name: "n"}); err == nil {
		t.Error("no error")
	}
	got := <-heard
	if strings.Contains(got, "secret") || !strings.Contains(got, "HELLO") {
		t.Errorf("a sentinel was sent %q first", got)
	}
}
