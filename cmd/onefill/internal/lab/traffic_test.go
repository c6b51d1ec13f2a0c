package lab

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestPool forces: both connections are in use | a third load comes, waits, and
// gives up | one is free again | a fourth load gets it.
func TestPool(t *testing.T) {
	release, busy := make(chan struct{}), make(chan struct{}, 3)
	ask := pooled(func(context.Context, string) (string, error) {
		busy <- struct{}{}
		<-release
		return "row", nil
	}, 2, 20*time.Millisecond)
	results := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := ask(t.Context(), "k")
			results <- err
		}()
		<-busy
	}
	if _, err := ask(t.Context(), "k"); err == nil || !strings.Contains(err.Error(), "no connection to the database was free within 20ms") {
		t.Errorf("a load without a connection: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ask(ended, "k"); err != context.Canceled {
		t.Errorf("a load whose caller has left: %v", err)
	}
	close(release)
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if got, err := ask(t.Context(), "k"); got != "row" || err != nil {
		t.Errorf("with a free connection: %q, %v", got, err)
	}
}

// hungReader never answers before the caller's context ends.
type hungReader struct {
	reader
	asked atomic.Int32
	ten   chan struct{} // closed when that many have asked
}

func (h *hungReader) Get(ctx context.Context, _ string) (answer, error) {
	if h.asked.Add(1) == 10 {
		close(h.ten)
	}
	<-ctx.Done()
	return answer{}, ctx.Err()
}

// TestTrafficDoesNotWaitForAnswers: calls begin at even intervals although none has
// been answered, are bounded, and all are handed over.
func TestTrafficDoesNotWaitForAnswers(t *testing.T) {
	r := &hungReader{ten: make(chan struct{})}
	cell := &workerCell{process: 2, key: "cell", reader: r, setup: cellSetup{Scenario: "killed", Mode: ModeNaive}}
	g := cell.generate(t.Context(), traffic{Keys: 5, PerSecond: 500, Timeout: time.Second})
	<-r.ten
	calls := g.halt()
	if len(calls) < 10 || len(calls) != int(r.asked.Load()) {
		t.Fatalf("%d calls handed over, %d made", len(calls), r.asked.Load())
	}
	for _, c := range calls {
		if c.Kind != KindTimeout || c.Process != 2 || c.Phase != phaseTraffic || !strings.HasPrefix(c.Key, "cell-") {
			t.Fatalf("%+v", c)
		}
	}
	if n := len(g.since(calls[0].StartUS + 1e9)); n != 0 {
		t.Errorf("%d calls of the future", n)
	}
	if n := len(g.since(0)); n != len(calls) {
		t.Errorf("%d of %d calls", n, len(calls))
	}
}

func TestTTLOfAContext(t *testing.T) {
	if got := ttlOf(t.Context(), time.Minute); got != time.Minute {
		t.Errorf("without: %v", got)
	}
	if got := ttlOf(withTTL(t.Context(), time.Second), time.Minute); got != time.Second {
		t.Errorf("with: %v", got)
	}
}
