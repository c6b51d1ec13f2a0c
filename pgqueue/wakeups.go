package pgqueue

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// wakeups wake every Receive that waits when a notification comes. They save waiting
// and nothing else: every Receive polls as if there were none. So a connection on which
// nothing is heard, half-open, or a pooler's, costs no more than that; but it is found
// out by a probe, so that it is replaced and that somebody hears of it.
type wakeups struct {
	q       *Queue
	pool    *pgxpool.Pool // where the connection comes from that listens
	channel string

	probeEvery time.Duration // how often to see whether we hear ourselves
	probeLimit time.Duration // how long a probe may take
	retryMin   time.Duration // the pause after a connection that was no good grows
	retryMax   time.Duration // from the first to the second

	// mu guards the rest. Nothing waits under it.
	mu      sync.Mutex
	more    chan struct{} // closed at each wake-up
	hears   bool          // the newest probe was heard
	started bool
	closed  bool
	cancel  context.CancelFunc // set with started
	ended   chan struct{}      // closed when the listener has ended; set with started
}

// init makes the wakeups of a queue. There is no goroutine before the first Receive
// that waits.
func (w *wakeups) init(q *Queue) {
	h := fnv.New64a()
	h.Write([]byte(q.opts.schema))
	w.q, w.pool = q, q.pool
	w.channel = fmt.Sprintf("onefill_%016x", h.Sum64())
	w.probeEvery, w.probeLimit = 15*time.Second, 5*time.Second
	w.retryMin, w.retryMax = time.Second, 5*time.Minute
	w.more = make(chan struct{})
}

// Listening says whether notifications arrive, as the last probe has shown: false
// without [Notify], before the first Receive that waits, and behind a pooler that does
// not pass them. Jobs are delivered all the same.
func (q *Queue) Listening() bool {
	q.wakeups.mu.Lock()
	defer q.wakeups.mu.Unlock()
	return q.wakeups.hears
}

// next is closed at the next wake-up.
func (w *wakeups) next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.more
}

func (w *wakeups) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.more)
	w.more = make(chan struct{})
}

// listen begins to listen, once, if that is wanted.
func (w *wakeups) listen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.q.opts.notify || w.started || w.closed {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.started, w.cancel, w.ended = true, cancel, make(chan struct{})
	go w.run(ctx)
}

func (w *wakeups) close() {
	w.mu.Lock()
	w.closed = true
	started := w.started
	w.mu.Unlock()
	if started {
		w.cancel()
		<-w.ended
	}
}

// run listens on one connection after the other.
func (w *wakeups) run(ctx context.Context) {
	defer close(w.ended)
	pause := w.retryMin
	for ctx.Err() == nil {
		err := w.session(ctx)
		if w.heard(false) {
			pause = w.retryMin
		}
		if ctx.Err() == nil {
			w.q.opts.logger.Warn("pgqueue: notifications do not arrive, jobs are found by polling",
				"error", err, "server", w.q.addr, "poll", w.q.opts.poll, "retry", pause)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		pause = min(2*pause, w.retryMax)
	}
}

// heard notes whether we hear ourselves, and returns what was so before.
func (w *wakeups) heard(now bool) (before bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, w.hears = w.hears, now
	return before
}

var errNotHeard = errors.New("a notification to ourselves did not arrive: a pooler in transaction mode does not pass them, or the connection is dead")

// session listens on one connection until it is no good.
func (w *wakeups) session(ctx context.Context) error {
	conn, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn.Close(ctx)
	}()
	w.wake() // there may have been something meanwhile
	for {
		if err := w.probe(ctx, conn); err != nil {
			return err
		}
		w.heard(true)
		if _, err := w.hear(ctx, conn, w.probeEvery, ""); err != nil {
			return err
		}
	}
}

// connect takes a connection out of the pool, for good, and listens on it.
func (w *wakeups) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, w.probeLimit)
	defer cancel()
	pooled, err := w.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	conn := pooled.Hijack()
	if _, err := conn.PgConn().Exec(ctx, "LISTEN "+w.channel).ReadAll(); err != nil {
		conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// probe notifies ourselves over another connection, and waits for it.
func (w *wakeups) probe(ctx context.Context, conn *pgx.Conn) error {
	name := rand.Text()
	limited, cancel := context.WithTimeout(ctx, w.probeLimit)
	defer cancel()
	if _, err := w.q.exec(limited, stmt{sql: w.q.sql.notify, args: []string{w.channel, name}}); err != nil {
		return err
	}
	found, err := w.hear(ctx, conn, w.probeLimit, name)
	if err == nil && !found {
		err = errNotHeard
	}
	return err
}

// hear wakes for notifications for some time, or until the probe of that name has come.
func (w *wakeups) hear(ctx context.Context, conn *pgx.Conn, d time.Duration, name string) (found bool, err error) {
	limited, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for {
		n, err := conn.WaitForNotification(limited)
		switch {
		case err == nil && n.Payload == "":
			w.wake()
		case err == nil && n.Payload == name:
			return true, nil
		case err == nil: // somebody else's probe
		case ctx.Err() == nil && pgconn.Timeout(err) && !conn.IsClosed():
			return false, nil
		default:
			return false, err
		}
	}
}
