package measure

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/onefill/onefill/bench/peers"
)

// pattern is an order of accesses, and how many of its keys a cache may keep.
type pattern struct {
	id, name string
	keys     []string
	capacity int
}

// HitRatios measures what the policies make of the same number of entries.
func HitRatios(s Sizes, traces string) *Measure {
	m := &Measure{
		Name: "hit-ratio", Title: "Hit ratio at equal entries", Rounds: (s.Rounds + 1) / 2,
		About: fmt.Sprintf("%d accesses, one goroutine; a miss is loaded and stored. The caches hold the given part of the pattern's distinct keys. Scans: after every 50,000 accesses, 10,000 keys that are never seen again.", s.Accesses),
		Open:  func(ctx context.Context, e *Env) ([]Row, error) { return openRatios(ctx, e, traces) },
	}
	for _, p := range shapes() {
		m.Columns = append(m.Columns, Column{p.id, p.name + ", %", 1})
		m.Targets = append(m.Targets, Target{Row: "onefill", Column: p.id, Anchor: "otter", Limit: 0.98, AtLeast: true})
	}
	for _, f := range traceFiles(traces) {
		m.Columns = append(m.Columns, Column{traceID(f), strings.TrimPrefix(traceID(f), "trace_") + " at 5 %, %", 1})
		m.Targets = append(m.Targets, Target{Row: "onefill", Column: traceID(f), Anchor: "otter", Limit: 0.98, AtLeast: true})
	}
	return m
}

// shape is a pattern that is made, not read.
type shape struct {
	id, name string
	zipf     float64
	scans    bool
	part     float64 // of the distinct keys that the cache holds
}

func shapes() []shape {
	return []shape{
		{"zipf101_1", "Zipf 1.01 at 1 %", 1.01, false, 0.01},
		{"zipf101_10", "Zipf 1.01 at 10 %", 1.01, false, 0.1},
		{"zipf12_1", "Zipf 1.2 at 1 %", 1.2, false, 0.01},
		{"scans_1", "Zipf 1.01 and scans at 1 %", 1.01, true, 0.01},
	}
}

func traceFiles(dir string) []string {
	if dir == "" {
		return nil
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.keys"))
	if err != nil {
		return nil // a pattern that is well-formed is no error
	}
	return files
}

func traceID(file string) string {
	return "trace_" + strings.TrimSuffix(filepath.Base(file), ".keys")
}

// pattern makes n accesses. Names are made once for each number.
func (s shape) pattern(n int) pattern {
	names := map[uint64]string{}
	name := func(k uint64) string {
		if names[k] == "" {
			names[k] = strconv.FormatUint(k, 10)
		}
		return names[k]
	}
	z := rand.NewZipf(rand.New(rand.NewPCG(7, 8)), s.zipf, 1, 999_999)
	keys := make([]string, 0, n)
	for scanned := uint64(1 << 32); len(keys) < n; {
		for i := 0; i < 50_000 && len(keys) < n; i++ {
			keys = append(keys, name(z.Uint64()))
		}
		for i := 0; s.scans && i < 10_000 && len(keys) < n; i++ {
			keys = append(keys, name(scanned))
			scanned++
		}
	}
	return pattern{s.id, s.name, keys, max(int(float64(len(names))*s.part), 20)}
}

// readTrace reads a file of one key a line.
func readTrace(file string) (pattern, error) {
	f, err := os.Open(file)
	if err != nil {
		return pattern{}, err
	}
	defer f.Close()
	names := map[string]string{}
	p := pattern{id: traceID(file), name: traceID(file)}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		k, ok := names[lines.Text()]
		if !ok {
			k = lines.Text()
			names[k] = k
		}
		p.keys = append(p.keys, k)
	}
	p.capacity = max(len(names)/20, 20)
	return p, lines.Err()
}

func openRatios(ctx context.Context, e *Env, traces string) ([]Row, error) {
	var patterns []pattern
	for _, s := range shapes() {
		patterns = append(patterns, s.pattern(e.Size.Accesses))
	}
	for _, f := range traceFiles(traces) {
		p, err := readTrace(f)
		if err != nil {
			return nil, err
		}
		patterns = append(patterns, p)
	}
	var rows []Row
	for _, p := range peers.Locals() {
		if p.Floor || p.Shared || !e.wants(p.Name) {
			continue
		}
		if p.Name == "otter, loader" { // the same policy twice
			continue
		}
		rows = append(rows, Row{Name: p.Name, How: p.How, Round: func(ctx context.Context) (Values, error) {
			values := Values{}
			for _, pattern := range patterns {
				ratio, err := hitRatio(ctx, p, pattern)
				if err != nil {
					return nil, err
				}
				values[pattern.id] = 100 * ratio
			}
			return values, nil
		}})
	}
	return rows, nil
}

func hitRatio(ctx context.Context, p peers.LocalPeer, of pattern) (float64, error) {
	c, err := p.New(peers.Servers{}, of.capacity)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	access := func(key string, value []byte) bool {
		if _, ok := c.Hit(key); ok {
			return true
		}
		c.Set(key, value)
		return false
	}
	if loading, ok := c.(peers.Accessor); ok {
		access = loading.Access
	}
	hits, value := 0, []byte{1}
	for i, k := range of.keys {
		if access(k, value) {
			hits++
		}
		if i%10_000 == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
	return float64(hits) / float64(len(of.keys)), nil
}

// Overheads measures the memory that an entry costs beside its key and value.
func Overheads(s Sizes) *Measure {
	return &Measure{
		Name: "entry-overhead", Title: "Memory of an entry", Rounds: (s.Rounds + 1) / 2,
		About:   fmt.Sprintf("Bytes of heap an entry beyond its key (24 bytes) and its value (%d bytes), %d entries (a quarter of it with a store) in a cache for a fifth more, less what a cache for 16 entries takes.", peers.ValueSize, s.Entries),
		Columns: []Column{{"bytes", "bytes an entry", 0}},
		Anchor:  "otter", Compared: []string{"bytes"},
		Targets: []Target{{Row: "onefill", Column: "bytes", Limit: 160}, {Row: "onefill with a store", Column: "bytes", Limit: 160}},
		Plots:   []Plot{{File: "bench-entry-overhead", Title: "Memory of an entry beside key and value", Columns: []string{"bytes"}, Y: "bytes"}},
		Open:    openOverheads,
	}
}

func openOverheads(ctx context.Context, e *Env) ([]Row, error) {
	at, err := e.at(ctx)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, p := range peers.Locals() {
		if p.Floor || p.PolicyOnly || !e.wants(p.Name) || p.Name == "otter, loader" {
			continue
		}
		n := e.Size.Entries
		if p.Shared {
			n /= 4 // each is a load under a lease, one after the other
		}
		rows = append(rows, Row{Name: p.Name, How: p.How, Round: func(context.Context) (Values, error) { return overheadRound(p, at, n) }})
	}
	return rows, nil
}

func overheadRound(p peers.LocalPeer, at peers.Servers, n int) (Values, error) {
	keys, values := make([]string, n), make([][]byte, n)
	for i := range keys {
		keys[i], values[i] = fmt.Sprintf("user:profile:%011d", i), make([]byte, peers.ValueSize)
	}
	empty, err := emptyCache(p, at)
	if err != nil {
		return nil, err
	}
	before := heap()
	c, err := p.New(at, n*12/10)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	fillLocal(p, c, keys, func(i int) []byte { return values[i] })
	after := heap()
	held := 0
	for _, k := range keys {
		if _, ok := c.Hit(k); ok {
			held++
		}
	}
	runtime.KeepAlive(values)
	if held < n*9/10 {
		return nil, fmt.Errorf("only %d of %d entries were kept", held, n)
	}
	return Values{"bytes": float64(after-before-empty) / float64(held)}, nil
}

// emptyCache is what a cache for a few entries takes: buffers of a client, mostly.
func emptyCache(p peers.LocalPeer, at peers.Servers) (int64, error) {
	before := heap()
	c, err := p.New(at, 16)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	c.Set("user:profile:none", peers.Value())
	return heap() - before, nil
}

// heap is what is reachable: two collections, as the first one leaves what finalizers keep.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
