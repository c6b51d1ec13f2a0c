package servertest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
)

// Couple is a primary of a cluster and its replica.
type Couple struct{ Primary, Replica *servers.Server }

// Cluster is a Redis Cluster, whose slots are shared out evenly at first.
type Cluster []Couple

const (
	clusterSlots    = 16384
	clusterPatience = 30 * time.Second
)

// RedisCluster starts a cluster of n primaries with a replica each for this test alone. It
// takes a few seconds. args are added to the command line of each.
func RedisCluster(t testing.TB, n int, args ...string) Cluster {
	t.Helper()
	node := func() *servers.Server {
		return Redis(t, servers.RedisOptions{Args: append([]string{"--cluster-enabled", "yes", "--repl-diskless-sync-delay", "0",
			"--cluster-node-timeout", "2000"}, args...)})
	}
	c := make(Cluster, n)
	for i := range c {
		c[i] = Couple{node(), node()}
		sayOK(t, c[i].Primary, "CLUSTER", "ADDSLOTSRANGE", fmt.Sprint(i*clusterSlots/n), fmt.Sprint((i+1)*clusterSlots/n-1))
		for _, s := range []*servers.Server{c[i].Primary, c[i].Replica} {
			if s != c[0].Primary {
				sayOK(t, s, "CLUSTER", "MEET", "127.0.0.1", fmt.Sprint(c[0].Primary.Port()))
			}
		}
	}
	c.await(t, fmt.Sprint("cluster_known_nodes:", 2*n))
	for _, couple := range c {
		id := Say(t, couple.Primary, "CLUSTER", "MYID")
		await(t, "the replica knows its primary", func() error {
			if got := Say(t, couple.Replica, "CLUSTER", "REPLICATE", id); got != "OK" {
				return errors.New(got)
			}
			return nil
		})
		await(t, "the replica is in step", func() error {
			if info := Say(t, couple.Replica, "INFO", "replication"); !strings.Contains(info, "master_link_status:up") {
				return errors.New(info)
			}
			return nil
		})
	}
	c.await(t, "cluster_state:ok")
	await(t, "everybody knows the replicas", func() error {
		for _, couple := range c {
			if got := Say(t, couple.Primary, "CLUSTER", "NODES"); strings.Count(got, "slave") != n {
				return errors.New(got)
			}
		}
		return nil
	})
	return c
}

// URL names all primaries.
func (c Cluster) URL() string {
	url, sep := c[0].Primary.URL(), "?addr="
	for _, couple := range c[1:] {
		url, sep = url+sep+couple.Primary.Addr(), "&addr="
	}
	return url
}

// await waits until CLUSTER INFO of every node has a line.
func (c Cluster) await(t testing.TB, line string) {
	t.Helper()
	await(t, "the cluster has settled", func() error {
		for _, couple := range c {
			for _, s := range []*servers.Server{couple.Primary, couple.Replica} {
				if info := Say(t, s, "CLUSTER", "INFO"); !strings.Contains(info, line+"\r\n") {
					return errors.New(info)
				}
			}
		}
		return nil
	})
}

// SlotOf is the slot of a key.
func (c Cluster) SlotOf(t testing.TB, key string) int {
	t.Helper()
	n, err := strconv.Atoi(Say(t, c[0].Primary, "CLUSTER", "KEYSLOT", key))
	check(t, err)
	return n
}

// Move is a slot on its way from one node to another. Its steps are those of
// redis-cli --cluster reshard.
type Move struct {
	t        testing.TB
	cluster  Cluster
	slot     string
	from, to *servers.Server
}

// Move begins to move a slot. From here on the old node sends those who ask for an absent
// key to the new one (ASK).
func (c Cluster) Move(t testing.TB, slot int, from, to *servers.Server) *Move {
	t.Helper()
	m := &Move{t, c, strconv.Itoa(slot), from, to}
	sayOK(t, to, "CLUSTER", "SETSLOT", m.slot, "IMPORTING", Say(t, from, "CLUSTER", "MYID"))
	sayOK(t, from, "CLUSTER", "SETSLOT", m.slot, "MIGRATING", Say(t, to, "CLUSTER", "MYID"))
	return m
}

// Keys moves keys.
func (m *Move) Keys(keys ...string) {
	m.t.Helper()
	command := append([]string{"MIGRATE", "127.0.0.1", strconv.Itoa(m.to.Port()), "", "0", "5000", "KEYS"}, keys...)
	if got := Say(m.t, m.from, command...); got != "OK" && got != "NOKEY" { // they may have expired meanwhile
		m.t.Fatalf("%v: %s", command, got)
	}
}

// AllKeys moves the keys that are there, and returns how many there were.
func (m *Move) AllKeys() (n int) {
	m.t.Helper()
	for {
		keys := Say(m.t, m.from, "CLUSTER", "GETKEYSINSLOT", m.slot, "10")
		if keys == "" {
			return n
		}
		some := strings.Split(keys, "\n")
		m.Keys(some...)
		n += len(some)
	}
}

// End gives the slot to the new node, and tells all primaries.
func (m *Move) End() {
	m.t.Helper()
	id := Say(m.t, m.to, "CLUSTER", "MYID")
	sayOK(m.t, m.to, "CLUSTER", "SETSLOT", m.slot, "NODE", id)
	sayOK(m.t, m.from, "CLUSTER", "SETSLOT", m.slot, "NODE", id)
	for _, couple := range m.cluster {
		if couple.Primary != m.to && couple.Primary != m.from {
			sayOK(m.t, couple.Primary, "CLUSTER", "SETSLOT", m.slot, "NODE", id)
		}
	}
}

// Say sends one command to a Redis and returns what it answers: the text of a reply or of
// an error, the elements of an array a line each, "" for none.
func Say(t testing.TB, s *servers.Server, command ...string) string {
	t.Helper()
	reply, err := say(s.Addr(), command)
	if err != nil {
		t.Fatalf("%v: %v", command, err)
	}
	return reply
}

func sayOK(t testing.TB, s *servers.Server, command ...string) {
	t.Helper()
	if got := Say(t, s, command...); got != "OK" {
		t.Fatalf("%v: %s", command, got)
	}
}

func say(addr string, command []string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, clusterPatience)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(clusterPatience)); err != nil {
		return "", err
	}
	text := fmt.Sprintf("*%d\r\n", len(command))
	for _, word := range command {
		text += fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		return "", err
	}
	return reply(bufio.NewReader(conn))
}

func reply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	n, _ := strconv.Atoi(line[1:])
	switch line[0] {
	case '$':
		if n < 0 {
			return "", nil
		}
		body := make([]byte, n+2)
		_, err := io.ReadFull(r, body)
		return string(body[:n]), err
	case '*':
		var elements []string
		for range n {
			element, err := reply(r)
			if err != nil {
				return "", err
			}
			elements = append(elements, element)
		}
		return strings.Join(elements, "\n"), nil
	}
	return line[1:], nil
}

func await(t testing.TB, what string, done func() error) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(clusterPatience)
	for {
		err := done()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		<-tick.C
	}
}
