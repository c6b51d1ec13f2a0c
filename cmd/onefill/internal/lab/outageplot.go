package lab

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strings"
)

// pagePanel is a small plot, as markup made here.
type pagePanel = template.HTML

// A panel is a small plot over time, with a line for each mode.
type panel struct {
	svg
	title string
	about string // for those who cannot see it
	took  float64
	top   float64 // largest value
	log   bool    // the axis is logarithmic, from 1 to top
	unit  string
}

const (
	panelWidth  = 370.0
	panelHeight = 216.0

	panelLeft, panelRight = 42.0, 360.0 // of the area of the lines
	panelTop, panelBottom = 62.0, 190.0
)

// outagePlots draws one scenario with traffic.
func (r *Report) outagePlots(row scenarioRow) []*panel {
	var modes []string
	took := 0.0
	for _, mode := range r.modes() {
		if res, ok := row.results[mode]; ok {
			modes = append(modes, mode)
			took = max(took, float64(len(res.Outage.Series.Calls))*res.Outage.Series.BucketMS)
		}
	}
	of := func(title, unit string, top float64, log bool) *panel {
		p := &panel{title: title, unit: unit, took: took, top: top, log: log}
		p.about = fmt.Sprintf("%s: %s over time, in %s", row.scenario.ID, title, joinWords(modes))
		p.height = panelHeight
		p.frame(modes, row.results[modes[len(modes)-1]].Outage)
		return p
	}
	most, longest := 1, 10.0
	for _, mode := range modes {
		s := row.results[mode].Outage.Series
		most, longest = max(most, slices.Max(s.InFlight)), max(longest, slices.Max(s.P99MS))
	}
	inFlight := of("operations at once at the database", "", float64(most)*1.05, false)
	p99 := of("callers' wait, 99th percentile", " ms", 2*niceStep(longest, 2), true)
	cached := of("callers answered from a cache", " %", 100, false)
	failed := of("callers without an answer", " %", 100, false)
	limits := row.results[modes[len(modes)-1]].Outage
	inFlight.limit(limits)
	for _, mode := range modes {
		o := row.results[mode].Outage
		s := o.Series
		inFlight.steps(mode, s.BucketMS, ints(s.InFlight))
		p99.lines(mode, s.BucketMS, s.P99MS)
		cached.lines(mode, s.BucketMS, percent(s.Cached, s.Calls))
		failed.lines(mode, s.BucketMS, percent(s.Failed, s.Calls))
	}
	return []*panel{inFlight, p99, cached, failed}
}

func ints(values []int) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = float64(v)
	}
	return out
}

// percent is part of whole; where there is no whole, as before.
func percent(part, whole []int) []float64 {
	out := make([]float64, len(part))
	for i := range part {
		switch {
		case whole[i] > 0:
			out[i] = 100 * float64(part[i]) / float64(whole[i])
		case i > 0:
			out[i] = out[i-1]
		}
	}
	return out
}

func (p *panel) x(ms float64) float64 {
	return panelLeft + (panelRight-panelLeft)*ms/math.Max(p.took, 1)
}

func (p *panel) y(v float64) float64 {
	part := v / p.top
	if p.log {
		part = math.Log10(math.Max(v, 1)) / math.Log10(p.top)
	}
	return panelBottom - (panelBottom-panelTop)*math.Min(part, 1)
}

// frame draws title, legend, axes, and when something happened to the store.
func (p *panel) frame(modes []string, o *Outage) {
	p.text(4, 16, "name", "start", p.title)
	x := 4.0
	for _, mode := range modes {
		fmt.Fprintf(&p.b, `<line x1="%.1f" y1="29" x2="%.1f" y2="29" class="line %s"/>`+"\n", x, x+16, mode)
		p.text(x+21, 33, "small", "start", mode)
		x += 21 + 7*float64(len(mode)) + 14
	}
	p.outage(o)
	for _, v := range p.ticks() {
		p.line(panelLeft, p.y(v), panelRight, p.y(v), "grid")
		p.text(panelLeft-5, p.y(v)+4, "small", "end", fmt.Sprintf("%g", v))
	}
	p.line(panelLeft, panelBottom, panelRight, panelBottom, "axis")
	step := niceStep(p.took/1000, 6)
	for s := 0.0; s*1000 <= p.took; s += step {
		p.line(p.x(s*1000), panelBottom, p.x(s*1000), panelBottom+4, "axis")
		p.text(p.x(s*1000), panelBottom+17, "small", "middle", fmt.Sprintf("%g s", s))
	}
	if p.unit != "" {
		p.text(panelLeft-5, panelTop-8, "small", "end", strings.TrimSpace(p.unit))
	}
}

// ticks are the values that are marked on the upright axis.
func (p *panel) ticks() (at []float64) {
	if p.log {
		for v := 1.0; v <= p.top; v *= 10 {
			at = append(at, v)
		}
		return at
	}
	step := niceStep(p.top, 4)
	for v := 0.0; v <= p.top; v += step {
		at = append(at, v)
	}
	return at
}

// outage shades the time without the store and marks its moments. Labels that would
// lie on each other are joined.
func (p *panel) outage(o *Outage) {
	if len(o.Moments) == 0 {
		return
	}
	const label = 70.0
	from, to := p.x(o.Moments[0].AtMS), p.x(o.Moments[len(o.Moments)-1].AtMS)
	fmt.Fprintf(&p.b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="outage"/>`+"\n", from, panelTop, to-from, panelBottom-panelTop)
	var words []string
	at := from
	for i, m := range o.Moments {
		x := p.x(m.AtMS)
		p.line(x, panelTop-4, x, panelBottom, "moment")
		words = append(words, m.What)
		if i+1 < len(o.Moments) && p.x(o.Moments[i+1].AtMS)-at < label {
			continue
		}
		p.text(at, panelTop-8, "small", "start", strings.Join(words, ", "))
		words = nil
		if i+1 < len(o.Moments) {
			at = p.x(o.Moments[i+1].AtMS)
		}
	}
}

// limit draws onefill's limits: MaxLoads, and MaxLoadsDegraded while the store is away.
func (p *panel) limit(o *Outage) {
	const label = 115.0
	y := p.y(float64(o.Limit))
	p.line(panelLeft, y, panelRight, y, "limit")
	if len(o.Moments) == 0 {
		return
	}
	from, to := p.x(o.Moments[0].AtMS), p.x(o.Moments[len(o.Moments)-1].AtMS)
	if to-from < label { // no room there, and no outage to speak of
		p.text(panelRight, y-5, "small", "end", fmt.Sprintf("limit %d", o.Limit))
		return
	}
	p.line(from, p.y(float64(o.LimitDegraded)), to, p.y(float64(o.LimitDegraded)), "limit")
	p.text(from+5, y-5, "small", "start", fmt.Sprintf("limit %d, degraded %d", o.Limit, o.LimitDegraded))
}

func (p *panel) lines(mode string, bucketMS float64, values []float64) {
	var points []string
	for i, v := range values {
		points = append(points, fmt.Sprintf("%.1f,%.1f", p.x((float64(i)+0.5)*bucketMS), p.y(v)))
	}
	p.polyline(mode, points)
}

// steps is lines for what is the largest value in each bucket.
func (p *panel) steps(mode string, bucketMS float64, values []float64) {
	var points []string
	for i, v := range values {
		points = append(points, fmt.Sprintf("%.1f,%.1f %.1f,%.1f",
			p.x(float64(i)*bucketMS), p.y(v), p.x(float64(i+1)*bucketMS), p.y(v)))
	}
	p.polyline(mode, points)
}

func (p *panel) polyline(mode string, points []string) {
	fmt.Fprintf(&p.b, `<polyline points="%s" class="line %s"><title>%s</title></polyline>`+"\n",
		strings.Join(points, " "), mode, html.EscapeString(mode))
}

func (p *panel) document() string { return p.page(panelWidth, p.height, p.about) }

// outageFile is the panels of a scenario as one picture, two in a row.
func (r *Report) outageFile(row scenarioRow) string {
	const head = 34.0
	var all svg
	all.text(plotMargin/2, 22, "head", "start", fmt.Sprintf("%s: %s", row.scenario.ID, row.scenario.Title))
	for i, p := range r.outagePlots(row) {
		fmt.Fprintf(&all.b, `<g transform="translate(%.0f %.0f)">`+"\n%s</g>\n",
			5+float64(i%2)*(panelWidth+10), head+float64(i/2)*(panelHeight+8), p.b.String())
		all.height = head + float64(i/2+1)*(panelHeight+8)
	}
	return all.document(fmt.Sprintf("%s: operations at the database, callers' wait, hit rate and failures over time", row.scenario.Title))
}
