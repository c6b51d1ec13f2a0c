package memstore_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// What the replica had not heard of has never been: values, invalidations and leases
// are those of the snapshot, and so are their ends.
func TestFailoverGoesBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		st := memstore.New()
		s, _ := attach(t, st)
		set(t, s, "old", "1", time.Hour)
		set(t, s, "short", "1", time.Minute)
		late := ask(t, s, "leased", time.Hour).Lease
		before := st.Snapshot()

		set(t, s, "old", "2", time.Hour)
		set(t, s, "new", "1", time.Hour)
		if err := s.Invalidate(t.Context(), "leased", "short"); err != nil {
			t.Fatal(err)
		}
		fresh := ask(t, s, "fresh", time.Hour).Lease
		for range 2 { // a snapshot is not used up
			st.Failover(before)
			if u := st.Usage(); u.Values != 2 || u.Leases != 1 {
				t.Errorf("after the failover: %+v, want the 2 values and the lease of the snapshot", u)
			}
			if data, _ := st.Raw(name, "old"); string(data) != "1" {
				t.Errorf("old = %q, want what the replica had", data)
			}
			if ok, err := fresh.Fill(t.Context(), []byte("v"), time.Hour); ok || err != nil {
				t.Errorf("a fill under a lease that the replica has never seen = %v, %v", ok, err)
			}
			// The old token is good again: that is the harm that Replaced warns of.
			if ok, err := late.Renew(t.Context(), time.Hour); !ok || err != nil {
				t.Errorf("Renew of the lease that the replica knows = %v, %v", ok, err)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if u := st.Usage(); u.Values != 1 || u.Leases != 1 {
			t.Errorf("a minute later: %+v, want the short value gone", u)
		}
		time.Sleep(time.Hour)
		st.Failover(before)
		if u := st.Usage(); u.Values != 0 || u.Leases != 0 {
			t.Errorf("the snapshot an hour later: %+v, want nothing left of it", u)
		}
	})
}

func TestFailoverTells(t *testing.T) {
	for _, options := range []memstore.Options{{}, {NoPush: true}} {
		st := memstore.New(options)
		a, heard := attach(t, st)
		b, alsoHeard := attach(t, st)
		closed, nothing := attach(t, st)
		closed.Close()
		before := st.Snapshot()
		get(t, a, "k")
		ask(t, b, "leased", time.Hour)
		w := ask(t, a, "leased", time.Hour).Watch
		st.HoldPushes()
		set(t, b, "k", "v", time.Hour)
		st.Failover(before)
		told(t, heard, "LOST", "REPLACED")
		told(t, alsoHeard, "LOST", "REPLACED")
		told(t, nothing)
		if w != nil && !woken(w) {
			t.Error("the watch does not wake")
		}
		st.ReleasePushes()
		set(t, b, "k", "w", time.Hour) // a has not read since: not armed
		told(t, heard)
	}
}

// Nobody is answered by the new server before every session has been told.
// Interleaving: a's Replaced runs and blocks | b asks | b has no answer | a's
// Replaced returns | b is answered, by what the replica has; and who leaves
// meanwhile, leaves.
func TestFailoverTellsBeforeItAnswers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		st := memstore.New()
		entered, leave := make(chan struct{}), make(chan struct{})
		a, err := st.Attach(t.Context(), store.Config{Name: name, Events: store.Events{
			Replaced: func() { close(entered); <-leave },
		}})
		if err != nil {
			t.Fatal(err)
		}
		b, heard := attach(t, st)
		set(t, a, "k", "old", time.Hour)
		before := st.Snapshot()
		set(t, a, "k", "new", time.Hour)
		over := make(chan struct{})
		go func() { defer close(over); st.Failover(before) }()
		<-entered
		answered := make(chan string, 3)
		go func() {
			item, err := b.Get(t.Context(), "k")
			if err != nil {
				t.Error(err)
			}
			for _, event := range heard.take() {
				answered <- event
			}
			answered <- string(item.Data)
		}()
		if _, err := b.Get(within(t, time.Second), "k"); err == nil {
			t.Error("answered before everybody was told")
		} else {
			wantErr(t, err, context.DeadlineExceeded, true)
		}
		select {
		case got := <-answered:
			t.Errorf("answered %q before everybody was told", got)
		default:
		}
		close(leave)
		<-over
		for _, want := range []string{"LOST", "REPLACED", "old"} {
			if got := <-answered; got != want {
				t.Errorf("b: %q, want %q", got, want)
			}
		}
	})
}

// A panic in the user's function leaves a server that answers.
func TestPanickingReplaced(t *testing.T) {
	st := memstore.New()
	if _, err := st.Attach(t.Context(), store.Config{Name: name, Events: store.Events{
		Replaced: func() { panic("user code") },
	}}); err != nil {
		t.Fatal(err)
	}
	b, _ := attach(t, st)
	before := st.Snapshot()
	set(t, b, "k", "v", time.Hour)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		st.Failover(before)
	}()
	if get(t, b, "k").Found {
		t.Error("the failover did not happen")
	}
}
