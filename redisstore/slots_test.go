package redisstore

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// The slot of a key is the one that the client computes, by which it chooses the node.
func TestSlotOf(t *testing.T) {
	b := client(t, shared.Get(t).URL()).B()
	for _, name := range []string{"n", "users", strings.Repeat("x", 128)} {
		for _, key := range []string{"", "a", "42", "}", "a}b", "{", "{a}", "a:b", "é", "\x00\xff", strings.Repeat("k", 5000)} {
			full := valueKey(sessionPrefix(name), key)
			for _, each := range []string{full, leaseKey(full), epochKey(name), tagPrefix(name) + key} {
				cmd := b.Arbitrary("GET").Keys(each).Build()
				if got, want := slotOfFull(each), int(cmd.Slot())%slotCount; got != want {
					t.Errorf("slot of %.50q is %d, want %d", each, got, want)
				}
			}
			if got, want := slotOf(sessionPrefix(name), key), slotOfFull(full); got != want {
				t.Errorf("slot of %.50q of %.10s is %d, want %d", key, name, got, want)
			}
		}
	}
}

// view is CLUSTER NODES in short: "id epoch slots" of a primary, "id primary" of a replica.
func view(t *testing.T, lines ...string) []clusterNode {
	t.Helper()
	var text strings.Builder
	for _, line := range lines {
		f := strings.Fields(line)
		if len(f) == 2 {
			fmt.Fprintf(&text, "%s %s:1@2,host slave %s 0 1 0 connected\n", f[0], f[0], f[1])
			continue
		}
		fmt.Fprintf(&text, "%s %s:1@2 master - 0 1 %s connected %s\n", f[0], f[0], f[1], strings.Join(f[2:], " "))
	}
	plain, verbatim := must(readNodes(text.String()))(t), must(readNodes("txt:"+text.String()))(t)
	if !reflect.DeepEqual(plain, verbatim) {
		t.Errorf("%q is read as %v, in RESP3 as %v", &text, plain, verbatim)
	}
	return plain
}

// What an atlas makes of the views of nodes, one after the other.
func TestAtlas(t *testing.T) {
	a, now := newAtlas(1), time.Now()
	step := func(what string, after time.Duration, moved bool, servers string, lines ...string) {
		t.Helper()
		now = now.Add(after)
		if got := a.learn(view(t, lines...), now); got != moved {
			t.Errorf("%s: moved %v, want %v", what, got, moved)
		}
		if got := fmt.Sprint(a.server(0), " ", a.server(5000), " ", a.server(16383)); got != servers {
			t.Errorf("%s: servers of the first, a middle and the last slot are %q, want %q", what, got, servers)
		}
	}
	step("the first", 0, false, "A:1 A:1 B:1", "A 1 0-8191", "B 2 8192-16383", "a A", "b B")
	step("the same", 0, false, "A:1 A:1 B:1", "A 1 0-8191", "B 2 8192-16383", "a A", "b B")
	step("a slot on its way", 0, false, "A:1 A:1 B:1", "A 1 0-8191 [0->-B]", "B 2 8192-16383 [0-<-A]", "a A", "b B")
	step("it has arrived", 0, true, "B:1 A:1 B:1", "A 1 1-8191", "B 3 0 8192-16383", "a A", "b B")
	step("who has not heard of it", time.Second, false, "B:1 A:1 B:1", "A 1 0-8191", "B 2 8192-16383", "a A", "b B")
	g := a.present.Load().guards[a.present.Load().owners[5000]]
	step("a replica takes A's place", 0, true, "B:1 A:1 B:1", "a 4 1-8191", "B 3 0 8192-16383", "b B")
	if again := a.present.Load().guards[a.present.Load().owners[5000]]; again != g {
		t.Error("the server has another guard than before")
	}
	step("A comes back as its replica", 0, false, "B:1 A:1 B:1", "a 4 1-8191", "B 3 0 8192-16383", "b B", "A a")
	step("A is the primary again", 0, true, "B:1 A:1 B:1", "A 5 1-8191", "B 3 0 8192-16383", "b B", "a A")
	step("its former replica has slots of its own", 0, true, "B:1 a:1 a B:1", "A 5 1-4999", "a 6 5000-8191", "B 3 0 8192-16383", "b B")
	step("nobody has the last", 0, true, "B:1 a:1 a ", "A 5 1-4999", "a 7 5000-8191", "B 3 0 8192-16382", "b B")
	step("set up anew, at once", time.Second, false, "B:1 a:1 a ", "B 1 0-16383")
	step("set up anew, for long", staleChart, true, "B:1 B:1 B:1", "B 1 0-16383")
}

func TestReadNodesRefuses(t *testing.T) {
	const head = "id 127.0.0.1:1@2 master - 0 0 "
	for _, text := range []string{"", "\n", "id 127.0.0.1:1", head + "x connected 0-1", head + "1 connected 0-16384",
		head + "1 connected 5-4", head + "1 connected -1", head + "1 connected a-b"} {
		if got, err := readNodes(text); err == nil || !strings.Contains(err.Error(), "CLUSTER NODES") {
			t.Errorf("%q: %v, %v, want an error", text, got, err)
		}
	}
}

// Two nodes that have taken each other's place twice and then share the slots are two
// servers: each has had the name that the other one inherited.
func TestAtlasTellsTwoFromEachOther(t *testing.T) {
	a := newAtlas(1)
	for _, lines := range [][]string{
		{"A 1 0-16383", "a A"},
		{"A 1 0-99", "a 2 100-16383"},
		{"a 3 0-16383", "A a"},
		{"A 4 0-16383", "a A"},
		{"A 4 0-99", "a 5 100-16383"},
	} {
		drawn, nodes := make(chan struct{}), view(t, lines...)
		go func() {
			defer close(drawn)
			a.learn(nodes, time.Now())
		}()
		select {
		case <-drawn:
		case <-time.After(patience):
			t.Fatalf("%q: no chart is drawn, with the atlas locked", lines)
		}
	}
	if a.server(0) == a.server(16383) {
		t.Errorf("both are %q", a.server(0))
	}
}

// A view of a node that is behind changes nothing, the names neither: its former replica,
// which has slots of its own, keeps its own name, and with it its breaker.
func TestAtlasOfOneWhoIsBehind(t *testing.T) {
	a, now := newAtlas(1), time.Now()
	a.learn(view(t, "A 1 0-16383", "a A"), now)
	a.learn(view(t, "A 1 0-99", "a 2 100-16383"), now)
	name := a.server(16383)
	a.learn(view(t, "A 1 0-16383", "a A"), now)
	a.learn(view(t, "a 2 99-16383", "A 1 0-98"), now) // in another order
	if got := a.server(16383); got != name {
		t.Errorf("it is %q now, and was %q", got, name)
	}
}

// What a cluster leaves behind whose nodes come and go is bounded.
func TestAtlasForgets(t *testing.T) {
	a := newAtlas(1)
	for i := range 1000 {
		a.learn(view(t, fmt.Sprintf("N%d %d 0-16383", i, i+1), fmt.Sprintf("n%d N%d", i, i)), time.Now())
	}
	if names, guards := len(a.names), len(a.guards); names > 4 || guards > 4 {
		t.Errorf("%d names and %d guards are kept, of two nodes", names, guards)
	}
}
