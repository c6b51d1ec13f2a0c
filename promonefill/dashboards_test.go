package promonefill_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/onefill/onefill/promonefill"
	"github.com/prometheus/client_golang/prometheus"
)

// exported are the labels of every metric that the collectors export, by name; of histograms
// also under the names of their parts. Prometheus itself adds instance and job.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	m, q := newCollector(t), newQueues(t, promonefill.QueueOptions{})
	check(t, m.Add("users", &fixed{}))
	showQueue(t, q)
	labels := map[string][]string{}
	r := prometheus.NewPedanticRegistry()
	check(t, r.Register(m))
	check(t, r.Register(q))
	families, err := r.Gather()
	check(t, err)
	for _, f := range families {
		own := []string{"instance", "job"}
		for _, l := range f.GetMetric()[0].GetLabel() {
			own = append(own, l.GetName())
		}
		labels[f.GetName()] = own
		if f.GetMetric()[0].GetHistogram() != nil {
			delete(labels, f.GetName())
			labels[f.GetName()+"_bucket"] = append(own[:len(own):len(own)], "le")
			labels[f.GetName()+"_sum"], labels[f.GetName()+"_count"] = own, own
		}
	}
	return labels
}

// dashboard is what this test reads of onefill.json.
type dashboard struct {
	Panels []struct {
		ID      int
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr string }
	}
	Templating struct {
		List []struct{ Name, Definition string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	data, err := os.ReadFile("dashboards/onefill.json")
	check(t, err)
	check(t, json.Unmarshal(data, &d))
	return d
}

// expressions are those of the dashboard, with Grafana's variables filled in.
func (d dashboard) expressions() (all []string) {
	variables := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$cache", ".*", "$queue", ".*")
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, variables.Replace(target.Expr))
		}
	}
	return all
}

var (
	metricName = regexp.MustCompile(`\bonefill_[a-z_]+`)
	labelName  = regexp.MustCompile(`(?:[{,]\s*)([a-z_]+)\s*(?:=~|!~|!=|=)`)
	grouping   = regexp.MustCompile(`\bby \(([a-z_, ]+)\)`)
)

// checkExpression says that each metric is exported, and each label one of a metric's beside it.
func checkExpression(labels map[string][]string, expr string) (wrong []string) {
	names := metricName.FindAllString(expr, -1)
	if len(names) == 0 {
		wrong = append(wrong, "it names no metric")
	}
	known := []string{}
	for _, name := range names {
		own, ok := labels[name]
		if !ok {
			wrong = append(wrong, name+" is not exported")
		}
		known = append(known, own...)
	}
	used := []string{}
	for _, l := range labelName.FindAllStringSubmatch(expr, -1) {
		used = append(used, l[1])
	}
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		used = append(used, strings.Split(g[1], ", ")...)
	}
	for _, g := range grouping.FindAllString(expr, -1) {
		if !strings.Contains(g, "job") {
			wrong = append(wrong, g+": services may have caches of one name, job tells them apart")
		}
	}
	for _, l := range used {
		if !slices.Contains(known, l) {
			wrong = append(wrong, "no metric in it has the label "+l)
		}
	}
	return wrong
}

func TestDashboardNamesMetricsThatExist(t *testing.T) {
	labels, d := exported(t), readDashboard(t)
	for _, expr := range d.expressions() {
		for _, wrong := range checkExpression(labels, expr) {
			t.Errorf("%s: %s", expr, wrong)
		}
	}
	for _, v := range d.Templating.List {
		if v.Name == "datasource" {
			continue
		}
		metrics, label := variable(v.Definition)
		if len(metrics) == 0 {
			t.Errorf("the variable %s: %s", v.Name, v.Definition)
		}
		for _, metric := range metrics {
			if !slices.Contains(labels[metric], label) {
				t.Errorf("the variable %s: %s has no label %s", v.Name, metric, label)
			}
		}
	}
	// and the other way round: nothing is exported that it does not show
	shown := strings.Join(d.expressions(), "\n")
	for name := range labels {
		base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if !strings.Contains(shown, base) {
			t.Errorf("%s is not on the dashboard", base)
		}
	}
}

var (
	labelValues = regexp.MustCompile(`^label_values\((onefill_\w+)(?:\{job=~"\$job"\})?, (\w+)\)$`)
	// Processes may have caches only, or queues only: the jobs are those that have either.
	anyOfTwo = regexp.MustCompile(`^label_values\(\{__name__=~"onefill_\((\w+)\|(\w+)\)_total"\}, (\w+)\)$`)
)

// variable is what the definition of a variable of the dashboard reads: the label of a metric, or of two.
func variable(definition string) (metrics []string, label string) {
	if m := labelValues.FindStringSubmatch(definition); m != nil {
		return m[1:2], m[2]
	}
	if m := anyOfTwo.FindStringSubmatch(definition); m != nil {
		return []string{"onefill_" + m[1] + "_total", "onefill_" + m[2] + "_total"}, m[3]
	}
	return nil, ""
}

// Panels have an id of their own each, and a place where no other is.
func TestDashboardLayout(t *testing.T) {
	ids, places := map[int]bool{}, map[[2]int]string{}
	for _, p := range readDashboard(t).Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		at := p.GridPos
		if at.X < 0 || at.X+at.W > 24 || at.W < 1 || at.H < 1 {
			t.Errorf("%s is at %+v, the grid is 24 wide", p.Title, at)
		}
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				if other := places[[2]int{x, y}]; other != "" {
					t.Fatalf("%q lies over %q", p.Title, other)
				}
				places[[2]int{x, y}] = p.Title
			}
		}
	}
}

// expr is an expression of the rules, on its line or in the block that follows.
var expr = regexp.MustCompile(`(?m)^        expr: (?:\|\n((?:          .*\n)+)|(.*)\n)`)

func TestAlertsNameMetricsThatExist(t *testing.T) {
	text, err := os.ReadFile("dashboards/alerts.yml")
	check(t, err)
	labels := exported(t)
	found := expr.FindAllStringSubmatch(string(text), -1)
	if alerts := strings.Count(string(text), "- alert: "); alerts == 0 || len(found) != alerts {
		t.Fatalf("%d expressions of %d alerts were found", len(found), alerts)
	}
	for _, e := range found {
		for _, wrong := range checkExpression(labels, e[1]+e[2]) {
			t.Errorf("%s: %s", strings.TrimSpace(e[1]+e[2]), wrong)
		}
	}
}

// The check finds what it is there to find.
func TestCheckExpression(t *testing.T) {
	labels := exported(t)
	for expr, want := range map[string]string{
		`sum by (job, cache) (rate(onefill_loads_total{cache=~".*"}[5m]))`: "",
		`sum by (cache) (onefill_loads_total)`:                             "by (cache): services may have caches of one name, job tells them apart",
		`rate(onefill_load_total[5m])`:                                     "onefill_load_total is not exported",
		`onefill_loads_total{key="ada"}`:                                   "no metric in it has the label key",
		`sum by (job, cache, outcome) (onefill_loads_total)`:               "no metric in it has the label outcome",
		`onefill_miss_loads`:                                               "onefill_miss_loads is not exported", // its parts are
		`vector(1)`:                                                        "it names no metric",
	} {
		if got := strings.Join(checkExpression(labels, expr), "; "); got != want {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}

// promtool runs it, in a directory with the files of dashboards.
func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("SKIPPED: promtool is not installed, so nobody has looked whether Prometheus takes the rules; on Debian and Ubuntu it is in the package prometheus")
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %v\n%s", cmd, err, out)
	}
}

// Prometheus's own tool takes the rules, and each alert fires where it should and nowhere else.
func TestAlertRules(t *testing.T) {
	promtool(t, "dashboards", "check", "rules", "alerts.yml")
	promtool(t, "dashboards", "test", "rules", "alerts_test.yml")

	rules, err := os.ReadFile("dashboards/alerts.yml")
	check(t, err)
	tests, err := os.ReadFile("dashboards/alerts_test.yml")
	check(t, err)
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1) {
		fires := regexp.MustCompile(`alertname: ` + m[1] + `\n\s+exp_alerts:\n`).Match(tests)
		rests := regexp.MustCompile(`alertname: ` + m[1] + `, exp_alerts: \[\]`).Match(tests)
		if !fires || !rests {
			t.Errorf("%s: there is a test in which it fires: %t, and one in which it does not: %t", m[1], fires, rests)
		}
	}
}

// The dashboard's expressions are valid, too: promtool reads them as the rules of recordings.
func TestDashboardExpressions(t *testing.T) {
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for i, e := range readDashboard(t).expressions() {
		quoted, err := json.Marshal(e) // JSON is YAML
		check(t, err)
		fmt.Fprintf(&rules, "  - record: panel:%d\n    expr: %s\n", i, quoted)
	}
	dir := t.TempDir()
	check(t, os.WriteFile(filepath.Join(dir, "dashboard.yml"), []byte(rules.String()), 0o600))
	promtool(t, dir, "check", "rules", "dashboard.yml")
}
