package report

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/onefill/onefill/bench/measure"
)

// Pictures are plain SVG, one per plot, on a background of their own so that they can be
// read on a dark page.

const (
	ink   = "#24292f"
	faint = "#d0d7de"
	grey  = "#8c959f"
	blue  = "#0969da"
)

// lineColors are told apart by people who see few colours, and by their labels.
func lineColors() []string { return []string{blue, "#bc4c00", "#1a7f37", "#8250df", grey, ink} }

// draw makes a picture; false if nothing of it was measured.
func draw(r *measure.Result, p measure.Plot) (string, bool) {
	if p.Lines {
		return lines(r, p)
	}
	return bars(r, p)
}

type bar struct {
	name  string
	value float64
}

// bars are the rows of one column, the smallest first.
func bars(r *measure.Result, p measure.Plot) (string, bool) {
	var all []bar
	for i := range r.Rows {
		if v, ok := r.Rows[i].Median(p.Columns[0]); ok {
			all = append(all, bar{r.Rows[i].Row.Name, v})
		}
	}
	if len(all) == 0 {
		return "", false
	}
	if r.Measure.RowHead == "" || r.Measure.RowHead == "queue" {
		slices.SortStableFunc(all, func(a, b bar) int { return int(math.Copysign(1, a.value-b.value)) })
	}
	most := slices.MaxFunc(all, func(a, b bar) int { return int(math.Copysign(1, a.value-b.value)) }).value
	const width, left, right, top, step = 760, 240, 80, 44, 24
	height := top + step*len(all) + 16
	b := begin(width, height, p.Title+", "+p.Y)
	for i, x := range all {
		y, w := top+i*step, 0.0
		if most > 0 {
			w = max(x.value/most, 0) * (width - left - right)
		}
		color := grey
		if strings.HasPrefix(x.name, "onefill") || x.name == "pgqueue" {
			color = blue
		}
		text(b, left-8, y+15, "end", ink, x.name)
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="%.1f" height="16" rx="2" fill="%s"/>`+"\n", left, y+3, max(w, 1), color)
		text(b, left+int(w)+6, y+15, "start", ink, short(x.value))
	}
	return end(b), true
}

func short(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

type point struct{ x, y float64 }

// axis maps numbers to pixels.
type axis struct {
	from, to float64
	pixel    [2]float64
	log      bool
}

func (a axis) at(v float64) float64 {
	from, to := a.from, a.to
	if a.log {
		v, from, to = math.Log10(v), math.Log10(from), math.Log10(to)
	}
	if to == from {
		return (a.pixel[0] + a.pixel[1]) / 2
	}
	return a.pixel[0] + (v-from)/(to-from)*(a.pixel[1]-a.pixel[0])
}

// lines has rows that are numbers on the x axis, and a line for each column.
func lines(r *measure.Result, p measure.Plot) (string, bool) {
	series := map[string][]point{}
	var all []point
	for i := range r.Rows {
		x, err := strconv.ParseFloat(r.Rows[i].Row.Name, 64)
		if err != nil {
			continue
		}
		for _, c := range p.Columns {
			if v, ok := r.Rows[i].Median(c); ok && (v > 0 || !p.LogY) {
				series[c] = append(series[c], point{x, v})
				all = append(all, point{x, v})
			}
		}
	}
	if len(all) == 0 {
		return "", false
	}
	const width, height, left, right, top, bottom = 820, 380, 70, 280, 52, 52
	x, y := axes(all, p)
	x.pixel, y.pixel = [2]float64{left, width - right}, [2]float64{height - bottom, top}
	b := begin(width, height, p.Title)
	grid(b, r, x, y, p)
	colors := lineColors()
	for i, c := range p.Columns {
		color := colors[i%len(colors)]
		var path []string
		for _, pt := range series[c] {
			path = append(path, fmt.Sprintf("%.1f,%.1f", x.at(pt.x), y.at(pt.y)))
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x.at(pt.x), y.at(pt.y), color)
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(path, " "), color)
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="12" height="4" fill="%s"/>`+"\n", width-right+16, top+8+i*20, color)
		text(b, width-right+34, top+14+i*20, "start", ink, strings.TrimSuffix(head(r.Measure, c), ", "+p.Y))
	}
	return end(b), true
}

// axes cover all points; a linear one begins at zero.
func axes(all []point, p measure.Plot) (x, y axis) {
	by := func(of func(point) float64, log bool) axis {
		a := axis{from: of(all[0]), to: of(all[0]), log: log}
		for _, pt := range all {
			a.from, a.to = min(a.from, of(pt)), max(a.to, of(pt))
		}
		if !log {
			a.from, a.to = min(0, a.from), a.to*1.1
		} else {
			a.from, a.to = math.Pow(10, math.Floor(math.Log10(a.from))), math.Pow(10, math.Ceil(math.Log10(a.to)))
		}
		return a
	}
	return by(func(p point) float64 { return p.x }, p.LogX), by(func(p point) float64 { return p.y }, p.LogY)
}

// grid draws the axes, with a tick for each row and for round numbers.
func grid(b *strings.Builder, r *measure.Result, x, y axis, p measure.Plot) {
	for _, v := range ticks(y) {
		fmt.Fprintf(b, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x.pixel[0], x.pixel[1], y.at(v), y.at(v), faint)
		text(b, int(x.pixel[0])-8, int(y.at(v))+4, "end", ink, strconv.FormatFloat(v, 'g', 4, 64))
	}
	for i := range r.Rows {
		if v, err := strconv.ParseFloat(r.Rows[i].Row.Name, 64); err == nil {
			text(b, int(x.at(v)), int(y.pixel[0])+18, "middle", ink, r.Rows[i].Row.Name)
		}
	}
	text(b, int(x.pixel[0]+x.pixel[1])/2, int(y.pixel[0])+40, "middle", ink, p.X)
	text(b, 24, int(y.pixel[1])-10, "start", ink, p.Y)
}

func ticks(a axis) (out []float64) {
	if a.log {
		for v := a.from; v <= a.to*1.0001; v *= 10 {
			out = append(out, v)
		}
		return out
	}
	step := math.Pow(10, math.Floor(math.Log10(max(a.to-a.from, 1e-9))))
	for (a.to-a.from)/step < 4 {
		step /= 2
	}
	for v := a.from; v <= a.to; v += step {
		out = append(out, v)
	}
	return out
}

func begin(width, height int, title string) *strings.Builder {
	b := &strings.Builder{}
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="system-ui, sans-serif" font-size="12" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(b, "<title>%s</title>\n", html.EscapeString(title))
	fmt.Fprintf(b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	fmt.Fprintf(b, `<text x="16" y="26" font-size="15" font-weight="600" fill="%s">%s</text>`+"\n", ink, html.EscapeString(title))
	return b
}

func text(b *strings.Builder, x, y int, anchor, color, s string) {
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="%s" fill="%s">%s</text>`+"\n", x, y, anchor, color, html.EscapeString(s))
}

func end(b *strings.Builder) string {
	b.WriteString("</svg>\n")
	return b.String()
}
