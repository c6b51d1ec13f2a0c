package measure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onefill/onefill/bench/peers"
	"github.com/onefill/onefill/internal/faultproxy"
)

// Outages measures what a call costs when Redis goes away.
func Outages(s Sizes) *Measure {
	return &Measure{
		Name: "outage", Title: "Redis cut off", Rounds: (s.Rounds + 1) / 2,
		About: fmt.Sprintf("A process with open connections loses Redis; then it asks for a key that it does not have, and for two more. The load takes no time. Refused: the connections are reset and new ones refused. Silent: nothing is answered any more, as by a network that swallows everything. All peers do so at the same time, as they only wait. A call is given up after %v, and an error counts as the time until it came.", s.OutageWait),
		Columns: []Column{{"refused", "refused, first call, ms", 1}, {"refused3", "third call, ms", 1}, {"refusedErrors", "errors of 3", 0},
			{"silent", "silent, first call, ms", 1}, {"silent3", "third call, ms", 1}, {"silentErrors", "errors of 3", 0}},
		Targets: []Target{
			{Row: "onefill", Column: "refused", Limit: 260}, {Row: "onefill", Column: "refused3", Limit: 5}, {Row: "onefill", Column: "refusedErrors", Limit: 0},
			{Row: "onefill", Column: "silent", Limit: 260}, {Row: "onefill", Column: "silent3", Limit: 5}, {Row: "onefill", Column: "silentErrors", Limit: 0},
			{Row: "onefill, no tracking", Column: "silent", Limit: 260}, {Row: "onefill, no tracking", Column: "silent3", Limit: 5},
		},
		Plots: []Plot{{File: "bench-outage", Title: "Redis falls silent: the first call", Columns: []string{"silent"}, Y: "ms"}},
		Open:  openOutages,
	}
}

func openOutages(ctx context.Context, e *Env) ([]Row, error) {
	at, err := e.at(ctx)
	if err != nil {
		return nil, err
	}
	v := &volley{e: e, at: at, peers: e.pick(peers.Outage()), launched: map[string]int{}}
	var rows []Row
	for _, p := range v.peers {
		outcomes := make(chan outageOutcome, e.Size.Rounds) // a round for each
		v.outcomes = append(v.outcomes, outcomes)
		rows = append(rows, Row{Name: p.Name, Peer: &p, Round: func(ctx context.Context) (Values, error) {
			v.launch(ctx, p.Name)
			o := <-outcomes
			return o.values, o.err
		}})
	}
	return rows, nil
}

// volley measures all peers of a round at once: they wait for seconds and do nothing.
type volley struct {
	e        *Env
	at       peers.Servers
	peers    []peers.Peer
	outcomes []chan outageOutcome
	rounds   int            // that were launched
	launched map[string]int // how many rounds a peer has been asked for
}

type outageOutcome struct {
	values Values
	err    error
}

// launch starts the peer's next round, unless another peer's has.
func (v *volley) launch(ctx context.Context, peer string) {
	v.launched[peer]++
	if v.launched[peer] <= v.rounds {
		return
	}
	v.rounds++
	for i, p := range v.peers {
		go func() {
			values, err := outages(ctx, v.e, p, v.at)
			v.outcomes[i] <- outageOutcome{values, err}
		}()
	}
}

func outages(ctx context.Context, e *Env, p peers.Peer, at peers.Servers) (Values, error) {
	refused, err := outage(ctx, e, p, at, func(proxy *faultproxy.Proxy) {
		proxy.Refuse(true)
		proxy.Cut(faultproxy.RST)
	})
	if err != nil {
		return nil, err
	}
	silent, err := outage(ctx, e, p, at, func(proxy *faultproxy.Proxy) { proxy.SetBoth(faultproxy.Faults{BlackHole: true}) })
	if err != nil {
		return nil, err
	}
	return Values{"refused": refused.first, "refused3": refused.third, "refusedErrors": refused.errors,
		"silent": silent.first, "silent3": silent.third, "silentErrors": silent.errors}, nil
}

type outageCost struct{ first, third, errors float64 }

func outage(ctx context.Context, e *Env, p peers.Peer, at peers.Servers, begin func(*faultproxy.Proxy)) (outageCost, error) {
	proxy, err := faultproxy.Start(at.Redis)
	if err != nil {
		return outageCost{}, err
	}
	defer proxy.Stop()
	c, err := p.New(peers.Servers{Redis: proxy.Addr(), Memcached: at.Memcached})
	if err != nil {
		return outageCost{}, err
	}
	keys := newKeys("outage")
	if _, err := c.Get(ctx, keys.key(), load); err != nil {
		c.Close()
		return outageCost{}, err
	}
	begin(proxy)
	var cost outageCost
	for i := range 3 {
		took, err := patientCall(ctx, c, keys.key(), e.Size.OutageWait)
		switch i {
		case 0:
			cost.first = took
		case 2:
			cost.third = took
		}
		if err != nil {
			cost.errors++
		}
	}
	proxy.Stop() // some clients do not close while they wait for an answer
	c.Close()
	return cost, ctx.Err()
}

// patientCall gives a call up after patience, whether it heeds its context or not.
func patientCall(ctx context.Context, c peers.Cache, key string, patience time.Duration) (ms float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	start, done := time.Now(), make(chan error, 1)
	go func() {
		b, err := c.Get(ctx, key, load)
		if err == nil && len(b) != peers.ValueSize {
			err = errors.New("a wrong value")
		}
		done <- err
	}()
	select {
	case err = <-done:
	case <-time.After(patience + patience/10): // some heed no context
		err = errors.New("it did not return")
	}
	return float64(time.Since(start).Microseconds()) / 1e3, err
}
