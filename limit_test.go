package onefill_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// spy is a store that shows the contexts of its operations to see.
type spy struct {
	store.Store
	see func(op string, ctx context.Context)
}

func (s spy) Attach(ctx context.Context, cfg store.Config) (store.Session, error) {
	session, err := s.Store.Attach(ctx, cfg)
	return spySession{session, s.see}, err
}

type spySession struct {
	store.Session
	see func(op string, ctx context.Context)
}

func (s spySession) Get(ctx context.Context, key string) (store.Item, error) {
	s.see("get", ctx)
	return s.Session.Get(ctx, key)
}

func (s spySession) Acquire(ctx context.Context, key string, req store.Request) (store.Answer, error) {
	s.see("acquire", ctx)
	return s.Session.Acquire(ctx, key, req)
}

// Operations of the store have the values of the call, for tracing, and a deadline: at most
// StoreTimeout, and 1/32 less at least, whether anybody can cancel them or not. A context that
// was derived from one ends with it, and leaves no goroutine behind (the bubble would see it).
func TestStoreContexts(t *testing.T) {
	type key struct{}
	for name, parent := range map[string]func() (context.Context, context.CancelFunc){
		"background": func() (context.Context, context.CancelFunc) { return bg, func() {} },
		"values":     func() (context.Context, context.CancelFunc) { return context.WithValue(bg, key{}, "v"), func() {} },
		"cancel": func() (context.Context, context.CancelFunc) {
			return context.WithCancel(context.WithValue(bg, key{}, "v"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const timeout = 320 * time.Millisecond
				ctx, cancel := parent()
				defer cancel()
				var mu sync.Mutex
				var seen []string
				var derived []context.Context
				c := newCache(t, options{StoreTimeout: timeout, Name: "test", Load: newOrigin("v1", 0).load, Store: spy{memstore.New(), func(op string, got context.Context) {
					mu.Lock()
					defer mu.Unlock()
					deadline, ok := got.Deadline()
					if left := time.Until(deadline); !ok || left > timeout || left < timeout-timeout/32 {
						t.Errorf("%s: %v left, %t", op, left, ok)
					}
					if got.Value(key{}) != ctx.Value(key{}) {
						t.Errorf("%s: value %v, want %v", op, got.Value(key{}), ctx.Value(key{}))
					}
					child, cancel := context.WithCancel(got)
					context.AfterFunc(child, cancel)
					seen, derived = append(seen, op), append(derived, child)
				}}})
				for i := range 20 {
					if _, err := c.Get(ctx, fmt.Sprint(i)); err != nil {
						t.Fatal(err)
					}
					time.Sleep(3 * time.Millisecond)
				}
				if len(seen) != 40 {
					t.Errorf("%d operations: %v", len(seen), seen)
				}
				time.Sleep(timeout)
				for i, d := range derived {
					if d.Err() == nil {
						t.Fatalf("the context of %s goes on", seen[i])
					}
				}
			})
		})
	}
}

// An operation that nobody can cancel and that is not answered ends within StoreTimeout.
func TestUncancellableOperationEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		c := newCache(t, options{Store: st, StoreTimeout: 320 * time.Millisecond, Load: newOrigin("v1", 0).load})
		time.Sleep(5 * time.Millisecond)
		get(t, c, "a", "v1")
		time.Sleep(9 * time.Millisecond) // within the same 32nd
		st.SetFault(func(memstore.Op) memstore.Fault { return memstore.Fault{Delay: time.Hour} })
		defer st.SetFault(nil)
		start := time.Now()
		get(t, c, "b", "v1")
		if took := time.Since(start); took < 310*time.Millisecond || took > 320*time.Millisecond {
			t.Errorf("answered after %v", took)
		}
	})
}

// Callers who come within a moment share the end of their patience: who came later has at most
// a 256th of WaitTimeout less, and nobody has more.
func TestWaitsEndTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hold := make(chan struct{})
		defer close(hold)
		const wait = 2560 * time.Millisecond
		c := newCache(t, options{WaitTimeout: wait, LoadTimeout: time.Minute, Load: func(context.Context, string) (string, error) { <-hold; return "v", nil }})
		var all []<-chan answer
		for range 30 {
			all = append(all, ask(bg, c, "k"))
			time.Sleep(time.Millisecond)
		}
		for i, each := range all {
			if a := <-each; a.took > wait || a.took < wait-wait/256 {
				t.Errorf("caller %d waited %v, want %v or up to %v less", i, a.took, wait, wait/256)
			}
		}
	})
}
