package cli

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/store"
)

func codes(v *verdict) string {
	var all []string
	for _, r := range v.Reasons[1:] { // the first one is about what cannot be seen from here
		all = append(all, r.Code)
	}
	return v.Outcome + ": " + strings.Join(all, " ")
}

// Every state of a key, asked about with the options of several readers.
func TestWhyStates(t *testing.T) {
	forStores(t, func(t *testing.T, open func() store.Store, name string, args []string) {
		states(t, open(), name)
		for _, tt := range []struct{ key, flags, want string }{
			{"fresh", "", "fresh: fresh"},
			{"fresh", "--codec raw --tags", "fresh: fresh"},
			{"fresh", "--codec json", "load: other_codec free"},
			{"stale", "", "load: stale no_stale_for free"},
			{"stale", "--stale-on-error 1h", "load: stale no_stale_for free stale_on_error"},
			{"stale", "--stale-for 1h", "stale: stale stale_for refresh"},
			{"stale", "--stale-for 1ms", "load: stale too_stale free"},
			{"over", "", "wait: stale no_stale_for leased"},
			{"over", "--stale-on-error 1h", "wait: stale no_stale_for leased stale_on_error"},
			{"over", "--stale-for 1h", "stale: stale stale_for leased"},
			{"leased", "", "wait: absent leased"},
			{"leased", "--wait-timeout 1s", "wait: absent leased wait_timeout"},
			{"failed", "", "failure: absent failed"},
			{"not_found", "", "not_found: fresh"},
			{"unstorable", "", "load_alone: unstorable"},
			{"undecodable", "", "load: undecodable free"},
			{"absent", "", "load: absent free"},
			{"void", "--stale-for 1h --stale-on-error 1h", "load: tag_voided free"},
		} {
			line := append([]string{"why", "--json", tt.key}, strings.Fields(tt.flags)...)
			var w whyLine
			if err := json.Unmarshal([]byte(ok(t, append(line, args...)...)), &w); err != nil {
				t.Fatal(err)
			}
			if got := codes(&w.verdict); got != tt.want {
				t.Errorf("%s %s: %s, want %s", tt.key, tt.flags, got, tt.want)
			}
			if leased := tt.key == "over" || tt.key == "leased"; leased != (w.Lease != nil) || tt.key == "over" && w.Lease.Owner != "web-3:4711" {
				t.Errorf("%s %s: the lease is %+v", tt.key, tt.flags, w.Lease)
			}
			if wait := w.WaitMS; (wait > 0) != strings.HasPrefix(tt.want, "wait") || wait > 62_000 || strings.Contains(tt.flags, "wait-timeout") && wait != 1000 {
				t.Errorf("%s %s: it waits for %d ms", tt.key, tt.flags, wait)
			}
		}
		for _, flags := range [][]string{nil, {"--stale-for", "1h"}} {
			text := ok(t, slices.Concat([]string{"why", "over"}, flags, args)...)
			if want := ": held by web-3:4711 (lease ends in "; !strings.Contains(text, want) {
				t.Errorf("%v: no %q in\n%s", flags, want, text)
			}
		}
		text := ok(t, append([]string{"why", "failed"}, args...)...)
		for _, want := range []string{`A reader of "failed" of ` + name + `, at 127.0.0.1:`, "gets: the error of that load, without a load.\n  1. a process may have", "  2. the store has no value\n",
			`  3. the last load failed ("no route to host"), and nobody tries for `} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	})
}

// What no server brings about in a test's time, judged from what a store would say.
func TestWhyJudges(t *testing.T) {
	now := time.Now()
	failure := store.Envelope{Kind: store.KindFailure, Created: now, Failures: 3, Payload: []byte("down")}
	blocks := store.FailureInfo{Record: failure.Encode(), Blocks: time.Second, Left: 2 * time.Second}
	remembered := store.FailureInfo{Record: failure.Encode(), Left: time.Second}
	env := func(kind store.Kind, fresh time.Duration, epoch uint64) store.Item {
		e := store.Envelope{Kind: kind, Created: now.Add(-time.Minute), SoftExpiry: now.Add(fresh), Epoch: epoch}
		return store.Item{Data: e.Encode(), Found: true}
	}
	for _, tt := range []struct {
		holding store.Holding
		tags    store.TagState
		reader  reader
		want    string
	}{
		{store.Holding{Item: env(store.KindValue, -time.Second, 0), Failure: blocks}, store.TagState{}, reader{staleOnError: time.Minute}, "stale_on_error: stale no_stale_for failed stale_on_error"},
		{store.Holding{Item: env(store.KindValue, -time.Second, 0), Failure: blocks}, store.TagState{}, reader{staleFor: time.Minute}, "stale: stale stale_for failed"},
		{store.Holding{Item: env(store.KindValue, -time.Second, 0), Failure: blocks}, store.TagState{}, reader{}, "failure: stale no_stale_for failed"},
		{store.Holding{Failure: remembered}, store.TagState{}, reader{}, "load: absent failed_before free"},
		{store.Holding{Item: env(store.KindNotFound, -time.Second, 0)}, store.TagState{}, reader{staleFor: time.Hour}, "load: expired free"},
		{store.Holding{Item: env(store.KindUnstorable, -time.Second, 0)}, store.TagState{}, reader{}, "load: expired free"},
		{store.Holding{Item: env(store.KindFailure, time.Second, 0)}, store.TagState{}, reader{}, "load: undecodable free"},
		{store.Holding{Item: store.Item{Found: true}, Foreign: "list"}, store.TagState{}, reader{}, "load: undecodable free"},
		{store.Holding{Item: env(store.KindValue, time.Second, 0)}, store.TagState{}, reader{tags: true}, "load: untagged free"},
		{store.Holding{Item: env(store.KindValue, time.Second, 0)}, store.TagState{}, reader{}, "fresh: fresh"},
		{store.Holding{Item: env(store.KindValue, time.Second, 5)}, store.TagState{Generations: []uint64{5}}, reader{}, "fresh: fresh"},
		{store.Holding{Item: env(store.KindValue, time.Second, 5)}, store.TagState{Epoch: 5, Generations: []uint64{0}}, reader{}, "fresh: fresh"},
		{store.Holding{Item: env(store.KindValue, time.Second, 5)}, store.TagState{Epoch: 6, Generations: []uint64{0}}, reader{}, "load: tag_lost free"},
		{store.Holding{Item: env(store.KindValue, time.Second, 5)}, store.TagState{Generations: []uint64{0}}, reader{}, "load: tag_lost free"},
		{store.Holding{Item: env(store.KindValue, time.Second, 5)}, store.TagState{Generations: []uint64{6}}, reader{}, "load: tag_voided free"},
	} {
		l := &look{cache: "c", key: "k", now: now, holding: tt.holding, tagState: tt.tags}
		l.read()
		if l.env.Epoch != 0 {
			l.tags = []string{""}
		}
		v := tt.reader.judge(l)
		if got := codes(v); got != tt.want {
			t.Errorf("%+v, %+v: %s, want %s", tt.holding.Failure, tt.reader, got, tt.want)
		}
		if v.Text == "" || slices.ContainsFunc(v.Reasons, func(r reason) bool { return r.Text == "" || strings.Contains(r.Text, "%!") }) {
			t.Errorf("%+v", v)
		}
	}
	// A clock that is slow does not make a value live longer than it was stored for.
	e := store.Envelope{Kind: store.KindValue, Created: now.Add(time.Hour), SoftExpiry: now.Add(time.Hour + time.Second)}
	l := &look{now: now, holding: store.Holding{Item: store.Item{Data: e.Encode(), Found: true}}}
	if l.read(); l.freshFor() != time.Second {
		t.Errorf("fresh for %v", l.freshFor())
	}
	if age := l.line().Value.AgeMS; age > -3_599_000 {
		t.Errorf("the age of a value of the future is %d ms", age)
	}
}
