package lab

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// outageColumn is a column of the table of a scenario with traffic, whose rows are modes.
type outageColumn struct {
	head, about string
	of          func(o *Outage) tableCell
}

// limited is good as long as a limit holds.
func limited(n, limit int) tableCell {
	c := tableCell{text: fmt.Sprint(n), tone: toneGood}
	if n > limit {
		c.tone = toneBad
	}
	return c
}

func plainCell(format string, v any) tableCell { return tableCell{text: fmt.Sprintf(format, v)} }

var outageColumns = []outageColumn{
	{"at once", "most operations that the database had at one moment of the whole run",
		func(o *Outage) tableCell { return limited(o.MaxInFlight, o.Limit) }},
	{"degraded", "the same while the store was away, without the loads that had begun before",
		func(o *Outage) tableCell {
			if o.ToMS > o.awayMS() { // it was back at once
				return tableCell{}
			}
			return limited(o.MaxInFlightDown, o.LimitDegraded)
		}},
	{"loads", "operations that began meanwhile", func(o *Outage) tableCell { return plainCell("%d", o.LoadsMeanwhile) }},
	{"served", "callers who came meanwhile and got an answer", func(o *Outage) tableCell { return plainCell("%d", o.Meanwhile.Calls-o.Meanwhile.Failed) }},
	{"failed", "those who got none", func(o *Outage) tableCell { return limited(o.Meanwhile.Failed, 0) }},
	{"stale", "those whose answer was marked stale", func(o *Outage) tableCell { return plainCell("%d", o.Meanwhile.Stale) }},
	{"cached", "those whom a cache answered", func(o *Outage) tableCell { return plainCell("%.0f %%", 100*o.Meanwhile.hitRate()) }},
	{"p50 ms", "the callers' median wait", func(o *Outage) tableCell { return plainCell("%.0f", o.P50MS) }},
	{"p99 ms", "their 99th percentile", func(o *Outage) tableCell { return plainCell("%.0f", o.P99MS) }},
	{"recovered", "milliseconds from the store's return until nobody failed and the hit rate was nine tenths of what it had been, or more",
		func(o *Outage) tableCell {
			if o.RecoveredMS == nil {
				return tableCell{text: "not yet", tone: toneBad}
			}
			return plainCell("%.0f ms", *o.RecoveredMS)
		}},
}

// awayMS is when the store was back.
func (o *Outage) awayMS() float64 {
	if len(o.Moments) == 0 {
		return 0
	}
	return o.Moments[len(o.Moments)-1].AtMS + milliseconds(bucket)
}

// aboutTraffic says what the scenario is made of.
func (o *Outage) aboutTraffic() string {
	return fmt.Sprintf("%.0f calls a second for %d keys from %s. The database works on %d operations at once, queues the others and fails those that take more than %.0f ms. "+
		"onefill's limits, in all processes together: MaxLoads %d, MaxLoadsDegraded %d.",
		o.PerSecond, o.Keys, plural(o.Processes, "process", "processes"), o.Workers, o.DeadlineMS, o.Limit, o.LimitDegraded)
}

// outageRows are the scenarios with traffic that were played.
func (r *Report) outageRows() []scenarioRow {
	var rows []scenarioRow
	for _, row := range r.byScenario() {
		if row.scenario.traffic {
			rows = append(rows, row)
		}
	}
	return rows
}

// outages prints the tables of the scenarios with traffic, as one.
func (t *table) outages() {
	const nameWidth = 11
	rows := t.report.outageRows()
	if len(rows) == 0 {
		return
	}
	var about *Outage
	widths := make([]int, len(outageColumns))
	for i, col := range outageColumns {
		widths[i] = utf8.RuneCountInString(col.head)
		for _, row := range rows {
			for _, res := range row.results {
				about = res.Outage
				widths[i] = max(widths[i], utf8.RuneCountInString(col.of(res.Outage).text))
			}
		}
	}
	heads := make([]string, len(outageColumns))
	for i, col := range outageColumns {
		heads[i] = t.bold(padLeft(col.head, widths[i]))
	}
	fmt.Fprintf(t.w, "\n%s%s\n", t.bold(padRight("under load", nameWidth+10)), "  "+strings.Join(heads, "  "))
	for _, row := range rows {
		name := row.scenario.ID
		for _, mode := range t.report.modes() {
			res, ok := row.results[mode]
			if !ok {
				continue
			}
			line := padRight(name, nameWidth) + padRight(mode, 10)
			for i, col := range outageColumns {
				c := col.of(res.Outage)
				line += "  " + t.paint(padLeft(c.shown(), widths[i]), c.tone)
			}
			fmt.Fprintln(t.w, line)
			name = ""
		}
	}
	for _, line := range wrap(about.aboutTraffic(), 110) {
		fmt.Fprintln(t.w, line)
	}
	fmt.Fprintln(t.w, "Loads and callers: while the store was away, or in the second after it was restarted.")
}

// pageOutage is a scenario with traffic on the page.
type pageOutage struct {
	ID, Title, About string
	Traffic          string
	Panels           []pagePanel
	Table            pageTable
}

func (r *Report) pageOutages() []pageOutage {
	var all []pageOutage
	for _, row := range r.outageRows() {
		p := pageOutage{ID: row.scenario.ID, Title: row.scenario.Title, About: row.scenario.About}
		for _, col := range outageColumns {
			p.Table.Modes = append(p.Table.Modes, col.head)
		}
		for _, mode := range r.modes() {
			res, ok := row.results[mode]
			if !ok {
				continue
			}
			p.Traffic = res.Outage.aboutTraffic() // alike in all of them
			line := pageRow{Name: mode}
			for _, col := range outageColumns {
				line.Cells = append(line.Cells, col.of(res.Outage).onPage())
			}
			p.Table.Rows = append(p.Table.Rows, line)
		}
		for _, plot := range r.outagePlots(row) {
			p.Panels = append(p.Panels, pagePanel(plot.document()))
		}
		all = append(all, p)
	}
	return all
}

// aboutColumns explains the columns of these tables.
func aboutColumns() []pageItem {
	items := make([]pageItem, len(outageColumns))
	for i, col := range outageColumns {
		items[i] = pageItem{col.head, col.about}
	}
	return items
}
