package onefill_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/bus"
	"github.com/onefill/onefill/bus/membus"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// onBus runs a test in a bubble on the stores that do not push, with a bus beside them.
func onBus(t *testing.T, test func(t *testing.T, st *memstore.Store, b *membus.Bus)) {
	t.Helper()
	stores(t, func(t *testing.T, st *memstore.Store) {
		if !strings.HasSuffix(t.Name(), "/push") {
			test(t, st, membus.New())
		}
	})
}

// bused are the options of a process whose local entries live for an hour: what it
// hears, it hears from the bus.
func bused(st *memstore.Store, b bus.Bus, o *originDB) options {
	return options{Store: st, Bus: b, Load: o.load, TTL: 10 * time.Hour, Jitter: onefill.NoJitter,
		Local: onefill.LocalOptions{TTL: time.Hour}, Tags: true}
}

// fill makes caches have the keys in local.
func fill(t *testing.T, want string, keys []string, caches ...*cache) {
	t.Helper()
	for _, c := range caches {
		for _, key := range keys {
			get(t, c, key, want)
		}
	}
}

// local says whether a cache answers from local.
func inLocal(t *testing.T, c *cache, key, want string) {
	t.Helper()
	if r, err := c.Fetch(bg, key); err != nil || r.Value != want || r.Source != onefill.SourceLocal {
		t.Errorf("Fetch(%q) = %q from %v, %v; want %q from local", key, r.Value, r.Source, err, want)
	}
}

func TestBusTellsOfEveryWrite(t *testing.T) {
	for name, write := range map[string]func(*cache) error{
		"Set":           func(c *cache) error { return c.Set(bg, "k", "new") },
		"Invalidate":    func(c *cache) error { return c.Invalidate(bg, "k") },
		"Expire":        func(c *cache) error { return c.Expire(bg, "k") },
		"InvalidateTag": func(c *cache) error { return c.InvalidateTag(bg, "tag") },
		"Clear":         func(c *cache) error { return c.Clear(bg) },
	} {
		t.Run(name, func(t *testing.T) {
			onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
				o := newOrigin("old", 0)
				opts := bused(st, b, o)
				opts.TagsOf = func(string, string) []string { return []string{"tag"} }
				a, other := newCache(t, opts), newCache(t, opts)
				fill(t, "old", []string{"k"}, a, other)
				o.write("new")
				start := time.Now()
				must(t, write(a))
				synctest.Wait()
				if name == "Set" { // what a process has said itself does not concern it
					inLocal(t, a, "k", "new")
				}
				get(t, other, "k", "new")
				get(t, a, "k", "new")
				if took := time.Since(start); took != 0 {
					t.Errorf("the other process had the new value after %v", took)
				}
				if s := other.Stats(); s.BusHeard != 1 || s.BusPublished != 0 || s.BusGaps != 0 {
					t.Errorf("%d heard, %d published, %d gaps", s.BusHeard, s.BusPublished, s.BusGaps)
				}
			})
		})
	}
}

// The bound is the message's delay; and a bus that delivers nothing leaves Local.TTL.
func TestBusDelay(t *testing.T) {
	onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
		o := newOrigin("1", 0)
		a, other := newCache(t, bused(st, b, o)), newCache(t, bused(st, b, o))
		fill(t, "1", []string{"k"}, other)
		b.SetFault(func(membus.Message) membus.Fault { return membus.Fault{Delay: 40 * time.Millisecond} })
		o.write("2")
		must(t, a.Invalidate(bg, "k"))
		time.Sleep(40*time.Millisecond - 1)
		inLocal(t, other, "k", "1")
		time.Sleep(1)
		synctest.Wait()
		get(t, other, "k", "2")

		b.SetFault(func(membus.Message) membus.Fault { return membus.Fault{Lose: true} })
		o.write("3")
		must(t, a.Invalidate(bg, "k"))
		time.Sleep(time.Hour - 1)
		inLocal(t, other, "k", "2")
		time.Sleep(1)
		get(t, other, "k", "3")
	})
}

func TestBusCoalesces(t *testing.T) {
	onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
		o := newOrigin("old", 0)
		opts := bused(st, b, o)
		a, other := newCache(t, opts), newCache(t, opts)
		var keys []string
		for i := range 1000 {
			keys = append(keys, fmt.Sprint("key-number-", i))
		}
		fill(t, "old", keys, other)
		o.write("new")
		for range 3 { // the same key is named once
			for _, key := range keys {
				must(t, a.Invalidate(bg, key))
				time.Sleep(10 * time.Microsecond)
			}
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if n := b.Published("test"); n > 10 {
			t.Errorf("%d messages for 3000 invalidations in 30 ms", n)
		}
		for _, key := range keys {
			get(t, other, key, "new")
		}
		if s := other.Stats(); s.BusGaps != 0 {
			t.Errorf("%d gaps", s.BusGaps)
		}
	})
}

// gaps collects what an observer is told of gaps.
type gaps struct {
	mu     sync.Mutex
	causes []string
}

func (g *gaps) Observe(e onefill.Event) {
	if e.Kind == onefill.EventBusGap {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.causes = append(g.causes, e.Err.Error())
	}
}

func (g *gaps) want(t *testing.T, c *cache, causes ...string) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if int(c.Stats().BusGaps) != len(causes) || len(g.causes) != len(causes) {
		t.Fatalf("%d gaps, told of %q; want %q", c.Stats().BusGaps, g.causes, causes)
	}
	for i, cause := range causes {
		if !strings.Contains(g.causes[i], cause) {
			t.Errorf("told of %q, want %q", g.causes[i], cause)
		}
	}
}

// A message about one key is lost. The next message, about another one, shows it, whether
// the sender was known or not.
func TestBusGap(t *testing.T) {
	onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
		o, told := newOrigin("1", 0), &gaps{}
		opts := bused(st, b, o)
		a := newCache(t, opts)
		opts.Observer = told
		other := newCache(t, opts)
		fill(t, "1", []string{"lost", "heard", "untouched"}, other)
		o.write("2")
		b.SetFault(func(m membus.Message) membus.Fault { return membus.Fault{Lose: m.N == 1} })
		must(t, a.Invalidate(bg, "lost"))
		time.Sleep(10 * time.Millisecond)
		inLocal(t, other, "lost", "1")
		told.want(t, other)
		must(t, a.Invalidate(bg, "heard"))
		synctest.Wait()
		told.want(t, other, "missed")
		get(t, other, "lost", "2")
		get(t, other, "heard", "2")
		get(t, other, "untouched", "1") // from the store
		o.wantLoads(t, 5)
		must(t, a.Invalidate(bg, "untouched"))
		time.Sleep(10 * time.Millisecond)
		told.want(t, other, "missed") // and no more

		o.write("3")
		b.SetFault(func(m membus.Message) membus.Fault { return membus.Fault{Lose: m.N == 4} })
		must(t, a.Invalidate(bg, "lost"))
		time.Sleep(10 * time.Millisecond)
		inLocal(t, other, "lost", "2")
		must(t, a.Invalidate(bg, "heard"))
		synctest.Wait()
		told.want(t, other, "missed", "missed")
		get(t, other, "lost", "3")
	})
}

// The last message is lost, and heartbeats as well: the first that arrives shows it.
func TestBusHeartbeat(t *testing.T) {
	for lost, after := range map[int]time.Duration{1: time.Second, 2: 3 * time.Second, 3: 7 * time.Second} {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
				o, told := newOrigin("1", 0), &gaps{}
				opts := bused(st, b, o)
				a := newCache(t, opts)
				opts.Observer = told
				other := newCache(t, opts)
				fill(t, "1", []string{"k"}, other)
				o.write("2")
				b.SetFault(func(m membus.Message) membus.Fault { return membus.Fault{Lose: m.N <= lost} })
				must(t, a.Invalidate(bg, "k"))
				time.Sleep(after - time.Millisecond)
				inLocal(t, other, "k", "1")
				time.Sleep(20 * time.Millisecond)
				get(t, other, "k", "2")
				time.Sleep(time.Minute)
				told.want(t, other, "missed")
				if n := b.Published("test"); n != 4 { // the message and its heartbeats
					t.Errorf("%d messages; they should have ended", n)
				}
			})
		})
	}
}

func TestBusReconnected(t *testing.T) {
	onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
		o, told := newOrigin("1", 0), &gaps{}
		opts := bused(st, b, o)
		a := newCache(t, opts)
		opts.Observer = told
		other := newCache(t, opts)
		fill(t, "1", []string{"k"}, other)
		// A message that came before the connection broke, and one that was lost with it.
		must(t, a.Invalidate(bg, "else"))
		time.Sleep(10 * time.Millisecond)
		b.SetFault(func(m membus.Message) membus.Fault { return membus.Fault{Lose: m.N == 2} })
		o.write("2")
		must(t, a.Invalidate(bg, "k"))
		synctest.Wait()
		inLocal(t, other, "k", "1")
		time.Sleep(10 * time.Millisecond)
		b.Reconnect()
		told.want(t, other, "connection")
		get(t, other, "k", "2")
		// What was lost before is no gap that is found later.
		must(t, a.Invalidate(bg, "more"))
		time.Sleep(10 * time.Millisecond)
		told.want(t, other, "connection")
		inLocal(t, other, "k", "2")
	})
}

// Messages that come twice or overtake each other drop what they name, and no less.
func TestBusDisorder(t *testing.T) {
	onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
		o, told := newOrigin("1", 0), &gaps{}
		opts := bused(st, b, o)
		a := newCache(t, opts)
		opts.Observer = told
		other := newCache(t, opts)
		fill(t, "1", []string{"a", "b", "c"}, other)
		b.SetFault(func(m membus.Message) membus.Fault { return membus.Fault{Twice: m.N == 1} })
		o.write("2")
		must(t, a.Invalidate(bg, "a"))
		synctest.Wait()
		get(t, other, "a", "2")
		inLocal(t, other, "b", "1")
		told.want(t, other)
		time.Sleep(10 * time.Millisecond)

		// The second message comes after the third, which shows a gap; b is read again from the
		// store, and is old again when the second one comes.
		b.SetFault(func(m membus.Message) membus.Fault {
			if m.N == 2 {
				return membus.Fault{Delay: 100 * time.Millisecond}
			}
			return membus.Fault{}
		})
		must(t, a.Invalidate(bg, "b"))
		time.Sleep(10 * time.Millisecond)
		must(t, a.Invalidate(bg, "c"))
		synctest.Wait()
		told.want(t, other, "missed")
		fill(t, "2", []string{"b", "c"}, other)
		time.Sleep(100 * time.Millisecond)
		inLocal(t, other, "c", "2")
		get(t, other, "b", "2")
		told.want(t, other, "missed")
	})
}

func TestBusForeignMessages(t *testing.T) {
	onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
		o, told := newOrigin("1", 0), &gaps{}
		opts := bused(st, b, o)
		opts.Observer = told
		c := newCache(t, opts)
		fill(t, "1", []string{"k"}, c)
		for _, garbage := range []string{"", "O", "hello", `{"key":"k"}`, strings.Repeat("\xff", 5000)} {
			must(t, b.Publish(bg, "test", []byte(garbage)))
		}
		told.want(t, c)
		inLocal(t, c, "k", "1")
		// A cache that this version does not understand has written something.
		must(t, b.Publish(bg, "test", []byte("OFB\x02 a later version")))
		must(t, b.Publish(bg, "test", []byte("OFB\x01 cut short")))
		told.want(t, c, "version 2", "cut short")
		if s := c.Stats(); s.BusForeign != 7 || s.BusHeard != 0 {
			t.Errorf("%d foreign messages, %d heard", s.BusForeign, s.BusHeard)
		}
	})
}

// A write neither fails nor waits while the bus does. What was not said is said as
// "everything" when the bus is back.
func TestBusFails(t *testing.T) {
	onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
		o, told := newOrigin("1", 0), &gaps{}
		opts := bused(st, b, o)
		a := newCache(t, opts)
		opts.Observer = told
		other := newCache(t, opts)
		fill(t, "1", []string{"k", "l"}, other)
		o.write("2")
		b.SetFault(func(membus.Message) membus.Fault { return membus.Fault{Err: errors.New("no bus today")} })
		start := time.Now()
		must(t, a.Invalidate(bg, "k"))
		must(t, a.Set(bg, "l", "2"))
		if took := time.Since(start); took != 0 {
			t.Errorf("the writes took %v", took)
		}
		time.Sleep(10 * time.Second)
		inLocal(t, other, "k", "1")
		if s := a.Stats(); s.BusErrors < 9 || s.BusErrors > 30 || s.BusPublished != 0 { // not in a loop
			t.Errorf("%d errors, %d published", s.BusErrors, s.BusPublished)
		}
		b.SetFault(nil)
		time.Sleep(5 * time.Second)
		told.want(t, other, "could not say")
		fill(t, "2", []string{"k", "l"}, other)
		must(t, a.Invalidate(bg, "k")) // as if nothing had been
		synctest.Wait()
		inLocal(t, other, "l", "2")
		told.want(t, other, "could not say")
	})
}

// A message whose sending failed although it was sent is a message; one that fails once is
// tried again and no gap.
func TestBusTriesAgain(t *testing.T) {
	onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
		o, told := newOrigin("1", 0), &gaps{}
		opts := bused(st, b, o)
		a := newCache(t, opts)
		opts.Observer = told
		other := newCache(t, opts)
		for _, late := range []bool{true, false} {
			fill(t, "1", []string{"k"}, other)
			n := b.Published("test")
			b.SetFault(func(m membus.Message) membus.Fault {
				if m.N == n+1 {
					return membus.Fault{Err: errors.New("who knows"), ErrLate: late}
				}
				return membus.Fault{}
			})
			o.write("2")
			must(t, a.Invalidate(bg, "k"))
			time.Sleep(20 * time.Millisecond)
			get(t, other, "k", "2")
			o.write("1")
			must(t, a.Invalidate(bg, "k"))
			time.Sleep(20 * time.Millisecond)
		}
		told.want(t, other)
	})
}

// The bus hangs. Writers go on, what gathers is bounded, and in the end it is said.
func TestSlowBusHoldsUpNobody(t *testing.T) {
	onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
		o, told := newOrigin("1", 0), &gaps{}
		opts := bused(st, b, o)
		opts.StoreTimeout = time.Second
		a := newCache(t, opts)
		opts.Observer = told
		other := newCache(t, opts)
		fill(t, "1", []string{"k", "untouched"}, other)
		hold := make(chan struct{})
		b.SetFault(func(membus.Message) membus.Fault { return membus.Fault{Hold: hold} })
		o.write("2")
		start := time.Now()
		var many []string
		for i := range 20_000 {
			many = append(many, fmt.Sprint("k", i))
		}
		must(t, a.Invalidate(bg, "k"))
		must(t, a.Invalidate(bg, many...))
		if took := time.Since(start); took != 0 {
			t.Errorf("the writes took %v", took)
		}
		inLocal(t, other, "k", "1")
		close(hold)
		b.SetFault(nil)
		time.Sleep(100 * time.Millisecond)
		told.want(t, other, "could not say")
		get(t, other, "k", "2")
		if n := b.Published("test"); n > 3 {
			t.Errorf("%d messages", n)
		}
	})
}

// Who comes late has missed nothing that matters: he begins with an empty local. One who
// was there and hears a sender for the first time may have.
func TestBusLateSubscriber(t *testing.T) {
	onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
		o, told, toldLate := newOrigin("1", 0), &gaps{}, &gaps{}
		opts := bused(st, b, o)
		a := newCache(t, opts)
		opts.Observer = told
		early := newCache(t, opts)
		fill(t, "1", []string{"k", "l"}, early)
		b.SetFault(func(m membus.Message) membus.Fault { return membus.Fault{Lose: m.N <= 3} })
		o.write("2")
		for range 3 {
			must(t, a.Invalidate(bg, "k"))
			time.Sleep(10 * time.Millisecond)
		}
		opts.Observer = toldLate
		late := newCache(t, opts)
		fill(t, "2", []string{"k"}, late)
		time.Sleep(time.Millisecond)
		must(t, a.Invalidate(bg, "l"))
		synctest.Wait()
		toldLate.want(t, late)
		inLocal(t, late, "k", "2")
		told.want(t, early, "missed")
		get(t, early, "k", "2")
	})
}

// The reader's store read has the old value when the other process's message comes:
//
//	reader                      writer                     bus
//	Get: stamp, store: old
//	(the reply is held)         row = new, Invalidate
//	                            applied, published   ───►  heard by the reader
//	a later Get does not join, and has the new value
//	the reply comes: old
//
// The first caller may have the old value; local must not.
func TestBusMessageDuringARead(t *testing.T) {
	for name, lost := range map[string]bool{"message": false, "lost message, and then the bus says so": true} {
		t.Run(name, func(t *testing.T) {
			onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
				o := newOrigin("old", 0)
				a, reader := newCache(t, bused(st, b, o)), newCache(t, bused(st, b, o))
				fill(t, "old", []string{"k"}, a)
				kind := memstore.OpGet
				if reader.Features().AcquireReads {
					kind = memstore.OpAcquire
				}
				stopped, resume := holdNext(st, kind, true)
				first := ask(bg, reader, "k")
				stopped()
				o.write("new")
				b.SetFault(func(membus.Message) membus.Fault { return membus.Fault{Lose: lost} })
				must(t, a.Invalidate(bg, "k"))
				synctest.Wait()
				if lost {
					b.Reconnect()
				}
				pending(t, first)
				get(t, reader, "k", "new")
				resume()
				if got := <-first; got.err != nil || got.Value != "old" {
					t.Errorf("the first caller got %q, %v", got.Value, got.err)
				}
				inLocal(t, reader, "k", "new")
			})
		})
	}
}

// The message is sent when the store has applied the write, and not before: else this
// would leave the old value in local for Local.TTL:
//
//	reader                      writer
//	                            Invalidate (held before it is applied)
//	hears the message, if there is one
//	Get: reads the old value
//	                            applied
func TestBusIsToldAfterTheStore(t *testing.T) {
	for _, answered := range []bool{true, false} {
		t.Run(fmt.Sprintf("answered %t", answered), func(t *testing.T) {
			onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
				o := newOrigin("old", 0)
				a, reader := newCache(t, bused(st, b, o)), newCache(t, bused(st, b, o))
				fill(t, "old", []string{"k"}, a)
				there, hold := make(chan struct{}), make(chan struct{})
				st.SetFault(func(op memstore.Op) memstore.Fault {
					if op.Kind != memstore.OpInvalidate {
						return memstore.Fault{}
					}
					st.SetFault(nil)
					close(there)
					return memstore.Fault{Hold: hold, LoseReply: !answered}
				})
				o.write("new")
				done := make(chan error, 1)
				go func() { done <- a.Invalidate(bg, "k") }()
				<-there
				synctest.Wait()
				get(t, reader, "k", "old")
				close(hold)
				if err := <-done; (err == nil) != answered {
					t.Errorf("Invalidate: %v", err)
				}
				synctest.Wait()
				get(t, reader, "k", "new") // also if the writer does not know that it was applied
			})
		})
	}
}

// A write that the store refused is told at once, and again when it was repeated: in
// between the reader has read the old value again.
func TestBusTellsOfReplays(t *testing.T) {
	onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
		o := newOrigin("old", 0)
		opts := bused(st, b, o)
		opts.TagsOf = func(string, string) []string { return []string{"tag"} }
		a, reader := newCache(t, opts), newCache(t, opts)
		for write, kind := range map[string]memstore.Kind{"key": memstore.OpInvalidate, "tag": memstore.OpVoidTags} {
			o.write("old " + write)
			must(t, a.Invalidate(bg, "k"))
			time.Sleep(10 * time.Millisecond)
			fill(t, "old "+write, []string{"k"}, reader)
			faultNext(st, kind, 1, memstore.Fault{Err: errors.New("not now")})
			o.write("new")
			err := error(nil)
			if write == "key" {
				err = a.Invalidate(bg, "k")
			} else {
				err = a.InvalidateTag(bg, "tag")
			}
			if err == nil {
				t.Fatal("the write has not failed")
			}
			synctest.Wait()
			get(t, reader, "k", "old "+write)
			time.Sleep(time.Second)
			get(t, reader, "k", "new")
		}
	})
}

// What was missed makes local doubtful, and no more: while the store cannot be asked, a
// value within its time is served, marked as stale.
func TestBusGapWhileTheStoreIsDown(t *testing.T) {
	onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
		o := newOrigin("1", 0)
		c := newCache(t, bused(st, b, o))
		fill(t, "1", []string{"k"}, c)
		st.Down()
		b.Reconnect()
		if r, err := c.Fetch(bg, "k"); err != nil || r.Value != "1" || !r.Stale {
			t.Errorf("got %+v, %v", r, err)
		}
		o.wantLoads(t, 1)
	})
}

// What a closing cache has written is told still.
func TestCloseTellsTheBus(t *testing.T) {
	onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
		o := newOrigin("1", 0)
		a, other := newCache(t, bused(st, b, o)), newCache(t, bused(st, b, o))
		keys := []string{"k", "l", "m"}
		fill(t, "1", keys, other)
		o.write("2")
		for _, key := range keys { // the second one would wait for others
			must(t, a.Invalidate(bg, key))
			synctest.Wait()
		}
		start := time.Now()
		must(t, a.Close())
		if took := time.Since(start); took != 0 {
			t.Errorf("Close took %v", took)
		}
		fill(t, "2", keys, other)
		if n := b.Subscribers("test"); n != 1 {
			t.Errorf("%d subscriptions are left, want 1", n)
		}
		// A bus that hangs holds Close up for a bounded time.
		b.SetFault(func(membus.Message) membus.Fault { return membus.Fault{Hold: make(chan struct{})} })
		must(t, other.Invalidate(bg, "k"))
		start = time.Now()
		must(t, other.Close())
		if took := time.Since(start); took > 2*onefill.DefaultStoreTimeout {
			t.Errorf("Close took %v", took)
		}
	})
}

// deafBus cannot be subscribed to until it can.
type deafBus struct {
	*membus.Bus
	mu   sync.Mutex
	deaf error
}

func (d *deafBus) Subscribe(ctx context.Context, topic string, heard func([]byte), lost func()) (func(), error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.deaf != nil {
		return nil, d.deaf
	}
	return d.Bus.Subscribe(ctx, topic, heard, lost)
}

func TestBusIsAwayAtNew(t *testing.T) {
	onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
		o, told := newOrigin("1", 0), &gaps{}
		d := &deafBus{Bus: b, deaf: errors.New("the bus is asleep")}
		opts := bused(st, d, o)
		opts.Name, opts.Observer = "test", told
		if _, err := onefill.New(opts); !errors.Is(err, d.deaf) || !strings.Contains(err.Error(), `cache "test" to its bus`) {
			t.Errorf("New: %v", err)
		}
		opts.AllowStoreDown = true
		c, a := newCache(t, opts), newCache(t, bused(st, b, o))
		fill(t, "1", []string{"k"}, c)
		o.write("2")
		must(t, a.Invalidate(bg, "k"))
		time.Sleep(10 * time.Second)
		inLocal(t, c, "k", "1")
		d.mu.Lock()
		d.deaf = nil
		d.mu.Unlock()
		time.Sleep(5 * time.Second)
		told.want(t, c, "connection")
		get(t, c, "k", "2")
		o.write("3")
		must(t, a.Invalidate(bg, "k"))
		synctest.Wait()
		get(t, c, "k", "3")
		// One that never could is closed all the same.
		d.mu.Lock()
		d.deaf = errors.New("again")
		d.mu.Unlock()
		must(t, newCache(t, opts).Close())
	})
}

func TestBusOptions(t *testing.T) {
	for want, o := range map[string]options{
		"Bus is set and Store is nil": {Bus: membus.New()},
		"Bus is a nil *membus.Bus":    {Name: "n", Store: memstore.New(), Bus: (*membus.Bus)(nil)},
	} {
		if _, err := onefill.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New: %v, want %q", err, want)
		}
	}
	closed := membus.New()
	must(t, closed.Close())
	_, err := onefill.New(options{Name: "n", Store: memstore.New(), Bus: closed})
	if !errors.Is(err, bus.ErrClosed) {
		t.Errorf("New on a closed bus: %v", err)
	}
}

// A bus that was closed under the cache is one that fails: nothing waits for it.
func TestBusClosedUnderTheCache(t *testing.T) {
	onBus(t, func(t *testing.T, st *memstore.Store, b *membus.Bus) {
		o := newOrigin("1", 0)
		c := newCache(t, bused(st, b, o))
		fill(t, "1", []string{"k"}, c)
		must(t, b.Close())
		o.write("2")
		must(t, c.Invalidate(bg, "k"))
		get(t, c, "k", "2")
		time.Sleep(time.Minute)
		if s := c.Stats(); s.BusErrors == 0 || s.BusErrors > 100 {
			t.Errorf("%d errors in a minute", s.BusErrors)
		}
	})
}

// With a store that pushes a bus is needless and does no harm.
func TestBusBesidePushes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st, b, o := memstore.New(), membus.New(), newOrigin("1", 0)
		a, other := newCache(t, bused(st, b, o)), newCache(t, bused(st, b, o))
		for range 20 {
			fill(t, *o.row.Load(), []string{"k"}, a, other)
			o.write(store.NewToken().String())
			must(t, a.Invalidate(bg, "k"))
			synctest.Wait()
		}
		fill(t, *o.row.Load(), []string{"k"}, a, other)
		o.wantLoads(t, 21)
	})
}
