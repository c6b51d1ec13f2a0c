package cli

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress shows what goes on: on a terminal one line that is overwritten; elsewhere, in the log of a CI
// job, say, whole lines, and not too many.
type progress struct {
	w        io.Writer
	terminal bool
	now      func() time.Time

	begun   bool      // a step has been told
	told    time.Time // the last line, or the beginning
	percent int       // what it said
}

// Elsewhere a line comes after a tenth of the work, or after this time.
const (
	progressEvery   = 5 * time.Second
	progressPercent = 10
)

func newProgress(w io.Writer) *progress {
	return &progress{w: w, terminal: isTerminal(w) && os.Getenv("TERM") != "dumb", now: time.Now, told: time.Now()}
}

// step tells that a step begins, of so many. 0 is what comes before the first.
func (p *progress) step(what string, number, of int) {
	text := what
	if number > 0 {
		text = fmt.Sprintf("[%d/%d] %s", number, of, what)
	}
	percent := 100 * number / max(of, 1)
	if p.terminal || !p.begun || percent >= p.percent+progressPercent {
		p.write(text)
		p.begun, p.percent = true, percent
		return
	}
	p.tick(text)
}

// tick tells how far the work is. It may be called often.
func (p *progress) tick(text string) {
	if p.terminal || p.now().Sub(p.told) >= progressEvery {
		p.write(text)
	}
}

func (p *progress) write(text string) {
	if p.told = p.now(); p.terminal {
		fmt.Fprintf(p.w, "\r\x1b[K%s", text)
		return
	}
	fmt.Fprintln(p.w, text)
}

// done clears the line.
func (p *progress) done() {
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
