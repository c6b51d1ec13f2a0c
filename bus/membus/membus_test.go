package membus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill/bus"
	"github.com/onefill/onefill/bus/bustest"
	"github.com/onefill/onefill/bus/membus"
	"github.com/onefill/onefill/internal/bubble"
)

func TestConformance(t *testing.T) {
	bustest.Run(t, func(t *testing.T) (a, b bus.Bus) {
		m := membus.New()
		t.Cleanup(func() { m.Close() })
		return m, m
	})
}

// Each fault does what it says, and by default a message is heard when Publish returns.
func TestFaults(t *testing.T) {
	failed := errors.New("failed")
	for name, tt := range map[string]struct {
		fault      membus.Fault
		err        error
		now, later string
	}{
		"none":      {membus.Fault{}, nil, "[m]", "[m]"},
		"lose":      {membus.Fault{Lose: true}, nil, "[]", "[]"},
		"twice":     {membus.Fault{Twice: true}, nil, "[m m]", "[m m]"},
		"delay":     {membus.Fault{Delay: time.Second}, nil, "[]", "[m]"},
		"both":      {membus.Fault{Delay: time.Second, Twice: true}, nil, "[m]", "[m m]"},
		"err":       {membus.Fault{Err: failed}, failed, "[]", "[]"},
		"err, late": {membus.Fault{Err: failed, ErrLate: true}, failed, "[m]", "[m]"},
		"hold":      {membus.Fault{}, context.DeadlineExceeded, "[]", "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				b := membus.New()
				var mu sync.Mutex
				var heard []string
				sofar := func() string {
					mu.Lock()
					defer mu.Unlock()
					return fmt.Sprint(heard)
				}
				stop, err := b.Subscribe(t.Context(), "t", func(m []byte) {
					mu.Lock()
					defer mu.Unlock()
					heard = append(heard, string(m))
				}, func() {})
				if err != nil {
					t.Fatal(err)
				}
				defer stop()
				if name == "hold" {
					tt.fault.Hold = make(chan struct{}) // in the bubble
				}
				b.SetFault(func(membus.Message) membus.Fault { return tt.fault })
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				if err := b.Publish(ctx, "t", []byte("m")); !errors.Is(err, tt.err) {
					t.Errorf("Publish: %v, want %v", err, tt.err)
				}
				if got := sofar(); got != tt.now {
					t.Errorf("heard %s at once, want %s", got, tt.now)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if got := sofar(); got != tt.later {
					t.Errorf("heard %s, want %s", got, tt.later)
				}
			})
		})
	}
}

func TestReconnectAndClose(t *testing.T) {
	b := membus.New()
	losses := 0
	stop, err := b.Subscribe(t.Context(), "t", func([]byte) { t.Error("heard something") }, func() { losses++ })
	if err != nil {
		t.Fatal(err)
	}
	b.Reconnect()
	if losses != 1 || b.Subscribers("t") != 1 {
		t.Errorf("told of %d losses, %d subscribers", losses, b.Subscribers("t"))
	}
	b.Close()
	if err := b.Publish(t.Context(), "t", nil); !errors.Is(err, bus.ErrClosed) {
		t.Errorf("Publish: %v", err)
	}
	if _, err := b.Subscribe(t.Context(), "t", nil, nil); !errors.Is(err, bus.ErrClosed) {
		t.Errorf("Subscribe: %v", err)
	}
	stop()
	b.Reconnect()
	if losses != 1 {
		t.Error("told of a loss after the end")
	}
}
