package otelonefill_test

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
	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/otelonefill"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// herd is n callers of a key at one moment, each in a trace of its own.
func (p *program) herd(t *testing.T, n int, get func(ctx context.Context, i int) error) {
	t.Helper()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			ctx, span := p.tracer.Start(t.Context(), "GET", trace.WithNewRoot())
			defer span.End()
			if err := get(ctx, i); err != nil {
				t.Errorf("Get: %v", err)
			}
		})
	}
	all.Wait()
}

// Twelve callers of an absent key, each in a trace of its own, at one moment: the load returns
// when all twelve wait. There are 12 waits, each in its caller's trace, and one load, in the trace
// of the one who began it; load and waits are linked both ways.
func TestSpansOfAHerd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newProgram(t, otelonefill.Options{})
		c := p.newCache(t, options{Name: "users", Load: func(ctx context.Context, _ string) (string, error) {
			_, span := p.tracer.Start(ctx, "SELECT")
			defer span.End()
			time.Sleep(100 * time.Millisecond)
			return "Ada", nil
		}})
		p.herd(t, 12, func(ctx context.Context, _ int) error { _, err := c.Get(ctx, "ada"); return err })
		synctest.Wait()

		load, waits := p.one(t, "load users"), p.named("wait users")
		if len(waits) != 12 || len(load.Links()) != 12 || attr(load, "onefill.waiters") != "12" || attr(load, "onefill.fwd") != "miss" || attr(load, "onefill.outcome") != "ok" {
			t.Errorf("%d waits; the load has %d links, attributes %v", len(waits), len(load.Links()), load.Attributes())
		}
		callers := map[trace.SpanID]bool{}
		for _, caller := range p.named("GET") {
			callers[caller.SpanContext().SpanID()] = true
		}
		leaders := 0
		for _, w := range waits {
			if !callers[w.Parent().SpanID()] {
				t.Error("a wait is in no caller's trace, or a caller has two")
			}
			delete(callers, w.Parent().SpanID())
			if len(w.Links()) != 1 || !linked(w, load) || !linked(load, w) {
				t.Errorf("a wait has the links %v", w.Links())
			}
			if led := w.Parent().Equal(load.Parent()); led {
				leaders++
				if attr(w, "onefill.collapsed") != "false" {
					t.Error("the wait of the one who began the load is called collapsed")
				}
			} else if attr(w, "onefill.collapsed") != "true" {
				t.Error("a wait for another's load is not called collapsed")
			}
			if attr(w, "onefill.outcome") != "answered" || w.Status().Code != codes.Unset {
				t.Errorf("a wait has the attributes %v and the status %v", w.Attributes(), w.Status())
			}
		}
		if leaders != 1 {
			t.Errorf("the load is the child of %d callers", leaders)
		}
		if sql := p.one(t, "SELECT"); sql.Parent().SpanID() != load.SpanContext().SpanID() {
			t.Error("the loader's own span is no child of the load's")
		}
	})
}

// The same in three processes: one of them loads, and only there is a load to link to.
func TestSpansOfAHerdInThreeProcesses(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ps, cs := processes(t)
		var all sync.WaitGroup
		for i, p := range ps {
			all.Go(func() {
				p.herd(t, 4, func(ctx context.Context, _ int) error { _, err := cs[i].Get(ctx, "ada"); return err })
			})
		}
		all.Wait()
		synctest.Wait()

		loads := 0
		for i, p := range ps {
			waits, here := p.named("wait users"), p.named("load users")
			loads += len(here)
			if len(waits) != 4 {
				t.Errorf("process %d has %d waits", i, len(waits))
			}
			for _, w := range waits {
				if len(w.Links()) != len(here) || len(here) == 0 && attr(w, "onefill.collapsed") != "" {
					t.Errorf("process %d with %d loads: a wait has %d links, attributes %v", i, len(here), len(w.Links()), w.Attributes())
				}
			}
			for _, l := range here {
				if len(l.Links()) != 4 {
					t.Errorf("the load has %d links", len(l.Links()))
				}
			}
			if s := cs[i].Stats(); int(s.Loads) != len(here) {
				t.Errorf("process %d: %d loads, %d spans", i, s.Loads, len(here))
			}
		}
		if loads != 1 {
			t.Errorf("%d loads", loads)
		}
	})
}

// More waiters than links: those that are left out are counted.
func TestMaxLinks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newProgram(t, otelonefill.Options{MaxLinks: 5})
		c := p.newCache(t, options{Name: "users", Load: slowly(time.Second)})
		p.herd(t, 12, func(ctx context.Context, _ int) error { _, err := c.Get(ctx, "ada"); return err })
		synctest.Wait()
		load := p.one(t, "load users")
		if len(load.Links()) != 5 || attr(load, "onefill.waiters") != "12" || attr(load, "onefill.links_dropped") != "7" {
			t.Errorf("%d links, attributes %v", len(load.Links()), load.Attributes())
		}
	})
}

// Two GetMany of the same keys, room for one link: the one beyond is counted once, not for each
// key.
func TestMaxLinksOfGetMany(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newProgram(t, otelonefill.Options{MaxLinks: 1})
		c := p.newCache(t, options{Name: "users", LoadMany: many})
		p.herd(t, 2, func(ctx context.Context, _ int) error {
			_, err := c.GetMany(ctx, []string{"a", "b", "c"})
			return err
		})
		synctest.Wait()
		load := p.one(t, "load users")
		if len(load.Links()) != 1 || attr(load, "onefill.waiters") != "2" || attr(load, "onefill.links_dropped") != "1" {
			t.Errorf("%d links, attributes %v", len(load.Links()), load.Attributes())
		}
	})
}

// A GetMany whose keys are loaded one by one waits for several loads, and is linked to as many
// as there is room for.
func TestWaitForSeveralLoads(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newProgram(t, otelonefill.Options{MaxLinks: 2})
		c := p.newCache(t, options{Name: "users", Load: func(context.Context, string) (string, error) {
			time.Sleep(time.Second)
			return "Ada", nil
		}})
		p.herd(t, 1, func(ctx context.Context, _ int) error {
			_, err := c.GetMany(ctx, []string{"a", "b", "c"})
			return err
		})
		synctest.Wait()
		wait := p.one(t, "wait users")
		if n := len(p.named("load users")); n != 3 || len(wait.Links()) != 2 || attr(wait, "onefill.links_dropped") != "1" || attr(wait, "onefill.collapsed") != "false" {
			t.Errorf("%d loads; the wait has %d links, attributes %v", n, len(wait.Links()), wait.Attributes())
		}
	})
}

// Two calls with one and the same parent: the load is the child of both, as it were, but only
// one of them is called its beginner.
func TestTwoCallsOfOneParent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newProgram(t, otelonefill.Options{})
		c := p.newCache(t, options{Name: "users", Load: slowly(time.Second)})
		ctx, parent := p.tracer.Start(t.Context(), "GET")
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if _, err := c.Get(ctx, "ada"); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		parent.End()
		synctest.Wait()
		waits := p.named("wait users")
		if len(waits) != 2 || attr(waits[0], "onefill.collapsed") != "false" || attr(waits[1], "onefill.collapsed") != "true" {
			t.Errorf("%d waits: %v", len(waits), waits)
		}
	})
}

// many is a LoadMany that takes a second.
func many(_ context.Context, keys []string) (map[string]string, error) {
	bubble.After(time.Second)
	rows := map[string]string{}
	for _, k := range keys {
		rows[k] = k
	}
	return rows, nil
}

// A refresh in the background is nobody's child: the call that set it off has its answer. It is
// linked to that call, and who joins it, since the stale value may not be served any more, is
// linked to it.
func TestSpanOfARefresh(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newProgram(t, otelonefill.Options{})
		c := p.newCache(t, options{Name: "users", TTL: time.Minute, StaleFor: time.Hour, Load: slowly(time.Second)})
		_, err := c.Get(t.Context(), "ada")
		check(t, err)
		if waits := p.named("wait users"); len(waits) != 0 {
			t.Errorf("%d waits of a call without a trace", len(waits))
		}
		first := p.one(t, "load users")
		if first.Parent().IsValid() || len(first.Links()) != 0 {
			t.Errorf("the load of a call without a trace has the parent %v and the links %v", first.Parent(), first.Links())
		}

		time.Sleep(2 * time.Minute)
		ctx, caller := p.tracer.Start(t.Context(), "GET")
		_, err = c.Get(ctx, "ada")
		caller.End()
		check(t, err)
		time.Sleep(time.Minute)
		refresh := p.named("load users")[1]
		if refresh.Parent().IsValid() || len(refresh.Links()) != 1 || !refresh.Links()[0].SpanContext.Equal(caller.SpanContext()) {
			t.Errorf("the refresh has the parent %v and the links %v", refresh.Parent(), refresh.Links())
		}
		if refresh.SpanContext().TraceID() == caller.SpanContext().TraceID() || attr(refresh, "onefill.fwd") != "stale" {
			t.Errorf("the refresh is in the caller's trace, or has the attributes %v", refresh.Attributes())
		}
		if waits := p.named("wait users"); len(waits) != 0 {
			t.Errorf("%d waits, of callers who have not waited", len(waits))
		}
	})
}

// One LoadMany for several keys is one load; a GetMany is one wait.
func TestSpansOfGetMany(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newProgram(t, otelonefill.Options{Keys: otelonefill.KeysPlain})
		c := p.newCache(t, options{Name: "users", LoadMany: many})
		p.herd(t, 2, func(ctx context.Context, _ int) error {
			_, err := c.GetMany(ctx, []string{"a", "b", "c"})
			return err
		})
		synctest.Wait()
		load, waits := p.one(t, "load users"), p.named("wait users")
		if len(waits) != 2 || len(load.Links()) != 2 || attr(load, "onefill.flights") != "3" || attr(load, "onefill.key") != "" {
			t.Errorf("%d waits; the load has %d links, attributes %v", len(waits), len(load.Links()), load.Attributes())
		}
		led := 0
		for _, w := range waits {
			if len(w.Links()) != 1 || attr(w, "onefill.flights") != "3" {
				t.Errorf("a wait has %d links, attributes %v", len(w.Links()), w.Attributes())
			}
			if attr(w, "onefill.collapsed") == "false" {
				led++
			}
		}
		if led != 1 {
			t.Errorf("%d of the waits have begun the load", led)
		}
	})
}

// How spans end: the outcome, the type of the error, and that nothing of a key or of an error's
// text is in them unless it was asked for.
func TestSpanOutcomes(t *testing.T) {
	refused := errors.New("password of ada is hunter2")
	for _, tt := range []struct {
		name                string
		load                func(ctx context.Context) (string, error)
		takes, leave        time.Duration // the load; the caller, after this time
		loadEnds, waitEnds  string
		loadError, waitKind string
	}{
		{"ok", func(context.Context) (string, error) { return "Ada", nil }, 0, 0, "ok", "answered", "", ""},
		{"not found", func(context.Context) (string, error) { return "", onefill.ErrNotFound }, 0, 0, "not_found", "answered", "", ""},
		{"error", func(context.Context) (string, error) { return "", refused }, 0, 0, "error", "answered", "_OTHER", "_OTHER"},
		{"panic", func(context.Context) (string, error) { panic(refused) }, 0, 0, "panic", "answered", "panic", "_OTHER"},
		{"load timeout", func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() }, 0, 0, "timeout", "answered", "timeout", "_OTHER"},
		{"wait timeout", func(context.Context) (string, error) { return "Ada", nil }, 3 * time.Second, 0, "ok", "timeout", "", "timeout"},
		{"left", func(context.Context) (string, error) { return "Ada", nil }, time.Second, time.Millisecond, "ok", "left", "", "canceled"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p := newProgram(t, otelonefill.Options{})
				o := options{Name: "users", WaitTimeout: 2 * time.Second, LoadTimeout: time.Second, Load: func(ctx context.Context, _ string) (string, error) {
					time.Sleep(tt.takes)
					return tt.load(ctx)
				}}
				if tt.name == "wait timeout" {
					o.LoadTimeout = 5 * time.Second
				}
				c := p.newCache(t, o)
				ctx, span := p.tracer.Start(t.Context(), "GET")
				if tt.leave > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.leave)
					defer cancel()
				}
				_, _ = c.Get(ctx, "ada") // what it returns is the core's affair
				span.End()
				time.Sleep(10 * time.Second)
				load, wait := p.one(t, "load users"), p.one(t, "wait users")
				if got := attr(load, "onefill.outcome") + " " + attr(load, "error.type"); got != tt.loadEnds+" "+tt.loadError {
					t.Errorf("the load: %q, want %q %q", got, tt.loadEnds, tt.loadError)
				}
				if got := attr(wait, "onefill.outcome") + " " + attr(wait, "error.type"); got != tt.waitEnds+" "+tt.waitKind {
					t.Errorf("the wait: %q, want %q %q", got, tt.waitEnds, tt.waitKind)
				}
				for _, s := range []sdktrace.ReadOnlySpan{load, wait} {
					if text := fmt.Sprint(s.Name(), s.Attributes(), s.Status(), s.Events()); strings.Contains(text, "ada") || strings.Contains(text, "hunter2") {
						t.Errorf("the span %s holds a key or an error's text: %s", s.Name(), text)
					}
					if failed := s.Status().Code == codes.Error; failed != (attr(s, "error.type") != "") {
						t.Errorf("the span %s has the status %v", s.Name(), s.Status())
					}
				}
			})
		})
	}
}

func TestKeysInSpans(t *testing.T) {
	for keys, want := range map[otelonefill.Keys]string{
		otelonefill.KeysHidden: "", otelonefill.KeysHashed: "fdee430d40bd57de", otelonefill.KeysPlain: "ada",
	} {
		p := newProgram(t, otelonefill.Options{Keys: keys, ErrorText: keys == otelonefill.KeysPlain})
		c := p.newCache(t, options{Name: "users", Load: func(context.Context, string) (string, error) { return "", errors.New("no route to host") }})
		ctx, span := p.tracer.Start(t.Context(), "GET")
		_, err := c.Get(ctx, "ada")
		span.End()
		if err == nil {
			t.Fatal("no error")
		}
		for _, name := range []string{"load users", "wait users"} {
			s := p.one(t, name)
			if got := attr(s, "onefill.key"); got != want {
				t.Errorf("Keys %d: %s has the key %q, want %q", keys, name, got, want)
			}
			if said := strings.Contains(s.Status().Description, "no route to host"); said != (keys == otelonefill.KeysPlain) {
				t.Errorf("Keys %d: %s has the status %+v", keys, name, s.Status())
			}
		}
	}
}

// Callers that are not sampled leave nothing behind, and those who are see the load of one who is not
// neither as a link nor as an error.
func TestNotSampled(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newProgram(t, otelonefill.Options{}, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
		inside := make(chan trace.SpanContext, 1)
		c := p.newCache(t, options{Name: "users", Load: func(ctx context.Context, _ string) (string, error) {
			inside <- trace.SpanContextFromContext(ctx)
			time.Sleep(time.Second)
			return "Ada", nil
		}})
		// The first caller is not sampled and leads; the second is, and joins.
		var all sync.WaitGroup
		all.Go(func() {
			ctx, span := p.tracer.Start(t.Context(), "GET")
			defer span.End()
			_, err := c.Get(ctx, "ada")
			check(t, err)
		})
		synctest.Wait()
		sampled := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, Remote: true})
		all.Go(func() {
			_, err := c.Get(trace.ContextWithRemoteSpanContext(t.Context(), sampled), "ada")
			check(t, err)
		})
		all.Wait()
		synctest.Wait()
		if spans := p.spans.Ended(); len(spans) != 1 || spans[0].Name() != "wait users" || len(spans[0].Links()) != 0 || attr(spans[0], "onefill.collapsed") != "" {
			t.Errorf("%d spans: %v", len(spans), spans)
		}
		if sc := <-inside; !sc.IsValid() || sc.IsSampled() {
			t.Errorf("the loader's context holds %v, which decides anew whether to sample", sc)
		}
	})
}
