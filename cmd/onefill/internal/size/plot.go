package size

import (
	_ "embed"
	"fmt"
	"html"
	"math"
	"strings"
)

//go:embed plot.css
var plotCSS string

const (
	plotWidth  = 760.0
	plotHeight = 420.0
	plotLeft   = 64.0
	plotRight  = 24.0
	plotTop    = 64.0
	plotBottom = 64.0
)

// plot draws miss ratios over the logarithm of the capacity.
type plot struct {
	b           strings.Builder
	least, most float64 // capacities at the ends
	top         float64 // miss ratio
}

// Plot returns both curves, the target and what reaches it, as an SVG picture of
// its own, in light and dark.
func (r *Result) Plot() string {
	p := &plot{least: float64(r.fine[0].Capacity), most: float64(r.Everything)}
	p.most = math.Max(p.most, p.least*2) // a trace of one key
	p.top = math.Min(math.Ceil(math.Max(r.fine[0].MissRatio, r.WTinyLFU.Curve[0].MissRatio)*10)/10, 1)
	p.text(plotLeft, 24, "head", "start", "Misses by the cache's capacity")
	subtitle := fmt.Sprintf("%s, %s", plural(r.Requests, "request"), plural(r.Keys, "key"))
	if r.Sampled() {
		subtitle = fmt.Sprintf("%s, about %s; sample of 1 key in %s, ±%s at the target", plural(r.Requests, "request"), plural(r.Keys, "key"), count(r.OneKeyIn), percent(r.LRU.Error))
	}
	p.text(plotLeft, 43, "small", "start", subtitle)
	p.axes(r.Unit)
	p.line(plotLeft, p.y(1-r.BestHitRate), plotWidth-plotRight, p.y(1-r.BestHitRate), "best")
	p.text(plotWidth-plotRight-6, p.y(1-r.BestHitRate)+15, "small", "end", "best possible: "+percent(r.BestHitRate)+" hits")
	p.line(plotLeft, p.y(1-r.Target), plotWidth-plotRight, p.y(1-r.Target), "target")
	p.text(plotLeft+6, p.y(1-r.Target)-5, "small", "start", "target: "+percent(r.Target)+" hits")
	p.curve("lru", r.fine)
	p.curve("wtinylfu", r.WTinyLFU.Curve)
	p.answer("lru", r.LRU)
	p.answer("wtinylfu", r.WTinyLFU)
	p.legend("lru", "LRU", r.LRU, r.Unit, 0)
	p.legend("wtinylfu", "W-TinyLFU", r.WTinyLFU, r.Unit, 1)
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" role="img" aria-label="Miss ratio curves of LRU and W-TinyLFU" class="plot">
<style>%s</style>
<rect width="100%%" height="100%%" class="ground"/>
%s</svg>
`, plotWidth, plotHeight, plotCSS, p.b.String())
}

func (p *plot) x(capacity float64) float64 {
	share := math.Log(math.Max(capacity, p.least)/p.least) / math.Log(p.most/p.least)
	return plotLeft + math.Min(share, 1)*(plotWidth-plotLeft-plotRight)
}

func (p *plot) y(ratio float64) float64 {
	return plotHeight - plotBottom - ratio/p.top*(plotHeight-plotTop-plotBottom)
}

func (p *plot) text(x, y float64, class, anchor, text string) {
	fmt.Fprintf(&p.b, `<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`+"\n", x, y, class, anchor, html.EscapeString(text))
}

func (p *plot) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&p.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`+"\n", x1, y1, x2, y2, class)
}

func (p *plot) axes(unit string) {
	step := 0.1
	if p.top > 0.5 {
		step = 0.2
	}
	for ratio := 0.0; ratio < p.top+1e-9; ratio += step {
		p.line(plotLeft, p.y(ratio), plotWidth-plotRight, p.y(ratio), "grid")
		p.text(plotLeft-8, p.y(ratio)+4, "small", "end", fmt.Sprintf("%.0f %%", ratio*100))
	}
	bottom := plotHeight - plotBottom
	last := math.Inf(-1)
	for _, c := range ticks(p.least, p.most) {
		if x := p.x(c); x-last >= 56 { // the width of a label
			p.line(x, bottom, x, bottom+4, "axis")
			p.text(x, bottom+18, "small", "middle", tickLabel(c, unit))
			last = x
		}
	}
	p.text((plotLeft+plotWidth-plotRight)/2, bottom+40, "small", "middle", "capacity, "+unit)
}

// ticks are 1, 2 and 5 times the powers of ten, or only these where there are many.
func ticks(least, most float64) (at []float64) {
	steps := []float64{1, 2, 5}
	if most/least > 2000 {
		steps = steps[:1]
	}
	for unit := math.Pow(10, math.Floor(math.Log10(least))); unit <= most; unit *= 10 {
		for _, s := range steps {
			if c := s * unit; c >= least && c <= most {
				at = append(at, c)
			}
		}
	}
	return at
}

func tickLabel(c float64, unit string) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if unit == "bytes" && c >= u.size {
			return fmt.Sprintf("%g %sB", c/u.size, u.name)
		}
	}
	return count(uint64(c))
}

func (p *plot) curve(class string, points []Point) {
	fmt.Fprintf(&p.b, `<polyline class="line %s" points="`, class)
	for _, pt := range points {
		fmt.Fprintf(&p.b, "%.1f,%.1f ", p.x(float64(pt.Capacity)), p.y(pt.MissRatio))
	}
	p.b.WriteString("\"/>\n")
}

// answer marks the capacity that reaches the target.
func (p *plot) answer(class string, a Policy) {
	x, y := p.x(float64(a.Capacity)), p.y(1-a.HitRate)
	p.line(x, y, x, plotHeight-plotBottom, "drop "+class)
	fmt.Fprintf(&p.b, `<circle cx="%.1f" cy="%.1f" r="4" class="dot %s"><title>%s: %s hits</title></circle>`+"\n", x, y, class, count(a.Capacity), percent(a.HitRate))
}

func (p *plot) legend(class, name string, a Policy, unit string, row int) {
	y := plotTop + 16 + 18*float64(row)
	p.text(plotWidth-plotRight-8, y, "name "+class, "end", fmt.Sprintf("%s: %s %s", name, count(a.Capacity), unit))
}
