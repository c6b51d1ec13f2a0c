package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// topPage draws reports.
type topPage struct{ terminal, colorful bool }

const (
	clearScreen = "\x1b[2J"
	goHome      = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// draw is a page. On a terminal it goes over the one before, line by line, so that
// nothing flickers.
func (p *topPage) draw(r topReport, first bool) string {
	text := p.text(r)
	switch {
	case !p.terminal && first:
		return text
	case !p.terminal:
		return "\n" + text
	}
	text = goHome + strings.ReplaceAll(text, "\n", clearLine+"\n") + clearBelow
	if first {
		text = clearScreen + text
	}
	return text
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
			fmt.Fprintf(&b, "%s\n", p.colored("\x1b[31m", plain(app.Error)))
		}
	}
	t := section(&b, "since their processes began", "groups", "loads/group", "loads", "failed", "refused", "stale", "local hits", "store hits", "cache")
	for _, c := range r.Caches {
		t.row("%d\t%.2f\t%d\t%d\t%d\t%d\t~%d\t%d\t%s", c.Groups, c.LoadsPerGroup, c.Loads, c.LoadErrors, c.FillsRefused, c.Stale, c.LocalHits, c.StoreHits, plain(c.Cache))
	}
	t.end("no cache has done anything yet")
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
	return color + s + "\x1b[0m"
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
