package invalidation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/store"
)

var (
	// errUndecided: one of several keys is at fault, and there was no time to find out which.
	errUndecided = errors.New("it shared its fate with other keys")
	errCrashed   = errors.New("it panicked")
)

// guard runs fn and turns its panic into an error: one key whose Options.Key panics must
// not take those of the whole call along.
func guard(fn func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errCrashed, r)
		}
	}()
	return fn()
}

// isOutage says whether an error is about the store, or about this process, and not about
// the key: the same call may succeed later, and will as soon as that is over. A store that
// answers with an error, as it is out of memory or the password has changed, is one too:
// nothing of the key's decides about that.
func isOutage(err error) bool {
	if errors.Is(err, store.ErrTooLarge) {
		return false
	}
	var e *onefill.StoreError
	return errors.As(err, &e) || errors.Is(err, errUndecided) || errors.Is(err, onefill.ErrClosed) ||
		errors.Is(err, onefill.ErrStoreDown) || errors.Is(err, onefill.ErrOriginBusy) || errors.Is(err, onefill.ErrWaitTimeout)
}

// verdict is what a job's handler returns for it.
func verdict(ctx context.Context, cache string, w *work, d queue.Delivery) error {
	err := w.err
	if err == nil {
		return nil
	}
	if ctx.Err() != nil { // the worker's affair, which knows why it has ended
		return fmt.Errorf("cache %q, %s: %w (%w)", cache, d.Key, err, context.Cause(ctx))
	}
	err = fmt.Errorf("cache %q, key %s: %w", cache, abbreviate(fmt.Sprint(w.key)), err)
	switch {
	case isOutage(w.err):
		return queue.Postpone(pause(d.Age), err)
	case errors.Is(w.err, store.ErrTooLarge):
		return queue.PermanentError(err) // this store cannot have such a key
	}
	return err
}

const (
	shortestPause = 500 * time.Millisecond
	longestPause  = 15 * time.Second
)

// pause is how long a job stays away that could not be done for lack of the store: longer
// for jobs that are older, so that a long outage costs the queue little.
func pause(age time.Duration) time.Duration {
	d := min(max(age/4, shortestPause), longestPause)
	return d/2 + rand.N(d/2)
}
