package report

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/onefill/onefill/bench/peers"
)

// machine describes it as far as it matters.
func machine() string {
	s := fmt.Sprintf("%d CPUs", runtime.NumCPU())
	if model := field("/proc/cpuinfo", "model name"); model != "" {
		s += " (" + model + ")"
	}
	if memory := field("/proc/meminfo", "MemTotal"); memory != "" {
		var kb int64
		if _, err := fmt.Sscan(memory, &kb); err == nil {
			s += fmt.Sprintf(", %d GB", (kb+1<<19)>>20)
		}
	}
	return fmt.Sprintf("%s, %s/%s, %s", s, runtime.GOOS, runtime.GOARCH, runtime.Version())
}

// field reads the first "name : value" of a file, "" where there is none.
func field(file, name string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return "" // not a Linux
	}
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// modules are the paths of what was measured.
func modules() []string {
	out := []string{"github.com/riverqueue/river", "github.com/jackc/pgx/v5"}
	for _, list := range [][]peers.Peer{peers.Store(), peers.Many(), peers.Herd(), peers.FleetPeers(), peers.Outage()} {
		for _, p := range list {
			out = append(out, p.Module)
		}
	}
	for _, p := range peers.Locals() {
		out = append(out, p.Module)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
