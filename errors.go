package onefill

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/onefill/onefill/store"
)

// Sentinels for errors.Is.
var (
	// ErrNotFound is what a loader returns, plain or wrapped, when the row does not
	// exist. It is an answer, not a failure: it is cached for Options.NotFoundTTL,
	// and Get returns it. Text that a loader wraps around it reaches those who wait for
	// that load in its process, and nobody later.
	ErrNotFound = errors.New("onefill: not found")

	// ErrWaitTimeout: the answer did not come within Options.WaitTimeout. The load
	// runs on, and its result will be stored.
	ErrWaitTimeout = errors.New("onefill: wait timed out")

	// ErrOriginBusy: the value has to be loaded, and no place among the MaxLoads
	// (MaxLoadsDegraded while the store is unreachable) became free in time.
	ErrOriginBusy = errors.New("onefill: the origin is busy")

	// ErrStoreDown: the store is unreachable and Options.OnStoreDown says to fail.
	ErrStoreDown = errors.New("onefill: the store is down")

	// ErrLoadFailed: the loader failed, in this process or in another one that
	// loaded for this one too. The error is a *LoadError.
	ErrLoadFailed = errors.New("onefill: load failed")

	// ErrClosed: the cache was closed.
	ErrClosed = errors.New("onefill: cache closed")

	// ErrCycle: a loader asks, through other loaders, for the key that it loads.
	ErrCycle = errors.New("onefill: load cycle")

	// ErrGoexit is the cause in the *LoadError of a loader that called
	// runtime.Goexit instead of returning.
	ErrGoexit = errors.New("onefill: the loader called runtime.Goexit")
)

// StoreError is a failed operation of the store: see [store.Error] for its fields
// Service, Addr, Op, Err and Unavailable.
type StoreError = store.Error

// LoadError is a failed load. errors.Is(err, ErrLoadFailed) holds, and Err is
// what the loader returned (a *PanicError if it panicked, ErrGoexit if it called
// runtime.Goexit). If another process had the failure, Err has its text only.
type LoadError struct {
	Key string // as in the store, without the cache's name
	Err error
}

func (e *LoadError) Error() string {
	return fmt.Sprintf("onefill: loading %q: %v", abbreviate(e.Key), e.Err)
}

// Unwrap returns the loader's error.
func (e *LoadError) Unwrap() error { return e.Err }

// Is makes errors.Is(err, ErrLoadFailed) true.
func (e *LoadError) Is(target error) bool { return target == ErrLoadFailed }

// PanicError is a loader's panic.
type PanicError struct {
	Value any    // what panic was called with
	Stack []byte // of the loader's goroutine
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the panic's value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// ManyError holds the error of each key that failed in one call for many keys.
// errors.Is and errors.As look at all of them.
type ManyError struct {
	Errors map[any]error // by the cache's own keys, of type K
}

func (e *ManyError) Error() string {
	const shown = 3
	var b strings.Builder
	noun := "keys"
	if len(e.Errors) == 1 {
		noun = "key"
	}
	fmt.Fprintf(&b, "onefill: %d %s failed", len(e.Errors), noun)
	keys := slices.Collect(maps.Keys(e.Errors))
	slices.SortFunc(keys, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	for i, k := range keys[:min(shown, len(keys))] {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		fmt.Fprintf(&b, "%s%s: %v", sep, abbreviate(fmt.Sprint(k)), e.Errors[k])
	}
	if len(keys) > shown {
		b.WriteString("; ...")
	}
	return b.String()
}

// Unwrap returns the errors, in no particular order.
func (e *ManyError) Unwrap() []error { return slices.Collect(maps.Values(e.Errors)) }

// remoteFailure is the text of another process's load error.
type remoteFailure string

func (e remoteFailure) Error() string { return string(e) }

// abbreviate keeps long keys out of error messages and logs.
func abbreviate(key string) string {
	const most = 80
	if len(key) <= most {
		return key
	}
	return key[:most] + "..."
}
