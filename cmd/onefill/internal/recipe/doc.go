// Package recipe has the usual ways to put a shared cache before a database, which the lab and
// the live page play beside onefill: plain cache-aside, in-process coalescing, the common lock.
// They are here as they are commonly written, with what is wrong with them.
package recipe

import (
	"context"
	"time"
)

// Where an answer came from.
const (
	SourceLocal = "local"
	SourceStore = "store"
	SourceLoad  = "load"
)

// Answer is what a reader gets.
type Answer struct {
	Payload string
	Source  string
	Stale   bool
	// Coalesced: another call of the same process brought it. Waited: the caller waited
	// for the load of another process (or, with the lock recipe, of another caller).
	// Both are said with an error, too.
	Coalesced, Waited bool
}

// Config is what a recipe needs to know.
type Config struct {
	// Load is one operation of the database.
	Load func(ctx context.Context, key string) (string, error)
	// TTL of what is loaded with a context.
	TTL func(ctx context.Context) time.Duration
	// Lease is the expiry of the lock.
	Lease time.Duration
	// Key and LockKey are the names of a value and of its lock in the store.
	Key, LockKey func(key string) string
}

// Store is a shared cache as the recipes use it.
type Store interface {
	Get(ctx context.Context, key string) (value string, found bool, err error)
	Set(ctx context.Context, key, value string, ttl time.Duration) error
	// Add sets only what is absent, and says whether it did.
	Add(ctx context.Context, key, value string, ttl time.Duration) (bool, error)
	// Delete says whether there was something.
	Delete(ctx context.Context, key string) (bool, error)
	Close()
}

// Bounded bounds each operation of a Store, as StoreTimeout does for onefill.
type Bounded struct {
	Store
	Timeout time.Duration
}

// Get is Store's.
func (b Bounded) Get(ctx context.Context, key string) (string, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, b.Timeout)
	defer cancel()
	return b.Store.Get(ctx, key)
}

// Set is Store's.
func (b Bounded) Set(ctx context.Context, key, value string, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, b.Timeout)
	defer cancel()
	return b.Store.Set(ctx, key, value, ttl)
}

// Add is Store's.
func (b Bounded) Add(ctx context.Context, key, value string, ttl time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, b.Timeout)
	defer cancel()
	return b.Store.Add(ctx, key, value, ttl)
}

// Delete is Store's.
func (b Bounded) Delete(ctx context.Context, key string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, b.Timeout)
	defer cancel()
	return b.Store.Delete(ctx, key)
}
