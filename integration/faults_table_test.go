package integration

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestFaults is the table of faults and guarantees: each cell is a test of its own, on
// a real Redis and on a real memcached. docs/faults.md shows it.
func TestFaults(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, on := range bothStores {
		for _, f := range faults() {
			t.Run(on+"/"+f.name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, on, 3, func(o *worldOptions) { o.StoreTimeout = f.timeout })
				// Redis knows every script from here on.
				key := w.origin.add(0)
				w.members[0].get(key)
				w.members[0].invalidated(t, key)
				for _, g := range guarantees {
					t.Run(fmt.Sprintf("G%d %s", g.number, g.name), func(t *testing.T) {
						if why := f.skips[g.number]; why != "" {
							t.Skip(why)
						}
						g.test(&cell{t: t, w: w, f: f, a: w.members[0], b: w.members[1], c: w.members[2]})
					})
				}
			})
		}
	}
}

// table is the table as docs/faults.md has it.
func table() string {
	var b strings.Builder
	b.WriteString("| fault |")
	for _, g := range guarantees {
		fmt.Fprintf(&b, " G%d |", g.number)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(guarantees)) + "\n")
	var reasons []string
	for _, f := range faults() {
		fmt.Fprintf(&b, "| %s |", f.name)
		for _, g := range guarantees {
			mark := f.demand(g.number)
			if why := f.skips[g.number]; why != "" {
				i := indexOrAppend(&reasons, why)
				mark = fmt.Sprintf("(%c)", 'a'+i)
			}
			fmt.Fprintf(&b, " %s |", mark)
		}
		b.WriteString("\n")
	}
	for i, why := range reasons {
		fmt.Fprintf(&b, "\n(%c) %s\n", 'a'+i, why)
	}
	b.WriteString("\n| fault | what happens |\n|---|---|\n")
	for _, f := range faults() {
		fmt.Fprintf(&b, "| %s | %s |\n", f.name, f.what)
	}
	b.WriteString("\n| guarantee | how it is tested under a fault |\n|---|---|\n")
	for _, g := range guarantees {
		fmt.Fprintf(&b, "| G%d %s | %s |\n", g.number, g.name, g.how)
	}
	return b.String()
}

// demand is what a cell says.
func (f *fault) demand(guarantee int) string {
	switch guarantee {
	case 1:
		each := map[int]string{1: "1 load", 2: "1 for each cache", 4: "2 for each cache"}
		redis, memc := each[f.loadsAtMost(onRedis)], each[f.loadsAtMost(onMemc)]
		if redis != memc {
			return redis + "; memcached: " + memc
		}
		return redis
	case 6:
		return fmt.Sprint(f.loadsAtOnce(worldOptions{MaxLoads: 8, MaxLoadsDegraded: 2}))
	}
	return "holds"
}

func indexOrAppend(list *[]string, s string) int {
	if i := slices.Index(*list, s); i >= 0 {
		return i
	}
	*list = append(*list, s)
	return len(*list) - 1
}

// The document shows the table as it is tested.
func TestFaultsDocument(t *testing.T) {
	const name = "../docs/faults.md"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), table()) {
		t.Errorf("%s does not hold this table:\n%s", name, table())
	}
}
