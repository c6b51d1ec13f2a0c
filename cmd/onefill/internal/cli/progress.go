package cli

import (
	"fmt"
	"io"
	"strings"
)

// progress shows what goes on: one line that is overwritten on a terminal, a line
// a scenario elsewhere.
type progress struct {
	w        io.Writer
	terminal bool
	last     string
}

func newProgress(w io.Writer) *progress { return &progress{w: w, terminal: isTerminal(w)} }

func (p *progress) step(what string, number, of int) {
	if p.terminal {
		fmt.Fprintf(p.w, "\r\x1b[K[%d/%d] %s", number, of, what)
		return
	}
	group, _, _ := strings.Cut(what, " ")
	if number == 0 {
		group = what
	}
	if group != p.last {
		p.last = group
		fmt.Fprintln(p.w, group)
	}
}

// done clears the line.
func (p *progress) done() {
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
