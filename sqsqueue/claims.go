package sqsqueue

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/onefill/onefill/queue"
)

// claim is a message that this Queue has received and that was not settled yet, as far
// as is known.
type claim struct {
	id       string
	handle   string // the newest
	received time.Time
	deadline time.Time // the lease lasts until then, as far as is known
	buried   bool      // its dead letter was sent, the message is still to be deleted
}

// claims are what this Queue holds, by message ID. They make the newest receipt handle
// win when a message is received twice. Nothing depends on one being there: a token may
// have come from another Queue value, or another process.
type claims struct {
	// mu guards all; nothing waits under it.
	mu    sync.Mutex
	byID  map[string]*claim
	sweep int // look for forgotten ones at that size
}

const (
	leastSweep = 1024
	// forgetAfter is for how long a claim is kept whose lease has ended.
	forgetAfter = time.Minute
)

// add notes a claim. One of the same message that is still there is an older one: its
// lease has ended, or SQS has delivered twice.
func (cs *claims) add(c *claim) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.byID == nil {
		cs.byID, cs.sweep = make(map[string]*claim), leastSweep
	}
	if len(cs.byID) >= cs.sweep {
		for id, old := range cs.byID {
			if time.Since(old.deadline) > forgetAfter {
				delete(cs.byID, id)
			}
		}
		cs.sweep = max(leastSweep, 2*len(cs.byID))
	}
	cs.byID[c.id] = c
}

// newest is the handle to delete a message with: the given one, unless the message was
// received again since.
func (cs *claims) newest(id, handle string) string {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c := cs.byID[id]; c != nil {
		return c.handle
	}
	return handle
}

// get returns a copy of the claim; ok is false if it is not known. newer: the message
// was received again under another handle.
func (cs *claims) get(id, handle string) (c claim, ok, newer bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	found := cs.byID[id]
	if found == nil {
		return claim{}, false, false
	}
	return *found, found.handle == handle, found.handle != handle
}

// change changes a claim, if it is still the newest.
func (cs *claims) change(id, handle string, f func(*claim)) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c := cs.byID[id]; c != nil && c.handle == handle {
		f(c)
	}
}

// forget removes a claim that was settled.
func (cs *claims) forget(id, handle string) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c := cs.byID[id]; c != nil && c.handle == handle {
		delete(cs.byID, id)
	}
}

func (cs *claims) count() int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return len(cs.byID)
}

// parts are what a token says: SQS keeps nothing for us, so it holds all that is needed to
// settle the job, its body for the dead letter included.
type parts struct {
	id       string // the message's
	handle   string
	attempts int
	body     string
}

// token is what callers get: this queue's mark, then the parts.
func (q *Queue) token(p parts) queue.Token {
	return queue.Token(fmt.Sprintf("%s.%s.%d.%d.%s%s", q.mark, p.id, p.attempts, len(p.handle), p.handle, p.body))
}

// parse takes a token apart; ok is false if it is none of this queue's.
func (q *Queue) parse(t queue.Token) (p parts, ok bool) {
	f := strings.SplitN(string(t), ".", 5)
	if len(f) != 5 || f[0] != q.mark || f[1] == "" {
		return p, false
	}
	attempts, err1 := strconv.Atoi(f[2])
	n, err2 := strconv.Atoi(f[3])
	if err1 != nil || err2 != nil || n < 1 || n > len(f[4]) {
		return p, false
	}
	return parts{f[1], f[4][:n], attempts, f[4][n:]}, true
}
