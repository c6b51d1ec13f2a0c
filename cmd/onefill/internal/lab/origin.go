package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
)

// An origin is the database that the loaders ask. It counts its operations
// itself, in a row that each of them increments and commits before it works, so
// that no cache can hide one. The parent writes rows and reads the count; the
// reader processes read rows.
type origin interface {
	// Read is one operation: count it, wait as the row's plan says, return the row
	// as it was when the operation began, as the JSON of a [loaded].
	Read(ctx context.Context, key string, process int) (string, error)
	// Plan creates or replaces the row behind key and says how reads of it behave.
	// It is committed when Plan returns.
	Plan(ctx context.Context, key string, p plan) error
	// Count returns the counter of key.
	Count(ctx context.Context, key string) (int, error)
	// Waiting returns how many operations have read key's row and now wait.
	Waiting(ctx context.Context, key string) (int, error)
	// Operations returns the log of key's operations, in order.
	Operations(ctx context.Context, key string) ([]Operation, error)
	// Warm opens connections, so that none is opened while callers are timed.
	Warm(ctx context.Context, connections int) error
	// ClockOffset is how far the origin's clock is ahead of this machine's.
	ClockOffset(ctx context.Context) (time.Duration, error)
	// Drop removes everything that the lab made there.
	Drop(ctx context.Context) error
	Close()
}

// plan is what a row holds and how reads of it behave.
type plan struct {
	Row    string // text of the row; empty: there is no row
	Wait   time.Duration
	Failed bool // reads fail after the wait

	// Workers is how many operations the database takes at once, of all rows that name
	// a number; the others queue there, first come, first served. 0: any number.
	Workers int
	// Deadline bounds a read, queue included, where Workers is set: one that takes
	// longer fails, and what has been done for it is lost.
	Deadline time.Duration
}

// overdueText is what the origin says of an operation that missed its deadline.
const overdueText = "onefill lab: the query took longer than it may"

// loaded is what a loader returns and the caches keep.
type loaded struct {
	Row       string `json:"row"`
	Operation int    `json:"op"`
	ReadUS    int64  `json:"read_us"`
}

// errNoRow is the origin's answer that the row does not exist.
var errNoRow = errors.New("no such row")

// failureText is what a failing origin says; errors that contain it are its own.
const failureText = "onefill lab: the origin fails here on purpose"

func (l loaded) encode() (string, error) {
	data, err := json.Marshal(l)
	return string(data), err
}

func decodeLoaded(payload string) (loaded, error) {
	var l loaded
	if err := json.Unmarshal([]byte(payload), &l); err != nil {
		return l, fmt.Errorf("the cache answered %q, which no loader returned: %w", payload, err)
	}
	return l, nil
}

// The kinds of an origin, as reports name them.
const (
	originPostgres = "postgres"
	originSQLite   = "sqlite"
)

// originSpec says where the origin is; it goes to the reader processes.
type originSpec struct {
	Kind   string `json:"kind"`
	URL    string `json:"url,omitempty"`    // postgres
	Schema string `json:"schema,omitempty"` // postgres
	Path   string `json:"path,omitempty"`   // sqlite
}

func openOrigin(ctx context.Context, spec originSpec, connections int) (origin, error) {
	switch spec.Kind {
	case originPostgres:
		return openPostgres(ctx, spec, connections)
	case originSQLite:
		return openSQLite(spec)
	}
	return nil, fmt.Errorf("unknown kind of origin %q", spec.Kind)
}

// outcomeOf is what the log of operations says about the end of one.
func outcomeOf(err error) string {
	switch {
	case err == nil:
		return "row"
	case errors.Is(err, errNoRow):
		return "no row"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return "error"
}

// connectTimeout bounds how long a server may take to accept a connection.
const connectTimeout = recipe.ConnectTimeout

// cleanupTimeout bounds what is done on a context of its own after the caller's
// context has ended.
const cleanupTimeout = 5 * time.Second

func cleanupContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
}
