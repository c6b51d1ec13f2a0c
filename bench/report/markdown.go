package report

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/onefill/onefill/bench/measure"
)

// Run is what a report is made of.
type Run struct {
	Command string
	When    time.Time
	Sizes   measure.Sizes
	Servers map[string]string
	Results []*measure.Result
}

// Write writes dir/benchmarks.md and its pictures in dir/images.
func (r *Run) Write(dir string) error {
	images := filepath.Join(dir, "images")
	if err := os.MkdirAll(images, 0o755); err != nil {
		return err
	}
	for _, result := range r.Results {
		for _, p := range result.Measure.Plots {
			svg, ok := draw(result, p)
			if !ok {
				continue
			}
			if err := os.WriteFile(filepath.Join(images, p.File+".svg"), []byte(svg), 0o644); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(dir, "benchmarks.md"), []byte(r.markdown()), 0o644)
}

func (r *Run) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Benchmarks

<!-- Written by %s; what is changed by hand is lost. -->

onefill beside every library that does a part of the same, and beside the clients alone, measured in one run on
one machine by `+"`%s`"+`, %s.

- **Machine:** %s.
- **Servers:** %s, on loopback, started for the run.
- **How:** all peers of a measure take turns, A, B, C, then B, C, A, so that a machine that gets slower does so
  for all; %d rounds unless a measure says otherwise. A cell is the median, ± the largest distance from it. A ratio (in brackets) is
  the median of the rounds' ratios to the anchor in the same round. Only ratios mean anything on another machine.
- **Guarantees:** "one load in" says who shares the load of an absent key; "fenced" that a load which has lost its
  lease, or was overtaken by an invalidation, is not written to the shared cache. Where a peer promises
  less, its numbers are those of less work.

`, r.Command, r.Command, r.When.UTC().Format("2 January 2006"), machine(), r.servers(), r.Sizes.Rounds)
	r.targets(&b)
	for _, result := range r.Results {
		section(&b, result)
	}
	r.versions(&b)
	return b.String()
}

func (r *Run) servers() string {
	var parts []string
	for name, version := range r.Servers {
		parts = append(parts, name+" "+version)
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// targets is the table of what is to be reached.
func (r *Run) targets(b *strings.Builder) {
	b.WriteString("## Targets\n\n| measure | result | |\n|---|---|---|\n")
	for _, result := range r.Results {
		for _, v := range result.Judge() {
			verdict := met(v)
			if verdict == "MISSED" {
				verdict = "**missed**"
			}
			fmt.Fprintf(b, "| %s | %s | %s |\n", result.Measure.Title, describe(result, v), verdict)
		}
	}
	b.WriteString("\nWhy some are missed, what was tried, and where the floor is: [decision 13](decisions/0013-what-a-hit-and-a-wait-cost.md).\n\n")
}

func section(b *strings.Builder, r *measure.Result) {
	m := r.Measure
	fmt.Fprintf(b, "## %s\n\n%s\n\n", m.Title, m.About)
	if m.Anchor != "" {
		fmt.Fprintf(b, "Ratios are to %s", m.Anchor)
		if m.AnchorMemcached != "" {
			fmt.Fprintf(b, ", on memcached to %s", m.AnchorMemcached)
		}
		b.WriteString(".\n\n")
	}
	rows := table(r)
	for i, row := range rows {
		if i > 0 && strings.HasPrefix(row[0], "onefill") || row[0] == "pgqueue" {
			row[0] = "**" + row[0] + "**"
		}
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString("|---" + strings.Repeat("|---:", len(row)-1) + "|\n")
		}
	}
	b.WriteByte('\n')
	for _, p := range m.Plots {
		if _, ok := draw(r, p); ok {
			fmt.Fprintf(b, "![%s](images/%s.svg)\n\n", p.Title, p.File)
		}
	}
	notes(b, r)
}

// notes say how peers were configured, and what failed.
func notes(b *strings.Builder, r *measure.Result) {
	var lines []string
	for _, l := range r.Rows {
		how := l.Row.How
		if l.Row.Peer != nil {
			how = l.Row.Peer.How
		}
		if how != "" {
			lines = append(lines, fmt.Sprintf("%s: %s", l.Row.Name, how))
		}
		if l.Err != nil {
			lines = append(lines, fmt.Sprintf("%s failed in a round: %v", l.Row.Name, l.Err))
		}
	}
	if len(lines) > 0 {
		fmt.Fprintf(b, "Configuration. %s.\n\n", strings.Join(lines, ". "))
	}
}

// versions are those of what was measured, from the program itself.
func (r *Run) versions(b *strings.Builder) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return
	}
	used := map[string]bool{}
	for _, m := range modules() {
		used[m] = true
	}
	b.WriteString("## Versions\n\n| module | version |\n|---|---|\n")
	fmt.Fprintf(b, "| Go | %s |\n", strings.TrimPrefix(runtime.Version(), "go"))
	for _, d := range info.Deps {
		if used[d.Path] {
			fmt.Fprintf(b, "| %s | %s |\n", d.Path, d.Version)
		}
	}
}
