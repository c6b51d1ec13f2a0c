package memstore_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// on makes a fault for one kind of operation and none for the others.
func on(kind memstore.Kind, f memstore.Fault) func(memstore.Op) memstore.Fault {
	return func(op memstore.Op) memstore.Fault {
		if op.Kind == kind {
			return f
		}
		return memstore.Fault{}
	}
}

func TestFaultDelay(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		st := memstore.New()
		s, _ := attach(t, st)
		st.SetFault(on(memstore.OpSet, memstore.Fault{Delay: time.Second}))
		start := time.Now()
		set(t, s, "k", "v", time.Hour)
		if took := time.Since(start); took != time.Second {
			t.Errorf("delayed by %v, want 1s", took)
		}

		// The context ends first: the operation is not applied.
		start = time.Now()
		_, err := s.Set(within(t, 300*time.Millisecond), "k", []byte("new"), time.Hour)
		wantErr(t, err, context.DeadlineExceeded, true)
		if took := time.Since(start); took != 300*time.Millisecond {
			t.Errorf("ended after %v, want 300ms", took)
		}
		if data, _ := st.Raw(name, "k"); string(data) != "v" {
			t.Errorf("stored %q, want what was there before", data)
		}
	})
}

func TestFaultHold(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		st := memstore.New()
		s, _ := attach(t, st)
		hold := make(chan struct{})
		st.SetFault(on(memstore.OpGet, memstore.Fault{Hold: hold}))
		done := make(chan error, 1)
		go func() {
			_, err := s.Get(t.Context(), "k")
			done <- err
		}()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("Get came back with %v while it was held", err)
		default:
		}
		set(t, s, "other", "v", time.Hour) // nobody else is held up
		close(hold)
		if err := <-done; err != nil {
			t.Fatalf("Get: %v", err)
		}
	})
}

func TestFaultErr(t *testing.T) {
	st := memstore.New()
	s, _ := attach(t, st)
	cause := errors.New("connection refused")
	st.SetFault(on(memstore.OpSet, memstore.Fault{Err: cause}))
	_, err := s.Set(t.Context(), "k", []byte("v"), time.Hour)
	wantErr(t, err, cause, true)
	st.SetFault(on(memstore.OpSet, memstore.Fault{Err: cause, Refused: true}))
	_, err = s.Set(t.Context(), "k", []byte("v"), time.Hour)
	wantErr(t, err, cause, false)
	if _, found := st.Raw(name, "k"); found {
		t.Error("a Set that failed was applied")
	}
	st.SetFault(nil)
	set(t, s, "k", "v", time.Hour)
}

func TestFaultLoseReply(t *testing.T) {
	st := memstore.New()
	s, _ := attach(t, st)
	other, _ := attach(t, st)
	st.SetFault(on(memstore.OpAcquire, memstore.Fault{LoseReply: true}))
	token := store.NewToken()
	_, err := s.Acquire(t.Context(), "k", store.Request{Token: token, TTL: time.Hour})
	wantErr(t, err, memstore.ErrLostReply, true)
	st.SetFault(nil)
	if held := ask(t, other, "k", time.Hour); held.State != store.Held {
		t.Fatalf("after a lost reply to Acquire: %v, want held", held.State)
	}
	again, err := s.Acquire(t.Context(), "k", store.Request{Token: token, TTL: time.Hour})
	if err != nil || again.State != store.Won {
		t.Fatalf("the same token again: %v, %v, want won", again.State, err)
	}

	cause := errors.New("reset")
	st.SetFault(on(memstore.OpFill, memstore.Fault{LoseReply: true, Err: cause}))
	ok, err := again.Lease.Fill(t.Context(), []byte("v"), time.Hour)
	wantErr(t, err, cause, true)
	if data, _ := st.Raw(name, "k"); ok || string(data) != "v" {
		t.Errorf("Fill with a lost reply: %v, stored %q, want false and applied", ok, data)
	}
}

func TestFaultLostHeldReplyLeavesNoWatch(t *testing.T) {
	st := memstore.New()
	s, _ := attach(t, st)
	ask(t, s, "k", time.Hour)
	st.SetFault(on(memstore.OpAcquire, memstore.Fault{LoseReply: true}))
	if _, err := s.Acquire(t.Context(), "k", store.Request{TTL: time.Hour}); err == nil {
		t.Fatal("Acquire: no error")
	}
	if u := st.Usage(); u.Watches != 0 {
		t.Errorf("%d watches left that nobody can stop", u.Watches)
	}
}

func TestFaultReply(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		st := memstore.New()
		s, _ := attach(t, st)
		other, n := attach(t, st)
		get(t, other, "k")
		hold := make(chan struct{})
		st.SetFault(on(memstore.OpSet, memstore.Fault{ReplyDelay: time.Second, ReplyHold: hold}))
		done := make(chan error, 1)
		go func() {
			_, err := s.Set(within(t, time.Minute), "k", []byte("v"), time.Hour)
			done <- err
		}()
		synctest.Wait()
		// Applied, and pushed, before the reply.
		told(t, n, "k")
		if data, _ := st.Raw(name, "k"); string(data) != "v" {
			t.Errorf("stored %q, want the value", data)
		}
		wantErr(t, <-done, context.DeadlineExceeded, true)

		close(hold)
		start := time.Now()
		set(t, s, "k", "w", time.Hour)
		if took := time.Since(start); took != time.Second {
			t.Errorf("the reply took %v, want 1s", took)
		}
	})
}

// The hook sees what is asked, per key, and may call the store.
func TestFaultHook(t *testing.T) {
	st := memstore.New()
	s, _ := attach(t, st)
	set(t, s, "2", "v", time.Hour)
	var ops []memstore.Op
	cause := errors.New("no")
	st.SetFault(func(op memstore.Op) memstore.Fault {
		ops = append(ops, op)
		if st.Usage().Values != 1 {
			t.Error("the hook cannot look into the store")
		}
		if op.Key == "2" {
			return memstore.Fault{Err: cause}
		}
		return memstore.Fault{}
	})
	wantErr(t, s.Invalidate(t.Context(), "1", "2", "3"), cause, true)
	want := []memstore.Op{{Kind: memstore.OpInvalidate, Name: name, Key: "1"}, {Kind: memstore.OpInvalidate, Name: name, Key: "2"}}
	if len(ops) != 2 || ops[0] != want[0] || ops[1] != want[1] {
		t.Errorf("the hook saw %v, want %v", ops, want)
	}
	if n := st.Counts()[memstore.OpInvalidate]; n != 2 {
		t.Errorf("%d invalidations counted, want 2", n)
	}
}

func TestDown(t *testing.T) {
	st := memstore.New()
	s, n := attach(t, st)
	set(t, s, "k", "v", time.Hour)
	ask(t, s, "leased", time.Hour)
	w := ask(t, s, "leased", time.Hour).Watch
	st.Down()
	told(t, n, "LOST")
	if !woken(w) {
		t.Error("Down does not wake the watches")
	}
	_, err := s.Get(t.Context(), "k")
	wantErr(t, err, memstore.ErrDown, true)
	_, err = st.Attach(t.Context(), store.Config{Name: name})
	wantErr(t, err, memstore.ErrDown, true)
	late, err := st.Attach(t.Context(), store.Config{Name: name, AllowDown: true})
	if err != nil {
		t.Fatalf("Attach with AllowDown: %v", err)
	}
	_, err = late.Get(t.Context(), "k")
	wantErr(t, err, memstore.ErrDown, true)
	st.Up()
	for _, p := range []store.Session{s, late} {
		if item := get(t, p, "k"); string(item.Data) != "v" {
			t.Errorf("after Up: %q", item.Data)
		}
	}
}

func TestAllowDownForgivesNoRefusal(t *testing.T) {
	st := memstore.New()
	cause := errors.New("wrong password")
	st.SetFault(on(memstore.OpAttach, memstore.Fault{Err: cause, Refused: true}))
	_, err := st.Attach(t.Context(), store.Config{Name: name, AllowDown: true})
	wantErr(t, err, cause, false)
}

func TestClosedSession(t *testing.T) {
	st := memstore.New()
	s, _ := attach(t, st)
	s.Close()
	_, err := s.Get(t.Context(), "k")
	wantErr(t, err, memstore.ErrClosed, false)
	if u := st.Usage(); u.Sessions != 0 {
		t.Errorf("%d sessions left", u.Sessions)
	}
}

func TestFlush(t *testing.T) {
	st := memstore.New()
	s, n := attach(t, st)
	set(t, s, "k", "v", time.Hour)
	lease := ask(t, s, "leased", time.Hour).Lease
	st.Flush()
	told(t, n, "LOST")
	if u := st.Usage(); u.Values+u.Leases != 0 {
		t.Errorf("left after Flush: %+v", u)
	}
	if ok, err := lease.Fill(t.Context(), []byte("late"), time.Hour); ok || err != nil {
		t.Errorf("Fill after Flush = %v, %v, want refused", ok, err)
	}
}

func TestNewTakesOneOptions(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("New with two Options does not panic")
		}
	}()
	memstore.New(memstore.Options{}, memstore.Options{})
}
