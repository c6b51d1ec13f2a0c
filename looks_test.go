package onefill_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	inbubble "github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// GetMany looks at the store once for all keys, and keeps what it has found: no goroutine, no
// lease. What is not there goes on as ever.
func TestGetManyLooksOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		warm := newCache(t, options{Store: st, Load: db.load})
		keys := make([]string, 50)
		for i := range keys {
			keys[i] = fmt.Sprint("k", i)
			if i%2 == 0 {
				get(t, warm, keys[i], "v1")
			}
		}
		c := newCache(t, options{Store: st, Load: db.load})
		before := st.Counts()
		rows, err := c.GetMany(bg, keys)
		if err != nil || len(rows) != 50 {
			t.Fatalf("%d rows, %v", len(rows), err)
		}
		after := st.Counts()
		did := func(kind memstore.Kind) int { return after[kind] - before[kind] }
		if did(memstore.OpGetMany) != 1 || did(memstore.OpGet) != 0 || did(memstore.OpAcquire) != 25 {
			t.Errorf("%d looks at many, %d gets, %d acquires", did(memstore.OpGetMany), did(memstore.OpGet), did(memstore.OpAcquire))
		}
		if s := c.Stats(); s.StoreHits != 25 || s.Loads != 25 {
			t.Errorf("%d hits in the store, %d loads", s.StoreHits, s.Loads)
		}
		if rows, err = c.GetMany(bg, keys); err != nil || len(rows) != 50 || c.Stats().LocalHits != 50 {
			t.Errorf("%d rows, %v, %d hits in local", len(rows), err, c.Stats().LocalHits)
		}
	})
}

// Whoever comes while a GetMany looks at the store joins its flights. Forced: the look is held;
// a second caller asks for one of the keys; then the look goes on.
func TestGetManysLookIsJoined(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		warm := newCache(t, options{Store: st, Load: db.load})
		get(t, warm, "a", "v1")
		get(t, warm, "b", "v1")
		c := newCache(t, options{Store: st, Load: db.load})
		resume := make(chan struct{})
		st.SetFault(func(op memstore.Op) memstore.Fault {
			if op.Kind == memstore.OpGetMany {
				return memstore.Fault{Hold: resume}
			}
			return memstore.Fault{}
		})
		done := make(chan error, 1)
		go func() {
			_, err := c.GetMany(bg, []string{"a", "b", "absent"})
			done <- err
		}()
		synctest.Wait()
		joined := ask(bg, c, "b")
		synctest.Wait()
		close(resume)
		must(t, <-done)
		if a := <-joined; a.err != nil || a.Value != "v1" || !a.Coalesced {
			t.Errorf("who came meanwhile: %+v", a)
		}
		if n := st.Counts()[memstore.OpGet]; n != 2 { // of warm
			t.Errorf("%d gets", n)
		}
		st.SetFault(nil)
	})
}

// The caller leaves while the look is under way: it gets the rows of nobody, and the flights go
// on without it, for those who have joined. Forced: the look is held until the caller has left.
func TestGetManysCallerLeavesWhileItLooks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		db := newOrigin("v1", 0)
		c := newCache(t, options{Store: st, Load: db.load})
		st.SetFault(func(op memstore.Op) memstore.Fault {
			if op.Kind == memstore.OpGetMany {
				return memstore.Fault{Delay: 100 * time.Millisecond}
			}
			return memstore.Fault{}
		})
		defer st.SetFault(nil)
		ctx, leave := context.WithCancel(bg)
		done := make(chan error, 1)
		go func() {
			_, err := c.GetMany(ctx, []string{"a", "b"})
			done <- err
		}()
		synctest.Wait()
		joined := ask(bg, c, "b")
		synctest.Wait()
		leave()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("who left got %v", err)
		}
		if a := <-joined; a.err != nil || a.Value != "v1" {
			t.Errorf("who joined: %+v", a)
		}
	})
}

// The store is silent, or refuses: GetMany loads within the limits, as ever, after one
// StoreTimeout.
func TestGetManyWithoutAStore(t *testing.T) {
	for name, fault := range map[string]memstore.Fault{"silent": {Delay: time.Hour}, "refuses": {Err: memstore.ErrDown}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				st := memstore.New()
				c := newCache(t, options{Store: st, Load: newOrigin("v1", 0).load})
				inbubble.After(time.Second)
				st.SetFault(func(memstore.Op) memstore.Fault { return fault })
				defer st.SetFault(nil)
				start := time.Now()
				rows, err := c.GetMany(bg, []string{"a", "b", "c"})
				if took := time.Since(start); err != nil || len(rows) != 3 || took > 250*time.Millisecond {
					t.Errorf("%d rows, %v, after %v", len(rows), err, took)
				}
			})
		})
	}
}

// A store that answers fewer keys than were asked, one with a row that its codec panics on, and
// an invalidation that comes while the look is under way: the rows are right all the same.
func TestGetManyDistrustsTheLook(t *testing.T) {
	t.Run("too few answers", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			c := newCache(t, options{Store: short{memstore.New()}, Name: "test", Load: newOrigin("v1", 0).load})
			rows, err := c.GetMany(bg, []string{"a", "b", "c"})
			if err != nil || len(rows) != 3 {
				t.Errorf("%d rows, %v", len(rows), err)
			}
		})
	})
	t.Run("a codec that panics", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			st := memstore.New()
			warm := newCache(t, options{Store: st, Load: newOrigin("bad", 0).load})
			get(t, warm, "a", "bad")
			c := newCache(t, options{Store: st, Load: newOrigin("v1", 0).load, Codec: touchy{}})
			rows, err := c.GetMany(bg, []string{"a", "b"})
			if err != nil || rows["a"] != "v1" || rows["b"] != "v1" {
				t.Errorf("%v, %v", rows, err)
			}
		})
	})
	t.Run("invalidated meanwhile", func(t *testing.T) {
		// Forced: the store has read the rows, and its reply is held; this process invalidates
		// one of them; the reply comes. It is not kept.
		bubble(t, func(t *testing.T) {
			st := memstore.New()
			db := newOrigin("v1", 0)
			warm := newCache(t, options{Store: st, Load: db.load})
			get(t, warm, "a", "v1")
			get(t, warm, "b", "v1")
			c := newCache(t, options{Store: st, Load: db.load})
			resume := looksHeld(st)
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = c.GetMany(bg, []string{"a", "b"})
			}()
			synctest.Wait()
			db.write("v2")
			must(t, c.Invalidate(bg, "a"))
			close(resume)
			<-done
			st.SetFault(nil)
			get(t, c, "a", "v2")
			get(t, c, "b", "v1")
		})
	})
}

// short is a store that answers one key less than it was asked for.
type short struct{ *memstore.Store }
type shortSession struct{ store.Session }

func (s short) Attach(ctx context.Context, cfg store.Config) (store.Session, error) {
	x, err := s.Store.Attach(ctx, cfg)
	return shortSession{x}, err
}

func (s shortSession) GetMany(ctx context.Context, keys []string) ([]store.Item, error) {
	return s.Session.(store.ManyReader).GetMany(ctx, keys[1:])
}

// touchy panics on a value.
type touchy struct{}

func (touchy) Name() string                    { return "raw" }
func (touchy) Encode(v string) ([]byte, error) { return []byte(v), nil }
func (touchy) Decode(data []byte) (string, error) {
	if string(data) == "bad" {
		panic("bad")
	}
	return string(data), nil
}

var _ onefill.Codec[string] = touchy{}
