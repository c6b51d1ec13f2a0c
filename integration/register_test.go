package integration

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// The register that TestFleetHistory checks histories against, as docs/guarantees.md
// describes it ("The model that histories are checked against"): a row, as one cache may
// see it. It is regular, not atomic: while a write is under way, both the row before it
// and the one after it may be read, in any order.
//
// A write is two operations, the commit at the origin and the telling of the cache. A
// telling narrows what may be read, and so it counts, for a cache other than the
// writer's, only at the end of its bound at the latest: its interval is stretched, and
// the reads' are as they were. That is why every cache has a history of its own.

// registerState is the register. Versions up to committed may be read; none below hard
// may, and none below soft that is not said to be stale.
type registerState struct {
	committed, soft, hard int64
	told                  int // tellings so far, by number
}

type registerOp struct {
	kind    registerKind
	version int64
	number  int  // of a telling
	stale   bool // tell: of Expire, which lets old rows be read as stale ones; read: the row may be a stale one
}

type registerKind uint8

const (
	regCommit registerKind = iota
	regTell
	regRead
)

// registerModel is the sequential specification. Rows begin at version 1, which needs no
// telling. Commits come by version, as the origin serialises them. Tellings come by
// number, which is by the ends of their bounds: in any order that porcupine could
// choose instead, each would narrow the register no later than it does in this one.
var registerModel = porcupine.Model{
	Init: func() any { return registerState{committed: 1, soft: 1, hard: 1} },
	Step: func(state, input, _ any) (bool, any) {
		s, op := state.(registerState), input.(registerOp)
		switch op.kind {
		case regCommit:
			if op.version != s.committed+1 {
				return false, s
			}
			s.committed = op.version
		case regTell:
			if op.number != s.told+1 {
				return false, s
			}
			s.told = op.number
			s.soft = max(s.soft, op.version)
			if !op.stale {
				s.hard = max(s.hard, op.version)
			}
		case regRead:
			floor := s.soft
			if op.stale {
				floor = s.hard
			}
			return floor <= op.version && op.version <= s.committed, s
		}
		return true, s
	},
	Hash: func(state any) uint64 {
		s := state.(registerState)
		return uint64(s.committed)<<40 ^ uint64(s.told)<<16 ^ uint64(s.hard)
	},
	DescribeOperation: func(input, _ any) string {
		op := input.(registerOp)
		stale := ""
		if op.stale {
			stale = " (stale)"
		}
		return fmt.Sprintf("%s v%d%s", []string{"commit", "tell", "read"}[op.kind], op.version, stale)
	},
	DescribeState: func(state any) string {
		s := state.(registerState)
		return fmt.Sprintf("v%d to v%d, stale from v%d", s.soft, s.committed, s.hard)
	},
}

// span64 is from a moment to another one, on the history's clock.
type span64 struct{ begin, end int64 }

// wrote is a write that was acknowledged at last: a commit, and the telling, from its
// first attempt to the answer of the one that succeeded.
type wrote struct {
	node         int
	op           string // "Set", "Invalidate", "Expire", "InvalidateTag"
	key          string
	version      int64
	commit, told span64
}

// looked is a read that brought a row.
type looked struct {
	node    int
	op      string
	key     string
	version int64
	stale   bool // it was said to be a stale one, or might be (GetMany does not say)
	at      span64
}

// bounds say how long other caches than the writer's may read what is no longer there.
type bounds struct {
	push     int64 // where a push tells of the write
	localTTL int64 // else: as long as local may be believed
	staleFor int64 // after Expire, as a stale row
	pushes   bool  // of the store
	// unheard are the times in which a cache may have missed pushes, each with Local.TTL
	// after it, in which it may go on believing what it has read meanwhile.
	unheard map[int][]span64
}

// elsewhere is the bound of a write in another cache.
func (b *bounds) elsewhere(node int, w *wrote) int64 {
	if !b.pushes {
		return b.localTTL
	}
	for _, u := range b.unheard[node] {
		if w.told.begin <= u.end && w.told.end+b.push >= u.begin {
			return b.localTTL
		}
	}
	return b.push
}

// chronicle is what happened to one key.
type chronicle struct {
	writes []wrote
	looks  []looked
}

// asSeenBy is the chronicle as one cache may have seen it, in operations for porcupine.
func (c *chronicle) asSeenBy(node int, b *bounds) []porcupine.Operation {
	var tells, all []porcupine.Operation
	tell := func(w *wrote, stale bool, bound int64) {
		tells = append(tells, porcupine.Operation{
			ClientId: w.node, Input: registerOp{kind: regTell, version: w.version, stale: stale},
			Call: w.told.begin, Return: w.told.end + bound,
		})
	}
	for i := range c.writes {
		w := &c.writes[i]
		all = append(all, porcupine.Operation{
			ClientId: w.node, Input: registerOp{kind: regCommit, version: w.version}, Call: w.commit.begin, Return: w.commit.end,
		})
		var bound int64
		if w.node != node {
			bound = b.elsewhere(node, w)
		}
		if w.op == "Expire" {
			tell(w, true, bound)
			bound = b.staleFor + b.push + bound // by the clocks of two caches and of the store
		}
		tell(w, false, bound)
	}
	slices.SortStableFunc(tells, func(x, y porcupine.Operation) int { return cmp.Compare(x.Return, y.Return) })
	for i := range tells {
		op := tells[i].Input.(registerOp)
		op.number = i + 1
		tells[i].Input = op
	}
	all = append(all, tells...)
	for _, l := range c.looks {
		if l.node == node {
			all = append(all, porcupine.Operation{
				ClientId: l.node, Input: registerOp{kind: regRead, version: l.version, stale: l.stale}, Call: l.at.begin, Return: l.at.end,
			})
		}
	}
	return all
}

// verdict is what the checkers make of a chronicle: which caches have seen what they may not.
type verdict struct {
	node    int
	history []porcupine.Operation
	unsure  bool
}

// judge asks porcupine about the history of each cache.
func (c *chronicle) judge(b *bounds, patience time.Duration) (refused []verdict) {
	for _, node := range c.nodes() {
		history := c.asSeenBy(node, b)
		switch porcupine.CheckOperationsTimeout(registerModel, history, patience) {
		case porcupine.Illegal:
			refused = append(refused, verdict{node: node, history: history})
		case porcupine.Unknown:
			refused = append(refused, verdict{node: node, history: history, unsure: true})
		}
	}
	return refused
}

// nodes are the caches that have read.
func (c *chronicle) nodes() (nodes []int) {
	for _, l := range c.looks {
		if !slices.Contains(nodes, l.node) {
			nodes = append(nodes, l.node)
		}
	}
	return nodes
}

// wrong finds, by arithmetic, the reads that the register does not allow. It says the
// same as porcupine, since of a regular register each read can be judged alone, and it
// names the read; that both agree is tested (TestRegister), and checked in every run.
func (c *chronicle) wrong(b *bounds) (bad []string) {
	for _, l := range c.looks {
		if l.version > 1 && !slices.ContainsFunc(c.writes, func(w wrote) bool { return w.version == l.version && w.commit.begin <= l.at.end }) {
			bad = append(bad, fmt.Sprintf("cache %d read version %d of %q (%s) before it was committed", l.node, l.version, l.key, l.op))
			continue
		}
		for i := range c.writes {
			w := &c.writes[i]
			if w.version <= l.version {
				continue
			}
			var bound int64
			if w.node != l.node {
				bound = b.elsewhere(l.node, w)
			}
			if w.op == "Expire" && l.stale {
				bound += b.staleFor + b.push
			}
			if w.told.end+bound < l.at.begin {
				bad = append(bad, fmt.Sprintf("cache %d read version %d of %q (%s, stale or maybe stale: %v, took %v), %v after cache %d was told of version %d (%s, took %v); the bound is %v",
					l.node, l.version, l.key, l.op, l.stale, time.Duration(l.at.end-l.at.begin), time.Duration(l.at.begin-w.told.end), w.node, w.version, w.op,
					time.Duration(w.told.end-w.told.begin), time.Duration(bound)))
				break
			}
		}
	}
	return bad
}
