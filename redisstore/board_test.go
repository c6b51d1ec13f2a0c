package redisstore

import (
	"sync/atomic"
	"testing"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/store"
)

// boardRig is a store without a server: pushes are given to it by hand.
type boardRig struct {
	s                *Store
	writer, peer     *session
	toWriter, toPeer atomic.Int32
}

func newBoardRig() *boardRig {
	r := &boardRig{s: newStore(1, options{})}
	enlist := func(heard *atomic.Int32) *session {
		sess := &session{store: r.s, name: "n", prefix: sessionPrefix("n"),
			events: store.Events{Changed: func(string) { heard.Add(1) }}}
		r.s.enlist(sess)
		return sess
	}
	r.writer, r.peer = enlist(&r.toWriter), enlist(&r.toPeer)
	return r
}

func (r *boardRig) begin() *ownWrite {
	return r.s.board.begin(r.writer, parsed{isValue, "n", "k", valueKey("of:{n:", "k")})
}

func (r *boardRig) push() {
	k, _ := parseKey(valueKey("of:{n:", "k"))
	r.s.heard(k)
}

func (r *boardRig) want(t *testing.T, when string, writer, peer int32) {
	t.Helper()
	if w, p := r.toWriter.Load(), r.toPeer.Load(); w != writer || p != peer {
		t.Fatalf("%s: writer told %d times, peer %d; want %d and %d", when, w, p, writer, peer)
	}
}

// Each case is an interleaving of a write of the own, as the wire shows it, with
// pushes for the same key.
func TestOwnWriteAndPushes(t *testing.T) {
	cases := map[string]func(t *testing.T, r *boardRig){
		// script, own push, marker.
		"its own push": func(t *testing.T, r *boardRig) {
			w := r.begin()
			r.push()
			r.want(t, "own push", 0, 1)
			r.s.board.end(w, 1)
			r.want(t, "end", 0, 1)
		},
		// script, own push, somebody else's push, marker: told at once.
		"and somebody else's": func(t *testing.T, r *boardRig) {
			w := r.begin()
			r.push()
			r.push()
			r.s.board.end(w, 1)
			r.want(t, "end", 1, 2)
		},
		// somebody else's push, script (refused: it pushes nothing), marker.
		"refused after somebody else's": func(t *testing.T, r *boardRig) {
			w := r.begin()
			r.push()
			r.want(t, "before the reply", 0, 1)
			r.s.board.end(w, 0)
			r.want(t, "end", 1, 1)
		},
		// no push at all, then one after the end.
		"somebody else's after the end": func(t *testing.T, r *boardRig) {
			r.s.board.end(r.begin(), 0)
			r.push()
			r.want(t, "after", 1, 1)
		},
		// two writes under way at once: two own pushes, and each write takes one of them
		// for somebody else's. Harmless, and the safe side.
		"two writes": func(t *testing.T, r *boardRig) {
			a, b := r.begin(), r.begin()
			r.push()
			r.want(t, "first", 0, 1)
			r.push()
			r.s.board.end(a, 1)
			r.s.board.end(b, 1)
			if r.toWriter.Load() == 0 {
				t.Fatal("the second push was kept from the writer")
			}
		},
		// a push, and the server falls silent: the push is not kept back for long, and
		// not told twice.
		"no marker": func(t *testing.T, r *boardRig) {
			w := r.begin()
			r.push()
			bubble.After(ownPushDelay - 1)
			r.want(t, "just before the delay", 0, 1)
			bubble.After(1)
			r.want(t, "after the delay", 1, 1)
			r.s.board.end(w, 0)
			r.want(t, "end", 1, 1)
		},
	}
	for name, do := range cases {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newBoardRig()
				do(t, r)
				if watches, writes := r.s.board.counts(); watches != 0 || writes != 0 {
					t.Errorf("left behind: %d watches, %d writes", watches, writes)
				}
			})
		})
	}
}

// A watch is pinned up before the acquire is sent, so a push that comes before the
// answer wakes it.
func TestPushBeforeTheAnswerWakes(t *testing.T) {
	r := newBoardRig()
	w := r.s.board.watch(r.writer, valueKey("of:{n:", "k"))
	k, _ := parseKey(leaseKey(valueKey("of:{n:", "k")))
	r.s.heard(k)
	select {
	case <-w.C():
	default:
		t.Fatal("not woken")
	}
	r.want(t, "a push for the lease", 0, 0)
	w.Stop()
}
