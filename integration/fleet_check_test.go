package integration

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// checking is how long porcupine may take for one row as one cache saw it. It takes
// milliseconds.
const checking = 20 * time.Second

// check lets porcupine judge what the round has seen, and has the check itself checked.
func (s *saga) check() {
	b := s.bounds()
	s.totals.push = append(s.totals.push, b.push)
	begin := time.Now()
	shown := 0
	for i, key := range s.keys {
		c := s.history[key]
		s.totals.reads += len(c.looks)
		s.totals.writes += len(c.writes)
		s.totals.histories += len(c.nodes())
		for j := range c.writes {
			for node := range s.nodes {
				if node != c.writes[j].node {
					s.totals.bounds++
					if b.elsewhere(node, &c.writes[j]) == b.push {
						s.totals.byPush++
					}
				}
			}
		}
		refused, bad := c.judge(b, checking), c.wrong(b)
		if (len(refused) > 0) != (len(bad) > 0) {
			s.t.Errorf("row %d: porcupine refuses the histories of %d caches, and arithmetic finds %d reads that are wrong", i, len(refused), len(bad))
		}
		for _, v := range refused {
			if shown++; shown <= 3 {
				s.t.Errorf("row %d (%q): what cache %d saw is not what the register allows (unsure: %v); see %s", i, key, v.node, v.unsure, draw(s.t, v.history))
			}
		}
		for _, text := range bad[:min(len(bad), 5)] {
			s.t.Error(text)
		}
	}
	s.checked += time.Since(begin)
	if !s.t.Failed() {
		s.disprove(b)
	}
}

// draw writes porcupine's picture of a history to a file that stays, and returns its name.
func draw(t *testing.T, history []porcupine.Operation) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "onefill-history-") //nolint:usetesting // it is looked at when the test is over
	if err != nil {
		return err.Error()
	}
	path := filepath.Join(dir, "history.html")
	_, info := porcupine.CheckOperationsVerbose(registerModel, history, checking)
	if err := porcupine.VisualizePath(registerModel, info, path); err != nil {
		return err.Error()
	}
	return path
}

// disprove changes one thing in a history that was accepted, in each way in which a
// cache could be wrong, and wants porcupine to refuse it.
func (s *saga) disprove(b *bounds) {
	done := map[string]bool{}
	for _, key := range s.keys {
		for name, spoil := range spoilers(b) {
			if done[name] {
				continue
			}
			spoiled, node, ok := spoil(s.history[key])
			if !ok {
				continue
			}
			done[name] = true
			if porcupine.CheckOperationsTimeout(registerModel, spoiled.asSeenBy(node, b), checking) != porcupine.Illegal {
				s.t.Errorf("row %q with %s is accepted as cache %d saw it: the check cannot fail", key, name, node)
			}
			if len(spoiled.wrong(b)) == 0 {
				s.t.Errorf("row %q with %s is right by arithmetic", key, name)
			}
		}
	}
	if len(done) != len(spoilers(b)) {
		s.t.Errorf("only %v could be tried: the round has not seen enough", done)
	}
}

// spoilers make a history that may not be, of one that may: each changes the version that
// one read brought, or takes a write back, and says which cache's history is wrong then.
func spoilers(b *bounds) map[string]func(*chronicle) (*chronicle, int, bool) {
	// change copies the chronicle with another version in the first read that is chosen.
	change := func(c *chronicle, choose func(*looked) (version int64, ok bool)) (*chronicle, int, bool) {
		for i := range c.looks {
			if version, ok := choose(&c.looks[i]); ok {
				changed := &chronicle{c.writes, slices.Clone(c.looks)}
				changed.looks[i].version = version
				return changed, c.looks[i].node, true
			}
		}
		return nil, 0, false
	}
	told := func(c *chronicle, l *looked, own bool, before int64) (version int64, ok bool) {
		for i := range c.writes {
			w := &c.writes[i]
			if (w.node == l.node) == own && w.op != "Expire" && w.told.end+before < l.at.begin {
				version = max(version, w.version)
			}
		}
		return version - 1, version > 0
	}
	return map[string]func(*chronicle) (*chronicle, int, bool){
		"a read that is older than its own cache's write": func(c *chronicle) (*chronicle, int, bool) {
			return change(c, func(l *looked) (int64, bool) { return told(c, l, true, 0) })
		},
		"a read that is older than another cache's write, beyond Local.TTL": func(c *chronicle) (*chronicle, int, bool) {
			return change(c, func(l *looked) (int64, bool) { return told(c, l, false, b.localTTL) })
		},
		"a read of what is not committed": func(c *chronicle) (*chronicle, int, bool) {
			last := int64(1)
			for _, w := range c.writes {
				last = max(last, w.version)
			}
			return change(c, func(*looked) (int64, bool) { return last + 1, true })
		},
		"a write that was lost": func(c *chronicle) (*chronicle, int, bool) {
			if len(c.writes) == 0 {
				return nil, 0, false
			}
			last := c.writes[0]
			for _, w := range c.writes {
				if w.version > last.version {
					last = w
				}
			}
			lost := &chronicle{c.writes, slices.Clone(c.looks)}
			for i := range lost.looks {
				lost.looks[i].version = min(lost.looks[i].version, last.version-1)
			}
			return lost, last.node, true
		},
	}
}

// TestRegister checks the check: on small random histories, right ones and wrong ones,
// porcupine and arithmetic come to the same, and both come to each often.
func TestRegister(t *testing.T) {
	random := seeded(t)
	b := &bounds{push: 20, localTTL: 60, staleFor: 40, pushes: true}
	verdicts := map[bool]int{}
	for range 3000 {
		c := &chronicle{}
		at := int64(0)
		for version := int64(2); version < 8; version++ {
			at += random.Int64N(60)
			begin := at + random.Int64N(20)
			c.writes = append(c.writes, wrote{
				node: random.IntN(2), op: []string{"Set", "Invalidate", "Expire", "InvalidateTag"}[random.IntN(4)], version: version,
				commit: span64{at, at}, told: span64{begin, begin + random.Int64N(60)},
			})
			at++
		}
		for range 1 + random.IntN(6) {
			begin := random.Int64N(400)
			l := looked{node: random.IntN(2), op: "Fetch", stale: random.IntN(2) == 0, at: span64{begin, begin + random.Int64N(40)}}
			for _, w := range c.writes { // what was committed by then, or a little before
				if w.commit.begin <= l.at.end {
					l.version = w.version
				}
			}
			l.version = max(1, l.version-random.Int64N(3))
			c.looks = append(c.looks, l)
		}
		b.unheard = map[int][]span64{random.IntN(2): {{random.Int64N(400), random.Int64N(400)}}}
		refused, wrong := c.judge(b, checking), c.wrong(b)
		if (len(refused) > 0) != (len(wrong) > 0) {
			t.Fatalf("porcupine refuses %v, arithmetic says %v; of %+v, %+v", refused, wrong, c.writes, c.looks)
		}
		verdicts[len(refused) > 0]++
	}
	t.Logf("%d histories are right, %d wrong", verdicts[false], verdicts[true])
	if min(verdicts[true], verdicts[false]) < 300 {
		t.Errorf("the histories are not mixed: %v", verdicts)
	}
}
