package onefill

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill/store"
)

// health is what is known of one server of the store: a circuit breaker. When
// several operations in a row, over some time, were not answered, or one was not in the
// whole of StoreTimeout and nothing else that began later was, the server is
// taken for unreachable: then one operation at a time goes through as a probe, and
// the others fail at once. The first answer ends that.
type health struct {
	okAt   atomic.Int64 // when the latest operation that was answered began, Unix nanoseconds, to about okStep
	failed atomic.Int32 // operations in a row that were not answered
	since  atomic.Int64 // when the first of them began, Unix nanoseconds; 0: there is none
	broke  atomic.Int64 // when the first of them failed, Unix nanoseconds
	isDown atomic.Bool
	probe  atomic.Int64                // when the next probe may go, Unix nanoseconds
	asked  atomic.Int64                // when it was last to be asked, while down, Unix nanoseconds
	last   atomic.Pointer[store.Error] // why it is down
}

const (
	downAfter  = 3                      // failures in a row, and
	downTime   = 100 * time.Millisecond // since the first of them: one cut connection fails many at once
	okStep     = time.Millisecond       // okAt is written that seldom, as every operation comes by
	probeEvery = 250 * time.Millisecond // while down
)

// admit says whether an operation may be tried.
func (h *health) admit() bool {
	if !h.isDown.Load() {
		return true
	}
	now, next := time.Now().UnixNano(), h.probe.Load()
	h.asked.Store(now)
	return now >= next && h.probe.CompareAndSwap(next, now+int64(probeEvery))
}

// idle is how long nobody has wanted to ask the server, which is down.
func (h *health) idle() time.Duration { return time.Since(time.Unix(0, h.asked.Load())) }

// skipped is the error of an operation that was not tried.
func (h *health) skipped() error {
	e := store.Error{Service: "store", Op: "ask", Unavailable: true, Err: errors.New("no answer")}
	if last := h.last.Load(); last != nil {
		e = *last
		e.Op = "ask" // the last one's is not this one's
	}
	e.Err = fmt.Errorf("%w: %w", errNotAsked, e.Err)
	return &e
}

var errNotAsked = errors.New("not asked, as it was unreachable a moment ago")

// hopeless says that an operation which began at start is not worth a second attempt: it was
// not under way when a connection was cut, as others had failed before already, and none has
// been answered since.
func (h *health) hopeless(start time.Time) bool {
	return h.isDown.Load() || h.since.Load() != 0 && start.UnixNano()-h.broke.Load() > int64(retryAfter/2)
}

// learn draws its conclusions from the outcome of an operation that began at start,
// and says whether they changed its mind. An operation whose caller's context ended
// is no sign of anything.
func (h *health) learn(ctx context.Context, err error, start time.Time, timeout time.Duration) (wentDown, cameUp bool) {
	switch {
	case errors.Is(err, store.ErrUnavailable):
		if ctx.Err() != nil {
			return false, false
		}
		if h.since.Load() == 0 {
			h.broke.Store(time.Now().UnixNano()) // first: who sees since goes by it
		}
		h.since.CompareAndSwap(0, start.UnixNano())
		since := h.since.Load() // 0: an operation was answered in this moment
		long := since != 0 && time.Since(time.Unix(0, since)) >= downTime
		h.asked.Store(time.Now().UnixNano()) // before it is down: see remote.forgetGone
		silent := time.Since(start) >= timeout-timeout/16 && start.UnixNano() > h.okAt.Load()
		if enough := h.failed.Add(1) >= downAfter && long; !enough && !silent || !h.isDown.CompareAndSwap(false, true) {
			return false, false
		}
		if e := (*store.Error)(nil); errors.As(err, &e) {
			h.last.Store(e)
		}
		h.probe.Store(time.Now().UnixNano() + int64(probeEvery))
		return true, false
	case errors.Is(err, context.Canceled):
		return false, false
	}
	if now := start.UnixNano(); now-h.okAt.Load() > int64(okStep) {
		h.okAt.Store(now)
	}
	if h.failed.Load() != 0 { // read first: every operation comes by here
		h.failed.Store(0)
		h.since.Store(0)
	}
	return false, h.isDown.Load() && h.isDown.CompareAndSwap(true, false)
}
