package lab

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// commitColumn is a column of the table of the scenario "commit", whose rows are modes.
type commitColumn struct {
	head string
	of   func(o *Commit) tableCell
}

var commitColumns = []commitColumn{
	{"commits", func(o *Commit) tableCell { return plainCell("%d", o.Commits) }},
	{"writers killed", func(o *Commit) tableCell { return plainCell("%d", o.WritersKilled) }},
	{"workers killed", func(o *Commit) tableCell { return plainCell("%d", o.WorkersKilled) }},
	{"store stops", func(o *Commit) tableCell { return plainCell("%d", o.StoreStops) }},
	{"stale keys", func(o *Commit) tableCell { return limited(o.StaleKeys, 0) }},
	{"old answers", func(o *Commit) tableCell { return limited(o.StaleAnswers, 0) }},
	{"jobs left", func(o *Commit) tableCell { return limited(int(o.JobsLeft), 0) }},
	{"dead", func(o *Commit) tableCell { return limited(int(o.Dead), 0) }},
	{"queue empty after", func(o *Commit) tableCell {
		if o.DrainedMS == nil {
			return tableCell{}
		}
		return plainCell("%.0f ms", *o.DrainedMS)
	}},
}

// commitRow is the scenario, if it was played.
func (r *Report) commitRow() (scenarioRow, bool) {
	for _, row := range r.byScenario() {
		for _, res := range row.results {
			if res.Commit != nil {
				return row, true
			}
		}
	}
	return scenarioRow{}, false
}

// aboutCommits says what the columns count.
func (r *Report) aboutCommits(row scenarioRow) string {
	keys := 0
	for _, res := range row.results {
		keys = res.Commit.Keys
	}
	return fmt.Sprintf("Stale keys, of %d: the store holds, or a process answers, something that is not the row. Old answers: of all processes, a question a key. "+
		"The queue is empty so long after the last commit.", keys)
}

// commits prints the scenario "commit".
func (t *table) commits() {
	row, played := t.report.commitRow()
	if !played {
		return
	}
	const idWidth, nameWidth = 11, 26
	var heads strings.Builder
	for _, col := range commitColumns {
		heads.WriteString("  " + t.bold(padLeft(col.head, 7)))
	}
	fmt.Fprintf(t.w, "\n%s%s\n", t.bold(padRight(row.scenario.Title, nameWidth)), heads.String())
	for _, mode := range t.report.modes() {
		res, ok := row.results[mode]
		if !ok {
			continue
		}
		line := padRight(padRight(row.scenario.ID, idWidth)+mode, nameWidth)
		for _, col := range commitColumns {
			c := col.of(res.Commit)
			line += "  " + t.paint(padLeft(c.shown(), max(utf8.RuneCountInString(col.head), 7)), c.tone)
		}
		fmt.Fprintln(t.w, line)
	}
	for _, text := range wrap(t.report.aboutCommits(row), 110) {
		fmt.Fprintln(t.w, text)
	}
}

// commitTable is the scenario on the page, where a row is a mode; without rows if it was not
// played.
func (r *Report) commitTable() pageTable {
	row, played := r.commitRow()
	if !played {
		return pageTable{}
	}
	p := pageTable{Title: "The commit and the cache", About: r.aboutCommits(row)}
	for _, col := range commitColumns {
		p.Modes = append(p.Modes, col.head)
	}
	for _, mode := range r.modes() {
		res, ok := row.results[mode]
		if !ok {
			continue
		}
		line := pageRow{Name: mode}
		for _, col := range commitColumns {
			line.Cells = append(line.Cells, col.of(res.Commit).onPage())
		}
		p.Rows = append(p.Rows, line)
	}
	return p
}
