package onefill_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	inbubble "github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// downFor makes the operations on keys that begin with x fail.
func downFor(st *memstore.Store, first byte) {
	st.SetFault(func(op memstore.Op) memstore.Fault {
		if op.Key != "" && op.Key[0] == first {
			return memstore.Fault{Err: memstore.ErrDown}
		}
		return memstore.Fault{}
	})
}

// open makes the breaker of the server of key open.
func open(t *testing.T, c *cache, key string) {
	t.Helper()
	for range 5 {
		_, _, _ = c.Peek(bg, key)
		inbubble.After(60 * time.Millisecond)
	}
	if !c.Stats().StoreDown {
		t.Fatal("the breaker did not open")
	}
}

// One of two servers was down and is back: what was loaded without a lease meanwhile, of which
// nobody could tell this process, is not served any longer. Forced: the key is loaded alone;
// another process writes the row and invalidates it, with its own way to the server; the
// breaker closes; then the key is asked for, well within the time that local keeps it.
func TestServerBackDropsWhatWasLoadedAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: shardedStore{st}, Load: db.load})
		other := newCache(t, options{Store: shardedStore{st}, Load: db.load})
		downFor(st, 'x')
		open(t, c, "x")
		get(t, c, "x", "v1")
		db.write("v2")
		st.SetFault(nil)
		must(t, other.Invalidate(bg, "x"))
		time.Sleep(300 * time.Millisecond) // until the next probe may go
		_, _, _ = c.Peek(bg, "xx")         // the probe
		if c.Stats().StoreDown {
			t.Fatal("the breaker is open still")
		}
		get(t, c, "x", "v2")
	})
}

// A server that is down and that no key belongs to any more, as it has left the store, does
// not count as down for ever; one that is asked in vain does.
func TestServerThatHasLeftIsForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{NoPush: true})
		c := newCache(t, options{Store: shardedStore{st}, Load: newOrigin("v1", 0).load})
		downFor(st, 'x')
		defer st.SetFault(nil)
		open(t, c, "x")
		for range 4 {
			time.Sleep(20 * time.Second)
			_, _, _ = c.Peek(bg, "x")
			if !c.Stats().StoreDown {
				t.Fatal("a server that is down was forgotten while it was asked")
			}
		}
		time.Sleep(31 * time.Second)
		if c.Stats().StoreDown {
			t.Error("a server that nobody asks is down for ever")
		}
		open(t, c, "x") // it is there again, and down still
	})
}

// The server of a tagged cache's epoch is silent: that costs one call StoreTimeout, not each, of
// keys that lie on others.
func TestServerOfTheTagsIsDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		c := newCache(t, options{Store: shardedTags{st}, Load: newOrigin("v1", 0).load, Tags: true})
		get(t, c, "before", "v1")
		inbubble.After(time.Second)
		st.SetFault(func(op memstore.Op) memstore.Fault {
			if op.Kind == memstore.OpEpoch || op.Kind == memstore.OpGenerations {
				return memstore.Fault{Delay: time.Hour}
			}
			return memstore.Fault{}
		})
		defer st.SetFault(nil)
		start := time.Now()
		for i := range 20 {
			get(t, c, fmt.Sprint(i), "v1")
		}
		if took := time.Since(start); took > 500*time.Millisecond || !c.Stats().StoreDown {
			t.Errorf("20 calls took %v, down %t", took, c.Stats().StoreDown)
		}
	})
}

// shardedTags is a store on several servers, with tags.
type shardedTags struct{ *memstore.Store }

type shardedTagsSession struct {
	store.Session
	store.Tagger
}

func (s shardedTags) Attach(ctx context.Context, cfg store.Config) (store.Session, error) {
	x, err := s.Store.Attach(ctx, cfg)
	return shardedTagsSession{x, x.(store.Tagger)}, err
}

func (s shardedTagsSession) Server(key string) string { return key[:1] }
