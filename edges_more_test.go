package onefill_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store/memstore"
)

// A row's own tag, which the store has never seen, begins at the present epoch: if any tag
// was invalidated during the row's first load, it is loaded once more, and not again and again.
func TestNewTagsUnderOtherInvalidations(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 500*time.Millisecond)
		caches := tagged(t, st, db, options{})
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
				}
				_ = caches[1].InvalidateTag(bg, "other")
			}
		}()
		for i := range 20 {
			for range 5 {
				get(t, caches[0], fmt.Sprint(i), "v1")
			}
		}
		close(stop)
		time.Sleep(time.Second)
		if n := db.loads.Load(); n > 40 {
			t.Errorf("%d loads of 20 rows", n)
		}
	})
}

// Close while a replay of 50,000 keys hangs takes as long as the operations under way may.
func TestCloseWhileReplayHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		c, err := onefill.New(options{Store: st, Name: "test", Load: newOrigin("v1", 0).load})
		must(t, err)
		st.Down()
		keys := make([]string, 50_000)
		for i := range keys {
			keys[i] = fmt.Sprint(i)
		}
		_ = c.Invalidate(bg, keys...)
		st.Up()
		st.SetFault(func(op memstore.Op) memstore.Fault {
			if op.Kind == memstore.OpInvalidate {
				return memstore.Fault{Delay: time.Hour}
			}
			return memstore.Fault{}
		})
		time.Sleep(300 * time.Millisecond)
		start := time.Now()
		err = c.Close()
		if d := time.Since(start); err != nil || d > 2*time.Second {
			t.Errorf("Close took %v: %v", d, err)
		}
	})
}
