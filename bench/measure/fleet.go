package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill/bench/peers"
)

// fleetJitter is by how much longer than the rest some loads take.
const fleetJitter = 100 * time.Millisecond

// loadTime depends on the key, so that a load's end has no fixed phase to anybody's polls.
func loadTime(base time.Duration, key string) time.Duration {
	h := fnv.New64a()
	h.Write([]byte(key))
	return base + time.Duration(h.Sum64()%uint64(fleetJitter))
}

// FleetHerds measures herds of several processes.
func FleetHerds(s Sizes) *Measure {
	return &Measure{
		Name: "fleet-herd", Title: "A herd of several processes",
		About: fmt.Sprintf("%d processes of %d callers each ask at the same moment for one absent key; the load takes %v to %v, depending on the key, and is subtracted. Loads and commands are those of all processes for one herd.",
			s.FleetProcs, s.FleetSize, s.FleetLoad, s.FleetLoad+fleetJitter),
		Columns: []Column{{"loads", "loads", 1}, {"p50", "p50 ms", 2}, {"p99", "p99 ms", 2}, {"commands", "commands", 0}},
		Anchor:  "singleflight + SET NX + pub/sub", Compared: []string{"p50", "p99", "commands"},
		Targets: []Target{
			{Row: "onefill", Column: "loads", Limit: 1}, {Row: "onefill, no tracking", Column: "loads", Limit: 1}, {Row: "onefill on memcached", Column: "loads", Limit: 1},
			{Row: "onefill", Column: "p50", Limit: 2}, {Row: "onefill", Column: "p99", Limit: 3.5}, {Row: "onefill", Column: "commands", Limit: 20},
			{Row: "onefill", Column: "p50", Anchor: "singleflight + SET NX + pub/sub", Limit: 1},
		},
		Plots: []Plot{{File: "bench-fleet-herd", Title: fmt.Sprintf("%d processes of %d callers: overhead, p50", s.FleetProcs, s.FleetSize), Columns: []string{"p50"}, Y: "ms"}},
		Open:  openFleet,
	}
}

func openFleet(ctx context.Context, e *Env) ([]Row, error) {
	at, err := e.at(ctx)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, p := range e.pick(peers.FleetPeers()) {
		rows = append(rows, Row{Name: p.Name, Peer: &p, Round: func(ctx context.Context) (Values, error) {
			return fleetRound(ctx, e, p, at, e.Size.FleetProcs, e.Size.FleetSize, e.Size.FleetHerds)
		}})
	}
	return rows, nil
}

func fleetRound(ctx context.Context, e *Env, p peers.Peer, at peers.Servers, processes, callers, herds int) (Values, error) {
	f, err := startFleet(ctx, p, at, processes)
	if err != nil {
		return nil, err
	}
	defer f.stop()
	keys := newKeys("fleet")
	if _, err := f.herd(keys.key(), callers, e.Size.FleetLoad); err != nil { // opens connections, loads scripts
		return nil, err
	}
	if err := pause(ctx, settle); err != nil {
		return nil, err
	}
	var late []time.Duration
	loads := 0
	for range herds {
		key := keys.key()
		r, err := f.herd(key, callers, e.Size.FleetLoad)
		if err != nil {
			return nil, err
		}
		for _, l := range r.Late {
			late = append(late, l-loadTime(e.Size.FleetLoad, key))
		}
		loads += r.Loads
	}
	values := Values{"loads": float64(loads) / float64(herds)}
	values["p50"], values["p99"] = overhead(late)
	commands, err := countCommands(ctx, p, at, func() error {
		_, err := f.herd(keys.key(), callers, e.Size.FleetLoad)
		return err
	})
	values["commands"] = float64(commands)
	return values, err
}

// order and report are what a fleet's processes and their parent tell each other, a line of
// JSON each.
type order struct {
	Key     string
	At      int64 // Unix nanoseconds at which all processes let their callers go
	Callers int
	Load    time.Duration
}

type report struct {
	stampede
	Loads int
}

// fleet are processes that each have the peer open.
type fleet struct{ members []*member }

type member struct {
	cmd *exec.Cmd
	w   io.Closer
	in  *json.Encoder
	out *json.Decoder
}

// The environment of a fleet's process.
const (
	envPeer      = "ONEFILL_BENCH_PEER"
	envRedis     = "ONEFILL_BENCH_REDIS"
	envMemcached = "ONEFILL_BENCH_MEMCACHED"
)

func startFleet(ctx context.Context, p peers.Peer, at peers.Servers, n int) (*fleet, error) {
	f := &fleet{}
	for range n {
		m, err := startMember(ctx, p, at)
		if err != nil {
			f.stop()
			return nil, err
		}
		f.members = append(f.members, m)
	}
	return f, nil
}

func startMember(ctx context.Context, p peers.Peer, at peers.Servers) (*member, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), envPeer+"="+p.Name, envRedis+"="+at.Redis, envMemcached+"="+at.Memcached)
	cmd.Stderr = os.Stderr
	w, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	r, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &member{cmd, w, json.NewEncoder(w), json.NewDecoder(r)}, cmd.Start()
}

// stop ends the processes, which end when nothing more comes.
func (f *fleet) stop() {
	for _, m := range f.members {
		m.w.Close()
	}
	for _, m := range f.members {
		_ = m.cmd.Wait() // what went wrong it has said
	}
}

// herd has all processes ask for a key at the same moment.
func (f *fleet) herd(key string, callers int, load time.Duration) (report, error) {
	o := order{Key: key, At: time.Now().Add(60 * time.Millisecond).UnixNano(), Callers: callers, Load: load}
	for _, m := range f.members {
		if err := m.in.Encode(o); err != nil {
			return report{}, err
		}
	}
	var all report
	for _, m := range f.members {
		var r report
		if err := m.out.Decode(&r); err != nil {
			return report{}, fmt.Errorf("a process of the fleet: %w", err)
		}
		all.Late, all.Failed, all.Loads = append(all.Late, r.Late...), all.Failed+r.Failed, all.Loads+r.Loads
	}
	if all.Failed > 0 {
		return all, fmt.Errorf("%d of %d callers got no value", all.Failed, len(all.Late))
	}
	return all, nil
}

// Member runs this program as a process of a fleet, if that is what it was started for:
// then it does not return.
func Member() {
	name := os.Getenv(envPeer)
	if name == "" {
		return
	}
	at := peers.Servers{Redis: os.Getenv(envRedis), Memcached: os.Getenv(envMemcached)}
	if err := serveHerds(context.Background(), name, at, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "a process of the fleet, %s: %v\n", name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serveHerds(ctx context.Context, name string, at peers.Servers, in io.Reader, out io.Writer) error {
	p, ok := peers.Named(name)
	if !ok {
		return errors.New("there is no such peer")
	}
	c, err := p.New(at)
	if err != nil {
		return err
	}
	defer c.Close()
	orders, reports := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var loads atomic.Int64
		if err := pause(ctx, time.Until(time.Unix(0, o.At))); err != nil {
			return err
		}
		r := report{stampede: release(ctx, c, o.Key, o.Callers, slowly(loadTime(o.Load, o.Key), &loads))}
		r.Loads = int(loads.Load())
		if err := reports.Encode(r); err != nil {
			return err
		}
	}
}
