package redisstore

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Which server of a cluster has a key: the session says so to the core, which has a
// breaker for each server, and the store has a guard for each. And when a slot has gone to
// another server, the sessions must be told: see survey.

const slotCount = 16384

// clusterNode is a line of CLUSTER NODES, as one node of the cluster sees another.
type clusterNode struct {
	id, addr, primary string // primary: of a replica, its id
	myself            bool
	epoch             uint64
	ranges            [][2]int
}

// readNodes reads CLUSTER NODES:
//
//	<id> <ip:port@cport[,hostname]> <flags> <primary|-> <ping> <pong> <epoch> <link> <slots>...
//
// A slot in brackets is on its way, and still the one's that names it without.
func readNodes(text string) ([]clusterNode, error) {
	var nodes []clusterNode
	text = strings.TrimPrefix(text, "txt:") // RESP3 says what kind of a text it is
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 8 {
			return nil, fmt.Errorf("CLUSTER NODES: a line of %d fields: %.100q", len(fields), line)
		}
		n := clusterNode{id: fields[0], myself: strings.Contains(fields[2], "myself")}
		n.addr, _, _ = strings.Cut(fields[1], "@")
		if fields[3] != "-" {
			n.primary = fields[3]
		}
		var err error
		if n.epoch, err = strconv.ParseUint(fields[6], 10, 64); err != nil {
			return nil, fmt.Errorf("CLUSTER NODES: %w", err)
		}
		for _, field := range fields[8:] {
			if strings.HasPrefix(field, "[") {
				continue
			}
			r, err := readRange(field)
			if err != nil {
				return nil, err
			}
			n.ranges = append(n.ranges, r)
		}
		nodes = append(nodes, n)
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("CLUSTER NODES: no node in %.100q", text)
	}
	return nodes, nil
}

func readRange(field string) (r [2]int, err error) {
	first, last, wide := strings.Cut(field, "-")
	if !wide {
		last = first
	}
	if r[0], err = strconv.Atoi(first); err == nil {
		r[1], err = strconv.Atoi(last)
	}
	if err == nil && (r[0] < 0 || r[0] > r[1] || r[1] >= slotCount) {
		err = fmt.Errorf("from %d to %d", r[0], r[1])
	}
	if err != nil {
		return r, fmt.Errorf("CLUSTER NODES: slots %q: %w", field, err)
	}
	return r, nil
}

// chart says who has which slot. It is never changed.
type chart struct {
	print  uint64 // of the view that it was drawn from
	epoch  uint64 // of the latest change of ownership in it
	owners [slotCount]uint16
	// By the numbers in owners, where 0 is nobody: the server's name, the id and the address
	// of its primary, and its guard.
	servers   []string
	primaries []string
	addrs     []string
	guards    []*guard
	replicas  []string // their addresses
}

// sameOwners says whether every slot has the same primary as in another chart.
func (c *chart) sameOwners(other *chart) bool {
	for slot := range c.owners {
		if c.primaries[c.owners[slot]] != other.primaries[other.owners[slot]] {
			return false
		}
	}
	return true
}

// atlas keeps the present chart of a cluster. A server in it is a primary or whoever has
// taken its place: it keeps its name, the address of the first one, so that a breaker that
// the primary's death has opened is closed by the replica's answer.
type atlas struct {
	present atomic.Pointer[chart] // nil: not a cluster, or not known

	mu     sync.Mutex        // guards what follows, and the step to another chart
	names  map[string]string // of the servers, by the ids of all that are or were in their place
	guards map[string]*guard // by the servers' names
	seen   time.Time         // when the present chart, or a later one, was last seen
	places int               // of each guard
}

func newAtlas(places int) *atlas {
	return &atlas{names: map[string]string{}, guards: map[string]*guard{}, places: places}
}

// staleChart is for how long a view that is behind the present chart is taken for one of a
// node that has not yet heard. Longer than that, everybody is behind: the cluster has been
// set up anew.
const staleChart = 5 * time.Second

// learn draws a chart from what a node has said. It says whether a slot has another primary
// than in the chart before.
func (a *atlas) learn(nodes []clusterNode, now time.Time) (moved bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before, seen := a.present.Load(), fingerprint(nodes)
	if before != nil && before.print == seen {
		a.seen = now
		return false
	}
	if before != nil && latestEpoch(nodes) < before.epoch && now.Sub(a.seen) < staleChart {
		return false // nor may it change the names
	}
	next := a.draw(nodes)
	next.print = seen
	a.seen = now
	a.present.Store(next)
	a.forget(nodes)
	return before != nil && !next.sameOwners(before)
}

func latestEpoch(nodes []clusterNode) (epoch uint64) {
	for _, n := range nodes {
		if len(n.ranges) > 0 {
			epoch = max(epoch, n.epoch)
		}
	}
	return epoch
}

// forget leaves out what the present chart's view does not name any more: nodes come and go
// for as long as the process lives. The lock is held.
func (a *atlas) forget(nodes []clusterNode) {
	maps.DeleteFunc(a.names, func(id, _ string) bool {
		return !slices.ContainsFunc(nodes, func(n clusterNode) bool { return n.id == id })
	})
	named := map[string]bool{"": true}
	for _, name := range a.names {
		named[name] = true
	}
	maps.DeleteFunc(a.guards, func(name string, _ *guard) bool { return !named[name] })
}

// fingerprint is the same for views that say the same, in whatever order. What differs from
// one view to the next, as when a node was last heard of, is left out.
func fingerprint(nodes []clusterNode) (print uint64) {
	for _, n := range nodes {
		n.myself = false
		print += maphash.String(printSeed, fmt.Sprint(n))
	}
	return print
}

var printSeed = maphash.MakeSeed()

// draw makes a chart. The lock is held.
func (a *atlas) draw(nodes []clusterNode) *chart {
	c := &chart{epoch: latestEpoch(nodes), servers: []string{""}, primaries: []string{""}, addrs: []string{""}, guards: []*guard{a.guard("")}}
	for _, n := range nodes {
		if len(n.ranges) == 0 {
			continue
		}
		name := a.name(n, c.servers)
		c.servers, c.primaries = append(c.servers, name), append(c.primaries, n.id)
		c.addrs, c.guards = append(c.addrs, n.addr), append(c.guards, a.guard(name))
		index := uint16(len(c.servers) - 1)
		for _, r := range n.ranges {
			for slot := r[0]; slot <= r[1]; slot++ {
				c.owners[slot] = index
			}
		}
	}
	for _, n := range nodes {
		if n.primary != "" {
			c.replicas = append(c.replicas, n.addr)
		}
		if name, ok := a.names[n.primary]; ok && n.primary != "" {
			a.names[n.id] = name
		}
	}
	return c
}

// name is a primary's server. Two never have the same one: a former replica that has slots
// of its own now is a server of its own.
func (a *atlas) name(n clusterNode, taken []string) string {
	name, ok := a.names[n.id]
	if !ok {
		name = n.addr
	}
	if slices.Contains(taken, name) {
		name = n.addr + " " + n.id
	}
	for slices.Contains(taken, name) { // it had that name before, and its replica has inherited it
		name += "'"
	}
	a.names[n.id] = name
	return name
}

// guard is a server's. The lock is held.
func (a *atlas) guard(server string) *guard {
	g, ok := a.guards[server]
	if !ok {
		g = newGuard(a.places)
		a.guards[server] = g
	}
	return g
}

// server names the server that has a slot, "" if nobody has it, or if this is no cluster.
func (a *atlas) server(slot int) string {
	c := a.present.Load()
	if c == nil {
		return ""
	}
	return c.servers[c.owners[slot]]
}

// slotOf is the slot of the value's key that a session's prefix and a key make: the
// CRC16 of what lies between its first '{' and the first '}' after it, modulo 16384.
func slotOf(prefix, key string) int {
	crc := crc16(0, prefix[len(keyPrefix):]) // a name holds no '}'
	key, _, _ = strings.Cut(key, keySuffix)
	return int(crc16(crc, key)) % slotCount
}

// slotOfFull is the slot of any key of ours.
func slotOfFull(full string) int { return slotOf(keyPrefix, strings.TrimPrefix(full, keyPrefix)) }

// crc16 is the checksum that Redis Cluster uses (XMODEM: polynomial 0x1021, from 0).
func crc16(crc uint16, s string) uint16 {
	for i := range len(s) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^s[i]]
	}
	return crc
}

var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()
