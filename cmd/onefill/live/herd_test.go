package live_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/onefill/onefill/cmd/onefill/live"
)

// quiet is a page without traffic, so that only herds are counted.
const quiet = `{"traffic": false, "load_ms": 1200}`

// stores plays a test on each store of the page.
func stores(t *testing.T, test func(t *testing.T, url string)) {
	for _, name := range []string{live.StoreMemory, live.StoreRedis} {
		t.Run(name, func(t *testing.T) {
			if name == live.StoreRedis {
				needRedis(t)
			}
			_, url := serve(t, options{Store: name})
			test(t, url)
		})
	}
}

// checkLoads compares the loads of the herd with those that each mode must have.
func checkLoads(t *testing.T, f frame, naive, local, lock, onefill int) {
	t.Helper()
	for mode, want := range map[string]int{live.ModeNaive: naive, live.ModeLocal: local, live.ModeLock: lock, live.ModeOnefill: onefill} {
		if got := f.Arms[mode].Herd.Loads; got != want {
			t.Errorf("%s: %d loads, expected %d", mode, got, want)
		}
	}
}

// TestHerd is the headline. Interleaving: nothing is in any cache, all callers are parked, and a
// load takes far longer than they need to come; so everybody has missed before anything is stored.
func TestHerd(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, url string) {
		p := join(t, url, quiet)
		for range 2 { // the second finds what the first has left
			f := p.herd()
			checkLoads(t, f, 12, 3, 1, 1)
			for mode, want := range map[string]string{ // flights, coalesced, waits, errors
				live.ModeNaive: "12 0 0 0", live.ModeLocal: "3 9 0 0", live.ModeLock: "12 0 11 0", live.ModeOnefill: "3 9 2 0",
			} {
				h := f.Arms[mode].Herd
				if got := fmt.Sprint(h.Flights, h.Coalesced, h.Waits, h.Errors); got != want {
					t.Errorf("%s: flights, coalesced, waits, errors are %s, expected %s", mode, got, want)
				}
				if h.Callers != 12 || h.P99MS < 1200 {
					t.Errorf("%s: %d callers, p99 %.0f ms", mode, h.Callers, h.P99MS)
				}
			}
		}
	})
}

// TestHerdFollowsTheSettings: other numbers of callers and processes, and one mode alone.
func TestHerdFollowsTheSettings(t *testing.T) {
	t.Parallel()
	_, url := serve(t, options{})
	p := join(t, url, quiet)
	p.do("settings", `{"traffic": false, "load_ms": 1200, "callers": 40, "processes": 5}`)
	checkLoads(t, p.herd(), 40, 5, 1, 1)
	p.do("settings", `{"traffic": false, "load_ms": 1200, "callers": 7, "processes": 2, "modes": ["onefill"]}`)
	p.until("one mode plays", func(f frame) bool { return len(f.Arms) == 1 })
	if h := p.herd().Arms[live.ModeOnefill].Herd; h.Loads != 1 || h.Callers != 7 {
		t.Errorf("%d callers, %d loads", h.Callers, h.Loads)
	}
}

// TestLoadOutlastsTheLock. Interleaving: the lock's time is over while its holder still loads,
// so all who wait for it load as well; onefill's lease is renewed.
func TestLoadOutlastsTheLock(t *testing.T) {
	t.Parallel()
	_, url := serve(t, options{})
	p := join(t, url, `{"traffic": false, "load_ms": 3000, "lease_ms": 1000}`)
	checkLoads(t, p.herd(), 12, 3, 12, 1)
}

// TestStoreKilled: without a store there is one load in each process, and the lock recipe has no
// answers; when it is back, all is as before.
func TestStoreKilled(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, url string) {
		p := join(t, url, quiet)
		p.herd()
		p.do("kill", "{}")
		p.do("kill", "{}") // twice is fine
		p.until("the store is down", func(f frame) bool { return f.State.Down })
		f := p.herd()
		checkLoads(t, f, 12, 3, 0, 3)
		if got := f.Arms[live.ModeLock].Herd.Errors; got != 12 {
			t.Errorf("lock: %d callers without an answer, expected 12", got)
		}
		if got := f.Arms[live.ModeOnefill].Herd.Errors; got != 0 {
			t.Errorf("onefill: %d callers without an answer", got)
		}
		if status, text := post(t, p.url+"settings", `{"processes": 4}`); status != 409 {
			t.Errorf("new caches without a store: %d %s", status, text)
		}
		p.do("restart", "{}")
		p.until("the store is up", func(f frame) bool { return !f.State.Down })
		// Each process notices by itself that the store is back.
		for deadline := time.Now().Add(30 * time.Second); ; {
			f = p.herd()
			if f.Arms[live.ModeOnefill].Herd.Loads == 1 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the store is back, and a herd still costs %d loads", f.Arms[live.ModeOnefill].Herd.Loads)
			}
		}
		checkLoads(t, f, 12, 3, 1, 1)
	})
}

// TestDatabaseFails: an error is shared like a value; each of the lock's waiters tries in the end.
func TestDatabaseFails(t *testing.T) {
	t.Parallel()
	_, url := serve(t, options{})
	p := join(t, url, `{"traffic": false, "load_ms": 1200, "lease_ms": 2000}`)
	p.do("fail", "{}")
	f := p.herd()
	checkLoads(t, f, 12, 3, 12, 1)
	for mode, a := range f.Arms {
		if a.Herd.Errors != 12 {
			t.Errorf("%s: %d callers without an answer, expected 12", mode, a.Herd.Errors)
		}
	}
	p.do("heal", "{}")
	p.do("settings", `{"traffic": false, "load_ms": 300, "failure_pct": 100}`)
	for mode, a := range p.herd().Arms {
		if a.Herd.Errors != 12 {
			t.Errorf("failure_pct 100, %s: %d callers without an answer, expected 12", mode, a.Herd.Errors)
		}
	}
}

// TestPause: a load that is paused is drawn as open, and everybody waits for it; then it goes on.
func TestPause(t *testing.T) {
	t.Parallel()
	_, url := serve(t, options{})
	p := join(t, url, `{"traffic": false, "load_ms": 50}`)
	p.do("pause", "{}")
	p.do("herd", "{}")
	p.until("all wait for loads that are paused", func(f frame) bool {
		return f.State.Paused && f.State.Herd && f.Arms[live.ModeNaive].Running == 12 && f.Arms[live.ModeOnefill].Running == 1 &&
			f.Arms[live.ModeOnefill].Waiting == 12
	})
	if status, text := post(t, p.url+"herd", "{}"); status != 409 {
		t.Errorf("a second herd at once: %d %s", status, text)
	}
	p.do("resume", "{}")
	checkLoads(t, p.over(), 12, 3, 1, 1)
}

// TestTraffic: with the database broken and the key expired, onefill's callers get the old value
// and naive's get errors; a healthy page answers most calls from its caches.
func TestTraffic(t *testing.T) {
	t.Parallel()
	_, url := serve(t, options{})
	p := join(t, url, `{"load_ms": 50, "callers": 30, "ttl_ms": 30000}`)
	f := p.until("calls are answered from caches", func(f frame) bool {
		return f.Arms[live.ModeNaive].N.Stored > 30 && f.Arms[live.ModeOnefill].N.Local > 30
	})
	if n := f.Arms[live.ModeOnefill].N; n.Errors > 0 || n.Loads != 1 {
		t.Errorf("onefill, healthy: %d errors, %d loads", n.Errors, n.Loads)
	}
	p.do("fail", "{}")
	p.do("expire", "{}")
	f = p.until("stale values and errors", func(f frame) bool {
		return f.Arms[live.ModeNaive].N.Errors > 10 && f.Arms[live.ModeOnefill].N.Stale > 10
	})
	if n := f.Arms[live.ModeOnefill].N; n.Errors > 0 {
		t.Errorf("onefill: %d callers got errors although there was an old value", n.Errors)
	}
}

// TestBarsEnd: every bar that the page is told of as open is told of again when it ends.
func TestBarsEnd(t *testing.T) {
	t.Parallel()
	_, url := serve(t, options{})
	p := join(t, url, `{"traffic": false, "load_ms": 1200}`)
	p.do("herd", "{}")
	lanes, open, seen := map[string]int{}, map[string]bool{}, false
	p.until("a herd is drawn and over", func(f frame) bool {
		for mode, a := range f.Arms {
			for _, b := range a.Bars {
				id := fmt.Sprint(mode, " ", b.L, " ", b.I)
				if b.E == 0 {
					open[id] = true
					continue
				}
				delete(open, id)
				lanes[mode+" "+b.L]++
			}
			seen = seen || a.Herd != nil && a.Herd.Done
		}
		return seen && !f.State.Herd && len(open) == 0
	})
	for lane, want := range map[string]int{
		"naive op": 12, "naive flight": 12, "local op": 3, "local flight": 3, "lock op": 1, "lock flight": 12, "lock lease": 1,
		"onefill op": 1, "onefill flight": 3, "onefill lease": 1,
	} {
		if lanes[lane] != want {
			t.Errorf("%s: %d bars, expected %d", lane, lanes[lane], want)
		}
	}
	if lanes["naive lease"]+lanes["local lease"] > 0 {
		t.Error("a lease in a mode that has none")
	}
}
