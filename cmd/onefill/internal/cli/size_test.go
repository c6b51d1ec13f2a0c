package cli

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// sizeTrace is an access log: a loop over 8 pages, with one page in between that is
// asked for each time; among it lines that are no GET.
func sizeTrace() string {
	var b strings.Builder
	line := func(request string, size any) {
		fmt.Fprintf(&b, "10.0.0.1 - - [10/Oct/2025:13:55:36 +0000] %q 200 %v \"-\" \"agent\"\n", request, size)
	}
	for range 25 {
		for page := range 8 {
			line(fmt.Sprintf("GET /page/%d?x=1 HTTP/1.1", page), 1000*(page+1))
			line("GET /home HTTP/1.1", 500)
		}
		line("POST /page/1 HTTP/1.1", "-")
	}
	return b.String()
}

func traceFile(t *testing.T, name, text string) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return name
}

const sizeGolden = `TRACE: 400 requests for 9 keys
left out: 25 lines without a key
best possible: 97.75 % hits, since the first request of each key cannot be one

    capacity  misses
     entries        LRU  W-TinyLFU
           1   100.00 %          ~
           2    50.25 %          ~
           3    50.25 %          ~
           4    50.25 %          ~
           5    50.25 %          ~
           6    50.25 %          ~
           7    50.25 %          ~
           8    50.25 %          ~
           9     2.25 %          ~

for 95.00 % hits
  LRU        9 entries; 97.75 % hits when run
  W-TinyLFU  9 entries; 97.75 % hits when run

onefill evicts by W-TinyLFU: LocalOptions{MaxEntries: 9}
plot PLOT
`

// wtinylfuColumn holds figures that differ from run to run.
var wtinylfuColumn = regexp.MustCompile(`(?m)^( +[0-9,]+ +[0-9.]+ %) +[0-9.]+ %$`)

// stages begin the lines that say how far the work is, which come where it takes seconds.
var stages = regexp.MustCompile(`(?m)^(reading|LRU|W-TinyLFU).*\n`)

// notProgress is what else standard error says.
func notProgress(stderr string) string { return stages.ReplaceAllString(stderr, "") }

// TestSizeOfLog is the golden test: LRU's figures can be worked out by hand.
func TestSizeOfLog(t *testing.T) {
	file := traceFile(t, "access.log", sizeTrace())
	plot := filepath.Join(t.TempDir(), "plot.svg")
	code, stdout, stderr := run(t, "size", "--trace", file, "--match", `"GET ([^ ?]+)`, "--svg", plot)
	if code != exitOK || notProgress(stderr) != "" {
		t.Fatalf("exit code %d, stderr %q", code, stderr)
	}
	got := wtinylfuColumn.ReplaceAllString(stdout, "$1          ~")
	got = strings.NewReplacer(file, "TRACE", plot, "PLOT").Replace(got)
	if want := sizeGolden; got != want {
		t.Errorf("the output is\n%s\nwant\n%s", got, want)
	}
	svg, err := os.ReadFile(plot)
	if err != nil || !bytes.HasPrefix(svg, []byte("<svg ")) {
		t.Errorf("the plot: %v, %.20s", err, svg)
	}
}

// sizeResult is what a user of --json relies on.
type sizeResult struct {
	Trace          string  `json:"trace"`
	Requests       int     `json:"requests"`
	LeftOut        int     `json:"lines_left_out"`
	Keys           int     `json:"keys"`
	Unit           string  `json:"unit"`
	Everything     int     `json:"everything"`
	OneKeyIn       int     `json:"one_key_in"`
	SampleRequests int     `json:"sample_requests"`
	Best           float64 `json:"best_hit_rate"`
	Target         float64 `json:"target"`
	LRU            sizePolicy
	WTinyLFU       sizePolicy `json:"w_tinylfu"`
}

type sizePolicy struct {
	Capacity int     `json:"capacity"`
	HitRate  float64 `json:"hit_rate"`
	Error    float64 `json:"error"`
	Low      int     `json:"capacity_low"`
	High     int     `json:"capacity_high"`
	Curve    []struct {
		Capacity  int     `json:"capacity"`
		MissRatio float64 `json:"miss_ratio"`
	} `json:"curve"`
}

func sizeJSON(t *testing.T, stdin io.Reader, args ...string) sizeResult {
	t.Helper()
	var out, errs bytes.Buffer
	if code := Run(t.Context(), append([]string{"size", "--json"}, args...), stdin, &out, &errs); code != exitOK || notProgress(errs.String()) != "" {
		t.Fatalf("exit code %d, stderr %q", code, errs.String())
	}
	var res sizeResult
	d := json.NewDecoder(&out)
	if err := d.Decode(&res); err != nil || d.More() {
		t.Fatalf("the output is not one JSON object: %v", err)
	}
	return res
}

// TestSizeInBytes reads a compressed log from standard input. An entry takes its size,
// its key's 7 bytes (/home: 5) and 256.
func TestSizeInBytes(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	io.WriteString(z, sizeTrace())
	z.Close()
	args := []string{"--trace", "-", "--match", `"GET ([^ ?]+)`, "--size-column", "7"}
	const all = 36_000 + 8*(7+256) + 500 + 5 + 256
	got := sizeJSON(t, bytes.NewReader(zipped.Bytes()), args...)
	if got.Trace != "standard input" || got.Unit != "bytes" || got.Everything != all || got.Requests != 400 || got.LeftOut != 25 || got.Keys != 9 || got.OneKeyIn != 1 || got.Target != 0.95 || got.Best != 0.9775 {
		t.Errorf("%+v", got)
	}
	// A page comes again when all others have come: LRU has all of them or none.
	if got.LRU.Capacity != all || got.LRU.HitRate != 0.9775 || got.LRU.Error != 0 {
		t.Errorf("LRU: %+v", got.LRU)
	}
	if w := got.WTinyLFU; w.Capacity > all || w.HitRate < 0.95 || len(w.Curve) != len(got.LRU.Curve) || w.Curve[0].Capacity < 1 {
		t.Errorf("W-TinyLFU: %+v", w)
	}
	if got := sizeJSON(t, bytes.NewReader(zipped.Bytes()), append(args, "--overhead", "0")...); got.Everything != 36_500 {
		t.Errorf("without overhead: %d bytes", got.Everything)
	}
}

// TestSizeOfLongTrace: of more than --keep requests a share of the keys is kept, and the
// output states the errors.
func TestSizeOfLongTrace(t *testing.T) {
	var b strings.Builder
	for i := range 60_000 { // the first half of the keys again and again, the others twice
		fmt.Fprintln(&b, i%15_000)
		fmt.Fprintln(&b, "once in a while", i/2)
	}
	file := traceFile(t, "keys", b.String())
	args := []string{"--trace", file, "--target", "0.6", "--keep", "20000"}
	got := sizeJSON(t, nil, args...)
	if got.OneKeyIn < 4 || got.SampleRequests > 20_000 || got.Requests != 120_000 || got.Keys < 43_000 || got.Keys > 47_000 {
		t.Errorf("%+v", got)
	}
	// A key of the first half comes again after 15,000 others and half as many of the second.
	if l := got.LRU; l.Capacity < 21_000 || l.Capacity > 24_000 || l.Error <= 0 || l.Low > l.Capacity || l.High < l.Capacity {
		t.Errorf("LRU: %+v", l)
	}
	if w := got.WTinyLFU; w.Capacity < 9_000 || w.Capacity > 24_000 || w.Error <= 0 {
		t.Errorf("W-TinyLFU: %+v", w)
	}
	code, stdout, stderr := run(t, append([]string{"size"}, args...)...)
	if code != exitOK || notProgress(stderr) != "" || !strings.Contains(stdout, fmt.Sprintf("sampled: 1 key in %d", got.OneKeyIn)) || !strings.Contains(stdout, "±") || !strings.Contains(stdout, "about ") {
		t.Errorf("exit code %d, stderr %q, output\n%s", code, stderr, stdout)
	}
}

// TestSizeOfTabs: columns between tabs may hold blanks.
func TestSizeOfTabs(t *testing.T) {
	for _, tab := range []string{"tab", `\t`} {
		got := sizeJSON(t, strings.NewReader("1\ta b\n2\ta c\n3\ta b\n"), "--trace", "-", "--column", "2", "--separator", tab, "--target", "0.3")
		if got.Requests != 3 || got.Keys != 2 {
			t.Errorf("--separator %s: %+v", tab, got)
		}
	}
}

// TestSizeBadInput: exit code 2, a message that says where, nothing on standard output.
func TestSizeBadInput(t *testing.T) {
	log := traceFile(t, "access.log", sizeTrace())
	short := traceFile(t, "short", "a 1\nb\n")
	text := traceFile(t, "text", "a 1\nb x\n")
	for _, tt := range []struct {
		args []string
		says string
	}{
		{nil, "--trace: names no file"},
		{[]string{"--trace", "/nowhere"}, "--trace: open /nowhere"},
		{[]string{"--trace", t.TempDir()}, "is a directory"},
		{[]string{"--trace", "-"}, "standard input: the trace is empty"},
		{[]string{"--trace", log, "--target", "95"}, "--target: 95"},
		{[]string{"--trace", log, "--target", "many"}, "--target"},
		{[]string{"--trace", log, "--match", "GET ([^ ]+)", "--target", "0.99"}, "99.00 % cannot be reached: the best hit rate that this trace allows is 97.75 %"},
		{[]string{"--trace", log, "--match", "NOTHING"}, "none of the 425 lines has a key"},
		{[]string{"--trace", log, "--match", "("}, "--match: error parsing regexp"},
		{[]string{"--trace", log, "--match", "x", "--column", "1"}, "--match excludes --column"},
		{[]string{"--trace", log, "--column", "-1"}, "--column: -1"},
		{[]string{"--trace", log, "--column", "1", "--size-column", "-1"}, "--size-column: -1"},
		{[]string{"--trace", log, "--size-column", "1"}, "--size-column needs --column or --match"},
		{[]string{"--trace", log, "--overhead", "1"}, "--overhead needs --size-column"},
		{[]string{"--trace", log, "--column", "1", "--size-column", "7", "--overhead", "-1"}, "--overhead: -1"},
		{[]string{"--trace", log, "--separator", "ab"}, `--separator: "ab"`},
		{[]string{"--trace", log, "--keep", "10"}, "--keep: 10; allowed is 10000 to"},
		{[]string{"--trace", log, "--column", "10"}, log + ":1: there is no column 10; the line has 9"},
		{[]string{"--trace", short, "--column", "2"}, short + ":2: there is no column 2; the line has 1"},
		{[]string{"--trace", text, "--column", "1", "--size-column", "2"}, text + `:2: column 2: "x" is no size in bytes`},
		{[]string{"--trace", log, "now"}, `unknown command "now"`},
	} {
		t.Run(tt.says, func(t *testing.T) {
			code, stdout, stderr := run(t, append([]string{"size"}, tt.args...)...)
			if code != exitInput || stdout != "" || !strings.Contains(stderr, tt.says) {
				t.Errorf("exit code %d, stdout %q, stderr %q; expected %d and %q", code, stdout, stderr, exitInput, tt.says)
			}
		})
	}
	code, _, stderr := run(t, "size", "--trace", log, "--column", "1", "--svg", "/nowhere/x.svg")
	if code != exitFailed || !strings.Contains(stderr, "--svg") {
		t.Errorf("a plot that cannot be written: exit code %d, %q", code, stderr)
	}
}

func TestSizeInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	code := Run(ctx, []string{"size", "--trace", "-"}, strings.NewReader(strings.Repeat("a\nb\n", 100_000)), &out, &errs)
	if code != exitInterrupted || out.Len() > 0 {
		t.Errorf("exit code %d, output %q, %q", code, out.String(), errs.String())
	}
}

func TestSizeHelp(t *testing.T) {
	code, stdout, _ := run(t, "size", "--help")
	if code != exitOK {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"Exit codes: 0 done", "target that cannot be reached", "--trace", "--target", "--size-column", "W-TinyLFU", "--keep", "standard input"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the help has no %q", want)
		}
	}
}
