package memcachestore

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
)

// ring spreads keys over servers so that adding or removing one moves only the keys
// that it gets or had ("ketama"). Every process must name the servers alike; their
// order does not matter.
type ring struct {
	nodes  []*node
	points []point // by hash
}

type point struct {
	hash uint64
	node *node
}

// pointsPerNode bounds the imbalance: with 160, the share of a server differs from
// the others' by about a tenth.
const pointsPerNode = 160

func newRing(nodes []*node) *ring {
	r := &ring{nodes: nodes}
	if len(nodes) < 2 {
		return r
	}
	for _, n := range nodes {
		for i := range pointsPerNode / 4 {
			sum := sha256.Sum256(fmt.Appendf(nil, "%s-%d", n.addr.identity(), i))
			for at := 0; at < len(sum); at += 8 {
				r.points = append(r.points, point{binary.BigEndian.Uint64(sum[at:]), n})
			}
		}
	}
	slices.SortFunc(r.points, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.node.addr.identity(), b.node.addr.identity()))
	})
	return r
}

// node returns the server of an item.
func (r *ring) node(item string) *node { return nodeOf(r, item) }

func nodeOf[T string | []byte](r *ring, item T) *node {
	if len(r.points) == 0 {
		return r.nodes[0]
	}
	h := hashKey(item)
	i := sort.Search(len(r.points), func(i int) bool { return r.points[i].hash >= h })
	if i == len(r.points) {
		i = 0
	}
	return r.points[i].node
}

// hashKey is FNV-1a with the finalizer of SplitMix64, as FNV's upper bits alone
// hardly depend on a key's last bytes.
func hashKey[T string | []byte](key T) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
