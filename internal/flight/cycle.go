package flight

import (
	"context"
	"sync"
)

// Loads may nest: A's loader gets B. If B's loader, on some way, gets A, both
// would wait for each other until they time out. So each flight is a node of a
// graph, with an edge to every flight that its loader waits for, and an edge
// that would close a circle is refused.
//
// Only nested calls touch the graph. Its lock is held for the walk, never while
// anything waits.
var graph sync.Mutex

// Node is a flight's place in the graph of loads that wait for loads.
type Node struct {
	waits map[*Node]int // guarded by graph: how many callers inside this load wait for each
}

type nodeKey struct{}

// Inside returns a context for the load of a flight: calls made with it are known
// to come from inside that load.
func (n *Node) Inside(ctx context.Context) context.Context {
	return context.WithValue(ctx, nodeKey{}, n)
}

// From returns the node of the innermost load that ctx belongs to, or nil.
func From(ctx context.Context) *Node {
	n, _ := ctx.Value(nodeKey{}).(*Node)
	return n
}

// WaitFor records that n waits for other until the returned function is called.
// It refuses with false if other waits, over any number of steps, for n.
func (n *Node) WaitFor(other *Node) (done func(), ok bool) {
	graph.Lock()
	defer graph.Unlock()
	if other.reaches(n, map[*Node]bool{}) {
		return nil, false
	}
	if n.waits == nil {
		n.waits = make(map[*Node]int)
	}
	n.waits[other]++
	return func() {
		graph.Lock()
		defer graph.Unlock()
		if n.waits[other]--; n.waits[other] == 0 {
			delete(n.waits, other)
		}
	}, true
}

func (n *Node) reaches(target *Node, seen map[*Node]bool) bool {
	if n == target {
		return true
	}
	if seen[n] {
		return false
	}
	seen[n] = true
	for next := range n.waits {
		if next.reaches(target, seen) {
			return true
		}
	}
	return false
}
