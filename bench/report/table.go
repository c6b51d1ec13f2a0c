// Package report prints what was measured: tables for a terminal, docs/benchmarks.md, and
// its pictures.
package report

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/onefill/onefill/bench/measure"
	"github.com/onefill/onefill/bench/peers"
)

// notMeasured is what a cell shows that has no number.
const notMeasured = "–"

func number(v float64, digits int) string {
	if a := math.Abs(v); a >= 1000 && digits > 0 {
		digits = 0
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}

// cell is the median, its ratio to the anchor, and the spread.
func cell(r *measure.Result, l *measure.Line, c measure.Column) string {
	v, ok := l.Median(c.ID)
	if !ok {
		return notMeasured
	}
	s := number(v, c.Digits)
	if ratio, ok := r.Ratio(l, c.ID); ok {
		s += fmt.Sprintf(" (%s×)", number(ratio, 2))
	}
	if spread := l.Spread(c.ID); spread >= 0.005 {
		s += fmt.Sprintf(" ±%.0f%%", 100*spread)
	}
	return s
}

// table is a measure as text, the head first.
func table(r *measure.Result) [][]string {
	head := []string{r.Measure.RowHead}
	guarantees := r.Measure.RowHead == "" && len(r.Rows) > 0 && r.Rows[0].Row.Peer != nil
	if head[0] == "" {
		head[0] = "peer"
	}
	if guarantees {
		head = append(head, "one load in", "fenced")
	}
	for _, c := range r.Measure.Columns {
		head = append(head, c.Head)
	}
	rows := [][]string{head}
	for i := range r.Rows {
		l := &r.Rows[i]
		row := []string{l.Row.Name}
		if guarantees {
			row = append(row, guarantee(l.Row.Peer)...)
		}
		for _, c := range r.Measure.Columns {
			row = append(row, cell(r, l, c))
		}
		rows = append(rows, row)
	}
	return rows
}

// guarantee is how many loads a peer has, and whether a late one is kept out.
func guarantee(p *peers.Peer) []string {
	fenced := "no"
	switch {
	case p == nil:
		return []string{notMeasured, notMeasured}
	case p.InProcess:
		fenced = notMeasured
	case p.Fenced:
		fenced = "yes"
	}
	return []string{string(p.OneLoad), fenced}
}

// Print writes a measure for a terminal.
func Print(w io.Writer, r *measure.Result) error {
	rows := table(r)
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n== %s (%s, %.0f s)\n", r.Measure.Title, r.Measure.Name, r.Took.Seconds())
	for _, row := range rows {
		for i, c := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
			if i == 0 {
				b.WriteString(c + pad)
			} else {
				b.WriteString("  " + pad + c)
			}
		}
		b.WriteByte('\n')
	}
	for i := range r.Rows {
		if l := &r.Rows[i]; l.Err != nil {
			fmt.Fprintf(&b, "  %s failed: %v\n", l.Row.Name, l.Err)
		}
	}
	for _, v := range r.Judge() {
		fmt.Fprintf(&b, "  %-6s %s\n", met(v), describe(r, v))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func met(v measure.Verdict) string {
	switch {
	case !v.Measured:
		return "-"
	case v.Met:
		return "met"
	}
	return "MISSED"
}

// describe says what a target was and how it came out.
func describe(r *measure.Result, v measure.Verdict) string {
	t := v.Target
	sign := "≤"
	if t.AtLeast {
		sign = "≥"
	}
	result := "not measured"
	if v.Measured {
		result = number(v.Value, 2)
	}
	what := fmt.Sprintf("%s, %s: %s", t.Row, head(r.Measure, t.Column), result)
	if t.Anchor == "" {
		return strings.TrimSpace(fmt.Sprintf("%s (target %s %s) %s", what, sign, number(t.Limit, digits(t.Limit)), t.Text))
	}
	anchor := t.Anchor
	if t.AnchorColumn != "" {
		anchor = head(r.Measure, t.AnchorColumn)
	}
	return strings.TrimSpace(fmt.Sprintf("%s × %s (target %s %s) %s", what, anchor, sign, number(t.Limit, 2), t.Text))
}

func digits(v float64) int {
	switch {
	case v == math.Trunc(v):
		return 0
	case v < 0.1:
		return 3
	}
	return 2
}

func head(m *measure.Measure, column string) string {
	for _, c := range m.Columns {
		if c.ID == column {
			return c.Head
		}
	}
	return column
}

// Raw writes each round's numbers as lines that benchstat reads.
func Raw(w io.Writer, r *measure.Result) error {
	words := strings.NewReplacer(" ", "_", "/", "_", ",", "")
	for _, l := range r.Rows {
		for _, c := range r.Measure.Columns {
			for _, v := range l.Samples[c.ID] {
				if math.IsNaN(v) {
					continue
				}
				if _, err := fmt.Fprintf(w, "Benchmark/measure=%s/peer=%s 1 %g %s\n", r.Measure.Name, words.Replace(l.Row.Name), v, words.Replace(c.ID)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
