package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

// TestHistory lets several processes read and write a few rows at random, disturbs
// them, and then looks at what everybody saw. The properties:
//
//   - A Get that begins after an acknowledged Invalidate or Set of the same process
//     returns the row of that moment or a newer one.
//   - So does a Get in any other process that begins pushBound later, unless that
//     process was paused in between.
//   - No Get fails.
//   - At the end, once the writes of killed processes have been told to the cache too
//     (what the queue is for), every cache and the store hold the rows as they are.
//   - Loads are bounded by what can make a value disappear: each key's first miss,
//     each try to write, each failed operation of the store, and what a kill or a pause
//     may have interrupted.
//
// The disturbances: kill -9 of a process, which is replaced; a pause for longer than a
// lease; CLIENT KILL of one connection or all; SCRIPT FLUSH; a lease that is taken
// away, as an eviction would.
func TestHistory(t *testing.T) {
	h := newHistory(t)
	for _, p := range h.fleet {
		h.begin(p)
	}
	h.disturb(timeFromEnv(t, "ONEFILL_HISTORY", 5*time.Second))
	h.stop()
	h.repair()
	h.checkEnd()
	h.read()
	h.checkReads()
	h.checkLoads()
}

const (
	historyLease = 500 * time.Millisecond
	historyPause = 700 * time.Millisecond
	disturbEvery = 250 * time.Millisecond
)

func pushBound() time.Duration {
	if raceEnabled {
		return time.Second
	}
	return 500 * time.Millisecond
}

// timeFromEnv is how long a test is to run: as the environment says, or otherwise.
func timeFromEnv(t *testing.T, name string, otherwise time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return d
}

// seeded is the source of a test's disturbances. It logs the seed; ONEFILL_SEED repeats one.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("ONEFILL_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("ONEFILL_SEED: %v", err)
		}
	}
	t.Logf("the disturbances' seed: ONEFILL_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// history is one run of TestHistory.
type history struct {
	t      *testing.T
	origin *database
	admin  *admin
	keys   []string
	dir    string
	random *rand.Rand
	cfg    config

	fleet  fleet              // who is alive
	tasks  map[*proc]*pending // their work
	pauses []pauseOf
	kills  int
	cuts   int
	done   map[string]int // disturbances by name

	processes map[int]*process // by index, after read
}

type pauseOf struct {
	proc       int
	begin, end int64
}

func newHistory(t *testing.T) *history {
	server := servertest.Redis(t, servers.RedisOptions{})
	o := origin(t)
	h := &history{
		t: t, origin: o, admin: adminOf(t, server), dir: t.TempDir(), random: seeded(t),
		tasks: map[*proc]*pending{}, done: map[string]int{},
		cfg: config{Redis: server.URL(), Name: "history", TTL: time.Hour, LocalTTL: time.Hour,
			LeaseTTL: historyLease, StoreTimeout: time.Second},
	}
	for i := range 6 {
		h.keys = append(h.keys, fmt.Sprintf("history-%d-%d", serial.Add(1), i))
		// Loads of 0 to 25 ms: some are over before a disturbance comes, some are not.
		o.exec(t, `INSERT INTO origin (key, value, wait) VALUES ($1, 'v1', $2)`, h.keys[i], float64(i)*0.005)
	}
	h.fleet = startFleet(t, 3, h.cfg)
	h.cfg = h.fleet[0].cfg
	return h
}

func (h *history) begin(p *proc) {
	h.tasks[p] = p.begin(request{Op: opHistory, Work: &work{
		Keys: h.keys, Readers: 8, Writers: 2, ReadEvery: 2 * time.Millisecond, WriteEvery: 25 * time.Millisecond,
		Log: filepath.Join(h.dir, strconv.Itoa(p.index)),
	}})
}

// disturb does something every quarter of a second, for d.
func (h *history) disturb(d time.Duration) {
	kinds := []struct {
		name string
		do   func()
	}{
		{"kill", h.kill},
		{"pause", h.pause},
		{"cut all connections", func() { h.cuts++; h.admin.cutAll() }},
		{"cut one connection", h.cutOne},
		{"flush scripts", func() { h.admin.do("SCRIPT", "FLUSH") }},
		{"take a lease away", func() { h.admin.do("DEL", leaseKey(h.cfg.Name, h.anyKey())) }},
	}
	tick := time.NewTicker(disturbEvery)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		kind := kinds[h.random.IntN(len(kinds))]
		h.done[kind.name]++
		kind.do()
	}
	h.t.Logf("disturbances: %v", h.done)
}

func (h *history) anyKey() string { return h.keys[h.random.IntN(len(h.keys))] }

func (h *history) kill() {
	i := h.random.IntN(len(h.fleet))
	gone := h.fleet[i]
	gone.kill()
	h.kills++
	delete(h.tasks, gone)
	h.fleet = append(h.fleet.but(gone), h.newProc())
}

// newProc starts a process in the place of a killed one.
func (h *history) newProc() *proc {
	cfg := h.cfg
	cfg.Store = []storeKind{viaOpen, viaNew}[h.random.IntN(2)]
	p := startProc(h.t, len(h.fleet)+h.kills, cfg)
	p.await(func(m message) bool { return m.Event == evUp })
	h.begin(p)
	return p
}

func (h *history) pause() {
	p := h.fleet[h.random.IntN(len(h.fleet))]
	begin := time.Now().UnixNano()
	p.pause()
	lasting(h.t, historyPause) // so that its leases end
	p.resume()
	h.pauses = append(h.pauses, pauseOf{p.index, begin, time.Now().UnixNano()})
}

func (h *history) cutOne() {
	h.cuts++
	list, err := h.admin.do("CLIENT", "LIST", "TYPE", "normal").ToString()
	if err != nil {
		h.t.Fatal(err)
	}
	me, err := h.admin.do("CLIENT", "ID").AsInt64()
	if err != nil {
		h.t.Fatal(err)
	}
	var ids []string
	for line := range strings.Lines(list) {
		id, _, _ := strings.Cut(strings.TrimPrefix(line, "id="), " ")
		if id != strconv.FormatInt(me, 10) {
			ids = append(ids, id)
		}
	}
	if len(ids) > 0 {
		// It may have gone by now.
		h.admin.client.Do(h.t.Context(), h.admin.client.B().Arbitrary("CLIENT", "KILL", "ID", ids[h.random.IntN(len(ids))]).Build())
	}
}

func (h *history) stop() {
	for _, task := range h.tasks {
		task.cancel()
	}
	for _, task := range h.tasks {
		if m := task.wait(); m.Err != "" {
			h.t.Errorf("process %d: %s", task.p.index, m.Err)
		}
	}
}

// repair tells the cache of what killed processes had committed and not told.
func (h *history) repair() {
	for _, key := range h.keys {
		poll(h.t, "Invalidate is applied", func() bool {
			return h.fleet[0].do(request{Op: opInvalidate, Keys: []string{key}}).Err == ""
		})
	}
}

// checkEnd: every cache and the store hold the rows.
func (h *history) checkEnd() {
	for _, key := range h.keys {
		version := h.origin.version(h.t, key)
		for _, p := range h.fleet {
			p.must(request{Op: opUntil, Keys: []string{key}, Row: row{Version: version}})
		}
		for range 2 {
			want(h.t, h.fleet.herd(callers, key), "", version)
		}
		h.admin.wantStored(h.cfg.Name, key, version)
	}
}
