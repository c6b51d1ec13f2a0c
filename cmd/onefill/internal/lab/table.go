package lab

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Table prints the report for a person. With color it uses ANSI colours.
func (r *Report) Table(w io.Writer, color bool) {
	t := &table{w: w, color: color, report: r}
	cfg, env := r.Config, r.Environment
	fmt.Fprintf(w, "\n%s\n", t.bold(fmt.Sprintf("%s in %s miss the same key at once", plural(cfg.Callers, "caller", "callers"), plural(cfg.Processes, "process", "processes"))))
	fmt.Fprintf(w, "store %s %s (%s) · origin %s %s (%s) · load %v · lease %v\n",
		env.Store, env.StoreVersion, env.StoreHow, env.Origin, env.OriginVersion, env.OriginHow, cfg.Load, cfg.Lease)
	for _, note := range env.Notes {
		fmt.Fprintf(w, "note: %s\n", note)
	}
	t.block("what the database saw", verdictCell, true)
	t.block("callers' wait beyond the load: p50 / p99, ms", waitCell, false)
	t.block("commands executed by the store (scripts)", commandsCell, false)
	t.outages()
	t.commits()
	t.legend()
}

type table struct {
	w      io.Writer
	color  bool
	report *Report
}

// tableCell is the text for one result, and how to colour it.
type tableCell struct {
	text string
	tone tone
}

// noFigure stands where there is nothing to say.
const noFigure = "–"

func (c tableCell) shown() string { return cmp.Or(c.text, noFigure) }

type tone int

const (
	toneNone tone = iota
	toneGood
	toneBad
)

// block prints one table; rows without any text are left out. of fills a cell.
func (t *table) block(title string, of func(Result) tableCell, verdict bool) {
	const idWidth, titleWidth = 9, 32
	modes, rows := t.report.modes(), t.report.byScenario()
	widths := make([]int, len(modes))
	for i, mode := range modes {
		widths[i] = utf8.RuneCountInString(mode)
		for _, row := range rows {
			if res, ok := row.results[mode]; ok {
				widths[i] = max(widths[i], utf8.RuneCountInString(of(res).text))
			}
		}
	}
	var lines []string
	for _, row := range rows {
		line, filled := padRight(row.scenario.ID, idWidth)+padRight(row.scenario.Title, titleWidth), false
		for i, mode := range modes {
			c := tableCell{text: noFigure}
			if res, ok := row.results[mode]; ok {
				if got := of(res); got.text != "" {
					c, filled = got, true
				}
			}
			line += "  " + t.paint(padLeft(c.text, widths[i]), c.tone)
		}
		if res, ok := row.results[ModeOnefill]; ok && verdict {
			line += "  " + t.verdict(res)
		}
		if filled {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(t.w, "\n%s", t.bold(padRight(title, idWidth+titleWidth)))
	if n := utf8.RuneCountInString(title); n > idWidth+titleWidth {
		fmt.Fprintf(t.w, "\n%s", strings.Repeat(" ", idWidth+titleWidth))
	}
	for i, mode := range modes {
		fmt.Fprintf(t.w, "  %s", t.bold(padLeft(mode, widths[i])))
	}
	fmt.Fprintf(t.w, "\n%s\n", strings.Join(lines, "\n"))
}

func (t *table) verdict(res Result) string {
	if res.Ok {
		return t.paint("holds", toneGood)
	}
	return t.paint("BROKEN", toneBad)
}

// aboutMode says in a line what each mode is.
var aboutMode = map[string]string{
	ModeNaive:   "get, load, set",
	ModeLocal:   "the same behind singleflight, which joins the misses of one process",
	ModeLock:    "SET NX, or add, as a lock; losers sleep and look again, then load; delete without owner check",
	ModeOnefill: "one lease a key in the whole fleet; what comes late is refused",
}

func (t *table) legend() {
	fmt.Fprintln(t.w)
	for _, mode := range t.report.modes() {
		fmt.Fprintf(t.w, "%s  %s\n", padRight(mode, 7), aboutMode[mode])
	}
	fmt.Fprintf(t.w, "took %v\n", t.report.Took.Round(100*time.Millisecond))
}

// verdictCell is the headline: loads, or what the scenario is about instead.
func verdictCell(res Result) tableCell {
	c := tableCell{tone: toneBad}
	if res.Ok {
		c.tone = toneGood
	}
	switch {
	case res.Freed != nil && *res.Freed:
		c.text = "lock freed"
	case res.Freed != nil:
		c.text = "lease stands"
	case res.StaleAnswers != nil:
		c.text = "new row"
		if *res.StaleReaders > 0 || *res.StaleAnswers > 0 || res.StoreHolds == holdsOld {
			c.text = "old row"
		}
	case res.Commit != nil:
		c.text = fmt.Sprintf("%d stale", res.Commit.StaleKeys)
	case res.Outage != nil:
		c.text = fmt.Sprintf("%d at once", res.Outage.MaxInFlight)
	default:
		c.text = loadsText(res)
	}
	if (res.Scenario == "S6" || res.MaxInFlight != nil) && res.Errors > 0 {
		c.text += fmt.Sprintf(", %d failed", res.Errors)
	}
	if res.Timeouts > 0 {
		c.text += fmt.Sprintf(", %d timeouts", res.Timeouts)
	}
	return c
}

// loadsText is "12 loads", or "12+12+12 loads" if the callers came in waves.
func loadsText(res Result) string {
	text := plural(res.Loads, "load", "loads")
	if len(res.Waves) > 0 && res.Loads > 0 {
		waves := make([]string, len(res.Waves))
		for i, w := range res.Waves {
			waves[i] = fmt.Sprint(w.Loads)
		}
		text = strings.Join(waves, "+") + " loads"
	}
	return text
}

func waitCell(res Result) tableCell {
	if res.ExtraP50MS == nil {
		return tableCell{}
	}
	return tableCell{text: fmt.Sprintf("%.0f / %.0f", *res.ExtraP50MS, *res.ExtraP99MS)}
}

// commandsCell has the scripts in parentheses: each counts as one, and in addition
// each command that it runs.
func commandsCell(res Result) tableCell {
	if res.CommandStats == nil {
		return tableCell{} // not counted
	}
	text := fmt.Sprint(res.Commands)
	if scripts := res.CommandStats["eval"] + res.CommandStats["evalsha"]; scripts > 0 {
		text += fmt.Sprintf(" (%d)", scripts)
	}
	return tableCell{text: text}
}

// modes are those that have results, in the lab's order.
func (r *Report) modes() []string {
	var modes []string
	for _, mode := range Modes {
		if slices.ContainsFunc(r.Results, func(res Result) bool { return res.Mode == mode }) {
			modes = append(modes, mode)
		}
	}
	return modes
}

type scenarioRow struct {
	scenario *Scenario
	results  map[string]Result // by mode
}

func (r *Report) byScenario() []scenarioRow {
	var rows []scenarioRow
	for _, s := range Scenarios {
		row := scenarioRow{s, make(map[string]Result)}
		for _, res := range r.Results {
			if res.Scenario == s.ID {
				row.results[res.Mode] = res
			}
		}
		if len(row.results) > 0 {
			rows = append(rows, row)
		}
	}
	return rows
}

func (t *table) bold(s string) string { return t.ansi("1", s) }

func (t *table) paint(s string, tn tone) string {
	switch tn {
	case toneGood:
		return t.ansi("32", s)
	case toneBad:
		return t.ansi("31", s)
	}
	return s
}

func (t *table) ansi(code, s string) string {
	if !t.color {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func padRight(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
}

func padLeft(s string, width int) string {
	return strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s))) + s
}
