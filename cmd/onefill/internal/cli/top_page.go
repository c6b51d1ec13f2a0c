package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

// topPage draws reports.
type topPage struct {
	terminal, colorful bool
	size               func() (columns, lines int) // of the terminal; 0, or nil: not known
}

const (
	clearScreen = "\x1b[2J"
	goHome      = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
	// A line that is too long all the same, as of some characters nobody knows how wide they are, is cut off
	// by the terminal instead of taking two.
	wrapOff, wrapOn = "\x1b[?7l", "\x1b[?7h"

	red, noColor = "\x1b[31m", "\x1b[0m"
)

// draw is a page. On a terminal it goes over the one before, line by line, so that
// nothing flickers.
func (p *topPage) draw(r topReport, first bool) string {
	switch {
	case !p.terminal && first:
		return p.text(r)
	case !p.terminal:
		return "\n" + p.text(r)
	}
	// Each line is cleared before it is written: after one that fills its line, the cursor stands on its last character.
	text := goHome + wrapOff + clearLine + strings.ReplaceAll(p.fitted(r), "\n", "\n"+clearLine) + clearBelow + wrapOn
	if first {
		text = clearScreen + text
	}
	return text
}

// wait waits for the time of the next page. When the terminal has another size, this one is drawn again.
func (p *topPage) wait(ctx context.Context, w io.Writer, next <-chan time.Time, resized <-chan os.Signal, r topReport) error {
	for {
		select {
		case <-next:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-resized:
			if _, err := io.WriteString(w, p.draw(r, true)); err != nil {
				return err
			}
		}
	}
}

// fitted is the page with so many rows in each table that it fits the terminal, and one line to spare for the
// cursor: a line more would scroll the first one away, with every page.
func (p *topPage) fitted(r topReport) string {
	columns, lines := 0, 0
	if p.size != nil {
		columns, lines = p.size()
	}
	text := p.text(r)
	most := 0
	for _, rows := range []int{len(r.Caches), len(r.Hot), len(r.Slow), len(r.Missed), len(r.Extra)} {
		most = max(most, rows)
	}
	for rows := most - 1; lines > 0 && rows > 0 && strings.Count(text, "\n") >= lines; rows-- {
		text = p.text(r.first(rows))
	}
	all := strings.SplitAfter(text, "\n")
	if all = all[:len(all)-1]; lines > 0 && len(all) >= lines { // hardly a terminal: the first lines have to do
		all = all[:max(lines-1, 1)]
	}
	var b strings.Builder
	for _, line := range all {
		line = strings.TrimSuffix(line, "\n")
		if columns > 0 {
			line = p.shortened(line, columns)
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// shortened makes a line fit. Of lines with a colour there are errors only, which have it from end to end.
func (p *topPage) shortened(line string, columns int) string {
	if text, ok := strings.CutPrefix(line, red); ok {
		return p.colored(red, shorten(strings.TrimSuffix(text, noColor), columns))
	}
	return shorten(line, columns)
}

func (p *topPage) text(r topReport) string {
	var b strings.Builder
	answer := 0
	for _, app := range r.Apps {
		if app.Error == "" {
			answer++
		}
	}
	fmt.Fprintf(&b, "%s  %d of %d processes answer, miss groups waited for now: %d\n", r.At.Local().Format("15:04:05"), answer, len(r.Apps), r.Live)
	for _, app := range r.Apps {
		if app.Error != "" {
			fmt.Fprintf(&b, "%s\n", p.colored(red, plain(app.Error)))
		}
	}
	t := section(&b, "since their processes began", "groups", "loads/group", "loads", "failed", "refused", "stale", "local hits", "store hits", "cache")
	for _, c := range r.Caches {
		t.row("%d\t%.2f\t%d\t%d\t%d\t%d\t~%d\t%d\t%s", c.Groups, c.LoadsPerGroup, c.Loads, c.LoadErrors, c.FillsRefused, c.Stale, c.LocalHits, c.StoreHits, plain(c.Cache))
	}
	t.end("no cache has done anything yet")
	if r.more > 0 {
		fmt.Fprintf(&b, "  … and %s\n", plural(r.more, "more cache"))
	}
	t = section(&b, "most calls, in the last minute", "calls/s", "±", "cache  key")
	for _, h := range r.Hot {
		t.row("%.1f\t%.1f\t%s", h.CallsPerSec, h.PlusMinus, keyCell(h.Cache, h.Key))
	}
	t.end("none")
	t = section(&b, "most time in loads", "total", "longest", "loads", "failed", "cache  key")
	for _, k := range r.Slow {
		total := since(k.TotalMS)
		if k.ErrorMS > 0 {
			total = since(k.TotalMS-k.ErrorMS) + " or more"
		}
		t.row("%s\t%s\t%d\t%d\t%s", total, since(k.LongestMS), k.Loads, k.Failed, keyCell(k.Cache, k.Key))
	}
	t.end("none")
	missed(&b, "most miss groups", r.Missed, "none")
	missed(&b, "more than one load for a miss group", r.Extra, "none, as it should be")
	return b.String()
}

func missed(b *strings.Builder, title string, keys []topMissed, none string) {
	t := section(b, title, "groups", "loads", "loads/group", "cache  key")
	for _, k := range keys {
		groups := fmt.Sprint(k.Groups)
		if k.Error > 0 {
			groups = fmt.Sprintf("%d or more", k.Groups-k.Error)
		}
		t.row("%s\t%d\t%.2f\t%s", groups, k.Loads, k.LoadsPerGroup, keyCell(k.Cache, k.Key))
	}
	t.end(none)
}

func (p *topPage) colored(color, s string) string {
	if !p.colorful {
		return s
	}
	return color + s + noColor
}

func keyCell(cache, key string) string { return plain(cache) + "  " + shorten(plain(key), 60) }

// table is a part of the page: figures on the right of their columns, and the key last, as
// long as it is.
type table struct {
	b    *strings.Builder
	w    *tabwriter.Writer
	head string
	rows int
}

func section(b *strings.Builder, title string, columns ...string) *table {
	fmt.Fprintf(b, "\n%s\n", title)
	return &table{b: b, w: tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight), head: strings.Join(columns, "\t")}
}

func (t *table) row(format string, cells ...any) {
	if t.rows++; t.rows == 1 {
		fmt.Fprintln(t.w, strings.Replace(t.head, "\tcache", "\t  cache", 1))
	}
	at := strings.LastIndexByte(format, '\t') + 1
	fmt.Fprintf(t.w, format[:at]+"  "+format[at:]+"\n", cells...)
}

func (t *table) end(none string) {
	if t.rows == 0 {
		fmt.Fprintf(t.b, "  %s\n", none)
	}
	t.w.Flush()
}
