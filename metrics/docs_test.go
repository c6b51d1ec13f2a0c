package metrics_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/onefill/onefill/metrics"
)

// row is how docs/metrics.md begins the row of a metric.
func row(m metrics.Metric) string {
	unit, labels := m.Unit, ""
	if unit == "" {
		unit = "0 or 1"
	}
	if m.Label != "" {
		labels = "`" + m.Label + "`: " + strings.Join(m.Values, ", ")
	}
	if m.Kind == metrics.Histogram && strings.HasPrefix(m.Name, "onefill.job.") {
		labels = strings.TrimSuffix("`kind`; "+labels, "; ")
	}
	return fmt.Sprintf("| `%s` | `%s` | %v | %s | %s |", m.PrometheusName(), m.Name, m.Kind, strings.Trim(unit, "{}"), labels)
}

// The page has a row for each metric, with its names, kind, unit and labels, and no other.
func TestPageListsEveryMetric(t *testing.T) {
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for _, line := range regexp.MustCompile("(?m)^\\| `(onefill_[a-z_]+)` \\| `.*$").FindAllStringSubmatch(string(page), -1) {
		if rows[line[1]] != "" {
			t.Errorf("%s has two rows", line[1])
		}
		rows[line[1]] = line[0]
	}
	for _, m := range all() {
		name := m.PrometheusName()
		if rest, ok := strings.CutPrefix(rows[name], row(m)); !ok || len(strings.Trim(rest, " |")) < 10 {
			t.Errorf("the row of %s is %q, want %q and what it tells", name, rows[name], row(m))
		}
		delete(rows, name)
	}
	for name := range rows {
		t.Errorf("%s has a row and does not exist", name)
	}
	// what the text names exists, too
	known := map[string]bool{}
	for _, m := range all() {
		known[m.PrometheusName()], known[m.Name] = true, true
	}
	for _, m := range regexp.MustCompile(`\bonefill[._][a-z][a-z_.]*[a-z]\b`).FindAllString(string(page), -1) {
		base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(m, "")
		if !known[base] && !known[m] && !attributes[m] {
			t.Errorf("the page names %s, which does not exist", m)
		}
	}
}

// attributes are names of the page that are no metrics.
var attributes = map[string]bool{"onefill.cache": true, "onefill.queue": true, "onefill.kind": true, "onefill.outcome": true, "onefill.json": true, "onefill_cache": true, "onefill_outcome": true}

// The page says where each histogram's buckets lie.
func TestPageListsBuckets(t *testing.T) {
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all() {
		if m.Kind != metrics.Histogram {
			continue
		}
		var bounds []string
		for _, b := range m.Bounds {
			bounds = append(bounds, strconv.FormatFloat(b, 'f', -1, 64))
		}
		if list := strings.Join(bounds, ", "); !strings.Contains(string(page), list) {
			t.Errorf("%s: the buckets %s are not on the page", m.Name, list)
		}
	}
}
