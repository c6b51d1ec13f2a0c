package onefill_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The direction of imports (docs: "Layout"), and the habits that came from our own
// incidents. Both are read from the source, so that they cannot go out of date.

const module = "github.com/onefill/onefill"

// mayImport says which packages of this repository, and which modules of others, each
// package may depend on, directly or not, besides the standard library. A package that
// is not listed must not exist, unless its longest listed prefix ends in "/...".
var mayImport = map[string][]string{
	"store":                       {},
	"store/memstore":              {"store"},
	"store/storetest":             {"store"},
	"bus":                         {},
	"bus/membus":                  {"bus"},
	"bus/bustest":                 {"bus"},
	"queue":                       {},
	"queue/memqueue":              {"queue"},
	"queue/queuetest":             {"queue"},
	"internal/flight":             {"store"},
	"internal/origin":             {"store"},
	"internal/local":              {"store", "github.com/maypok86/otter"},
	"internal/bubble":             {}, // for tests
	"internal/servers":            {}, // for tests, and for the lab
	"internal/servers/servertest": {"internal/servers"},
	"internal/faultproxy":         {}, // for tests
	"docs":                        {"", "internal/...", "store/...", "bus/...", "github.com/maypok86/otter"},
	"":                            {"internal/flight", "internal/origin", "internal/local", "store", "bus", "github.com/maypok86/otter"},
	"watch":                       {"", "internal/...", "store", "bus", "github.com/maypok86/otter"},
	"invalidation":                {"", "internal/...", "store", "bus", "queue", "github.com/maypok86/otter"},
	"metrics":                     {"", "internal/...", "store", "bus", "queue", "github.com/maypok86/otter"},
	"redisstore/...":              {"store", "bus", "redisstore/...", "github.com/redis/rueidis", "golang.org/x"},
	"memcachestore/...":           {"store", "memcachestore/..."},
	"pgqueue/...":                 {"queue", "pgqueue/...", "github.com/jackc", "golang.org/x"},
	"sqsqueue/...":                {"queue", "sqsqueue/...", "github.com/aws"},
	"otelonefill/...":             {"", "internal/...", "store", "bus", "queue", "otelonefill/...", "*"},
	"promonefill/...":             {"", "internal/...", "store", "bus", "queue", "promonefill/...", "*"},
	"cmd/...":                     {"*"},
	"integration/...":             {"*"},
	"bench/...":                   {"*"},
	"examples/...":                {"*"},
	"scripts/...":                 {"*"},
}

type listed struct {
	ImportPath string
	Standard   bool
	Deps       []string
	Module     *struct{ Path string }
	Error      *struct{ Err string }
}

func TestImports(t *testing.T) {
	if testing.Short() {
		t.Skip("runs go list")
	}
	for _, dir := range modules(t) {
		t.Run(dir, func(t *testing.T) {
			for _, p := range list(t, dir) {
				checkImports(t, p)
			}
		})
	}
}

// modules are the directories of go.work that exist.
func modules(t *testing.T) (dirs []string) {
	t.Helper()
	work, err := os.ReadFile("go.work")
	if os.IsNotExist(err) {
		return []string{"."}
	}
	must(t, err)
	for line := range strings.Lines(string(work)) {
		dir := strings.TrimPrefix(strings.TrimSpace(line), "use ")
		if strings.HasPrefix(dir, ".") {
			if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
				dirs = append(dirs, path.Clean(dir))
			}
		}
	}
	return dirs
}

// list returns the packages of a module and of everything that they depend on.
func list(t *testing.T, dir string) map[string]listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-deps", "-json=ImportPath,Standard,Deps,Module,Error", "./...")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v in %s: %v", cmd, dir, err)
	}
	all := make(map[string]listed)
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p listed
		must(t, d.Decode(&p))
		if !p.Standard {
			all[p.ImportPath] = p
		}
	}
	for name, p := range all { // Deps without the standard library
		p.Deps = slices.DeleteFunc(p.Deps, func(d string) bool { _, ok := all[d]; return !ok })
		all[name] = p
	}
	return all
}

// ours is an import path within the repository, without the module's.
func ours(p string) (string, bool) {
	if p == module {
		return "", true
	}
	return strings.CutPrefix(p, module+"/")
}

func checkImports(t *testing.T, p listed) {
	t.Helper()
	name, ok := ours(p.ImportPath)
	if !ok {
		return
	}
	allowed, ok := mayImport[name]
	for dir := name; !ok && dir != "."; dir = path.Dir(dir) {
		allowed, ok = mayImport[dir+"/..."]
	}
	if !ok {
		t.Errorf("package %s has no entry in mayImport of arch_test.go", p.ImportPath)
	}
	for _, dep := range p.Deps {
		if !slices.ContainsFunc(allowed, func(a string) bool { return covers(a, dep) }) {
			t.Errorf("%s depends on %s", p.ImportPath, dep)
		}
	}
}

func covers(allowed, dep string) bool {
	if allowed == "*" {
		return true
	}
	name, own := ours(dep)
	if !own {
		return strings.Contains(allowed, ".") && strings.HasPrefix(dep, strings.TrimSuffix(allowed, "/..."))
	}
	prefix, all := strings.CutSuffix(allowed, "/...")
	return name == prefix || all && strings.HasPrefix(name, prefix+"/")
}

// The rules themselves are sound: they refuse what they are there to refuse.
func TestImportRules(t *testing.T) {
	for _, tt := range []struct {
		pkg, dep string
		ok       bool
	}{
		{"store", "otter", false}, {"internal/flight", "", false}, {"", "store", true}, {"", "store/memstore", false},
		{"", "redisstore", false}, {"redisstore", "", false}, {"redisstore", "store", true}, {"redisstore", "store/memstore", false},
		{"memcachestore/internal/meta", "memcachestore", true}, {"invalidation", "queue", true}, {"queue", "store", false},
	} {
		allowed, ok := mayImport[tt.pkg]
		for dir := tt.pkg; !ok && dir != "."; dir = path.Dir(dir) {
			allowed, ok = mayImport[dir+"/..."]
		}
		dep := strings.TrimSuffix(module+"/"+tt.dep, "/")
		if got := slices.ContainsFunc(allowed, func(a string) bool { return covers(a, dep) }); got != tt.ok {
			t.Errorf("%q may import %q: %t, want %t", tt.pkg, tt.dep, got, tt.ok)
		}
	}
}

// timeNow are the files of the core that may read the wall clock, and why. All else
// goes by local's monotonic clock, and no client's clock decides about a lease.
var timeNow = map[string]string{
	"entry.go":                 "the age of what was loaded",
	"load.go":                  "the cost of a load; the moment at which a lease was granted, for the version",
	"failure.go":               "when a load failed, in its record",
	"invalidate.go":            "the soft expiry that Expire sets",
	"health.go":                "the probes of a server that is down",
	"remote.go":                "when the next probe of a store that is down may go",
	"replay.go":                "when entries of the store were granted that are not trusted",
	"internal/local/local.go":  "the base of the monotonic clock",
	"internal/flight/table.go": "the age of a flight, against Local.TTL",
}

// No time.Now in the core outside of the files above; no sleep in a test outside of a
// bubble, be it time.Sleep or a bare <-time.After: one in real time is a race with the
// machine.
func TestHabits(t *testing.T) {
	fset := token.NewFileSet()
	var now []string
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(p) != ".go" {
			return nil
		}
		p = filepath.ToSlash(p)
		f, err := parser.ParseFile(fset, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil // somebody else's work in progress; the compiler will say
		}
		core := !strings.Contains(p, "/") || strings.HasPrefix(p, "internal/flight/") || strings.HasPrefix(p, "internal/local/") || strings.HasPrefix(p, "internal/origin/")
		switch isTest := strings.HasSuffix(p, "_test.go"); {
		case isTest:
			for _, at := range sleepsOutsideBubbles(fset, f) {
				t.Errorf("%s: a sleep in a test outside of a synctest bubble; force the order, or poll a condition with a deadline", at)
			}
			if calls(f, "synctest", "Test") {
				t.Errorf("%s: synctest.Test; begin bubbles with internal/bubble, which the race detector survives", p)
			}
		case core && calls(f, "time", "Now"):
			now = append(now, p)
		}
		return nil
	})
	must(t, err)
	for _, p := range now {
		if timeNow[p] == "" {
			t.Errorf("%s reads time.Now; the core goes by local's clock (timeNow in arch_test.go has the exceptions)", p)
		}
	}
}

// isCall says whether n is a call of pkg.name.
func isCall(n ast.Node, pkg, name string) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == pkg
}

// calls says whether there is a call of pkg.name under n.
func calls(under ast.Node, pkg, name string) (found bool) {
	ast.Inspect(under, func(n ast.Node) bool {
		found = found || isCall(n, pkg, name)
		return !found
	})
	return found
}

// bubbles are the functions, besides synctest.Test and bubble.Test, that call a test in
// a bubble.
var bubbles = map[string]bool{"bubble": true, "layouts": true, "stores": true, "onBus": true, "inBubble": true}

// sleepsOutsideBubbles finds what sleeps in real time: the calls of time.Sleep, and the
// receives from time.After that nothing else ends, neither another case of their select nor
// the deadline of the poll of which they are the pause. What a call that makes a bubble is given
// runs there; of any other function, be it named or in a table, nobody knows, so it uses
// bubble.After, which panics anywhere else.
func sleepsOutsideBubbles(fset *token.FileSet, f *ast.File) (at []string) {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		ended := map[ast.Node]bool{} // the receives that something else ends
		ast.Inspect(fn, func(n ast.Node) bool {
			if isCall(n, "time", "Sleep") || receivesAfter(n) && !ended[n] {
				at = append(at, fset.Position(n.Pos()).String())
			}
			for _, r := range endedBy(n) {
				ended[r] = true
			}
			return !makesBubble(n)
		})
	}
	return at
}

// makesBubble says whether n is a call that runs what it is given in a bubble.
func makesBubble(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	id, ok := call.Fun.(*ast.Ident)
	return ok && bubbles[id.Name] || isCall(n, "bubble", "Test") || isCall(n, "inbubble", "Test") || isCall(n, "synctest", "Test")
}

// receivesAfter says whether n is <-time.After(...).
func receivesAfter(n ast.Node) bool {
	r, ok := n.(*ast.UnaryExpr)
	return ok && r.Op == token.ARROW && isCall(r.X, "time", "After")
}

// endedBy are the receives that a select of several cases ends, or a loop that looks at a
// clock or at a context.
func endedBy(n ast.Node) (receives []ast.Node) {
	switch n := n.(type) {
	case *ast.SelectStmt:
		for _, c := range n.Body.List {
			if comm, ok := c.(*ast.CommClause).Comm.(*ast.ExprStmt); ok && len(n.Body.List) > 1 {
				receives = append(receives, comm.X)
			}
		}
	case *ast.ForStmt:
		deadline := false
		inLoop(n, func(n ast.Node) {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			deadline = deadline || isCall(n, "time", "Now") || isCall(n, "time", "Since") || ok && sel.Sel.Name == "Err"
		})
		inLoop(n, func(n ast.Node) {
			if deadline && receivesAfter(n) {
				receives = append(receives, n)
			}
		})
	}
	return receives
}

// inLoop visits what a loop does each time round, itself.
func inLoop(loop *ast.ForStmt, visit func(ast.Node)) {
	for _, part := range []ast.Node{loop.Cond, loop.Post, loop.Body} {
		if part == nil {
			continue
		}
		ast.Inspect(part, func(n ast.Node) bool {
			visit(n)
			switch n.(type) {
			case *ast.FuncLit, *ast.ForStmt, *ast.RangeStmt:
				return false
			}
			return true
		})
	}
}

// The linter finds what it is there to find.
func TestHabitsAreSeen(t *testing.T) {
	src := `package p
func TestA(t *testing.T) { time.Sleep(1); synctest.Test(t, func(t *testing.T) { time.Sleep(2) }) }
func TestB(t *testing.T) { go func() { time.Sleep(4) }() }
func TestC(t *testing.T) { bubble(t, func(t *testing.T) { time.Sleep(6) }); go func() { time.Sleep(7) }() }
// helper is called in a bubble, it says.
func helper() { time.Sleep(5) }
func other() { time.Now() }
func bare() { <-time.After(1) }
func alone() { select { case <-time.After(1): } }
func either() { select { case <-time.After(1): case <-done: <-time.After(2) } }
func poll() { for deadline := time.Now(); !ok(); { if time.Now().After(deadline) { return }; <-time.After(1) } }
func pollPost() { for ; ; <-time.After(1) { if time.Since(began) > 1 { return } } }
func pollContext() { for ctx.Err() == nil { <-time.After(1) } }
func rounds() { for range 3 { <-time.After(1) } }
func forever() { for !ok() { <-time.After(1) } }
func within() { for time.Now().Before(end) { for range 3 { <-time.After(1) }; go func() { <-time.After(2) }() } }
func bubbled() { bubble.Test(t, func(t *testing.T) { <-time.After(1) }) }`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", src, parser.ParseComments)
	must(t, err)
	if got := fmt.Sprint(sleepsOutsideBubbles(fset, f)); got != "[p.go:2:28 p.go:3:40 p.go:4:89 p.go:6:17 p.go:8:15 p.go:9:30 p.go:10:61 p.go:14:31 p.go:15:30 p.go:16:60 p.go:16:91]" {
		t.Errorf("sleeps outside of bubbles: %s", got)
	}
	if !calls(f, "time", "Now") || !calls(f, "synctest", "Test") {
		t.Error("time.Now was not seen, or synctest.Test")
	}
}
