package size

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Table prints the result for a person.
func (r *Result) Table(w io.Writer) {
	about := ""
	if r.Sampled() {
		about = "about "
	}
	fmt.Fprintf(w, "%s: %s for %s%s", r.Trace, plural(r.Requests, "request"), about, plural(r.Keys, "key"))
	if r.Unit == "bytes" {
		fmt.Fprintf(w, " of %s%s bytes together", about, count(r.Everything))
	}
	fmt.Fprintln(w)
	if r.LeftOut > 0 {
		fmt.Fprintf(w, "left out: %s without a key\n", plural(r.LeftOut, "line"))
	}
	if r.Truncated {
		fmt.Fprintln(w, "not read to its end: too many requests for so few keys (--keep raises the bound)")
	}
	if r.Sampled() {
		fmt.Fprintf(w, "sampled: 1 key in %s, %s for %s; errors (±) hold in 95 of 100 samples\n",
			count(r.OneKeyIn), plural(r.SampleRequests, "request"), plural(r.SampleKeys, "key"))
	}
	fmt.Fprintf(w, "best possible: %s hits, since the first request of each key cannot be one\n\n", percent(r.BestHitRate))
	r.curves(w)
	r.answers(w)
}

// curves are the miss ratios of both policies at each capacity.
func (r *Result) curves(w io.Writer) {
	width := max(len(r.Unit), len(count(r.Everything)), 12)
	fmt.Fprintf(w, "%*s  misses\n%*s  %9s  %9s", width, "capacity", width, r.Unit, "LRU", "W-TinyLFU")
	if r.Sampled() {
		fmt.Fprintf(w, "  %8s", "±")
	}
	for i, p := range r.LRU.Curve {
		fmt.Fprintf(w, "\n%*s  %9s  %9s", width, count(p.Capacity), percent(p.MissRatio), percent(r.WTinyLFU.Curve[i].MissRatio))
		if r.Sampled() {
			fmt.Fprintf(w, "  %8s", percent(p.Error))
		}
	}
	fmt.Fprintln(w)
}

func (r *Result) answers(w io.Writer) {
	fmt.Fprintf(w, "\nfor %s hits\n", percent(r.Target))
	width := max(len(count(r.LRU.Capacity)), len(count(r.WTinyLFU.Capacity)))
	for _, a := range []struct {
		name string
		Policy
	}{{"LRU", r.LRU}, {"W-TinyLFU", r.WTinyLFU}} {
		fmt.Fprintf(w, "  %-9s  %*s %s", a.name, width, count(a.Capacity), r.Unit)
		if r.Unit == "bytes" {
			fmt.Fprintf(w, " (%s)", binary(a.Capacity))
		}
		fmt.Fprintf(w, "; %s hits when run", percent(a.HitRate))
		if r.Sampled() {
			fmt.Fprintf(w, " ±%s, so %s to %s", percent(a.Error), count(a.Low), count(a.High))
		}
		fmt.Fprintln(w)
	}
	if r.doubtful() {
		fmt.Fprintln(w, "  so few keys of the sample fit into it that this is a rough guess: raise --keep")
	}
	option := "MaxEntries"
	if r.Unit == "bytes" {
		option = "MaxBytes"
	}
	fmt.Fprintf(w, "\nonefill evicts by W-TinyLFU: LocalOptions{%s: %s}\n", option, strings.ReplaceAll(count(r.WTinyLFU.Capacity), ",", "_"))
}

// doubtful says that the caches of the sample are so small that they are not like
// large ones made small. Their spread does not show that.
func (r *Result) doubtful() bool {
	const least = 100 // entries
	fit := float64(r.WTinyLFU.Capacity) / float64(r.Everything) * float64(r.SampleKeys)
	return r.Sampled() && fit < least
}

func plural(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return count(n) + " " + what + "s"
}

// count groups digits.
func count[N int64 | uint64](n N) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// percent has two places, and more where that would round a target up: 99.999 %
// is not 100 %.
func percent(share float64) string {
	text := strconv.FormatFloat(share*100, 'f', 2, 64)
	if text == "100.00" && share < 1 {
		text = strings.TrimRight(strconv.FormatFloat(share*100, 'f', 6, 64), "0")
	}
	return text + " %"
}

// binary is a number of bytes in the largest unit that leaves a digit before the point.
func binary(n uint64) string {
	value, unit := float64(n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, u
	}
	return fmt.Sprintf("%.4g %s", value, unit)
}
