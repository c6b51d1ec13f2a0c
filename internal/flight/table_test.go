package flight

import (
	"context"
	"fmt"
	"math/rand"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/bubble"
)

func quiet(t *testing.T, tab *Table[string]) {
	t.Helper()
	for _, wrong := range tab.Check() {
		t.Errorf("invariant: %s", wrong)
	}
	if n := tab.InFlight(); n != 0 {
		t.Errorf("%d are still in the air", n)
	}
}

// lead begins a flight and fails if one was joined instead.
func lead(t *testing.T, tab *Table[string], k string) *Flight[string] {
	t.Helper()
	f, leads := tab.Join(k, Call[string]{Now: now(), MaxAge: time.Hour})
	if !leads {
		t.Fatalf("joined a flight of %q, expected to lead", k)
	}
	return f
}

func joins(t *testing.T, tab *Table[string], k string, want *Flight[string]) {
	t.Helper()
	if f, leads := tab.Join(k, Call[string]{Now: now(), MaxAge: time.Hour}); leads || f != want {
		t.Fatalf("joined %p (leads %t), want %p", f, leads, want)
	}
}

// Joinable says whether later callers still join f.
func (t *Table[R]) Joinable(f *Flight[R]) bool {
	s := t.shard(f.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	return f.key.current == f
}

// Everybody joins the flight that is in the air, gets its result, and the next one
// leads; the last flight leaves nothing behind.
func TestJoinAndLand(t *testing.T) {
	tab := NewTable[string](now)
	f := lead(t, tab, "k")
	joins(t, tab, "k", f)
	other := lead(t, tab, "other")
	if !tab.Joinable(f) || tab.InFlight() != 2 {
		t.Errorf("joinable %t, %d in the air", tab.Joinable(f), tab.InFlight())
	}
	published := false
	tab.Land(f, "result", func() { published = true }, nil)
	<-f.Done()
	if f.Result() != "result" || !published {
		t.Errorf("result %q, published %t", f.Result(), published)
	}
	tab.Land(other, "", nil, nil)
	quiet(t, tab)
	tab.Land(lead(t, tab, "k"), "", nil, nil)
	quiet(t, tab)
}

// What is published is visible before anybody can lead again: publish runs under the
// key's lock. Forced: a Join is started inside publish; it must come back only after
// publish has ended, and lead.
func TestPublishBeforeTheNextLeads(t *testing.T) {
	tab := NewTable[string](now)
	f := lead(t, tab, "k")
	var visible atomic.Bool
	var saw bool
	started, joined := make(chan struct{}), make(chan *Flight[string])
	tab.Land(f, "", func() {
		go func() {
			close(started)
			next, leads := tab.Join("k", Call[string]{Now: now(), MaxAge: time.Hour})
			saw = visible.Load() && leads
			joined <- next
		}()
		<-started
		visible.Store(true)
	}, nil)
	next := <-joined
	if !saw {
		t.Error("a caller missed both the flight and its result")
	}
	tab.Land(next, "", nil, nil)
	quiet(t, tab)
}

// A flight that lands removes nothing but itself, and voids nothing of its follower.
func TestOldFlightLandsAfterItsFollower(t *testing.T) {
	tab := NewTable[string](now)
	old := lead(t, tab, "k")
	tab.Changed("k")
	next := lead(t, tab, "k")
	tab.Land(old, "old", func() {}, nil)
	joins(t, tab, "k", next)
	published := false
	tab.Land(next, "next", func() { published = true }, nil)
	if !published {
		t.Error("a detached flight's landing voided the next one")
	}
	quiet(t, tab)
}

// Changed takes the flight out of the table, unless it waits for somebody else's load.
// It never forbids publishing: that is the business of local's stamps.
func TestChanged(t *testing.T) {
	for name, change := range map[string]func(*Table[string]){
		"Changed":    func(tab *Table[string]) { tab.Changed("k") },
		"ChangedAll": func(tab *Table[string]) { tab.ChangedAll() },
	} {
		tab := NewTable[string](now)
		change(tab) // with nothing in the air
		f := lead(t, tab, "k")
		tab.SetWaiting(f, true)
		change(tab)
		if !tab.Joinable(f) {
			t.Errorf("%s took a waiting flight out of the table", name)
		}
		joins(t, tab, "k", f)
		tab.SetWaiting(f, false)
		change(tab)
		if tab.Joinable(f) {
			t.Errorf("%s left a flight joinable that may carry old data", name)
		}
		published := false
		tab.Land(f, "", func() { published = true }, nil)
		if !published {
			t.Errorf("%s forbade publishing", name)
		}
		quiet(t, tab)
	}
	tab := NewTable[string](now)
	a := lead(t, tab, "a")
	tab.Changed("b")
	joins(t, tab, "a", a)
	tab.Land(a, "", nil, nil)
}

// A write voids every flight of its key, waiting ones too, in the table or not, begun
// before it or while it ran; none publishes. One that begins after it does.
func TestWriteVoids(t *testing.T) {
	tab := NewTable[string](now)
	drops := 0
	drop := func() { drops++ }
	gone := lead(t, tab, "k")
	tab.Changed("k") // out of the table
	waiting := lead(t, tab, "k")
	tab.SetWaiting(waiting, true)
	w := tab.BeginWrite("k", drop)
	during := lead(t, tab, "k")
	tab.EndWrite(w, drop, nil)
	after := lead(t, tab, "k")
	if drops != 2 {
		t.Errorf("local was dropped %d times, want before and after the write", drops)
	}
	for name, f := range map[string]*Flight[string]{"gone": gone, "waiting": waiting, "during": during} {
		tab.Land(f, "", func() { t.Errorf("the flight %q published", name) }, nil)
	}
	published := false
	tab.Land(after, "", func() { published = true }, nil)
	if !published {
		t.Error("a flight that began after the write did not publish")
	}
	quiet(t, tab)
}

// A write publishes what it wrote if it was alone; of two that overlapped neither
// knows which one the store has, in whichever order they end.
func TestOverlappingWrites(t *testing.T) {
	none := func() {}
	tab := NewTable[string](now)
	alone := false
	tab.EndWrite(tab.BeginWrite("k", none), none, func() { alone = true })
	if !alone {
		t.Error("a write that was alone did not publish")
	}
	for _, reversed := range []bool{false, true} {
		a, b := tab.BeginWrite("k", none), tab.BeginWrite("k", none)
		if reversed {
			a, b = b, a
		}
		tab.EndWrite(a, none, func() {
			if !reversed {
				t.Error("the first of two overlapping writes published")
			}
		})
		tab.EndWrite(b, none, func() { t.Error("the last of two overlapping writes published") })
	}
	other := tab.BeginWrite("other", none)
	alone = false
	tab.EndWrite(tab.BeginWrite("k", none), none, func() { alone = true })
	if !alone {
		t.Error("a write of another key counted as an overlap")
	}
	tab.EndWrite(other, none, nil)
	quiet(t, tab)
}

// A flight older than maxAge is not joined, unless it waits and so carries nothing.
func TestMaxAge(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		tab := NewTable[string](now)
		f := lead(t, tab, "k")
		time.Sleep(time.Second)
		if g, leads := tab.Join("k", Call[string]{Now: now(), MaxAge: time.Second}); leads || g != f {
			t.Error("a flight of exactly maxAge was not joined")
		}
		time.Sleep(1)
		tab.SetWaiting(f, true)
		if g, leads := tab.Join("k", Call[string]{Now: now(), MaxAge: time.Second}); leads || g != f {
			t.Error("a waiting flight was not joined because of its age")
		}
		tab.SetWaiting(f, false)
		g, leads := tab.Join("k", Call[string]{Now: now(), MaxAge: time.Second})
		if !leads {
			t.Error("a flight older than maxAge was joined")
		}
		tab.Land(f, "", nil, nil)
		tab.Land(g, "", nil, nil)
		quiet(t, tab)
	})
}

// A flight waits as long as the most patient caller who joined.
func TestUntil(t *testing.T) {
	tab := NewTable[string](now)
	f, _ := tab.Join("k", Call[string]{Now: now(), Until: 5, MaxAge: time.Hour})
	for _, u := range []int64{3, 9, 7} {
		tab.Join("k", Call[string]{Now: now(), Until: u, MaxAge: time.Hour})
	}
	if f.Until() != 9 {
		t.Errorf("the flight waits until %d, want 9", f.Until())
	}
	tab.Land(f, "", nil, nil)
}

// Interim belongs to the flight that was led with it.
func TestInterim(t *testing.T) {
	tab := NewTable[string](now)
	old := "old"
	f, _ := tab.Join("k", Call[string]{Now: now(), MaxAge: time.Hour, Interim: func() *string { return &old }})
	other := func() *string { t.Error("a joiner was asked for an interim"); return nil }
	if g, leads := tab.Join("k", Call[string]{Now: now(), MaxAge: time.Hour, Interim: other}); leads || g.Interim != &old {
		t.Errorf("leads %t, interim %p", leads, g.Interim)
	}
	tab.Land(f, "", nil, nil)
	quiet(t, tab)
}

// A leader that never waits needs no channel; one that opens the flight does get one.
func TestOpen(t *testing.T) {
	tab := NewTable[string](now)
	f := lead(t, tab, "k")
	tab.Open(f)
	tab.Land(f, "r", nil, nil)
	<-f.Done()
	quiet(t, tab)
}

// The validator finds what it is there to find (STYLE 18).
func TestCheckFindsBrokenTables(t *testing.T) {
	broken := func(want string, breakIt func(*Table[string], *Flight[string])) {
		t.Helper()
		tab := NewTable[string](now)
		f := lead(t, tab, "k")
		tab.Open(f)
		breakIt(tab, f)
		if got := strings.Join(tab.Check(), "\n"); !strings.Contains(got, want) {
			t.Errorf("Check says %q, want %q", got, want)
		}
	}
	broken("nothing of it is alive", func(_ *Table[string], f *Flight[string]) { f.key.alive = 0 })
	broken("landed flight", func(_ *Table[string], f *Flight[string]) { close(f.done) })
	broken("another state", func(_ *Table[string], f *Flight[string]) { f.key = &key[string]{} })
	tab := NewTable[string](now)
	f := lead(t, tab, "k")
	if w := tab.Check(); len(w) != 0 || tab.InFlight() != 1 {
		t.Errorf("a sound table with one flight: %v, %d", w, tab.InFlight())
	}
	tab.Land(f, "", nil, nil)
}

// Properties, over random operations of many goroutines on a few keys: of one key at
// most one flight is joinable; a flight's result reaches everybody who joined; none
// that a write overlapped publishes; at the end nothing is left.
func TestTableProperties(t *testing.T) {
	tab := NewTable[string](now)
	const keys = 5
	var writes [keys]struct {
		sync.RWMutex
		begun, ended int
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewSource(int64(g)))
			for range 3000 {
				i := rnd.Intn(keys)
				k, w := fmt.Sprint(i), &writes[i]
				switch rnd.Intn(6) {
				case 0:
					tab.Changed(k)
				case 1:
					tab.ChangedAll()
				case 2:
					w.Lock()
					w.begun++
					w.Unlock()
					x := tab.BeginWrite(k, func() {})
					tab.EndWrite(x, func() {}, nil)
					w.Lock()
					w.ended++
					w.Unlock()
				default:
					w.RLock()
					ended := w.ended
					w.RUnlock()
					f, leads := tab.Join(k, Call[string]{Now: now(), MaxAge: time.Hour})
					if !leads {
						<-f.Done()
						if f.Result() != k {
							t.Errorf("a joiner of %q got %q", k, f.Result())
						}
						continue
					}
					tab.Open(f)
					tab.SetWaiting(f, true)
					tab.SetWaiting(f, false)
					published := false
					tab.Land(f, k, func() { published = true }, nil)
					w.RLock()
					begun := w.begun
					w.RUnlock()
					if begun == ended && !published {
						t.Errorf("a flight of %q that no write overlapped did not publish", k)
					}
				}
			}
		})
	}
	wg.Wait()
	quiet(t, tab)
}

// Cycles of loads: refused if and only if the waiting node can be reached; forgotten
// when the waiting ends; counted, as one load may wait for another one twice.
func TestWaitFor(t *testing.T) {
	var a, b, c, d Node
	if _, ok := a.WaitFor(&a); ok {
		t.Error("a node may wait for itself")
	}
	ab, ok1 := a.WaitFor(&b)
	bc, ok2 := b.WaitFor(&c)
	_, ok3 := a.WaitFor(&c) // a diamond is no circle
	if !ok1 || !ok2 || !ok3 {
		t.Fatal("a wait that closes no circle was refused")
	}
	for _, n := range []*Node{&a, &b} {
		if _, ok := c.WaitFor(n); ok {
			t.Error("a circle was closed")
		}
	}
	if done, ok := d.WaitFor(&a); !ok {
		t.Error("an outsider may not wait")
	} else {
		done()
	}
	twice, _ := b.WaitFor(&c)
	bc()
	if _, ok := c.WaitFor(&b); ok {
		t.Error("one of two waits ended, and the other was forgotten")
	}
	twice()
	ab()
	if done, ok := c.WaitFor(&b); !ok {
		t.Error("a wait that has ended still counts")
	} else {
		done()
	}
}

// Of many loads that wait for each other in a ring, all at once, at least one is
// refused, so none waits for ever.
func TestRingOfLoads(t *testing.T) {
	for range 50 {
		nodes := make([]Node, 8)
		var refused atomic.Int64
		var wg sync.WaitGroup
		for i := range nodes {
			wg.Go(func() {
				if _, ok := nodes[i].WaitFor(&nodes[(i+1)%len(nodes)]); !ok {
					refused.Add(1)
				}
			})
		}
		wg.Wait()
		if refused.Load() != 1 {
			t.Fatalf("%d waits of a ring were refused, want 1", refused.Load())
		}
	}
}

// A context knows the innermost load it belongs to.
func TestInside(t *testing.T) {
	var outer, inner Node
	ctx := context.Background()
	if From(ctx) != nil {
		t.Error("a plain context belongs to a load")
	}
	ctx = outer.Inside(ctx)
	if From(inner.Inside(ctx)) != &inner || From(ctx) != &outer {
		t.Error("a context does not know its load")
	}
}

// A flight can be joined until its result is visible: whoever leads finds the results
// of all flights before it published. With 8 callers, 3,000 times each, none of which
// voids anything.
func TestEveryLeaderSeesWhatWasPublished(t *testing.T) {
	tab := NewTable[string](now)
	var led, published, missed atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 3000 {
				f, leads := tab.Join("k", Call[string]{Now: now(), MaxAge: time.Hour})
				if !leads {
					<-f.Done()
					continue
				}
				if before := led.Add(1) - 1; published.Load() != before {
					missed.Add(1)
				}
				tab.Land(f, "", func() { published.Add(1) }, nil)
			}
		})
	}
	wg.Wait()
	if n := missed.Load(); n != 0 {
		t.Errorf("%d of %d leaders missed both a flight and its result", n, led.Load())
	}
	quiet(t, tab)
}

// now is the tests' clock.
func now() int64 { return time.Now().UnixNano() }
