package size

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func traceText(requests, keys int) string {
	var b strings.Builder
	n := 0
	zipf(requests, keys, "", func(key string) {
		fmt.Fprintf(&b, "%s %d\n", key, 10+hashKey([]byte(key))%1000)
		n++
	})
	return b.String()
}

// The answers hold in caches that know nothing of curves: an LRU cache of the capacity
// that was found reaches the target, one smaller does not; W-TinyLFU reaches it too.
func TestAnswersHold(t *testing.T) {
	text := traceText(10_000, 3000)
	for _, unit := range []string{"entries", "bytes"} {
		format := Format{Column: 1}
		if unit == "bytes" {
			format.Size = 2
		}
		res, err := Run(t.Context(), strings.NewReader(text), Options{Name: "t", Format: format, Target: 0.7})
		if err != nil {
			t.Fatal(err)
		}
		s := newSampler(100_000, unit == "bytes")
		if _, err := readInto(t, text, format, s); err != nil {
			t.Fatal(err)
		}
		tr := s.done()
		hits := func(misses int) float64 { return 1 - float64(misses)/float64(len(tr.refs)) }
		if got := hits(runLRU(tr, res.LRU.Capacity)); got < 0.7 || math.Abs(got-res.LRU.HitRate) > 1e-9 {
			t.Errorf("%s: LRU of %d hits %v, said %v", unit, res.LRU.Capacity, got, res.LRU.HitRate)
		}
		if got := hits(runLRU(tr, res.LRU.Capacity-1)); got >= 0.7 {
			t.Errorf("%s: LRU of one less than %d hits %v", unit, res.LRU.Capacity, got)
		}
		if got := hits(medianMisses(t, tr, res.WTinyLFU.Capacity)); got < 0.69 || res.WTinyLFU.HitRate < 0.7 {
			t.Errorf("%s: W-TinyLFU of %d hits %v, said %v", unit, res.WTinyLFU.Capacity, got, res.WTinyLFU.HitRate)
		}
		if res.WTinyLFU.Capacity >= res.LRU.Capacity || res.Unit != unit || res.Sampled() || res.Requests != 10_000 || res.Everything != tr.everything() || res.Keys != int64(len(tr.hashes)) {
			t.Errorf("%s: %+v", unit, res)
		}
		for i, p := range res.WTinyLFU.Curve {
			if l := res.LRU.Curve[i]; p.Capacity != l.Capacity || math.Abs(l.MissRatio-(1-hits(runLRU(tr, l.Capacity)))) > 1e-9 {
				t.Errorf("%s: the curves at %d", unit, p.Capacity)
			}
		}
		if last := res.WTinyLFU.Curve[len(res.WTinyLFU.Curve)-1]; math.Abs(last.MissRatio-(1-res.BestHitRate)) > 1e-9 || last.Capacity != res.Everything {
			t.Errorf("%s: W-TinyLFU that holds everything: %+v, best %v", unit, last, res.BestHitRate)
		}
	}
}

func readInto(t *testing.T, text string, f Format, s *sampler) (lines, error) {
	t.Helper()
	in := lines{name: "t", format: f}
	return in, in.each(t.Context(), strings.NewReader(text), s.add, func(int64) {})
}

// A sample's answers are those of the whole trace, within what is stated.
func TestSampledAnswers(t *testing.T) {
	const leastKept = 10_000
	var b strings.Builder
	for r := rand.New(rand.NewPCG(3, 4)); b.Len() < 120_000; { // about 25,000 requests
		fmt.Fprintln(&b, min(r.IntN(10_000), r.IntN(10_000)))
	}
	text := b.String()
	run := func(keep int) *Result {
		res, err := Run(t.Context(), strings.NewReader(text), Options{Format: Format{Column: 1}, Target: 0.6, Keep: keep})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	whole, sample := run(0), run(leastKept)
	if whole.Sampled() || !sample.Sampled() || sample.SampleRequests > leastKept || sample.Requests != whole.Requests {
		t.Fatalf("1 key in %d and 1 in %d, %d requests", whole.OneKeyIn, sample.OneKeyIn, sample.SampleRequests)
	}
	if off := math.Abs(float64(sample.Keys)/float64(whole.Keys) - 1); off > 0.1 {
		t.Errorf("about %d keys of %d", sample.Keys, whole.Keys)
	}
	for _, p := range []struct {
		name          string
		whole, sample Policy
	}{{"LRU", whole.LRU, sample.LRU}, {"W-TinyLFU", whole.WTinyLFU, sample.WTinyLFU}} {
		t.Logf("%s: %d; 1 key in %d: %d (%d to %d), ±%.4f", p.name, p.whole.Capacity, sample.OneKeyIn, p.sample.Capacity, p.sample.Low, p.sample.High, p.sample.Error)
		if p.sample.Error <= 0 || p.sample.Error > 0.1 || p.whole.Error != 0 || p.sample.Low > p.sample.Capacity || p.sample.High < p.sample.Capacity {
			t.Errorf("%s: bounds or error", p.name)
		}
		// Runs of W-TinyLFU differ by some per cent of the capacity on top.
		if c := float64(p.whole.Capacity); c < float64(p.sample.Low)*0.93 || c > float64(p.sample.High)*1.07 {
			t.Errorf("%s: %d, and the sample says %d to %d", p.name, p.whole.Capacity, p.sample.Low, p.sample.High)
		}
	}
}

// The first request of each key cannot hit: what is more than the rest is refused, with
// the number; the rest itself is reached, by a cache for everything if need be.
func TestBestHitRate(t *testing.T) {
	text := strings.Repeat("a\nb\nc\nd\n", 5) // 20 requests, 4 keys
	run := func(target float64) (*Result, error) {
		return Run(t.Context(), strings.NewReader(text), Options{Name: "t", Target: target})
	}
	_, err := run(0.81)
	var input *InputError
	if !errors.As(err, &input) || !strings.Contains(err.Error(), "81.00 % cannot be reached") || !strings.Contains(err.Error(), "80.00 %") || !strings.Contains(err.Error(), "4 keys") {
		t.Errorf("error %v", err)
	}
	res, err := run(0.8)
	if err != nil {
		t.Fatal(err)
	}
	if res.BestHitRate != 0.8 || res.LRU.Capacity != 4 || res.WTinyLFU.Capacity != 4 || res.LRU.HitRate != 0.8 || res.WTinyLFU.HitRate != 0.8 {
		t.Errorf("%+v", res)
	}
	for _, target := range []float64{0, 1, -1, 95, math.NaN(), math.Inf(1)} {
		if _, err := run(target); !errors.As(err, &input) || !strings.Contains(err.Error(), "--target") {
			t.Errorf("target %v: %v", target, err)
		}
	}
}

func TestEmptyTraces(t *testing.T) {
	for text, says := range map[string]string{"": "the trace is empty", "\n\n": "none of the 2 lines has a key"} {
		_, err := Run(t.Context(), strings.NewReader(text), Options{Name: "t", Target: 0.5})
		var input *InputError
		if !errors.As(err, &input) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"a\na\n", "a\na\na\nb\nb\n"} {
		if res, err := Run(t.Context(), strings.NewReader(text), Options{Name: "t", Target: 0.4}); err != nil || res.LRU.Capacity != 1 {
			t.Errorf("%q: %+v, %v", text, res, err)
		}
	}
}

// The output says what is wrong with its figures: where so few keys of the sample fit into
// the answer that it is not like a cache for the whole trace, and where the trace was not
// read to its end.
func TestTableWarns(t *testing.T) {
	const rough, cut = "this is a rough guess: raise --keep", "not read to its end"
	var often, seldom strings.Builder
	for i := range 60_000 { // a few keys make up most of it
		fmt.Fprintf(&often, "often %d\nseldom %d\n", i%50, i/2)
		fmt.Fprintln(&seldom, i%15_000)
	}
	for _, tt := range []struct {
		name       string
		text       string
		keep       int
		target     float64
		rough, cut bool
	}{
		{"few entries of a sample", often.String(), 10_000, 0.4, true, false},
		{"many entries of a sample", seldom.String(), 20_000, 0.5, false, false},
		{"few entries, no sample", often.String(), 200_000, 0.4, false, false},
		{"few keys, too many requests", strings.Repeat("a\nb\nc\n", few*100), 100, 0.5, false, true},
	} {
		res, err := Run(t.Context(), strings.NewReader(tt.text), Options{Name: "t", Target: tt.target, Keep: tt.keep})
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		res.Table(&b)
		if got := b.String(); strings.Contains(got, rough) != tt.rough || strings.Contains(got, cut) != tt.cut || res.Truncated != tt.cut {
			t.Errorf("%s: want rough guess %t, not read to its end %t:\n%s", tt.name, tt.rough, tt.cut, got)
		}
	}
}

// cancelling is a trace in whose middle the context ends.
type cancelling struct {
	io.Reader
	cancel context.CancelFunc
	n      int
}

func (c *cancelling) Read(p []byte) (int, error) {
	if c.n++; c.n == 20 {
		c.cancel()
	}
	return c.Reader.Read(p)
}

func TestCancel(t *testing.T) {
	text := traceText(300_000, 50_000)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Run(ctx, &cancelling{Reader: strings.NewReader(text), cancel: cancel}, Options{Format: Format{Column: 1}, Target: 0.5})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("while reading: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	_, err = Run(ctx, strings.NewReader(text), Options{Format: Format{Column: 1}, Target: 0.5, Progress: func(p Progress) {
		if p.Stage != "reading" && p.Done > 0 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("while running caches: %v", err)
	}
}

// The plot is XML, shows both curves and the target, and lies within its frame, also
// for one key and in bytes.
func TestPlot(t *testing.T) {
	for _, tt := range []struct {
		text   string
		format Format
	}{
		{traceText(5000, 1000), Format{Column: 1}},
		{traceText(5000, 1000), Format{Column: 1, Size: 2, Overhead: 128}},
		{"a\na\na\n", Format{}},
	} {
		res, err := Run(t.Context(), strings.NewReader(tt.text), Options{Name: "a <b>", Format: tt.format, Target: 0.6})
		if err != nil {
			t.Fatal(err)
		}
		svg := res.Plot()
		lines := map[string]int{}
		for d := xml.NewDecoder(strings.NewReader(svg)); ; {
			token, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%v in\n%s", err, svg)
			}
			start, ok := token.(xml.StartElement)
			if !ok {
				continue
			}
			for _, a := range start.Attr {
				if a.Name.Local == "class" {
					lines[start.Name.Local+" "+a.Value]++
				}
				if a.Name.Local != "points" {
					continue
				}
				for _, pair := range strings.Fields(a.Value) {
					var x, y float64
					if _, err := fmt.Sscanf(pair, "%f,%f", &x, &y); err != nil || !(x >= plotLeft && x <= plotWidth-plotRight+0.1 && y >= plotTop-0.1 && y <= plotHeight-plotBottom+0.1) {
						t.Errorf("a point at %q: %v", pair, err)
					}
				}
			}
		}
		if lines["polyline line lru"] != 1 || lines["polyline line wtinylfu"] != 1 || lines["line target"] != 1 || lines["circle dot lru"] != 1 || lines["circle dot wtinylfu"] != 1 {
			t.Errorf("drawn: %v", lines)
		}
	}
}

func TestNumbers(t *testing.T) {
	for got, want := range map[string]string{
		count(int64(0)): "0", count(int64(999)): "999", count(uint64(1000)): "1,000", count(uint64(1234567)): "1,234,567",
		percent(0.95): "95.00 %", percent(0.999999): "99.9999 %", percent(1): "100.00 %", percent(0): "0.00 %",
		binary(1000): "1000 B", binary(1 << 20): "1 MiB", binary(3 << 39): "1.5 TiB", binary(3_456_789_012): "3.219 GiB",
		plural(1, "key"): "1 key", plural(0, "key"): "0 keys",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
