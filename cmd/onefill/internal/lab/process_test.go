package lab

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestProcessThatEndsIsReported(t *testing.T) {
	p, err := startProcess(7, []string{"/bin/sh", "-c", "read line; echo the reason >&2; exit 3"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	_, err = p.do(ctx, command{Op: opOpen})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"reader process 7", "open", "exit status 3", "the reason"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %q", err, want)
		}
	}
	p.stop() // twice is fine
}

func TestProcessThatDoesNotAnswer(t *testing.T) {
	p, err := startProcess(0, []string{"/bin/sh", "-c", "while read line; do :; done"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.do(ctx, command{Op: opPrepare}); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), opPrepare) {
		t.Errorf("got %v", err)
	}
}

func TestFleetThatCannotStart(t *testing.T) {
	if f, err := startFleet(2, []string{"/nonexistent/program"}); err == nil || f != nil {
		t.Errorf("got %v, %v", f, err)
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	var tl tail
	tl.Write(bytes.Repeat([]byte("a"), 3*tailBytes))
	tl.Write([]byte("end"))
	if got := tl.suffix(); !strings.HasSuffix(got, "aend") || len(got) > tailBytes+50 {
		t.Errorf("kept %d bytes, ending in %q", len(got), got[len(got)-10:])
	}
}

func TestWorkerRefusesWhatIsNoCommand(t *testing.T) {
	var out bytes.Buffer
	err := RunWorker(t.Context(), strings.NewReader("hello\n"), &out)
	if err == nil || !strings.Contains(err.Error(), "the lab's own use") {
		t.Errorf("somebody who runs the hidden command by hand is told %v", err)
	}
}
