// Package measure takes the measures of docs/benchmarks.md. All peers of a measure
// take turns, A, B, C, B, C, A, ..., so that a machine that gets slower does so for all of
// them; the report shows medians of the rounds, and ratios of what was measured in the
// same round.
package measure

import (
	"context"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onefill/onefill/bench/peers"
	"github.com/onefill/onefill/internal/servers"
)

// Measure is one table of the report.
type Measure struct {
	Name, Title string
	// About says what is measured, and how, for the report.
	About   string
	RowHead string // what a row is; "" for a peer
	Columns []Column
	// Anchor is the row that others are compared with in the columns Compared;
	// AnchorMemcached that of peers on memcached.
	Anchor, AnchorMemcached string
	Compared                []string
	Targets                 []Target
	Plots                   []Plot
	// Rounds is how often each row is measured; 0 is the run's own number. What is exact
	// needs no second one.
	Rounds int
	// Open prepares the rows, and may start servers.
	Open func(ctx context.Context, e *Env) ([]Row, error)
}

// Column is what a row's round returns.
type Column struct {
	ID, Head string // Head with the unit
	Digits   int    // after the point
}

// Row is a peer, or a size, that is measured once a round.
type Row struct {
	Name string
	Peer *peers.Peer // what the report says about a row that is a peer
	How  string      // the same for rows that are no Peer
	// Round measures once. What it leaves out is shown as not measured.
	Round func(ctx context.Context) (Values, error)
	Close func()
}

// Values are what a round brought, by the columns' IDs.
type Values map[string]float64

// Target is what a row is to reach: a multiple of the anchor in the same round, or a number.
type Target struct {
	Row, Column string
	// Anchor is the row to compare with, in AnchorColumn (the same if that is empty);
	// without one Limit is the target.
	Anchor, AnchorColumn string
	Limit                float64 // the factor, or the number
	AtLeast              bool    // more is better
	Text                 string  // where it is from, in a few words
}

// Plot is a picture of a measure.
type Plot struct {
	File, Title string // File without its ending
	Columns     []string
	Lines       bool // the rows are numbers; otherwise bars
	X, Y        string
	LogX, LogY  bool
}

// Env is what a run has.
type Env struct {
	Size   Sizes
	Wanted func(peer string) bool
	Log    io.Writer
	Traces string // a folder with *.keys files: more access patterns for hit ratios

	mu       sync.Mutex // guards what follows
	started  map[string]*servers.Server
	versions map[string]string
}

// Result is a measure's table.
type Result struct {
	Measure *Measure
	Rows    []Line
	Took    time.Duration
}

// Line is what the rounds of a row have brought, a number a round.
type Line struct {
	Row     Row
	Samples map[string][]float64
	Err     error // of the last round that failed; it has no numbers
}

// Run measures. An error is one of the harness; a peer's own is in its line.
func (m *Measure) Run(ctx context.Context, e *Env) (*Result, error) {
	start := time.Now()
	rows, err := m.Open(ctx, e)
	defer func() {
		for _, r := range rows {
			if r.Close != nil {
				r.Close()
			}
		}
	}()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.Name, err)
	}
	result := &Result{Measure: m, Rows: make([]Line, len(rows))}
	for i, r := range rows {
		result.Rows[i] = Line{Row: r, Samples: map[string][]float64{}}
	}
	rounds := m.Rounds
	if rounds == 0 {
		rounds = e.Size.Rounds
	}
	for round := range rounds {
		for i := range rows {
			line := &result.Rows[(i+round)%len(rows)]
			if err := line.measure(ctx, m.Columns); ctx.Err() != nil {
				return nil, fmt.Errorf("%s: %w", m.Name, ctx.Err())
			} else if err != nil {
				_, _ = fmt.Fprintf(e.Log, "%s: %s: %v\n", m.Name, line.Row.Name, err)
			}
		}
	}
	result.Took = time.Since(start)
	return result, nil
}

// measure is one round. What was not measured is NaN, so that all samples of a number are
// of the round of that number.
func (l *Line) measure(ctx context.Context, columns []Column) error {
	runtime.GC() // what the one before has left is not this one's to collect
	values, err := l.Row.Round(ctx)
	for _, c := range columns {
		v, ok := values[c.ID]
		if err != nil || !ok {
			v = math.NaN()
		}
		l.Samples[c.ID] = append(l.Samples[c.ID], v)
	}
	if err != nil {
		l.Err = err
	}
	return err
}

// measured are a column's numbers.
func (l *Line) measured(column string) []float64 {
	return slices.DeleteFunc(slices.Clone(l.Samples[column]), math.IsNaN)
}

// Median is the middle of the column's numbers; false if there is none.
func (l *Line) Median(column string) (float64, bool) { return median(l.measured(column)) }

func median(s []float64) (float64, bool) {
	if len(s) == 0 {
		return 0, false
	}
	slices.Sort(s)
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2, true
}

// Spread is the largest distance from the median, as a part of it.
func (l *Line) Spread(column string) float64 {
	middle, ok := l.Median(column)
	if !ok || middle == 0 {
		return 0
	}
	s := l.measured(column)
	return max(slices.Max(s)-middle, middle-slices.Min(s)) / math.Abs(middle)
}

// Find returns a row's line.
func (r *Result) Find(row string) (*Line, bool) {
	for i := range r.Rows {
		if r.Rows[i].Row.Name == row {
			return &r.Rows[i], true
		}
	}
	return nil, false
}

// Verdict is how a target came out.
type Verdict struct {
	Target   Target
	Measured bool
	Value    float64 // the ratio, or the number
	Met      bool
}

// Judge compares with the targets.
func (r *Result) Judge() []Verdict {
	var out []Verdict
	for _, t := range r.Measure.Targets {
		v := Verdict{Target: t}
		if t.Anchor == "" {
			if l, ok := r.Find(t.Row); ok {
				v.Value, v.Measured = l.Median(t.Column)
			}
		} else {
			v.Value, v.Measured = r.ratio(t)
		}
		v.Met = v.Measured && (t.AtLeast && v.Value >= t.Limit || !t.AtLeast && v.Value <= t.Limit)
		out = append(out, v)
	}
	return out
}

// ratio is the median of the rounds' ratios.
func (r *Result) ratio(t Target) (float64, bool) {
	line, ok := r.Find(t.Row)
	if !ok {
		return 0, false
	}
	column := t.AnchorColumn
	if column == "" {
		column = t.Column
	}
	return r.compare(line, t.Column, t.Anchor, column)
}

// Ratio compares a line with its anchor, where the measure compares that column.
func (r *Result) Ratio(line *Line, column string) (float64, bool) {
	m := r.Measure
	if !slices.Contains(m.Compared, column) {
		return 0, false
	}
	anchor := m.Anchor
	if p := line.Row.Peer; p != nil && p.Memcached && m.AnchorMemcached != "" {
		anchor = m.AnchorMemcached
	}
	return r.compare(line, column, anchor, column)
}

func (r *Result) compare(line *Line, column, anchorRow, anchorColumn string) (float64, bool) {
	anchor, ok := r.Find(anchorRow)
	if !ok {
		return 0, false
	}
	ours, theirs := line.Samples[column], anchor.Samples[anchorColumn]
	var ratios []float64
	for i := range min(len(ours), len(theirs)) {
		if r := ours[i] / theirs[i]; !math.IsNaN(r) && !math.IsInf(r, 0) {
			ratios = append(ratios, r)
		}
	}
	return median(ratios)
}

// pick leaves out the peers that are not wanted.
func (e *Env) pick(all []peers.Peer) (out []peers.Peer) {
	for _, p := range all {
		if e.wants(p.Name) && (e.Size.Extras || !p.Extra) {
			out = append(out, p)
		}
	}
	return out
}

func (e *Env) wants(name string) bool { return e.Wanted == nil || e.Wanted(name) }

// Server starts a server when it is needed first.
func (e *Env) server(ctx context.Context, name string, start func() (*servers.Server, error)) (*servers.Server, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.started[name]; s != nil {
		return s, nil
	}
	s, err := start()
	if err != nil {
		return nil, err
	}
	if e.started == nil {
		e.started, e.versions = map[string]*servers.Server{}, map[string]string{}
	}
	e.started[name], e.versions[name] = s, s.Version()
	return s, nil
}

// Redis is the server that peers share.
func (e *Env) Redis(ctx context.Context) (*servers.Server, error) {
	return e.server(ctx, "Redis", func() (*servers.Server, error) {
		return servers.Redis(ctx, "", servers.RedisOptions{Args: []string{"--maxclients", "15000", "--tcp-backlog", "4096"}})
	})
}

// Memcached is the other one.
func (e *Env) Memcached(ctx context.Context) (*servers.Server, error) {
	return e.server(ctx, "memcached", func() (*servers.Server, error) {
		return servers.Memcached(ctx, "", servers.MemcachedOptions{Args: []string{"-m", "256", "-c", "4096", "-t", "2"}})
	})
}

// Postgres is for the queues.
func (e *Env) Postgres(ctx context.Context) (*servers.Server, error) {
	return e.server(ctx, "PostgreSQL", func() (*servers.Server, error) {
		return servers.Postgres(ctx, "", servers.PostgresOptions{Settings: []string{"checkpoint_timeout=1h", "max_wal_size=8GB", "max_connections=300"}})
	})
}

// at are the addresses for peers.
func (e *Env) at(ctx context.Context) (peers.Servers, error) {
	redis, err := e.Redis(ctx)
	if err != nil {
		return peers.Servers{}, err
	}
	memcached, err := e.Memcached(ctx)
	if err != nil {
		return peers.Servers{}, err
	}
	return peers.Servers{Redis: redis.Addr(), Memcached: memcached.Addr()}, nil
}

// Versions are those of the servers that were used.
func (e *Env) Versions() map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.versions
}

// Close stops the servers.
func (e *Env) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var failed []string
	for name, s := range e.started {
		if err := s.Stop(); err != nil {
			failed = append(failed, name+": "+err.Error())
		}
	}
	e.started = nil
	if len(failed) > 0 {
		return fmt.Errorf("stopping servers: %s", strings.Join(failed, "; "))
	}
	return nil
}
