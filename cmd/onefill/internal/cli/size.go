package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/size"
	"github.com/spf13/cobra"
)

const sizeLong = `A trace is text, a request a line, in the order of the requests, gzip or not. The
line is the key, or --column or --match picks it. The answer is the least capacity
that reaches the target, for LRU and for W-TinyLFU, which is how onefill's local
cache evicts, and the miss ratios of both at other capacities.

With --size-column capacities are bytes, for Local.MaxBytes: an entry takes its
size, its key's length and --overhead, as the default of Options.Weigh counts. A
size of - is 0; of a key's sizes the largest counts.

LRU is exact. W-TinyLFU is the cache itself, run on the trace at each capacity;
two runs differ a little. Of a trace with more than --keep requests a share of the
keys is kept, and the output says which and how far off the ratios may be.

The trace says nothing about expiry and invalidation: whatever they take away must
be loaded again, and comes on top.

`

const sizeExitHelp = `Exit codes: 0 done, 1 not done, such as a plot that cannot be written, 2 bad input or a
target that cannot be reached, 130 interrupted.`

// sizeFlags are what the command line says.
type sizeFlags struct {
	trace, match, separator, svg string
	asJSON                       bool
	options                      size.Options
}

func newSize() *cobra.Command {
	var s sizeFlags
	cmd := &cobra.Command{
		Use:   "size",
		Short: "Says how large a cache must be for a hit rate, from a trace of keys",
		Long:  sizeLong + sizeExitHelp,
		Example: "  onefill size --trace keys.txt --target 0.95\n" +
			"  onefill size --trace trace.csv.gz --separator , --column 2 --size-column 4\n" +
			"  onefill size --trace access.log --match '\"GET ([^ ?]+)' --size-column 7 --svg curve.svg",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&s.trace, "trace", "", "file of the trace, or - for standard input")
	f.Float64Var(&s.options.Target, "target", 0.95, "hit rate to reach, above 0 and below 1")
	f.IntVar(&s.options.Format.Column, "column", 0, "column of the key, from 1 (default: the whole line is the key)")
	f.StringVar(&s.match, "match", "", "regular expression whose first group is the key, instead of --column; other lines are left out")
	f.IntVar(&s.options.Format.Size, "size-column", 0, "column of the size in bytes, from 1 (default: entries are counted)")
	f.IntVar(&s.options.Format.Overhead, "overhead", 256, "bytes that an entry takes besides size and key; 0: the size column says it all")
	f.StringVar(&s.separator, "separator", "", "character between columns, or tab; quotes as in CSV (default: blanks; quotes and brackets hold a column together, as in access logs)")
	f.IntVar(&s.options.Keep, "keep", size.DefaultKeep, "requests to keep in memory, up to 250 bytes each; of a longer trace keys are sampled")
	f.StringVar(&s.svg, "svg", "", "file for a plot of both curves")
	f.BoolVar(&s.asJSON, "json", false, asJSONUsage)
	return cmd
}

// leastKeep is the shortest sample from which errors can be told.
const leastKeep = 10_000

// parse completes the options.
func (s *sizeFlags) parse(cmd *cobra.Command) error {
	bad := func(format string, args ...any) error { return &exitError{exitInput, fmt.Errorf(format, args...)} }
	f := &s.options.Format
	switch {
	case s.trace == "":
		return bad("--trace: names no file; - is standard input")
	case f.Column < 0:
		return bad("--column: %d; columns count from 1", f.Column)
	case f.Size < 0:
		return bad("--size-column: %d; columns count from 1", f.Size)
	case f.Column > 0 && s.match != "":
		return bad("--match excludes --column: each says what the key is")
	case f.Size > 0 && f.Column == 0 && s.match == "":
		return bad("--size-column needs --column or --match, as the whole line would be the key, sizes and all")
	case f.Overhead < 0 || f.Overhead > 1<<20:
		return bad("--overhead: %d; allowed is 0 to %d", f.Overhead, 1<<20)
	case f.Size == 0 && cmd.Flags().Changed("overhead"):
		return bad("--overhead needs --size-column: without it entries are counted")
	case s.options.Keep < leastKeep || s.options.Keep > 1<<27:
		return bad("--keep: %d; allowed is %d to %d", s.options.Keep, leastKeep, 1<<27)
	}
	if s.match != "" {
		re, err := regexp.Compile(s.match)
		if err != nil {
			return bad("--match: %w", err)
		}
		f.Match = re
	}
	switch {
	case s.separator == "tab" || s.separator == `\t`:
		f.Separator = '\t'
	case len(s.separator) == 1 && s.separator != `"`:
		f.Separator = s.separator[0]
	case s.separator != "":
		return bad("--separator: %q; it is one ASCII character but a quote, or tab", s.separator)
	}
	return nil
}

func (s *sizeFlags) run(cmd *cobra.Command) error {
	if err := s.parse(cmd); err != nil {
		return err
	}
	in, length, err := s.open(cmd.InOrStdin())
	if err != nil {
		return &exitError{exitInput, fmt.Errorf("--trace: %w", err)}
	}
	defer in.Close()
	bar := newProgress(cmd.ErrOrStderr())
	s.options.Progress = sizeProgress(bar, length)
	res, err := size.Run(cmd.Context(), in, s.options)
	bar.done()
	var input *size.InputError
	if errors.As(err, &input) {
		return &exitError{exitInput, err}
	}
	if err != nil {
		return err
	}
	return s.print(cmd, res)
}

// open returns the trace and its length, 0 if that is not known.
func (s *sizeFlags) open(stdin io.Reader) (io.ReadCloser, int64, error) {
	s.options.Name = s.trace
	if s.trace == "-" {
		s.options.Name = "standard input"
		return io.NopCloser(stdin), 0, nil
	}
	file, err := os.Open(s.trace)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a directory", s.trace)
	}
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	return file, info.Size(), nil
}

// sizeProgress shows what goes on, a few times a second.
func sizeProgress(bar *progress, length int64) func(size.Progress) {
	last := time.Time{}
	return func(p size.Progress) {
		if time.Since(last) < 100*time.Millisecond {
			return
		}
		last = time.Now()
		text := p.Stage
		switch {
		case p.Of > 0:
			text += fmt.Sprintf(" %d/%d", p.Done, p.Of)
		case p.Stage == "reading" && length > 0:
			text += fmt.Sprintf(" %d %%", p.Done*100/length)
		case p.Stage == "reading":
			text += fmt.Sprintf(" %d MB", p.Done/1_000_000)
		}
		bar.tick(text)
	}
}

func (s *sizeFlags) print(cmd *cobra.Command, res *size.Result) error {
	stdout := cmd.OutOrStdout()
	if s.asJSON {
		if err := printJSON(stdout, res); err != nil {
			return err
		}
	} else {
		res.Table(stdout)
	}
	if s.svg == "" {
		return nil
	}
	if err := os.WriteFile(s.svg, []byte(res.Plot()), 0o666); err != nil {
		return fmt.Errorf("--svg: %w", err)
	}
	where := cmd.ErrOrStderr()
	if !s.asJSON {
		where = stdout
	}
	fmt.Fprintf(where, "plot %s\n", s.svg)
	return nil
}
