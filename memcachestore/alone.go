package memcachestore

import (
	"context"
	"errors"
	"os"
	"time"
)

// maxAlone bounds what a caller writes himself. Nothing else is under way then, so the
// system's buffer is empty and takes so much without a wait, also if the server hangs: 16 KiB
// is what Linux gives a connection at least.
const maxAlone = 8 << 10

// fetch is the round trip of a caller who is alone on the connection: it writes his request
// and reads the reply. Who comes meanwhile queues up behind him, and has the two goroutines
// write for him at once, and read from the reply on. Like wait it returns an error if the
// request was abandoned.
func (c *conn) fetch(ctx context.Context, r *request) error {
	c.in.expect(r)
	if !c.send(r.text) {
		return c.lost(r)
	}
	c.wrote()
	c.watch(ctx)
	for {
		// At the end of a context that was watched before, the interruption may have come, and
		// may have been taken by somebody else, before this caller was the one who reads.
		if ctx.Err() != nil {
			return c.leave(ctx, r)
		}
		over, err := c.receive(true)
		switch {
		case over:
			<-r.done
			return nil
		case err != nil && !c.interrupted(err):
			return c.lost(r)
		}
	}
}

// wrote ends the writing of a caller who is alone.
func (c *conn) wrote() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writes = false; len(c.waiting) > 0 {
		poke(c.kick)
	}
}

// lost is for a request that fails with the connection.
func (c *conn) lost(r *request) error {
	c.watch(context.Background())
	<-r.done
	return nil
}

// leave abandons the request. Its reply, of which some may have been read, is the business of
// read.
func (c *conn) leave(ctx context.Context, r *request) error {
	if !r.state.CompareAndSwap(sent, abandoned) {
		return c.lost(r) // the connection has failed
	}
	c.mu.Lock()
	dead := c.err != nil
	if !dead {
		c.stepBack(true)
	}
	c.mu.Unlock()
	if dead {
		c.watch(context.Background())
	}
	return ended(ctx)
}

// watch makes the end of ctx interrupt the goroutine that reads. It is kept until another
// context comes: those of a cache, for one, share their ends.
func (c *conn) watch(ctx context.Context) {
	in, ends := &c.in, ctx.Done()
	if ends == in.ends {
		return
	}
	if in.forget != nil {
		in.forget()
	}
	in.ends, in.forget = ends, nil
	if ends != nil {
		in.forget = context.AfterFunc(ctx, c.interrupt)
	}
}

// interrupt ends a read that is under way, or the next one, with a timeout. One that comes
// too late meets somebody else, who tries again: nobody relies on it but who sees that his own
// context has ended.
func (c *conn) interrupt() { _ = c.nc.SetReadDeadline(time.Unix(1, 0)) }

// interrupted says whether a read was interrupted, and makes reading possible again. What a
// connection has died of is no interruption, though the error may be the same: that of a write
// that took too long.
func (c *conn) interrupted(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) || !c.alive() {
		return false
	}
	_ = c.nc.SetReadDeadline(time.Time{})
	return true
}
