package lab

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"slices"
	"time"
)

//go:embed page/report.html.tmpl
var pageText string

var pageTemplate = template.Must(template.New("report").Parse(pageText))

// page is what the template shows.
type page struct {
	Headline, Where, When, Asserted string
	Failures, Notes                 []string
	Verdict                         pageTable
	Tables                          []pageTable
	Loads, Timeline                 template.HTML
	Outages                         []pageOutage
	OutageColumns                   []pageItem
	Scenarios                       []*Scenario
	About                           []pageItem
}

type pageTable struct {
	Title, About string
	Modes        []string
	Rows         []pageRow
}

type pageRow struct {
	ID, Name string
	Cells    []pageCell
}

type pageCell struct{ Text, Class string }

type pageItem struct{ Name, Text string }

// HTML returns the report as a page that needs nothing else.
func (r *Report) HTML() ([]byte, error) {
	env, cfg := r.Environment, r.Config
	p := page{
		Headline: fmt.Sprintf("%s in %s miss the same key at once; a load takes %v, a lease lasts %v.",
			plural(cfg.Callers, "caller", "callers"), plural(cfg.Processes, "process", "processes"), cfg.Load, cfg.Lease),
		Where: fmt.Sprintf("Store: %s %s (%s). Origin: %s %s (%s).", env.Store, env.StoreVersion, env.StoreHow,
			env.Origin, env.OriginVersion, env.OriginHow),
		When:     r.Started.UTC().Format("2 January 2006, 15:04 UTC") + ", took " + r.Took.Round(100*time.Millisecond).String() + ".",
		Failures: r.Failures(),
		Notes:    env.Notes,
		Loads:    template.HTML(r.LoadsPlot()), // made here, escaped there
		Timeline: template.HTML(r.TimelinePlot()),
	}
	if n := r.asserted(); n > 0 {
		p.Asserted = fmt.Sprintf("%s asserted, in the mode onefill.", plural(n, "scenario", "scenarios"))
	}
	if p.Outages = r.pageOutages(); len(p.Outages) > 0 {
		p.OutageColumns = aboutColumns()
	}
	for _, row := range r.byScenario() {
		p.Scenarios = append(p.Scenarios, row.scenario)
	}
	for _, mode := range r.modes() {
		p.About = append(p.About, pageItem{mode, aboutMode[mode]})
	}
	p.Verdict = r.pageTable("What the database saw", "", verdictCell)
	p.Tables = []pageTable{
		r.pageTable("Callers' wait beyond the load", "Median and 99th percentile in milliseconds.", waitCell),
		r.pageTable("Age of the oldest answer", "Milliseconds since the database began to read it.", ageCell),
		r.commitTable(),
		r.pageTable("Commands that the store executed", "In parentheses the scripts among them; what a script runs is counted too.", commandsCell),
	}
	p.Tables = slices.DeleteFunc(p.Tables, func(t pageTable) bool { return t.Title == "" })
	var b bytes.Buffer
	err := pageTemplate.Execute(&b, p)
	return b.Bytes(), err
}

func (r *Report) asserted() (n int) {
	for _, res := range r.Results {
		if res.Asserted {
			n++
		}
	}
	return n
}

func (c tableCell) onPage() pageCell {
	classes := map[tone]string{toneGood: "good", toneBad: "bad"}
	return pageCell{c.shown(), classes[c.tone]}
}

func (r *Report) pageTable(title, about string, of func(Result) tableCell) pageTable {
	t := pageTable{Title: title, About: about, Modes: r.modes()}
	for _, row := range r.byScenario() {
		line := pageRow{ID: row.scenario.ID, Name: row.scenario.Title}
		for _, mode := range t.Modes {
			var c tableCell
			if res, ok := row.results[mode]; ok {
				c = of(res)
			}
			line.Cells = append(line.Cells, c.onPage())
		}
		if slices.ContainsFunc(line.Cells, func(c pageCell) bool { return c.Text != noFigure }) {
			t.Rows = append(t.Rows, line)
		}
	}
	return t
}

func ageCell(res Result) tableCell {
	if res.AgeMaxMS == 0 {
		return tableCell{}
	}
	return tableCell{text: fmt.Sprintf("%.0f", res.AgeMaxMS)}
}

// WriteFiles writes report, plots and logs to the run's directory, and returns
// their paths, the report's first. Files of the same names are replaced.
func (r *Report) WriteFiles() ([]string, error) {
	html, err := r.HTML()
	if err != nil {
		return nil, err
	}
	type file struct {
		name string
		data []byte
	}
	files := []file{
		{"report.html", html},
		{"loads.svg", []byte(r.LoadsPlot())},
		{"timeline.svg", []byte(r.TimelinePlot())},
		{"results.jsonl", jsonLines(r.Results)},
		{"calls.jsonl", jsonLines(r.Calls)},
		{"operations.jsonl", jsonLines(r.Operations)},
	}
	for _, row := range r.outageRows() {
		files = append(files, file{row.scenario.ID + ".svg", []byte(r.outageFile(row))})
	}
	var paths []string
	for _, f := range files {
		if len(f.data) == 0 && filepath.Ext(f.name) == ".svg" {
			continue
		}
		path := filepath.Join(r.Dir, f.name)
		if err := os.WriteFile(path, f.data, 0o644); err != nil {
			return paths, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

func jsonLines[T any](items []T) []byte {
	var b bytes.Buffer
	lines := json.NewEncoder(&b)
	lines.SetEscapeHTML(false)
	for _, item := range items {
		if err := lines.Encode(item); err != nil {
			panic(err) // plain structs of strings and numbers
		}
	}
	return b.Bytes()
}
