// Command bench measures onefill beside every library that does a part of the same, in
// one run, and writes docs/benchmarks.md:
//
//	make bench                                       # everything
//	make bench-quick                                 # a look
//	cd bench && GOWORK=off go run . -only herd,many  # some measures, which write nothing
//
// It is a module of its own, outside of go.work, since some of what it compares with needs
// a newer Go. Servers are started for the run; nothing else should run meanwhile.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"

	"github.com/onefill/onefill/bench/measure"
	"github.com/onefill/onefill/bench/peers"
	"github.com/onefill/onefill/bench/report"
)

type flags struct {
	quick, tiny            bool
	only, peers, docs      string
	raw, traces, cmd       string
	cpuProfile, memProfile string
	rounds                 int
}

func main() {
	measure.Member()
	peers.Silence()
	var f flags
	flag.BoolVar(&f.quick, "quick", false, "measure less, in less than four minutes")
	flag.BoolVar(&f.tiny, "tiny", false, "measure nearly nothing, to see that everything runs")
	flag.StringVar(&f.only, "only", "", "measures, by name, with commas between; -only list lists them")
	flag.StringVar(&f.peers, "peers", "", "peers, by name or beginning of it, with ; between")
	flag.IntVar(&f.rounds, "rounds", 0, "rounds of each measure; 0 is 5, or 3 with -quick")
	flag.StringVar(&f.docs, "docs", "", "the folder in which to write benchmarks.md and its images")
	flag.StringVar(&f.raw, "raw", "", "a file for each round's numbers, as benchstat reads them")
	flag.StringVar(&f.traces, "traces", "", "a folder with *.keys files, a key a line: more access patterns for hit ratios")
	flag.StringVar(&f.cpuProfile, "cpuprofile", "", "a file for a CPU profile of the whole run")
	flag.StringVar(&f.memProfile, "memprofile", "", "a file for a profile of all allocations, which makes everything slower")
	flag.StringVar(&f.cmd, "command", "go run ./bench", "how the report says that it was made")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := f.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (f *flags) sizes() measure.Sizes {
	s := measure.Full()
	switch {
	case f.tiny:
		s = measure.Tiny()
	case f.quick:
		s = measure.Quick()
	}
	if f.rounds > 0 {
		s.Rounds = f.rounds
	}
	return s
}

// chosen are the measures that were asked for.
func (f *flags) chosen(s measure.Sizes) ([]*measure.Measure, error) {
	all := measure.All(s, f.traces)
	if f.only == "" {
		return all, nil
	}
	var out []*measure.Measure
	for name := range strings.SplitSeq(f.only, ",") {
		found := false
		for _, m := range all {
			if m.Name == name {
				out, found = append(out, m), true
			}
		}
		if !found {
			var names []string
			for _, m := range all {
				names = append(names, m.Name)
			}
			return nil, fmt.Errorf("no measure %q; there are %s", name, strings.Join(names, ", "))
		}
	}
	return out, nil
}

func (f *flags) wanted(peer string) bool {
	if f.peers == "" {
		return true
	}
	for name := range strings.SplitSeq(f.peers, ";") {
		if strings.HasPrefix(peer, name) {
			return true
		}
	}
	return false
}

func (f *flags) run(ctx context.Context) (err error) {
	sizes := f.sizes()
	measures, err := f.chosen(sizes)
	if err != nil {
		return err
	}
	end, err := f.startProfiles()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	env := &measure.Env{Size: sizes, Wanted: f.wanted, Log: os.Stderr}
	defer func() { err = errors.Join(err, env.Close()) }()
	r := &report.Run{Command: f.cmd, When: time.Now(), Sizes: sizes}
	for _, m := range measures {
		result, err := m.Run(ctx, env)
		if err != nil {
			return err
		}
		if err := report.Print(os.Stdout, result); err != nil {
			return err
		}
		r.Results = append(r.Results, result)
	}
	fmt.Printf("\n%d measures in %v\n", len(measures), time.Since(r.When).Round(time.Second))
	r.Servers = env.Versions()
	return errors.Join(f.save(r), failed(r))
}

func (f *flags) save(r *report.Run) error {
	if f.raw != "" {
		w, err := os.Create(f.raw)
		if err != nil {
			return err
		}
		for _, result := range r.Results {
			err = errors.Join(err, report.Raw(w, result))
		}
		if err := errors.Join(err, w.Close()); err != nil {
			return err
		}
	}
	if f.docs == "" {
		return nil
	}
	return r.Write(f.docs)
}

// failed names the rows of our own that could not be measured; what others do is a result.
func failed(r *report.Run) error {
	var errs []error
	for _, result := range r.Results {
		for _, l := range result.Rows {
			if l.Err != nil && (l.Row.Peer == nil || l.Row.Peer.Module == "") {
				errs = append(errs, fmt.Errorf("%s, %s: %w", result.Measure.Name, l.Row.Name, l.Err))
			}
		}
	}
	return errors.Join(errs...)
}

// startProfiles starts those that were asked for; end writes them.
func (f *flags) startProfiles() (end func() error, err error) {
	var ends []func() error
	end = func() error {
		var all error
		for _, e := range ends {
			all = errors.Join(all, e())
		}
		return all
	}
	if f.cpuProfile != "" {
		w, err := os.Create(f.cpuProfile)
		if err != nil {
			return nil, err
		}
		if err := pprof.StartCPUProfile(w); err != nil {
			return nil, errors.Join(err, w.Close())
		}
		ends = append(ends, func() error {
			pprof.StopCPUProfile()
			return w.Close()
		})
	}
	if f.memProfile != "" {
		w, err := os.Create(f.memProfile)
		if err != nil {
			return nil, errors.Join(err, end())
		}
		runtime.MemProfileRate = 1
		ends = append(ends, func() error { return errors.Join(pprof.Lookup("allocs").WriteTo(w, 0), w.Close()) })
	}
	return end, nil
}
