package memstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// Pushes are delivered before the call that caused them returns, once for each
// reading, to those who have read and not to the writer.
func TestPushIsOneShotAndSynchronous(t *testing.T) {
	st := memstore.New()
	a, heardA := attach(t, st)
	b, heardB := attach(t, st)
	get(t, a, "k")
	set(t, b, "k", "1", time.Hour)
	told(t, heardA, "k")
	set(t, b, "k", "2", time.Hour) // a has not read again
	set(t, b, "unread", "v", time.Hour)
	told(t, heardA)
	get(t, a, "k")
	set(t, b, "k", "3", time.Hour)
	told(t, heardA, "k")
	told(t, heardB)
}

// What the writer had read before its own write is history, as with Redis'
// NOLOOP: only its own Set and Fill count as having read.
func TestOwnInvalidateUsesUpTheArming(t *testing.T) {
	st := memstore.New()
	a, heard := attach(t, st)
	b, _ := attach(t, st)
	get(t, a, "k")
	if err := a.Invalidate(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	set(t, b, "k", "1", time.Hour)
	told(t, heard)
	set(t, a, "k", "2", time.Hour)
	set(t, b, "k", "3", time.Hour)
	told(t, heard, "k")
}

func TestHoldPushes(t *testing.T) {
	st := memstore.New()
	a, heard := attach(t, st)
	b, _ := attach(t, st)
	get(t, a, "1")
	get(t, a, "2")
	lease := ask(t, b, "leased", time.Hour).Lease
	w := ask(t, a, "leased", time.Hour).Watch
	own := ask(t, b, "leased", time.Hour).Watch
	heard.take()

	st.HoldPushes()
	set(t, b, "2", "v", time.Hour)
	set(t, b, "1", "v", time.Hour)
	if ok, err := lease.Release(t.Context()); !ok || err != nil {
		t.Fatalf("Release = %v, %v", ok, err)
	}
	told(t, heard)
	if woken(w) || !woken(own) {
		t.Errorf("while pushes are held: other's watch woken %v, own %v, want false, true", woken(w), woken(own))
	}
	st.ReleasePushes()
	told(t, heard, "2", "1")
	if !woken(w) {
		t.Error("the watch was not woken by ReleasePushes")
	}
}

func TestDropPushes(t *testing.T) {
	st := memstore.New()
	a, heard := attach(t, st)
	b, _ := attach(t, st)
	get(t, a, "k")
	st.HoldPushes()
	set(t, b, "k", "v", time.Hour)
	st.DropPushes()
	st.ReleasePushes()
	told(t, heard)
}

func TestLosePushes(t *testing.T) {
	st := memstore.New()
	a, heard := attach(t, st)
	b, _ := attach(t, st)
	get(t, a, "k")
	st.LosePushes()
	set(t, b, "k", "v", time.Hour) // no longer armed
	told(t, heard, "LOST")
	get(t, a, "k")
	set(t, b, "k", "v", time.Hour)
	told(t, heard, "k")
}

func TestTrackingOverflow(t *testing.T) {
	const limit = 3
	st := memstore.New(memstore.Options{MaxTracked: limit})
	a, heard := attach(t, st)
	b, _ := attach(t, st)
	spurious := map[string]int{}
	for i := range 10 {
		get(t, a, fmt.Sprint(i))
		for _, key := range heard.take() {
			spurious[key]++
		}
	}
	if len(spurious) != 10-limit {
		t.Errorf("told %v while reading, want %d different keys", spurious, 10-limit)
	}
	for i := range 10 {
		key := fmt.Sprint(i)
		set(t, b, key, "v", time.Hour)
		// Each key is told either way: before it was forgotten, or now.
		if got := len(heard.take()); got+spurious[key] != 1 {
			t.Errorf("key %s: told %d times when it changed and %d times before", key, got, spurious[key])
		}
	}
}

func TestNoPush(t *testing.T) {
	st := memstore.New(memstore.Options{NoPush: true})
	a, heard := attach(t, st)
	b, _ := attach(t, st)
	get(t, a, "k")
	ask(t, b, "leased", time.Hour)
	if held := ask(t, a, "leased", time.Hour); held.State != store.Held || held.Watch != nil {
		t.Errorf("answer %v with watch %v, want held without", held.State, held.Watch)
	}
	set(t, b, "k", "v", time.Hour)
	st.LosePushes()
	st.Evict(name, "k")
	told(t, heard)
}

// A panic in the user's function reaches the writer and leaves nothing locked.
func TestPanickingEvents(t *testing.T) {
	st := memstore.New()
	a, err := st.Attach(t.Context(), store.Config{Name: name, Events: store.Events{
		Changed: func(string) { panic("user code") },
	}})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := attach(t, st)
	for range 2 {
		get(t, a, "k")
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			set(t, b, "k", "v", time.Hour)
		}()
	}
}

// A writer does not wait for a session that another goroutine is telling, and
// the order stays. Interleaving: Set 1 is pushed and its event blocks | Set 2
// comes back all the same | the event goes on: 1, then 2.
func TestBusyListener(t *testing.T) {
	st := memstore.New()
	entered, leave := make(chan struct{}), make(chan struct{})
	var heard news
	a, err := st.Attach(t.Context(), store.Config{Name: name, Events: store.Events{
		Changed: func(key string) {
			if key == "1" {
				close(entered)
				<-leave
			}
			heard.add(key)
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := attach(t, st)
	get(t, a, "1")
	get(t, a, "2")
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := b.Set(t.Context(), "1", []byte("v"), time.Hour); err != nil {
			t.Error(err)
		}
	}()
	<-entered
	set(t, b, "2", "v", time.Hour)
	told(t, &heard)
	close(leave)
	<-done
	told(t, &heard, "1", "2")
}

func TestStrangersArePushed(t *testing.T) {
	st := memstore.New()
	a, heard := attach(t, st)
	get(t, a, "k")
	st.PutRaw(name, "k", []byte("foreign"), time.Hour)
	told(t, heard, "k")
	get(t, a, "k")
	st.Evict(name, "k")
	told(t, heard, "k")
	ask(t, a, "leased", time.Hour)
	w := ask(t, a, "leased", time.Hour).Watch
	st.DropLease(name, "leased")
	if !woken(w) {
		t.Error("DropLease does not wake the watch")
	}
	told(t, heard)
}
