package lab

import (
	"cmp"
	_ "embed"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
	"time"
)

//go:embed page/plot.css
var plotCSS string

// svg draws a picture of fixed width; its height is known at the end.
type svg struct {
	b      strings.Builder
	height float64
}

const (
	plotWidth  = 760.0
	plotLabel  = 250.0 // width of the labels on the left
	plotMargin = 20.0
)

func (s *svg) text(x, y float64, class, anchor, text string) {
	fmt.Fprintf(&s.b, `<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`+"\n", x, y, class, anchor, html.EscapeString(text))
}

func (s *svg) bar(x, y, w, h float64, class, title string) {
	fmt.Fprintf(&s.b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="1.5" class="%s"><title>%s</title></rect>`+"\n",
		x, y, math.Max(w, 1), h, class, html.EscapeString(title))
}

func (s *svg) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&s.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`+"\n", x1, y1, x2, y2, class)
}

// document returns the picture as a file of its own, in light and dark.
func (s *svg) document(label string) string { return s.page(plotWidth, s.height, label) }

func (s *svg) page(width, height float64, label string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" role="img" aria-label="%s" class="plot">
<style>%s</style>
<rect width="100%%" height="100%%" class="ground"/>
%s</svg>
`, width, height, html.EscapeString(label), plotCSS, s.b.String())
}

// LoadsPlot draws the loads of each mode, scenario by scenario.
func (r *Report) LoadsPlot() string {
	var s svg
	const row, gap = 19.0, 16.0
	most := 1
	for _, group := range r.byScenario() {
		for _, res := range group.results {
			if group.scenario.loadsSay() {
				most = max(most, res.Loads)
			}
		}
	}
	scale := (plotWidth - plotLabel - 150) / float64(most)
	y := plotMargin + 6
	s.text(plotMargin, y, "head", "start", fmt.Sprintf("Loads of the database, %s at once", plural(r.Config.Callers, "caller", "callers")))
	y += gap + 6
	for _, group := range r.byScenario() {
		if !group.scenario.loadsSay() {
			continue
		}
		top := y
		for _, mode := range r.modes() {
			res, ok := group.results[mode]
			if !ok {
				continue
			}
			s.text(plotLabel-8, y+13, "mode", "end", mode)
			s.bar(plotLabel, y+2, float64(res.Loads)*scale, row-4, "bar "+mode, fmt.Sprintf("%s %s: %d loads", res.Scenario, mode, res.Loads))
			s.text(plotLabel+float64(res.Loads)*scale+6, y+13, "value "+toneClass(res), "start", barLabel(res))
			y += row
		}
		s.text(plotMargin, top+13, "name", "start", group.scenario.ID)
		for i, part := range wrap(group.scenario.Title, 22) {
			s.text(plotMargin, top+29+14*float64(i), "small", "start", part)
		}
		y = math.Max(y, top+36) + gap
	}
	s.height = y
	return s.document("Loads of the database in each scenario and mode")
}

// loadsSay says whether the number of loads is what the scenario is about.
func (s *Scenario) loadsSay() bool { return s.ID != "release" && s.ID != "commit" && !s.traffic }

func barLabel(res Result) string {
	label := fmt.Sprint(res.Loads)
	if text := verdictCell(res).text; res.StaleAnswers != nil {
		label += " · " + text
	} else if _, rest, ok := strings.Cut(text, ", "); ok {
		label += " · " + rest
	}
	return label
}

func toneClass(res Result) string {
	if res.Ok {
		return "good"
	}
	return "bad"
}

// timelineRows is the most callers, or operations, that a panel of the timeline
// shows; of more, it shows an even sample.
const timelineRows = 40

// TimelinePlot draws, for each mode, each caller's wait and each operation of the
// origin in the first scenario in which all come at once; empty if none was played.
func (r *Report) TimelinePlot() string {
	rows := r.byScenario()
	i := slices.IndexFunc(rows, func(row scenarioRow) bool { return row.scenario.together })
	if i < 0 {
		return ""
	}
	scenario := rows[i].scenario
	var longest int64
	for _, mode := range r.modes() {
		if calls := r.callsOf(scenario.ID, mode); len(calls) > 0 {
			for _, c := range calls {
				longest = max(longest, c.EndUS-calls[0].StartUS)
			}
		}
	}
	t := timeline{report: r, scale: (plotWidth - plotLabel/2 - 2*plotMargin) / float64(max(longest, 1))}
	y := plotMargin + 6
	t.text(plotMargin, y, "head", "start", fmt.Sprintf("%s, %s: who waits, and what the database does", scenario.ID, scenario.Title))
	y += 14
	for _, mode := range r.modes() {
		y = t.panel(y, scenario.ID, mode)
	}
	t.height = t.axis(y, longest)
	return t.document("Timeline of " + scenario.ID)
}

// callsOf returns the calls by the time at which they began.
func (r *Report) callsOf(scenario, mode string) []Call {
	var calls []Call
	for _, c := range r.Calls {
		if c.Scenario == scenario && c.Mode == mode {
			calls = append(calls, c)
		}
	}
	slices.SortFunc(calls, func(a, b Call) int { return cmp.Compare(a.StartUS, b.StartUS) })
	return calls
}

type timeline struct {
	svg
	report *Report
	scale  float64 // of one microsecond
}

const timelineLeft = plotLabel/2 + plotMargin/2

func (t *timeline) panel(y float64, scenario, mode string) float64 {
	const wait, operation = 6.0, 9.0
	calls := t.report.callsOf(scenario, mode)
	if len(calls) == 0 {
		return y
	}
	zero := calls[0].StartUS
	slices.SortFunc(calls, func(a, b Call) int {
		return cmp.Or(cmp.Compare(a.Process, b.Process), cmp.Compare(a.Caller, b.Caller))
	})
	y += 12
	t.text(plotMargin, y+9, "name", "start", mode)
	t.text(plotMargin, y+24, "small", "start", plural(len(calls), "caller", "callers"))
	for _, c := range sample(calls, timelineRows) {
		title := fmt.Sprintf("caller %d, process %d: %v, %s", c.Caller, c.Process, c.Wait().Round(100*time.Microsecond), c.Kind)
		t.bar(timelineLeft+float64(c.StartUS-zero)*t.scale, y, float64(c.EndUS-c.StartUS)*t.scale, wait-2, "wait process"+fmt.Sprint(c.Process%3), title)
		y += wait
	}
	y += 3
	var ops []Operation
	for _, o := range t.report.Operations {
		if o.Scenario == scenario && o.Mode == mode {
			ops = append(ops, o)
		}
	}
	labelled := y
	offset := t.report.ClockOffset.Microseconds()
	for _, o := range sample(ops, timelineRows) {
		start := float64(o.StartUS - offset - zero)
		end := max(float64(o.EndUS-offset-zero), start)
		title := fmt.Sprintf("operation %d, process %d: %s", o.Number, o.Process, o.Outcome)
		t.bar(timelineLeft+start*t.scale, y, (end-start)*t.scale, operation-2, "bar "+mode, title)
		y += operation
	}
	t.text(plotMargin, math.Max(labelled+8, 0), "small strong", "start", plural(len(ops), "load", "loads"))
	return y + 8
}

func (t *timeline) axis(y float64, longest int64) float64 {
	y += 6
	t.line(timelineLeft, y, plotWidth-plotMargin, y, "axis")
	step := niceStep(float64(longest)/1000, 6)
	for ms := 0.0; ms*1000 <= float64(longest); ms += step {
		x := timelineLeft + ms*1000*t.scale
		t.line(x, y, x, y+4, "axis")
		t.text(x, y+17, "small", "middle", fmt.Sprintf("%g ms", ms))
	}
	return y + 30
}

// niceStep is a round number that divides span into at most n parts.
func niceStep(span float64, n int) float64 {
	if span <= 0 {
		return 1
	}
	rough := span / float64(n)
	unit := math.Pow(10, math.Floor(math.Log10(rough)))
	for _, m := range []float64{1, 2, 5} {
		if m*unit >= rough {
			return m * unit
		}
	}
	return 10 * unit
}

// sample picks at most n of the items, evenly.
func sample[T any](items []T, n int) []T {
	if len(items) <= n {
		return items
	}
	picked := make([]T, n)
	for i := range picked {
		picked[i] = items[i*len(items)/n]
	}
	return picked
}

// wrap breaks text into lines of at most width runes, where it can.
func wrap(text string, width int) []string {
	var lines []string
	for _, word := range strings.Fields(text) {
		if n := len(lines); n > 0 && len([]rune(lines[n-1]))+1+len([]rune(word)) <= width {
			lines[n-1] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}
