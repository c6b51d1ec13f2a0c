package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store"
)

// process is a cache as one process of a fleet has it, whose loads are held up until the
// test lets them go on.
type process struct {
	*onefill.Cache[string, string]
	began, goOn chan struct{}
	value       chan string
	loads       atomic.Int32
}

func newProcess(t *testing.T, st store.Store, name, value string) *process {
	t.Helper()
	p := &process{began: make(chan struct{}, 10), goOn: make(chan struct{}), value: make(chan string, 1)}
	var err error
	p.Cache, err = onefill.New(onefill.Options[string, string]{Name: name, Store: st, TTL: time.Hour, StoreTimeout: 10 * time.Second, LoadTimeout: time.Minute,
		LeaseTTL: 30 * time.Second, Local: onefill.LocalOptions{Off: true}, Logger: slog.New(slog.DiscardHandler),
		Load: func(ctx context.Context, _ string) (string, error) {
			p.loads.Add(1)
			p.began <- struct{}{}
			select {
			case <-p.goOn:
				return value, nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}})
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func (p *process) get(t *testing.T) {
	go func() {
		v, err := p.Get(t.Context(), "42")
		if err != nil {
			v = err.Error()
		}
		p.value <- v
	}()
}

func within(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatal("not within 20 s: " + what)
	}
}

// Interleaving: a loads under the lease and hangs | b waits for a's load | the lease is
// broken | b loads, long before the lease would have ended | b's value is stored | a's load
// comes back late: its caller gets it, and the store keeps b's.
func TestLeaseBreak(t *testing.T) {
	forStores(t, func(t *testing.T, open func() store.Store, name string, args []string) {
		a, b := newProcess(t, open(), name, "late"), newProcess(t, open(), name, "new")
		a.get(t)
		within(t, "a loads", a.began)
		b.get(t)
		waits(t, b)

		start := time.Now()
		line := read[breakLine](t, ok(t, append([]string{"lease", "break", "--yes", "--json", "42"}, args...)...))
		if !line.Broken || line.Lease == nil || line.Lease.ID == "" || line.Key != "42" {
			t.Errorf("%+v", line)
		}
		if l := line.Lease; l != nil && l.Token != "" && !strings.HasSuffix(l.Owner, fmt.Sprintf(":%d", os.Getpid())) { // memcached has neither before a renewal
			t.Errorf("held by %q, want this process", l.Owner)
		}
		within(t, "b takes over", b.began)
		took := time.Since(start)
		t.Logf("%v from the command's start to the waiter's load", took)
		if took > 5*time.Second { // the lease had nearly 30 s left
			t.Errorf("the waiter took over after %v", took)
		}
		close(b.goOn)
		if v := <-b.value; v != "new" {
			t.Errorf("b: %q", v)
		}
		close(a.goOn)
		if v := <-a.value; v != "late" {
			t.Errorf("a's caller: %q", v)
		}
		if r, found, err := b.Peek(t.Context(), "42"); err != nil || !found || r.Value != "new" {
			t.Errorf("the store has %+v, %v, %v", r, found, err)
		}
		if n := a.Stats().FillsRefused + a.Stats().LeasesLost; n == 0 {
			t.Error("a's fill was not refused")
		}
		if a.loads.Load() != 1 || b.loads.Load() != 1 {
			t.Errorf("%d and %d loads", a.loads.Load(), b.loads.Load())
		}
		if out := ok(t, append([]string{"lease", "break", "--yes", "42"}, args...)...); out != "nobody holds a lease of \"42\" of "+name+"\n" {
			t.Errorf("%q", out)
		}
	})
}

// waits waits until a cache waits for somebody else's lease.
func waits(t *testing.T, p *process) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); p.Stats().LeaseWaits == 0; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("nobody waits: %+v", p.Stats())
		}
	}
}

// What is asked, and what counts as a yes. Anything else, the end of the input too, leaves
// the lease as it is.
func TestConfirm(t *testing.T) {
	for text, want := range map[string]bool{"y\n": true, "Yes\r\n": true, "y": true, "n\n": false, "\n": false, "": false, "yess\n": false} {
		var out bytes.Buffer
		if err := confirm(t.Context(), strings.NewReader(text), &out, "Break it? "); (err == nil) != want || out.String() != "Break it? " {
			t.Errorf("%q: %v, %q", text, err, out.String())
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	silent, keyboard := io.Pipe()
	defer keyboard.Close()
	if err := confirm(ctx, silent, &bytes.Buffer{}, "?"); err == nil {
		t.Error("an interrupted question was answered")
	}
}
